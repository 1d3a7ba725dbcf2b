"""A killed `evaluate` or `process` goes on where it stopped, and pays again for no more than was in flight."""

from __future__ import annotations

import asyncio
import os
import time
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


SETTINGS: dict[str, dict[str, Any]] = {
    "evaluate": {
        "env__num_eval_samples_per_task": WANTED // 4,
        "env__eval_tasks": "all",
        "env__data_dir_to_save_evals": ".",
        "openai__num_requests_for_eval": AT_ONCE,
    },
    "process": {
        "env__total_steps": WANTED,
        "env__group_size": 2,
        "env__process_concurrency": AT_ONCE,
        "env__complexity_mode": "random",
        "env__task_sampling": "uniform",
        "env__data_path_to_save_groups": "groups.jsonl",
    },
}


@pytest.mark.parametrize(("command", "output"), [("evaluate", "samples.jsonl"), ("process", "groups.jsonl")])
def test_a_command_that_is_killed_goes_on(
    tmp_path: Path, tokenizer_dir: Path, byte_tokenizer: Any, command: str, output: str
) -> None:
    killed, whole, random = tmp_path / "killed", tmp_path / "whole", Random(command)
    killed.mkdir()
    whole.mkdir()
    with ThreadedMockServer(reply, byte_tokenizer) as server:
        values = {"openai__server_type": "openai", "env__include_tasks": "chain_sum,gcd,lcm,spell_backward"}
        program = ["-m", "reasoning_gym_environment", command]
        program += flags(tokenizer_dir, server.base_url, **values, **SETTINGS[command])
        for number in range(KILLS):
            with running(program, killed / f"{number}.log", killed) as process:
                enough = len(server.requests) + random.randint(1, 2 * WANTED // KILLS)
                wait_for(lambda n=enough, p=process: len(server.requests) >= n or p.poll() is not None, "requests")
                time.sleep(random.random() * 0.05)
        for folder in (killed, whole):
            result = run(program, folder)
            assert result.returncode == 0, result.stderr
        # One request of each start finds out whether the server is there.
        assert len(server.requests) <= 2 * (WANTED + 1) + KILLS * (AT_ONCE + 1)
    lines = (whole / output).read_bytes()
    assert (killed / output).read_bytes() == lines and lines.count(b"\n") == WANTED
