"""The OpenEnv environment behind its real server and client; run by test_openenv.py, where openenv is installed."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from openenv.core.generic_client import GenericEnvClient

from reasoning_gym_environment import Tasks
from tests.hostile_answers import ATTACK_MODULE, ATTACK_TASK, RIGHT


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The command itself, on a free port."""
    command = [sys.executable, "-m", "reasoning_gym_environment", "openenv", "--port", "0"]
    attacked = ["--modules", ATTACK_MODULE, "--allow-unguarded", ATTACK_TASK, "--scoring-timeout-s", "1"]
    command += ["--include", f"chain_sum,{ATTACK_TASK}", *attacked]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert server.stdout is not None
    line = ""
    while not (found := re.search(r"http://([\d.]+:\d+)", line)):
        line = server.stdout.readline()
        assert line, "the server ended"
    yield f"ws://{found[1]}"
    server.terminate()
    assert server.wait(60) in (0, 143, -15)


async def test_sessions_are_asked_and_graded_side_by_side(address: str) -> None:
    async def session(seed: int) -> tuple[Any, Any]:
        async with GenericEnvClient(base_url=address) as env:
            asked = await env.reset(task="chain_sum", seed=seed, level=1)
            again = await env.reset(task="chain_sum", seed=seed, level=1)
            assert asked.observation == again.observation and not asked.done
            question = asked.observation["messages"][1]["content"]
            right = eval(question.split(":")[1].rstrip(" ="))
            done = await env.step({"completion": f"<think>so</think><answer>**{right}**</answer>"})
            return question, (done.reward, done.done, done.observation["outcome"])

    found = await asyncio.gather(*(session(seed) for seed in range(8)))
    assert len({question for question, _ in found}) == 8
    assert {result for _, result in found} == {(1.0, True, "correct")}
    with Tasks("chain_sum") as tasks:
        assert found[3][0] == tasks.draw("chain_sum", 3, 1).question


async def test_the_stream_goes_on_when_a_session_goes_away_and_eval_questions_are_held_out(address: str) -> None:
    asked = []
    for _ in range(3):
        async with GenericEnvClient(base_url=address) as env:
            asked.append((await env.reset()).observation)
    assert len({(one["task"], one["seed"]) for one in asked}) == 3 and {one["split"] for one in asked} == {"train"}
    async with GenericEnvClient(base_url=address) as env:
        first, second = [(await env.reset(split="eval", index=index)).observation for index in (0, 1)]
        assert first["split"] == second["split"] == "eval" and first["seed"] != second["seed"]
        for wrong in ({"split": "eval"}, {"split": "test"}, {"task": "chain_sum"}, {"level": 1}):
            with pytest.raises(RuntimeError, match="expected"):
                await env.reset(**wrong)
        with pytest.raises(RuntimeError, match="reset first"):
            await env.step({"completion": "x"})


async def test_hostile_answers_have_no_effect_and_no_reward(address: str, tmp_path: Any) -> None:
    marker = tmp_path / "touched"
    answers = {RIGHT: 1.0, f"__import__('os').system('touch {marker}')": None, "while True: pass": None}
    async with GenericEnvClient(base_url=address) as env:
        for answer, reward in answers.items():
            await env.reset(task=ATTACK_TASK, seed=1)
            done = await env.step({"completion": f"<answer>{answer}</answer>"})
            assert done.reward == reward, (answer, done)
    assert not marker.exists()
