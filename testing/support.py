"""What the end-to-end tests share: a student that can add, processes that always end, a trainer's dealings."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import requests

from testing.inference_server import free_port

PATIENCE_S = 300.0
"""How long to wait for what must happen: for a machine that is loaded many times over, not for ours."""


class AddingStudent:
    """Solves chain_sum items, but gives a wrong answer every `wrong_every`-th time (0: never)."""

    def __init__(self, wrong_every: int = 2) -> None:
        self._wrong_every = wrong_every
        self._calls = itertools.count(1)

    def __call__(self, prompt: str) -> str:
        question = prompt.rsplit("user\n", 1)[1]
        terms = re.search(r"(-?\d+(?: [+-] \d+)+) =", question)
        assert terms, f"not a chain_sum question: {question!r}"
        result = sum(int(term.replace(" ", "")) for term in re.findall(r"(?:^|[+-] )-?\d+", terms.group(1)))
        wrong = self._wrong_every and next(self._calls) % self._wrong_every == 0
        return f"<think>I add the terms one by one.</think>\n<answer>{result + 1 if wrong else result}</answer>"


def get_json(url: str) -> Any:
    return requests.get(url, timeout=60).json()


def wait_for(condition: Callable[[], Any], what: str, limit_s: float = PATIENCE_S) -> Any:
    """The first true value of `condition`; fails the test after `limit_s`."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.1)
    raise AssertionError(f"waited {limit_s:.0f} s for {what}")


@contextmanager
def running(
    arguments: list[str], log: Path, cwd: Path, program: str | Path = sys.executable, **env: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A process, ended with the block (killed if it must be); its output goes to `log`."""
    options: dict[str, Any] = {"cwd": cwd, "env": child_environment(**env), "start_new_session": True}
    with log.open("wb") as output:
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
        process = subprocess.Popen([program, *arguments], **streams, **options)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def child_environment(**env: str) -> dict[str, str]:
    quiet = {"WANDB_MODE": "disabled", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    return {**os.environ, **quiet, **env}


def run(arguments: list[str], cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a Python process to its end."""
    options: dict[str, Any] = {"cwd": cwd, "env": child_environment(**env), "timeout": PATIENCE_S}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, **options)


def answers(url: str) -> bool:
    """Whether a server answers at this address."""
    with suppress(requests.RequestException):
        return requests.get(url, timeout=60).ok
    return False


@contextmanager
def trajectory_api(tmp_path: Path) -> Iterator[str]:
    """atroposlib's real run-api on a free port."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    arguments = ["-m", "atroposlib.cli.run_api", "--host", "127.0.0.1", "--port", str(port)]
    with running(arguments, tmp_path / "run-api.log", tmp_path):
        wait_for(lambda: answers(url), "run-api")
        yield url


def register_trainer(url: str, **fields: Any) -> None:
    """What a trainer does first: register, and ask for a batch, which lets environments in."""
    values = {
        "wandb_group": "test",
        "wandb_project": "test",
        "batch_size": 8,
        "max_token_len": 2048,
        "checkpoint_dir": "checkpoints",
        "save_checkpoint_interval": 5,
        "starting_step": 0,
        "num_steps": 10**6,
    }
    requests.post(f"{url}/register", json={**values, **fields}, timeout=60).raise_for_status()
    get_json(f"{url}/batch")


def next_batch(url: str) -> list[dict[str, Any]]:
    batch: list[dict[str, Any]] = wait_for(lambda: get_json(f"{url}/batch")["batch"], "a batch")
    return batch


def flags(tokenizer_dir: Path, base_url: str, **settings: Any) -> list[str]:
    """Command-line flags for a small run on chain_sum; `env__name=value` and `openai__name=value` override."""
    values: dict[str, Any] = {
        "env.tokenizer_name": tokenizer_dir,
        "env.include_tasks": "chain_sum",
        "env.complexity_mode": "none",
        "env.num_eval_samples_per_task": 3,
        "env.group_size": 4,
        "env.max_token_length": 2048,
        "env.num_generation_workers": 1,
        "env.num_scoring_workers": 1,
        "env.use_wandb": False,
        "openai.base_url": base_url,
        "openai.model_name": "mock",
    }
    values.update({name.replace("__", "."): value for name, value in settings.items()})
    return [text for name, value in values.items() for text in (f"--{name}", str(value))]


def parsed_command_line(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[Any]]:
    """The environment's and the servers' settings that the real command line makes of `arguments`; nothing starts."""
    from reasoning_gym_environment import ReasoningGymEnv

    made: list[Any] = []

    def capture(self: Any, config: Any, server_configs: Any, **_: Any) -> None:
        made.extend((config, server_configs))
        raise SystemExit(0)

    monkeypatch.setattr(ReasoningGymEnv, "__init__", capture)
    monkeypatch.setattr(sys, "argv", ["reasoning-gym-env", *arguments])
    with pytest.raises(SystemExit) as end:
        ReasoningGymEnv.cli()
    assert end.value.code == 0
    config, servers = made
    return config, servers
