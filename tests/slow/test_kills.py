"""A killed `evaluate` goes on where it stopped, and pays again for no more than was in flight."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

from testing.inference_server import ThreadedMockServer
from testing.support import flags, run, running, wait_for

pytestmark = pytest.mark.slow
KILLS = int(os.environ.get("KILLS", "3"))
AT_ONCE = 4
WANTED = 40


async def reply(prompt: str) -> str:
    """Slowly, and always the same to a prompt."""
    await asyncio.sleep(0.1)
    return f"<think>I think.</think><answer>{sum(prompt.encode()) % 50}</answer>"


def test_an_evaluation_that_is_killed_goes_on(tmp_path: Path, tokenizer_dir: Path, byte_tokenizer: Any) -> None:
    killed, whole, random = tmp_path / "killed", tmp_path / "whole", Random(1)
    killed.mkdir()
    whole.mkdir()
    with ThreadedMockServer(reply, byte_tokenizer) as server:
        settings: dict[str, Any] = {
            "openai__server_type": "openai",
            "openai__num_requests_for_eval": AT_ONCE,
            "env__include_tasks": "chain_sum,gcd,lcm,spell_backward",
            "env__num_eval_samples_per_task": WANTED // 4,
            "env__eval_tasks": "all",
            "env__data_dir_to_save_evals": ".",
        }
        program = ["-m", "reasoning_gym_environment", "evaluate", *flags(tokenizer_dir, server.base_url, **settings)]
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
    lines = (whole / "samples.jsonl").read_bytes()
    assert (killed / "samples.jsonl").read_bytes() == lines and lines.count(b"\n") == WANTED
