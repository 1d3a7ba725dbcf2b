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
from typing import Any

import pytest
import trl
from datasets import Dataset
from openenv.core.generic_client import GenericEnvClient

from reasoning_gym_environment import Rows, new_store
from reasoning_gym_environment.api import Row
from testing import level_student
from testing.support import PATIENCE_S
from tests.integrations.trl_in_its_venv import ROOT, arguments, reply, tiny_model


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
    with serving("--tasks", "chain_sum,leg_counting", "--group-size", "4") as found:
        yield found


async def completed(address: str, text: str, **choice: Any) -> tuple[dict[str, Any], Any]:
    """The question of a session, and the result of its step."""
    async with GenericEnvClient(base_url=address, message_timeout_s=PATIENCE_S) as env:
        asked = (await env.reset(**choice)).observation
        return asked, await env.step({"completion": text})


def test_the_recorded_rollouts_of_the_example_earn_their_rewards() -> None:
    def lines(name: str) -> list[dict[str, Any]]:
        text = (ROOT / "examples" / "openenv" / f"{name}.jsonl").read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]

    rows = lines("rows")
    tasks = ",".join(row["reset"]["task"] for row in rows)
    with serving("--tasks", tasks) as address:
        for rollout in lines("rollouts"):
            row = rows[rollout["row"]]
            asked, done = asyncio.run(completed(address, rollout["completion"], **row["reset"]))
            assert (asked["messages"], done.reward) == (row["messages"], rollout["reward"])


async def test_sessions_of_a_row_share_its_question_and_a_seed_gives_the_same_question_again(address: str) -> None:
    sessions = await asyncio.gather(*(completed(address, "", row=7) for _ in range(4)))
    assert len({asked["messages"][1]["content"] for asked, _ in sessions}) == 1
    assert {done.done for _, done in sessions} == {True}
    asked, _ = await completed(address, "", task="chain_sum", seed=3, level=2)
    again, _ = await completed(address, "", task="chain_sum", seed=3, level=2)
    assert asked == again and asked["level"] == 2
    first, second = [(await completed(address, "", split="eval", index=index))[0] for index in (0, 1)]
    assert first["split"] == second["split"] == "eval" and first["seed"] != second["seed"]
    alone = [(await completed(address, ""))[0] for _ in range(3)]
    assert len({question["row"] for question in alone}) == 3


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({"task": "chain_sum", "seed": 3, "level": "2"}, "level: expected a whole number, got '2'"),
        ({"row": 1, "group_size": 8}, "group_size: the server was started with --group-size 4"),
        ({"row": -1}, "row: expected 0 to"),
        ({"split": "eval"}, "expected nothing; row; seed"),
        ({"split": "eval", "index": 0, "seed": 1}, "expected nothing; row; seed"),
        ({"split": "test"}, "expected nothing; row; seed"),
        ({"level": 1}, "expected nothing; row; seed"),
        ({"typo": 1}, "got split train with typo"),
    ],
)
async def test_a_wrong_reset_is_a_sentence(address: str, choice: dict[str, Any], said: str) -> None:
    async with GenericEnvClient(base_url=address) as env:
        with pytest.raises(RuntimeError, match=said):
            await env.reset(**choice)
        with pytest.raises(RuntimeError, match="reset first"):
            await env.step({"completion": "x"})


async def test_a_session_needs_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENENV_TEST_TOKEN", "secret")
    with serving("--tasks", "chain_sum", "--token-env", "OPENENV_TEST_TOKEN") as address:
        for headers in (None, {"Authorization": "Bearer secre"}):
            with pytest.raises(ConnectionError):
                async with GenericEnvClient(base_url=address, headers=headers) as env:
                    await env.reset()
        async with GenericEnvClient(base_url=address, headers={"Authorization": "Bearer secret"}) as env:
            assert (await env.reset()).observation["messages"]


def test_levels_follow_the_rewards_and_a_server_that_starts_again_keeps_them(tmp_path: Path) -> None:
    store = new_store(tmp_path / "levels.sqlite", **level_student.STORE)
    served = ["--tasks", ",".join(level_student.TASKS), "--level-store", str(store.path), "--group-size", "4"]

    async def group(address: str, row: Row) -> None:
        rewards = level_student.rewards(row.recipe.task, row.recipe.level, row.number)
        texts = [level_student.completion(str(row.answer), reward) for reward in rewards]
        done = await asyncio.gather(*(completed(address, text, row=row.number) for text in texts))
        assert [result.reward for _, result in done] == rewards

    rows = Rows(store.path)
    for numbers in (range(20), range(20, 40)):
        with serving(*served) as address:
            for number in numbers:
                asyncio.run(group(address, rows[number]))
    summary = store.summary()
    assert (summary.complete, summary.repeated) == (40, 0)
    assert max(task.level for task in summary.tasks) >= 2


def test_trl_s_trainer_trains_on_the_environment_of_the_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = runpy.run_path(str(ROOT / "examples" / "openenv" / "client.py"))["ReasoningGym"]
    model, tokenizer = tiny_model()
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()
    rows = {"prompt": [[{"role": "user", "content": ""}]] * 2, "row": [0, 1], "group_size": [4, 4]}
    with serving("--tasks", "chain_sum", "--group-size", "4") as address:
        trainer = trl.GRPOTrainer(
            model,
            args=arguments(tmp_path, max_steps=1, max_completion_length=1000),
            processing_class=tokenizer,
            train_dataset=Dataset.from_dict(rows),
            environment_factory=partial(example, address),
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
