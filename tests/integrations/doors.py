"""The cases that every integration runs: what a completion earns, and how the levels follow the rewards.

Not a test. A door is a function of a row and completions that returns their rewards, None for an unscored completion,
as its trainer gets them. test_doors.py has the doors that need no library. The files NAME_in_its_venv.py have the
others, with their real library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from reasoning_gym_environment import Recipe, Rows, new_store
from reasoning_gym_environment.api import Row
from testing import level_student

Door: TypeAlias = Callable[[Row, Sequence[str]], Sequence[float | None]]

ANOTHER_QUESTION = "0" * 16
"""The digest of a question that no recipe gives, as if another release of reasoning-gym had made the row."""

COMPLETIONS: Mapping[str, float] = {
    "<think>so</think> <answer>{answer}</answer>": 1.0,
    "<answer>**{answer}**</answer>": 1.0,
    "<answer>none</answer>": 0.0,
    "I do not know": 0.0,
    "<think><answer>{answer}</answer>": 0.0,
    "": 0.0,
}
"""Completions, and what each earns."""

AHEAD = 8
"""Rows that the trainer reads at a time."""

GROUPS = 120
"""Groups after which the student's levels are known."""


def check_rewards(door: Door) -> None:
    """A right, a wrong and an unscored completion, each alone and in a group."""
    row = Rows.fixed(1, include_tasks="chain_sum")[0]
    texts = [text.format(answer=row.answer) for text in COMPLETIONS]
    assert list(door(row, texts)) == list(COMPLETIONS.values())
    assert [door(row, [text])[0] for text in texts] == list(COMPLETIONS.values())
    lost = replace(row, recipe=replace(row.recipe, question_digest=ANOTHER_QUESTION))
    assert list(door(lost, texts[:2])) == [None, None], "an unscored completion is not wrong"


def check_levels(door: Door, folder: Path) -> None:
    """The student climbs to the levels that it has learned, although the trainer reads some rows ahead."""
    store = new_store(folder / "levels.sqlite", **level_student.STORE)
    rows = Rows(store.path)
    for first in range(0, GROUPS, AHEAD):
        for row in rows.read(range(first, first + AHEAD)):
            answer(door, row)
    summary = store.summary()
    assert (summary.complete, summary.repeated, summary.unscored) == (GROUPS, 0, 0)
    level_student.check_levels(summary)


def answer(door: Door, row: Row) -> None:
    """Answer a row as the student does."""
    rewards = level_student.rewards(row.recipe.task, row.recipe.level, row.number)
    texts = [level_student.completion(str(row.answer), reward) for reward in rewards]
    assert list(door(row, texts)) == rewards


def columns_of(recipe: Recipe, count: int) -> dict[str, list[Any]]:
    """A recipe as columns with a row for each completion, and a column of the trainer's own."""
    columns = {name: [value] * count for name, value in recipe.as_row().items()}
    return {**columns, "pass_rate": [None] * count}
