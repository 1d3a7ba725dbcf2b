"""A sampler of the package whose tasks a policy chooses.

The stream asks the policy for the task of each index, and reports the draws that gave no item. The sampler reports the
scored groups, and saves the state of the policy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reasoning_gym_environment.records import Problem
from reasoning_gym_environment.sampling.curriculum import Curriculum, GroupResult
from reasoning_gym_environment.sampling.item_maker import ItemMaker
from reasoning_gym_environment.sampling.item_stream import PREFETCH, ItemSource, ProblemStream
from reasoning_gym_environment.sampling.levels import LevelLimits, level_chooser
from reasoning_gym_environment.settings.components import SamplingSettings
from reasoning_gym_environment.tasks.difficulty_ladder import Ladder

from .learnability import LearnableTasks
from .policy import TaskPolicy
from .thompson import ThompsonTasks


class StreamWithPolicy(ProblemStream):
    """An item stream whose tasks a policy chooses."""

    def __init__(self, policy: TaskPolicy, maker: ItemMaker, **options: Any) -> None:
        super().__init__(maker, **options)
        self._policy = policy

    def choose_task(self, index: int) -> str:
        return self._policy.choose(index, self.instance)

    def skip(self, reason: str, task: str, detail: str) -> None:
        super().skip(reason, task, detail)
        self._policy.note_failure(task)


@dataclass
class SamplerWithPolicy(ItemSource):
    """A sampler whose policy learns from the rewards, like the curriculum."""

    policy: TaskPolicy = field(kw_only=True)

    def observe(self, problem: Problem, credits: Sequence[float]) -> None:
        super().observe(problem, credits)
        if problem.is_of_stream and not credits:
            self.policy.note_failure(problem.task)

    def learn(self, task: str, level: int | None, credits: Sequence[float]) -> None:
        # The policy learns first, because it compares the level of the group with the level before the group.
        self.policy.observe(GroupResult(task, level, tuple(credits)))
        super().learn(task, level, credits)

    @property
    def stateful(self) -> dict[str, Any]:
        return {**super().stateful, "chooser": self.policy}


def build_sampler_with(
    name: str,
    settings: SamplingSettings,
    maker: ItemMaker,
    ladders: Mapping[str, Ladder],
    *,
    may_overtake: bool = False,
) -> SamplerWithPolicy:
    """The sampler that `build_item_source` makes, with the policy of this name: thompson or learnability."""
    limits = LevelLimits(ladders)
    curriculum = Curriculum(ladders, limits.top_level, settings.curriculum_target_accuracy)
    weights = {task.name: task.weight for task in maker.catalog.tasks}
    policy: TaskPolicy
    if name == "thompson":
        policy = ThompsonTasks(weights, settings.seed)
    else:
        policy = LearnableTasks(weights, settings.seed, curriculum.level)
    stream = StreamWithPolicy(
        policy,
        maker,
        seed=settings.seed,
        instance=settings.instance_id or "0",
        levels=level_chooser(settings, ladders, curriculum),
        limits=limits,
        prefetch=PREFETCH,
        may_overtake=may_overtake,
    )
    follows_curriculum = settings.complexity_mode == "curriculum"
    return SamplerWithPolicy(stream, curriculum, follows_curriculum, policy=policy)
