"""A killed `evaluate` or `process` goes on where it stopped, and pays again for no more than was in flight."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ..mock_dialects import ThreadedMockServer
from ..support import flags, run, running, wait_for

pytestmark = pytest.mark.slow
KILLS = int(os.environ.get("KILLS", "3"))
AT_ONCE = 4
WANTED = 40


async def reply(prompt: str) -> str:
    """Slowly, and always the same to a prompt."""
    await asyncio.sleep(0.1)
    return f"<think>I think.</think><answer>{sum(prompt.encode()) % 50}</answer>"


@pytest.fixture
def killed_and_whole(tmp_path: Path, tokenizer_dir: Path, byte_tokenizer: Any) -> Callable[..., tuple[Path, Path]]:
    """`killed_and_whole(command, **settings)`: the folders of a run that is killed, and one that is not."""

    def make(command: str, **settings: Any) -> tuple[Path, Path]:
        killed, whole, random = tmp_path / "killed", tmp_path / "whole", Random(command)
        killed.mkdir()
        whole.mkdir()
        with ThreadedMockServer(reply, byte_tokenizer) as server:
            values = {"openai__server_type": "openai", "env__include_tasks": "chain_sum,gcd,lcm,spell_backward"}
            program = ["-m", "reasoning_gym_environment", command]
            program += flags(tokenizer_dir, server.base_url, **values, **settings)
            for number in range(KILLS):
                with running(program, killed / f"{number}.log", killed) as process:
                    enough = len(server.requests) + random.randint(1, 2 * WANTED // KILLS)
                    wait_for(lambda n=enough, p=process: len(server.requests) >= n or p.poll() is not None, "requests")
                    time.sleep(random.random() * 0.05)
                    if process.poll() is None:
                        os.killpg(process.pid, signal.SIGKILL)
            for folder in (killed, whole):
                result = run(program, folder)
                assert result.returncode == 0, result.stderr
            # One request of each start finds out whether the server is there.
            assert len(server.requests) <= 2 * (WANTED + 1) + KILLS * (AT_ONCE + 1)
        return killed, whole

    return make


def test_an_evaluation_that_is_killed_goes_on(killed_and_whole: Any) -> None:
    killed, whole = killed_and_whole(
        "evaluate",
        env__num_eval_samples_per_task=WANTED // 4,
        env__eval_tasks="all",
        env__data_dir_to_save_evals="results",
        openai__num_requests_for_eval=AT_ONCE,
    )
    samples = (whole / "results" / "samples.jsonl").read_bytes()
    assert (killed / "results" / "samples.jsonl").read_bytes() == samples
    assert samples.count(b"\n") == WANTED and not (killed / "results" / "answers.jsonl").exists()
    metrics = [json.loads((folder / "results" / "metrics.json").read_text()) for folder in (killed, whole)]
    assert metrics[0]["results"] == metrics[1]["results"]


def test_a_process_that_is_killed_goes_on(killed_and_whole: Any) -> None:
    killed, whole = killed_and_whole(
        "process",
        env__total_steps=WANTED,
        env__group_size=2,
        env__process_concurrency=AT_ONCE,
        env__complexity_mode="random",
        env__task_sampling="uniform",
        env__data_path_to_save_groups="groups.jsonl",
    )
    groups = (whole / "groups.jsonl").read_bytes()
    assert (killed / "groups.jsonl").read_bytes() == groups and groups.count(b"\n") == WANTED
    assert (killed / "groups.html").exists()
