"""A killed `evaluate` or `process` goes on where it stopped, and pays again for no more than was in flight."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ..mock_dialects import ThreadedMockServer
from ..support import PATIENCE_S, flags, run, running

pytestmark = pytest.mark.slow
MODULE = ["-m", "reasoning_gym_environment"]
KILLS = int(os.environ.get("KILLS", "3"))
AT_ONCE = 4
WANTED = 40


async def reply(prompt: str) -> str:
    """Slowly, and always the same to a prompt."""
    await asyncio.sleep(0.1)
    return f"<think>I think.</think><answer>{sum(prompt.encode()) % 50}</answer>"


def killed_and_again(arguments: list[str], folder: Path, server: ThreadedMockServer, seed: int) -> int:
    """Kill the command KILLS times, each time after a few more requests, then let it end; the requests in all."""
    random, before = Random(seed), len(server.requests)
    for number in range(KILLS):
        with running([*MODULE, *arguments], folder / f"{number}.log", folder) as process:
            enough = len(server.requests) + random.randint(1, 2 * WANTED // KILLS)
            give_up = time.monotonic() + PATIENCE_S
            while len(server.requests) < enough and process.poll() is None and time.monotonic() < give_up:
                time.sleep(random.random() * 0.05)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    result = run([*MODULE, *arguments], folder)
    assert result.returncode == 0, result.stderr
    return len(server.requests) - before


def without_interruption(arguments: list[str], folder: Path) -> None:
    folder.mkdir()
    result = run([*MODULE, *arguments], folder)
    assert result.returncode == 0, result.stderr


def settings(tokenizer_dir: Path, server: ThreadedMockServer, **more: Any) -> list[str]:
    values = {"openai__server_type": "openai", "env__include_tasks": "chain_sum,gcd,lcm,spell_backward", **more}
    return flags(tokenizer_dir, server.base_url, **values)


def samples(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "results" / "samples.jsonl").open(encoding="utf-8")]


def test_an_evaluation_that_is_killed_goes_on(tmp_path: Path, tokenizer_dir: Path, byte_tokenizer: Any) -> None:
    with ThreadedMockServer(reply, byte_tokenizer) as server:
        arguments = [
            "evaluate",
            *settings(
                tokenizer_dir,
                server,
                env__num_eval_samples_per_task=WANTED // 4,
                env__eval_tasks="all",
                env__data_dir_to_save_evals="results",
                openai__num_requests_for_eval=AT_ONCE,
            ),
        ]
        without_interruption(arguments, tmp_path / "whole")
        (tmp_path / "killed").mkdir()
        asked = killed_and_again(arguments, tmp_path / "killed", server, seed=1)
    assert samples(tmp_path / "killed") == samples(tmp_path / "whole")
    assert len(samples(tmp_path / "whole")) == WANTED
    assert not (tmp_path / "killed" / "results" / "answers.jsonl").exists()
    metrics = [json.loads((tmp_path / name / "results" / "metrics.json").read_text()) for name in ("killed", "whole")]
    assert metrics[0]["results"] == metrics[1]["results"]
    # One request of each start finds out whether the server is there.
    assert asked <= WANTED + KILLS * AT_ONCE + KILLS + 1


def test_a_process_that_is_killed_goes_on(tmp_path: Path, tokenizer_dir: Path, byte_tokenizer: Any) -> None:
    with ThreadedMockServer(reply, byte_tokenizer) as server:
        arguments = [
            "process",
            *settings(
                tokenizer_dir,
                server,
                env__total_steps=WANTED,
                env__group_size=2,
                env__process_concurrency=AT_ONCE,
                env__complexity_mode="random",
                env__task_sampling="uniform",
                env__data_path_to_save_groups="groups.jsonl",
            ),
        ]
        without_interruption(arguments, tmp_path / "whole")
        (tmp_path / "killed").mkdir()
        asked = killed_and_again(arguments, tmp_path / "killed", server, seed=2)
    whole = (tmp_path / "whole" / "groups.jsonl").read_bytes()
    assert (tmp_path / "killed" / "groups.jsonl").read_bytes() == whole
    assert whole.count(b"\n") == WANTED
    assert (tmp_path / "killed" / "groups.html").exists()
    assert asked <= WANTED + KILLS * AT_ONCE + KILLS + 1
