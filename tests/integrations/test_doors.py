"""The cases of doors.py, through every integration that needs no further library."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from reasoning_gym_environment import RowRewards, Tasks, api, grade
from reasoning_gym_environment.api import Row, report
from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.integrations.item_formats import nemo_row, verl_row
from reasoning_gym_environment.integrations.servers import build_app
from reasoning_gym_environment.integrations.trl import text_of
from reasoning_gym_environment.integrations.verl import UnscoredError, compute_score
from reasoning_gym_environment.utils.loop_thread import PerProcess
from testing.level_student import TASKS
from tests.integrations.doors import Door, check_levels, check_rewards, columns_of

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def tasks(in_process_workers: None, monkeypatch: pytest.MonkeyPatch) -> Tasks:
    """The tasks of this process, whose workers have started."""
    monkeypatch.setattr(api, "_tasks", PerProcess[Tasks]())
    # The example for OpenRLHF needs torch, and torch is not installed here.
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(tensor=list))
    tasks = Tasks([*TASKS, "countdown", "knights_knaves", "spell_backward"])
    api._tasks.get("{}", lambda: tasks)
    return tasks


@pytest.fixture
def client(tasks: Tasks) -> TestClient:
    return TestClient(build_app(tasks))


def python(row: Row, texts: Sequence[str]) -> list[float | None]:
    rewards = [made.reward for made in grade(row.recipe, texts)]
    report(row.recipe, rewards)
    return rewards


def trl(row: Row, texts: Sequence[str]) -> list[float | None]:
    conversations = [[{"role": "assistant", "content": text}] for text in texts]
    columns = columns_of(row.recipe, len(texts))
    return RowRewards()(completions=conversations, prompts=[row.prompt] * len(texts), trainer_state=None, **columns)


def verl(row: Row, texts: Sequence[str]) -> list[float | None]:
    columns = verl_row(row)
    truth = columns["reward_model"]["ground_truth"]
    rewards: list[float | None] = []
    for text in texts:
        try:
            scored = compute_score(columns["data_source"], f"{text}<|im_end|>", truth, columns["extra_info"])
            rewards.append(scored["score"])
        except UnscoredError:
            rewards.append(None)
    return rewards


def openrlhf(row: Row, texts: Sequence[str]) -> list[float | None]:
    function = runpy.run_path(str(EXAMPLES / "openrlhf" / "reward_func.py"))["reward_func"]
    prompt = row.prompt[-1]["content"]
    count = len(texts)
    found = function([prompt + text for text in texts], [prompt] * count, [json.dumps(row.recipe.as_row())] * count)
    pairs = zip(found["rewards"], found["extra_logs"]["unscored"], strict=True)
    return [None if unscored else reward for reward, unscored in pairs]


DOORS = {door.__name__: door for door in (python, trl, verl, openrlhf)}


@pytest.mark.parametrize("name", DOORS)
def test_a_right_a_wrong_and_an_unscored_completion(name: str) -> None:
    check_rewards(DOORS[name])


@pytest.mark.parametrize("name", DOORS)
def test_the_levels_rise_with_the_rewards(name: str, tmp_path: Path) -> None:
    check_levels(DOORS[name], tmp_path)


def test_the_same_over_http(client: TestClient) -> None:
    def graded(row: Row, texts: Sequence[str]) -> list[float | None]:
        group = {"recipe": row.recipe.as_row(), "completions": texts}
        [replies] = client.post("/grade", json=[group]).json()
        return [reply["reward"] for reply in replies]

    def verified(row: Row, texts: Sequence[str]) -> list[float | None]:
        rewards = []
        for text in texts:
            response = {"output": [{"type": "message", "content": [{"type": "output_text", "text": text}]}]}
            reply = client.post("/verify", json={**nemo_row(row), "response": response}).json()
            rewards.append(None if reply["mask_sample"] else reply["reward"])
        return rewards

    doors: list[Door] = [graded, verified]
    for door in doors:
        check_rewards(door)


# --- the rows and the rollouts of the examples


@pytest.mark.parametrize("name", ["trl", "verl", "skyrl", "verifiers", "openrlhf", "openenv"])
def test_the_recorded_rollouts_of_an_example_earn_their_rewards(name: str) -> None:
    rows, rollouts = (lines_of(EXAMPLES / name / f"{file}.jsonl") for file in ("rows", "rollouts"))
    assert len(rows) == 5
    for number, row in enumerate(rows):
        recorded = [rollout for rollout in rollouts if rollout["row"] == number]
        recipe = row.get("extra_info") or row.get("recipe") or json.loads(row.get("label", "null")) or row
        grades = grade(recipe, [rollout["completion"] for rollout in recorded])
        assert [made.reward for made in grades] == [rollout["reward"] for rollout in recorded]
        assert {made.reward for made in grades} == {0.0, 1.0}


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# --- TRL


@pytest.mark.parametrize("content", [None, [{"type": "image", "url": "x"}], 3])
def test_a_completion_that_is_no_text_is_refused_by_name(content: Any) -> None:
    reply = [{"role": "assistant", "content": content}]
    if content is None:
        # The model has called a tool, and has written nothing.
        assert text_of(reply) == ""
        return
    with pytest.raises(TypeError, match="completion: expected a text, or a list of parts"):
        text_of(reply)


def test_the_parts_of_a_completion_are_read() -> None:
    parts = [{"type": "text", "text": "<answer>4"}, {"type": "text", "text": "2</answer>"}]
    conversation = [{"role": "assistant", "content": "7"}, {"role": "user", "content": "?"}]
    assert text_of([*conversation, {"role": "assistant", "content": parts}]) == "<answer>42</answer>"


def test_a_row_without_a_recipe_is_an_error() -> None:
    with pytest.raises(EnvironmentSetupError, match="Expected a recipe"):
        RowRewards()(completions=["x"], prompts=[[]], task=["chain_sum"])


# --- verl


def test_verl_gets_a_number_for_an_unscored_completion_if_it_asks_for_one(tasks: Tasks) -> None:
    problem = tasks.draw("chain_sum", 3)
    recipe = {**api.Recipe.of(problem).as_row(), "question_digest": "other"}
    with pytest.raises(UnscoredError, match=r"same release of reasoning-gym.*Set unscored_reward"):
        compute_score("", "x", "", recipe)
    replaced = compute_score("", "x", "", recipe, unscored_reward=0.5)
    assert replaced == {"score": 0.5, "correct": 0.0, "format_failure": 0.0, "unscored": 1.0}


def test_the_thinking_that_the_prompt_opened_is_not_the_answer(tasks: Tasks) -> None:
    problem = tasks.draw("chain_sum", 3)
    right = f"<answer>{problem.entry['answer']}</answer>"
    recipe = api.Recipe.of(problem)
    for text, reward in ((f"<answer>7</answer> </think> {right}", 1.0), (right, 0.0)):
        columns = columns_of(recipe, 1)
        assert RowRewards(thinking_opened=True)(completions=[text], **columns) == [reward]
        assert compute_score("", text, "", recipe.as_row(), thinking_opened=True)["score"] == reward
