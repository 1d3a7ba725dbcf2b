"""Task choice by fixed weights. Uniform choice is the case of equal weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .item_maker import derive_random
from .task_policy import GroupResult, TaskPolicy


class WeightedTasks(TaskPolicy):
    """Draws each task in proportion to its weight, independently of all results."""

    def __init__(self, weights: Mapping[str, float], seed: int) -> None:
        self._tasks = list(weights)
        self._weights = list(weights.values())
        self._seed = seed

    def choose(self, index: int, instance: str) -> str:
        random = derive_random(self._seed, "task", "train", instance, index)
        return random.choices(self._tasks, weights=self._weights)[0]

    def observe(self, result: GroupResult) -> None:
        """Results do not change the weights."""

    def note_failure(self, task: str) -> None:
        """Failures do not change the weights."""

    def metrics(self) -> dict[str, float]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """There is no state to restore."""
