"""Task choice by learning progress: tasks at which the model stands still are drawn less often.

The policy keeps the last groups of each task. Two figures decide how much weight a task gets.

    progress   how fast the task's mean reward changes from group to group, in either direction, because a task that
               the model is forgetting needs groups too. It is the slope of a least-squares line. Each level has its
               own intercept, so that a harder level does not look like a loss. A slope within SIGNIFICANCE standard
               errors is treated as zero. An exploration bonus remains: EXPLORATION standard errors.
    signal     the share of groups whose rewards differ. A group with equal rewards teaches nothing.

    preference = min(1, progress / (FULL_WEIGHT_AT * mean progress))
               * min(1, signal / (FULL_WEIGHT_AT * mean signal)) ** 2
               / (1 + failures since the task's last scored group)

A task with at least half of the mean progress and of the mean signal has full weight. The draws stay nearly uniform
unless some tasks stand still. This is deliberate: the order among tasks that do improve is mostly noise, and drawing in
proportion to the signal taught a real model less. A task with fewer than MIN_GROUPS groups has the mean progress.

Failures enter the last factor only. A task whose items always fail approaches the floor, and one scored group restores
its full weight.

FLOOR of the draws visit all tasks in shuffled rounds. The other draws are in proportion to task weight * preference.

Choosing by learning progress: teacher-student curriculum learning (arXiv 1707.00183), absolute learning progress
(1910.07224). docs/learning_signal.md has measurements with a model that learns.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple, TypeAlias

import numpy as np
from pydantic import Field, NonNegativeInt, TypeAdapter

from .item_maker import derive_random, loading
from .task_policy import GroupResult, TaskPolicy, effective_number

WINDOW = 256
"""Groups of a task that its progress is measured over: enough to tell a rise of 0.1 over the window from noise."""

MIN_GROUPS = 12
"""A task with fewer groups has no progress of its own yet."""

FLOOR = 0.12
"""Share of the draws that is spread evenly over all tasks."""

SIGNIFICANCE = 2.0
"""Standard errors of a slope that are treated as noise. A smaller value keeps drawing tasks with noisy rewards."""

EXPLORATION = 0.1
"""Standard errors of a slope that always count as progress, so that a little-known task is tried."""

FULL_WEIGHT_AT = 0.5
"""Share of the mean progress, and of the mean signal, from which a task has full weight."""

LEAST_DEVIATION = 0.1
"""Least standard deviation of a group's mean reward. Equal rewards so far do not make a slope certain."""


class Group(NamedTuple):
    """What the policy keeps of one group."""

    level: int
    reward: float
    has_signal: bool


@dataclass
class _TaskHistory:
    """The last groups of a task, oldest first, and the figures that follow from them."""

    groups: deque[Group] = field(default_factory=lambda: deque(maxlen=WINDOW))
    failures: int = 0
    """Failed items since the last scored group."""
    progress: float | None = None
    signal: float = 1.0

    def update_figures(self) -> None:
        is_known = len(self.groups) >= MIN_GROUPS
        self.progress = progress(self.groups) if is_known else None
        self.signal = (sum(group.has_signal for group in self.groups) + 1.0) / (len(self.groups) + 1.0)


class LearnableTasks(TaskPolicy):
    """Draws tasks in proportion to their weight, and less often those that make no progress."""

    def __init__(
        self,
        weights: Mapping[str, float],
        seed: int,
        level_of: Callable[[str], int] | None = None,
        floor: float = FLOOR,
    ) -> None:
        """`weights` are positive. `level_of` gives the curriculum's level of a task; None means there is no curriculum.

        `floor` is in [0, 1].
        """
        self._tasks = list(weights)
        values = np.array(list(weights.values()))
        self._weights = values / values.sum()
        self._seed = seed
        self._level_of = level_of
        self._floor = floor
        self._histories = {task: _TaskHistory() for task in weights}
        self._cumulated: list[float] | None = None

    def choose(self, index: int, instance: str) -> str:
        visits = math.floor((index + 1) * self._floor)
        if visits > math.floor(index * self._floor):
            return self._next_of_round(visits - 1, instance)
        if self._cumulated is None:
            self._cumulated = list(itertools.accumulate(self._preferred().tolist()))
        random = derive_random(self._seed, "task", "train", instance, index)
        return random.choices(self._tasks, cum_weights=self._cumulated)[0]

    def _next_of_round(self, visit: int, instance: str) -> str:
        round_number, place = divmod(visit, len(self._tasks))
        order = list(self._tasks)
        derive_random(self._seed, "task round", "train", instance, round_number).shuffle(order)
        return order[place]

    def observe(self, result: GroupResult) -> None:
        level = result.level or 0
        history = self._histories[result.task]
        history.failures = 0
        self._cumulated = None
        if self._level_of is not None:
            if level != self._level_of(result.task):
                # The group was drawn before the curriculum moved. It says nothing about the current level.
                return
            if history.groups and history.groups[-1].level != level:
                history.groups.clear()
        # Rounding keeps checkpoints small. The policy uses the rounded reward, so that a resumed run chooses the same.
        history.groups.append(Group(level, round(result.mean_reward, 4), bool(result.has_signal)))
        history.update_figures()

    def note_failure(self, task: str) -> None:
        self._histories[task].failures += 1
        self._cumulated = None

    def shares(self) -> dict[str, float]:
        """The share of the coming draws that each task gets, floor included."""
        return dict(zip(self._tasks, self._mixed().tolist(), strict=True))

    def _preferred(self) -> np.ndarray:
        """The distribution of the draws that do not belong to the floor."""
        histories = [self._histories[task] for task in self._tasks]
        known = self._known_progress()
        usual = float(np.mean(known)) if known else 1.0
        progresses = np.array([usual if history.progress is None else history.progress for history in histories])
        signals = np.array([history.signal for history in histories])
        usual_signal = float(self._weights @ signals)
        preference = np.minimum(1.0, progresses / (FULL_WEIGHT_AT * usual))
        preference *= np.minimum(1.0, signals / (FULL_WEIGHT_AT * usual_signal)) ** 2
        preference /= 1.0 + np.array([history.failures for history in histories])
        raised = self._weights * preference
        return np.asarray(raised / raised.sum())

    def _known_progress(self) -> list[float]:
        histories = self._histories.values()
        return [history.progress for history in histories if history.progress is not None]

    def _mixed(self) -> np.ndarray:
        return self._floor / len(self._tasks) + (1.0 - self._floor) * self._preferred()

    def metrics(self) -> dict[str, float]:
        """The coming draws (effective number of tasks, smallest share), mean progress per group, failing tasks."""
        mixed = self._mixed()
        known = self._known_progress()
        failing = sum(history.failures > 0 for history in self._histories.values())
        return {
            "task_choice/effective_tasks": effective_number(mixed),
            "task_choice/smallest_share": float(mixed.min()),
            "task_choice/known_tasks": float(len(known)),
            "task_choice/mean_progress": float(np.mean(known)) if known else 0.0,
            "task_choice/failing_tasks": float(failing),
        }

    def state_dict(self) -> dict[str, Any]:
        """The groups of each task as rows of level, reward and signal, and the failures since its last group."""
        histories = self._histories.items()
        return {
            "groups": {task: _rows(history.groups) for task, history in histories if history.groups},
            "failures": {task: history.failures for task, history in histories if history.failures},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        with loading("task choice"):
            groups = _GROUPS.validate_python(state.get("groups", {}))
            failures = _FAILURES.validate_python(state.get("failures", {}))
        for task in self._tasks:
            history = _TaskHistory(failures=failures.get(task, 0))
            for level, reward, has_signal in groups.get(task, []):
                history.groups.append(Group(level, reward, has_signal))
            history.update_figures()
            self._histories[task] = history
        self._cumulated = None


Share: TypeAlias = Annotated[float, Field(ge=0.0, le=1.0)]

_GROUPS = TypeAdapter(dict[str, list[tuple[NonNegativeInt, Share, bool]]])
_FAILURES = TypeAdapter(dict[str, NonNegativeInt])


def _rows(groups: deque[Group]) -> list[list[Any]]:
    return [[group.level, group.reward, int(group.has_signal)] for group in groups]


def progress(groups: deque[Group]) -> float:
    """The change of the mean reward from one group to the next, as the module's docstring defines it. Positive.

    `groups` is not empty. The standard error is that of a least-squares slope, with LEAST_DEVIATION as the least
    deviation of a group from the line.
    """
    levels = np.array([group.level for group in groups])
    rewards = np.array([group.reward for group in groups])
    numbers = np.arange(float(len(groups)))
    for level in np.unique(levels):
        is_at_level = levels == level
        numbers[is_at_level] -= numbers[is_at_level].mean()
        rewards[is_at_level] -= rewards[is_at_level].mean()
    spread = float(numbers @ numbers)
    if spread == 0.0:
        return LEAST_DEVIATION
    slope = float(numbers @ rewards) / spread
    residuals = rewards - slope * numbers
    deviation = math.sqrt(float(residuals @ residuals) / max(1, len(groups) - 2))
    error = max(LEAST_DEVIATION, deviation) / math.sqrt(spread)
    return max(abs(slope) - SIGNIFICANCE * error, 0.0) + EXPLORATION * error
