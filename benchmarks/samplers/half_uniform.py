"""Half of the draws visit all tasks in shuffled rounds, the other half follow another policy.

The rounds bound the loss if the other policy is wrong about a task: every task gets at least half of its even share.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reasoning_gym_environment.sampling.item_maker import derive_random
from reasoning_gym_environment.sampling.task_policy import GroupResult, TaskPolicy


class HalfUniformTasks(TaskPolicy):
    def __init__(self, weights: Mapping[str, float], seed: int, other: TaskPolicy) -> None:
        self._tasks = list(weights)
        self._seed = seed
        self._other = other

    def choose(self, index: int, instance: str) -> str:
        half, is_odd = divmod(index, 2)
        if is_odd:
            return self._other.choose(half, instance)
        round_number, position = divmod(half, len(self._tasks))
        tasks = list(self._tasks)
        derive_random(self._seed, "half round", "train", instance, round_number).shuffle(tasks)
        return tasks[position]

    def observe(self, result: GroupResult) -> None:
        self._other.observe(result)

    def note_failure(self, task: str) -> None:
        self._other.note_failure(task)

    def metrics(self) -> dict[str, float]:
        return self._other.metrics()

    def state_dict(self) -> dict[str, Any]:
        return self._other.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._other.load_state_dict(state)
