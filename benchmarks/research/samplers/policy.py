"""The interface of a policy that chooses tasks.

    policy.choose(index, instance)     the task of one index of the training stream
    policy.observe(result)             one scored group of a task
    policy.note_failure(task)          an item that could not be made, or whose completions could not be scored

A choice is a pure function of the run's seed, the instance, the index, and the calls of `observe` and `note_failure`
before it. Two policies that received the same calls make the same choices.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from reasoning_gym_environment.sampling.curriculum import GroupResult


class TaskPolicy(ABC):
    """Chooses the task of each item."""

    @abstractmethod
    def choose(self, index: int, instance: str) -> str:
        """The task of the item at this index."""

    @abstractmethod
    def observe(self, result: GroupResult) -> None:
        """Learn from one scored group."""

    @abstractmethod
    def note_failure(self, task: str) -> None:
        """Count an item of this task that gave no scored group.

        A failure never raises the task's share of the draws, and never counts as a reward.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything that observations have changed, as JSON."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the state by a saved one. An empty mapping is the state of a new policy.

        Tasks that this run does not serve are ignored. Raises EnvironmentSetupError, and changes nothing, if the state
        is malformed.
        """


def has_signal(result: GroupResult) -> bool:
    """Whether the rewards differ, so that the group teaches something."""
    return min(result.rewards) < max(result.rewards)
