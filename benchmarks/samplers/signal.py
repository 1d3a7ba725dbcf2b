"""The share of informative groups alone: learnability without its measure of progress.

A group is informative if its rewards differ. A task whose share of informative groups is at least half of the mean over
all tasks has full weight. Below that its weight falls with the square of the share.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from reasoning_gym_environment.sampling.learnability import FULL_WEIGHT_AT
from reasoning_gym_environment.sampling.task_policy import GroupResult

from .preferences import PreferredTasks

LEARNING_RATE = 1 / 32
"""Share of the newest group in a task's share of informative groups."""

LEAST_SHARE = 0.02
"""Of a task without an informative group."""


class SignalTasks(PreferredTasks):
    START = 1.0

    def __init__(self, weights: Mapping[str, float], seed: int) -> None:
        super().__init__(weights, seed)
        self._mean = self.START

    def observe(self, result: GroupResult) -> None:
        super().observe(result)
        self._mean = fmean(self._figures.get(task, self.START) for task in self._weights)

    def updated(self, figure: float, result: GroupResult) -> float:
        return figure + LEARNING_RATE * (float(result.has_signal) - figure)

    def preference(self, figure: float) -> float:
        share = max(LEAST_SHARE, figure)
        return min(1.0, share / (FULL_WEIGHT_AT * self._mean)) ** 2
