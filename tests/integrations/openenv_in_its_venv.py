"""The OpenEnv environment behind its real server and client; run by test_trl.py, where openenv is installed."""

from __future__ import annotations

import asyncio
import json
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trl
from datasets import Dataset
from openenv.core.generic_client import GenericEnvClient

from reasoning_gym_environment import Tasks
from tests.hostile_answers import ATTACK_MODULE, ATTACK_TASK
from tests.integrations.completions import TASKS, expected, expected_of_attacks
from tests.integrations.trl_in_its_venv import ROOT, arguments, reply, tiny_model


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The command itself, on a free port."""
    command = [sys.executable, "-m", "reasoning_gym_environment", "openenv", "--port", "0"]
    attacked = ["--modules", ATTACK_MODULE, "--allow-unguarded", ATTACK_TASK, "--scoring-timeout-s", "1"]
    command += ["--include", ",".join([*TASKS, ATTACK_TASK]), *attacked]
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


@pytest.mark.parametrize("task", [*TASKS, ATTACK_TASK])
async def test_a_completion_earns_here_what_it_earns_elsewhere(address: str, tmp_path: Path, task: str) -> None:
    with Tasks(TASKS) as tasks:
        answer = "" if task == ATTACK_TASK else tasks.draw(task, 7).entry["answer"]
    marker = tmp_path / "touched"
    wanted = expected(answer, marker) if answer else expected_of_attacks(marker)
    async with GenericEnvClient(base_url=address) as env:
        for completion, reward in wanted.items():
            await env.reset(task=task, seed=7)
            done = await env.step({"completion": completion})
            assert done.reward == reward, (completion[:200], done.reward, done.observation["reason"])
    assert not marker.exists()


def test_trl_s_trainer_trains_on_the_environment_of_the_example(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = runpy.run_path(str(ROOT / "examples" / "openenv" / "client.py"))["ReasoningGym"]
    model, tokenizer = tiny_model()
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()
    rows = {"prompt": [[{"role": "user", "content": ""}]] * 2, "seed": [1, 2], "task": ["chain_sum"] * 2}
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
