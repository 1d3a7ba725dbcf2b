"""What the end-to-end tests share: a student that can add, processes that always end, a trainer's dealings."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment.demo.main import free_port

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
    with urllib.request.urlopen(url, timeout=60) as response:
        return json.load(response)


def post_json(url: str, data: Any) -> Any:
    request = urllib.request.Request(url, json.dumps(data).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    """The first true value of `condition`; fails the test after PATIENCE_S."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.1)
    raise AssertionError(f"waited {PATIENCE_S:.0f} s for {what}")


@contextmanager
def running(arguments: list[str], log: Path, cwd: Path, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Python process, ended with the block (killed if it must be); its output goes to `log`."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=child_environment(**env),
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def child_environment(**env: str) -> dict[str, str]:
    quiet = {"WANDB_MODE": "disabled", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    inherited = {key: value for key, value in os.environ.items() if key != "ATROPOS_ALLOW_DUMMY_MANAGED_SERVER"}
    return {**inherited, **quiet, **env}


def run(arguments: list[str], cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """A Python process that ends by itself."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=child_environment(**env),
        check=False,
    )


@contextmanager
def trajectory_api(tmp_path: Path) -> Iterator[str]:
    """atroposlib's real run-api on a free port."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    arguments = ["-m", "atroposlib.cli.run_api", "--host", "127.0.0.1", "--port", str(port)]
    with running(arguments, tmp_path / "run-api.log", tmp_path):
        wait_for(lambda: _answers(url), "run-api")
        yield url


def _answers(url: str) -> bool:
    try:
        get_json(url)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
    return True


def register_trainer(url: str, *, batch_size: int, max_token_len: int, starting_step: int = 0) -> None:
    """What a trainer does first: register, and ask for a batch, which lets environments in."""
    post_json(
        f"{url}/register",
        {
            "wandb_group": "test",
            "wandb_project": "test",
            "batch_size": batch_size,
            "max_token_len": max_token_len,
            "checkpoint_dir": "checkpoints",
            "save_checkpoint_interval": 5,
            "starting_step": starting_step,
            "num_steps": 100,
        },
    )
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
