"""Completions for exported rows earn what they earn elsewhere, and an item that cannot be made is no wrong answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment import Tasks, grade_rows, row_rewards
from reasoning_gym_environment.errors import EnvironmentSetupError, UnknownNameError
from reasoning_gym_environment.integrations.recipe import Recipe
from testing.hostile_answers import ATTACK_TASK
from tests.integrations.completions import SETTINGS, TASKS, all_groups


@pytest.fixture(scope="module")
def tasks() -> Iterator[Tasks]:
    with Tasks([*TASKS, ATTACK_TASK], **SETTINGS) as made:
        yield made


def columns_of(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """The rows as TRL passes them to a reward function, with columns of the trainer's own."""
    columns: dict[str, list[Any]] = {name: [row[name] for row in rows] for name in rows[0]}
    return {**columns, "prompts": [[]] * len(rows), "pass_rate": [None] * len(rows)}


def test_a_completion_earns_here_what_it_earns_elsewhere(tasks: Tasks, tmp_path: Path, own_datasets: None) -> None:
    marker = tmp_path / "touched"
    rows: list[dict[str, Any]] = []
    rewards: dict[tuple[int, str], float | None] = {}
    for number, group in enumerate(all_groups(tasks, marker)):
        for completion, reward in group.rewards.items():
            rows.append(Recipe.of(group.problem).as_row())
            rewards[number, completion] = reward
    texts = [text for _, text in rewards]
    grades = grade_rows(tasks, rows, texts)
    assert [grade.reward for grade in grades] == list(rewards.values())
    function = row_rewards(tasks)
    assert function.__name__ == "reasoning_gym"
    conversations = [[{"role": "assistant", "content": text}] for text in texts]
    for completions in (texts, conversations):
        assert function(completions=completions, **columns_of(rows)) == list(rewards.values())
    assert not marker.exists()


def test_grades_are_in_the_order_of_the_rows(tasks: Tasks) -> None:
    problems = [tasks.draw("chain_sum", seed) for seed in (1, 2, 1, 3)]
    rows = [Recipe.of(problem).as_row() for problem in problems]
    answers = [f"<answer>{problem.entry['answer']}</answer>" for problem in problems]
    wrong = [answers[0], "<answer>x</answer>", "<answer>x</answer>", answers[3]]
    assert [grade.reward for grade in grade_rows(tasks, rows, answers)] == [1.0] * 4
    assert [grade.reward for grade in grade_rows(tasks, rows, wrong)] == [1.0, 0.0, 0.0, 1.0]


def test_the_thinking_that_the_prompt_opened_is_not_the_answer(tasks: Tasks) -> None:
    problem = tasks.draw("chain_sum", 1)
    row = Recipe.of(problem).as_row()
    text = f"<answer>{problem.entry['answer']}</answer>"
    for opened, reward in ((False, 1.0), (True, 0.0)):
        rewards = row_rewards(tasks, thinking_opened=opened)
        assert rewards(completions=[text], **columns_of([row])) == [reward]


def test_an_item_that_cannot_be_made_is_unscored_and_the_others_are_graded(
    tasks: Tasks, caplog: pytest.LogCaptureFixture
) -> None:
    problem = tasks.draw("chain_sum", 1)
    good = Recipe.of(problem)
    other_release = replace(good, question_digest="0" * 16)
    impossible = replace(good, config='{"min_terms": 5, "max_terms": 2}')
    answer = f"<answer>{problem.entry['answer']}</answer>"
    rows = [recipe.as_row() for recipe in (other_release, good, impossible)]
    grades = grade_rows(tasks, rows, [answer] * 3)
    assert [grade.reward for grade in grades] == [None, 1.0, None]
    assert "another question in this process" in grades[0].score.why
    assert "chain_sum" in grades[2].score.why
    assert "1 completions are unscored" in caplog.text


def test_a_row_that_the_user_must_change_is_an_error(tasks: Tasks) -> None:
    row = Recipe.of(tasks.draw("chain_sum", 1)).as_row()
    with pytest.raises(UnknownNameError, match="gcd"):
        grade_rows(tasks, [{**row, "task": "gcd"}], ["x"])
    with pytest.raises(EnvironmentSetupError, match="export --items"):
        row_rewards(tasks)(completions=["x"], prompts=[[]], task=["chain_sum"])
    with pytest.raises(ValueError, match="a completion for each of 1 rows, got 2"):
        grade_rows(tasks, [row], ["x", "y"])
