"""The OpenEnv environment behind its real server and client; run by test_real_libraries.py, from the wheel."""

from __future__ import annotations

import asyncio
import json
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trl
from datasets import Dataset
from openenv.core.generic_client import GenericEnvClient

from reasoning_gym_environment import HeldOut, Tasks
from reasoning_gym_environment.integrations import openenv
from testing.hostile_answers import ATTACK_MODULE, ATTACK_TASK
from testing.support import PATIENCE_S
from tests.integrations.completions import SETTINGS, TASKS, Group, all_groups
from tests.integrations.trl_in_its_venv import ROOT, arguments, reply, tiny_model

ATTACKED = {"task": ATTACK_TASK, "seed": 3}
"""The arguments of `reset` for a task whose question is not held out."""


@contextmanager
def serving(*options: str) -> Iterator[str]:
    """The command itself, on a free port."""
    command = [sys.executable, "-m", "reasoning_gym_environment", "openenv", "--port", "0", *options]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert server.stdout is not None
    line = ""
    while not (found := re.search(r"http://([\d.]+:\d+)", line)):
        line = server.stdout.readline()
        assert line, "the server ended"
    yield f"ws://{found[1]}"
    server.terminate()
    assert server.wait(60) in (0, 143, -15)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving("--tasks", ",".join(TASKS)) as found:
        yield found


@pytest.fixture(scope="module")
def sums() -> Iterator[str]:
    with serving("--tasks", "chain_sum") as found:
        yield found


def right_answer(observation: dict[str, Any]) -> dict[str, str]:
    expression = observation["messages"][1]["content"].split(":")[1].rstrip(" =")
    return {"completion": f"<think>so</think><answer>**{eval(expression)}**</answer>"}


async def test_sessions_are_asked_and_graded_side_by_side(address: str) -> None:
    async def session(seed: int) -> tuple[Any, Any]:
        async with GenericEnvClient(base_url=address) as env:
            asked = await env.reset(task="chain_sum", seed=seed, level=1)
            again = await env.reset(task="chain_sum", seed=seed, level=1)
            assert asked.observation == again.observation and not asked.done
            question = asked.observation["messages"][1]["content"]
            done = await env.step(right_answer(asked.observation))
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
        of_a_group = {"group": "a", "group_size": 0}, {"group": "a"}, {"group": "a", "group_size": 1, "seed": 1}
        of_eval = [{"split": "eval", "index": 0, **more} for more in ({"task": "chain_sum"}, {"seed": 1}, *of_a_group)]
        others = {"split": "eval"}, {"split": "test"}, {"task": "chain_sum"}, {"level": 1}, {"index": 0}, {"typo": 1}
        for wrong in (*others, *of_a_group, *of_eval):
            with pytest.raises(RuntimeError, match="expected"):
                await env.reset(**wrong)
        with pytest.raises(RuntimeError, match="reset first"):
            await env.step({"completion": "x"})


async def test_levels_follow_the_rewards_of_groups_and_of_single_sessions(sums: str) -> None:
    async with GenericEnvClient(base_url=sums) as first, GenericEnvClient(base_url=sums) as second:
        levels, alone = [], []
        for _ in range(12):
            asked = [(await env.reset(group="row", group_size=2)).observation for env in (first, second)]
            assert asked[0]["seed"] == asked[1]["seed"]
            levels.append(asked[0]["level"])
            for env in (first, second):
                assert (await env.step(right_answer(asked[0]))).reward == 1.0
        for _ in range(12):
            observation = (await first.reset()).observation
            alone.append(observation["level"])
            await first.step(right_answer(observation))
    assert 0 == levels[0] < levels[-1] < alone[-1], (levels, alone)


class PretendedStream:
    """Counts the questions that it draws, and remembers the rewards that it observes."""

    def __init__(self) -> None:
        self.drawn = 0
        self.observed: list[list[float | None]] = []

    def next(self) -> Any:
        self.drawn += 1
        return SimpleNamespace(is_of_stream=True, number=self.drawn)

    def observe(self, problem: Any, rewards: list[float | None]) -> None:
        self.observed.append(list(rewards))


def test_groups_that_lack_sessions_end_and_their_names_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = PretendedStream()
    shared = openenv.SharedQuestions(stream)  # type: ignore[arg-type]
    for number in range(3000):
        question = shared.join(f"group {number}", 8)
        shared.finish(question, 1.0)
    assert len(shared._incomplete) == openenv.MOST_INCOMPLETE
    assert stream.observed == [[1.0]] * (3000 - openenv.MOST_INCOMPLETE)
    monkeypatch.setattr(openenv, "MOST_WAIT_S", 0.0)
    abandoned = shared.join("a group", 2)
    stranger = shared.join("a group", 2)
    assert abandoned is not stranger and len(shared._incomplete) == 1
    stream.observed.clear()
    shared.finish(abandoned, 0.5)
    assert stream.observed == [[0.5]]


async def test_a_session_needs_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENENV_TEST_TOKEN", "secret")
    with serving("--tasks", "chain_sum", "--token-env", "OPENENV_TEST_TOKEN") as address:
        for headers in (None, {"Authorization": "Bearer secre"}):
            with pytest.raises(ConnectionError):
                async with GenericEnvClient(base_url=address, headers=headers) as env:
                    await env.reset()
        async with GenericEnvClient(base_url=address, headers={"Authorization": "Bearer secret"}) as env:
            assert (await env.reset()).observation["messages"]


async def test_a_completion_earns_here_what_it_earns_elsewhere(tmp_path: Path) -> None:
    """In boxes. The other tests of this file have answers in tags."""
    answer_format = "boxed"
    marker = tmp_path / "touched"
    with Tasks([*TASKS, ATTACK_TASK], **SETTINGS, answer_format=answer_format) as tasks:
        groups = await asyncio.to_thread(all_groups, tasks, marker)
        held_out = [problem.question for problem in await asyncio.to_thread(list, HeldOut(tasks))]
    attacked = ["--task-modules", ATTACK_MODULE, "--allow-unguarded-tasks", ATTACK_TASK]
    served = ["--tasks", ",".join([*TASKS, ATTACK_TASK]), *attacked, "--answer-format", answer_format]
    with serving(*served) as address:
        async with GenericEnvClient(base_url=address, message_timeout_s=PATIENCE_S) as env:
            await _earns_what_the_table_says(env, groups, held_out)
    assert not marker.exists()


async def _earns_what_the_table_says(env: GenericEnvClient, groups: list[Group], held_out: list[str]) -> None:
    for group in groups:
        question = group.problem.question
        arguments = {"split": "eval", "index": held_out.index(question)} if question in held_out else ATTACKED
        for completion, reward in group.rewards.items():
            asked = (await env.reset(**arguments)).observation
            assert asked["messages"][1]["content"] == question
            done = await env.step({"completion": completion})
            assert done.reward == reward, (completion[:200], done.reward, done.observation["reason"])


def test_trl_s_trainer_trains_on_the_environment_of_the_example(
    sums: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = runpy.run_path(str(ROOT / "examples" / "openenv" / "client.py"))["ReasoningGym"]
    model, tokenizer = tiny_model()
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()
    rows = {"prompt": [[{"role": "user", "content": ""}]] * 2, "group": [0, 1], "group_size": [4, 4]}
    trainer = trl.GRPOTrainer(
        model,
        args=arguments(tmp_path, max_steps=1, max_completion_length=1000),
        processing_class=tokenizer,
        train_dataset=Dataset.from_dict(rows),
        environment_factory=partial(example, sums),
    )

    def scripted(prompt_ids: list[list[int]], *_: Any, **__: Any) -> tuple[list[list[int]], None]:
        said = []
        for number, prompt in enumerate(map(tokenizer.decode, prompt_ids)):
            question = re.findall(r"State the final answer.*?: (.*?) =", prompt)[-1]
            right = reply(question, is_right=number % 4 > 0).removeprefix("<answer>").removesuffix("</answer>")
            call = json.dumps({"name": "answer", "arguments": {"answer": right}})
            said.append("Done." if "<tool_response>" in prompt else f"<tool_call>\n{call}\n</tool_call>")
        return [[*tokenizer.encode(text), tokenizer.eos_token_id] for text in said], None

    monkeypatch.setattr(trainer, "_generate_single_turn", scripted)
    trainer.train()
    assert trainer.state.log_history[0]["rewards/ReasoningGym/mean"] == 0.75
