"""The common part of policies that draw a task in proportion to a preference.

FLOOR of the draws visit all tasks in shuffled rounds. The other draws are in proportion to weight * preference / (1 +
failures since the task's last scored group).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from pydantic import NonNegativeInt, TypeAdapter

from reasoning_gym_environment.sampling.curriculum import GroupResult
from reasoning_gym_environment.sampling.seeds import derive_random
from reasoning_gym_environment.utils.saved_state import loading

from .policy import TaskPolicy

FLOOR = 0.12
"""Share of the draws that is spread evenly over all tasks."""

_FIGURES = TypeAdapter(dict[str, float])
_FAILURES = TypeAdapter(dict[str, NonNegativeInt])


class PreferredTasks(TaskPolicy):
    """Keeps one figure for each observed task. A subclass says how a group changes it, and what it is worth."""

    START: float
    """The figure of a task without groups."""

    def __init__(self, weights: Mapping[str, float], seed: int, floor: float = FLOOR) -> None:
        self._weights = dict(weights)
        self._seed = seed
        self._floor = floor
        self._figures: dict[str, float] = {}
        self._failures: dict[str, int] = {}

    @abstractmethod
    def updated(self, figure: float, result: GroupResult) -> float:
        """The figure of a task after one more group."""

    @abstractmethod
    def preference(self, figure: float) -> float:
        """How much a task with this figure is preferred. Positive."""

    def choose(self, index: int, instance: str) -> str:
        tasks = list(self._weights)
        visits = math.floor((index + 1) * self._floor)
        if visits > math.floor(index * self._floor):
            round_number, place = divmod(visits - 1, len(tasks))
            derive_random(self._seed, "task round", "train", instance, round_number).shuffle(tasks)
            return tasks[place]
        random = derive_random(self._seed, "task", "train", instance, index)
        return random.choices(tasks, weights=[self._preferred(task) for task in tasks])[0]

    def _preferred(self, task: str) -> float:
        figure = self._figures.get(task, self.START)
        return self._weights[task] * self.preference(figure) / (1 + self._failures.get(task, 0))

    def observe(self, result: GroupResult) -> None:
        figure = self._figures.get(result.task, self.START)
        self._figures[result.task] = self.updated(figure, result)
        self._failures.pop(result.task, None)

    def note_failure(self, task: str) -> None:
        self._failures[task] = self._failures.get(task, 0) + 1

    def state_dict(self) -> dict[str, Any]:
        return {"figures": dict(self._figures), "failures": dict(self._failures)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        with loading("task choice"):
            figures = _FIGURES.validate_python(state.get("figures", {}))
            failures = _FAILURES.validate_python(state.get("failures", {}))
        self._figures = {task: figure for task, figure in figures.items() if task in self._weights}
        self._failures = {task: count for task, count in failures.items() if task in self._weights}
