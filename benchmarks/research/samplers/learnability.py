"""Task choice by learning progress: the policy draws a task less often while the model makes no progress at it.

The policy keeps the last groups of each task. Two figures decide how much weight a task gets.

    progress   how fast the task's mean reward changes from group to group (learning_progress.py). A decrease counts
               like an increase, because a task that the model is forgetting needs groups too.
    signal     the share of groups whose rewards differ. A group with equal rewards teaches nothing.

    preference = min(1, progress / (FULL_WEIGHT_AT * mean progress))
               * min(1, signal / (FULL_WEIGHT_AT * mean signal)) ** 2
               / (1 + failures since the task's last scored group)

A task with at least half of the mean progress and of the mean signal has full weight. The draws stay nearly uniform
unless the model makes no progress at some tasks. This is deliberate: the order among tasks that do improve is mostly
noise, and drawing in proportion to the signal taught a real model less. A task with fewer than MIN_GROUPS groups has
the mean progress.

Failures enter the last factor only. A task whose items always fail approaches the floor, and one scored group restores
its full weight.

FLOOR of the draws visit all tasks in shuffled rounds. The other draws are in proportion to task weight * preference.

Choosing by learning progress: teacher-student curriculum learning (arXiv 1707.00183), absolute learning progress
(1910.07224). docs/learning_signal.md has measurements with a model that learns.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Annotated, Any, TypeAlias

from pydantic import Field, NonNegativeInt, TypeAdapter

from reasoning_gym_environment.sampling.curriculum import GroupResult
from reasoning_gym_environment.sampling.seeds import derive_random
from reasoning_gym_environment.utils.saved_state import loading

from .learning_progress import Group, progress
from .policy import TaskPolicy, has_signal
from .preferences import FLOOR

WINDOW = 256
"""Groups of a task that its progress is measured over: enough to tell a rise of 0.1 over the window from noise."""

MIN_GROUPS = 12
"""With fewer groups, the progress of a task is unknown."""

FULL_WEIGHT_AT = 0.5
"""Share of the mean progress, and of the mean signal, from which a task has full weight."""


@dataclass
class _TaskHistory:
    """The last groups of a task, oldest first, and the figures that follow from them."""

    groups: deque[Group] = field(default_factory=lambda: deque(maxlen=WINDOW))
    failures: int = 0
    """Failed items since the last scored group."""
    progress: float | None = None
    signal: float = 1.0

    def update_figures(self) -> None:
        count = len(self.groups)
        self.progress = progress(self.groups) if count >= MIN_GROUPS else None
        informative = sum(group.has_signal for group in self.groups)
        self.signal = (informative + 1) / (count + 1)


class LearnableTasks(TaskPolicy):
    """Draws tasks in proportion to their weights, and a task without progress less often."""

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
        self._weights = dict(weights)
        self._seed = seed
        self._level_of = level_of
        self._floor = floor
        self._histories = {task: _TaskHistory() for task in weights}
        self._preferred: list[float] | None = None
        """Shares of the draws that do not belong to the floor; None after a change."""

    def choose(self, index: int, instance: str) -> str:
        visits_before = math.floor(index * self._floor)
        visits_after = math.floor((index + 1) * self._floor)
        if visits_after > visits_before:
            return self._next_of_round(visits_before, instance)
        tasks = list(self._weights)
        random = derive_random(self._seed, "task", "train", instance, index)
        [task] = random.choices(tasks, weights=self._preferred_shares())
        return task

    def _next_of_round(self, visits_before: int, instance: str) -> str:
        tasks = list(self._weights)
        round_number, position = divmod(visits_before, len(tasks))
        random = derive_random(self._seed, "task round", "train", instance, round_number)
        random.shuffle(tasks)
        return tasks[position]

    def observe(self, result: GroupResult) -> None:
        level = result.level or 0
        history = self._histories[result.task]
        history.failures = 0
        self._preferred = None
        if self._level_of is not None:
            if level != self._level_of(result.task):
                # The group belongs to an earlier level of the curriculum, and is no evidence about the current level.
                return
            if history.groups and history.groups[-1].level != level:
                history.groups.clear()
        # Rounding keeps checkpoints small. The policy uses the rounded reward, so that a resumed run chooses the same.
        reward = round(result.mean_reward, 4)
        history.groups.append(Group(level, reward, has_signal(result)))
        history.update_figures()

    def note_failure(self, task: str) -> None:
        self._histories[task].failures += 1
        self._preferred = None

    def shares(self) -> dict[str, float]:
        """The share of the coming draws that each task gets, floor included."""
        even = self._floor / len(self._weights)
        preferred = zip(self._weights, self._preferred_shares(), strict=True)
        return {task: even + (1.0 - self._floor) * share for task, share in preferred}

    def _preferred_shares(self) -> list[float]:
        if self._preferred is None:
            raised = self._raised_weights()
            total = sum(raised)
            self._preferred = [weight / total for weight in raised]
        return self._preferred

    def _raised_weights(self) -> list[float]:
        """The task weights times the preferences."""
        enough_progress = FULL_WEIGHT_AT * self._mean_progress()
        enough_signal = FULL_WEIGHT_AT * self._mean_signal()
        raised = []
        for task, history in self._histories.items():
            weight = self._weights[task]
            if history.progress is not None:
                weight *= min(1.0, history.progress / enough_progress)
            weight *= min(1.0, history.signal / enough_signal) ** 2
            weight /= 1 + history.failures
            raised.append(weight)
        return raised

    def _mean_progress(self) -> float:
        """Of the tasks whose progress is known; 1 without any."""
        known = self._known_progress()
        return fmean(known) if known else 1.0

    def _mean_signal(self) -> float:
        weighted = 0.0
        for task, history in self._histories.items():
            weighted += self._weights[task] * history.signal
        return weighted / sum(self._weights.values())

    def _known_progress(self) -> list[float]:
        figures = [history.progress for history in self._histories.values()]
        return [figure for figure in figures if figure is not None]

    def state_dict(self) -> dict[str, Any]:
        """The groups of each task as rows of level, reward and signal, and the failures since its last group."""
        groups = {}
        failures = {}
        for task, history in self._histories.items():
            groups[task] = [list(group) for group in history.groups]
            failures[task] = history.failures
        return {"groups": groups, "failures": failures}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        with loading("task choice"):
            groups = _GROUPS.validate_python(state.get("groups", {}))
            failures = _FAILURES.validate_python(state.get("failures", {}))
        for task in self._weights:
            history = _TaskHistory(failures=failures.get(task, 0))
            history.groups.extend(Group(*row) for row in groups.get(task, []))
            history.update_figures()
            self._histories[task] = history
        self._preferred = None


Reward: TypeAlias = Annotated[float, Field(ge=0.0, le=1.0)]

_GROUPS = TypeAdapter(dict[str, list[tuple[NonNegativeInt, Reward, bool]]])
_FAILURES = TypeAdapter(dict[str, NonNegativeInt])
