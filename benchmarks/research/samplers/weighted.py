"""The package's own choice as a policy: tasks by fixed weights. Uniform choice is the case of equal weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reasoning_gym_environment.sampling.curriculum import GroupResult
from reasoning_gym_environment.sampling.levels import choose_task

from .policy import TaskPolicy


class WeightedTasks(TaskPolicy):
    """Draws each task in proportion to its weight, independently of all results."""

    def __init__(self, weights: Mapping[str, float], seed: int) -> None:
        self._weights = dict(weights)
        self._seed = seed

    def choose(self, index: int, instance: str) -> str:
        return choose_task(self._weights, self._seed, instance, index)

    def observe(self, result: GroupResult) -> None:
        """Results do not change the weights."""

    def note_failure(self, task: str) -> None:
        """Failures do not change the weights."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """There is no state to restore."""
