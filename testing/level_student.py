"""A student whose success depends on the task and the level alone, so that every trainer must lead it to the same
levels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reasoning_gym_environment.sampling.level_store import StoreSummary
from reasoning_gym_environment.sampling.seeds import derive_random

GROUP_SIZE = 4

LEARNED: Mapping[str, int] = {"chain_sum": 4, "number_filtering": 2, "leg_counting": 6}
"""The highest level that the student solves well, by task. All three have higher levels."""

TASKS = sorted(LEARNED)

STORE: Mapping[str, Any] = {"include_tasks": TASKS, "group_size": GROUP_SIZE, "rows": 1000}
"""The arguments of `new_store`."""


def is_right(task: str, level: int | None, row: int, number: int) -> bool:
    """Whether completion `number` of a row is right: nine in ten up to the learned level, and one in ten above."""
    share = 0.9 if (level or 0) <= LEARNED[task] else 0.1
    return derive_random("student", task, row, number).random() < share


def rewards(task: str, level: int | None, row: int) -> list[float]:
    """The rewards of a group."""
    return [float(is_right(task, level, row, number)) for number in range(GROUP_SIZE)]


def completion(answer: str, reward: float) -> str:
    """The text of a completion that earns this reward."""
    return f"<answer>{answer if reward else 'none'}</answer>"


def check_levels(summary: StoreSummary) -> None:
    """Fails unless each task is within a level of the highest level that the student has learned."""
    reached = {task.task: task.level for task in summary.tasks}
    for task, learned in LEARNED.items():
        assert abs(reached[task] - learned) <= 1, reached
