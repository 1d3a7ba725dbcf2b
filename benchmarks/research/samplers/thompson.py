"""Thompson sampling on a decayed Beta posterior of the share of informative groups.

A group is informative if its rewards differ. Each task has a Beta posterior of its share of informative groups, with a
uniform prior. For each index the policy samples a share from every posterior, raises it to the power 1 / weight, and
chooses the task with the largest result. Without observations this draws tasks in proportion to their weights
(Efraimidis & Spirakis 2006). Every scored group lets all posteriors decay towards the prior, so that a task that was
not drawn for a while becomes uncertain, and is tried again.

A failed item counts as a group without information, and lets nothing decay.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, NonNegativeFloat, TypeAdapter

from reasoning_gym_environment.sampling.curriculum import GroupResult
from reasoning_gym_environment.sampling.seeds import derive_random
from reasoning_gym_environment.utils.saved_state import loading

from .policy import TaskPolicy, has_signal

MEMORY = 32
"""Groups of each task, drawn evenly, after which an observation counts 1/e."""

Counts = Annotated[list[NonNegativeFloat], Field(min_length=2, max_length=2)]
_COUNTS = TypeAdapter(dict[str, Counts])


class ThompsonTasks(TaskPolicy):
    """Prefers tasks that are likely to give an informative group."""

    def __init__(self, weights: Mapping[str, float], seed: int) -> None:
        self._weights = dict(weights)
        self._seed = seed
        self._decay = 1.0 - 1.0 / (MEMORY * len(weights))
        self._counts: dict[str, list[float]] = {task: [0.0, 0.0] for task in weights}
        """Decayed numbers of informative groups and of all other items."""

    def choose(self, index: int, instance: str) -> str:
        random = derive_random(self._seed, "thompson", "train", instance, index)
        sampled = {}
        for task, (informative, other) in self._counts.items():
            share = random.betavariate(1.0 + informative, 1.0 + other)
            sampled[task] = share ** (1.0 / self._weights[task])
        return max(sampled, key=sampled.__getitem__)

    def observe(self, result: GroupResult) -> None:
        for counts in self._counts.values():
            counts[0] *= self._decay
            counts[1] *= self._decay
        self._counts[result.task][0 if has_signal(result) else 1] += 1.0

    def note_failure(self, task: str) -> None:
        self._counts[task][1] += 1.0

    def state_dict(self) -> dict[str, Any]:
        return {"counts": {task: list(counts) for task, counts in self._counts.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        with loading("task choice"):
            saved = _COUNTS.validate_python(state.get("counts", {}))
        self._counts = {task: saved.get(task, [0.0, 0.0]) for task in self._weights}
