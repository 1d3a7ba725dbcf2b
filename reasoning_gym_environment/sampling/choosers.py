"""Who chooses tasks and levels in a run: the combination that `task_sampling` and `complexity_mode` ask for.

                  task_sampling:  uniform, weighted     learnability
complexity_mode: none             fixed shares          one arm for each task
                 random           fixed shares          one arm for each task, over all its levels
                 curriculum       fixed shares,         one arm for each task and level; of the levels that the
                                  its level             curriculum leaves open the likeliest to carry a signal

A task chooser learns from the groups that were scored; a level is uniform over the task's ladder, where its curriculum
stands, or the more instructive of the levels that the curriculum leaves open.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from ..tasks.difficulty_ladder import Ladder, Level
from ..utils.seeding import derive_random
from .curriculum import Curriculum
from .task_bandit import LearnableTasks, SignalBandit

logger = logging.getLogger(__name__)


class WeightedTasks:
    """Draws tasks by fixed weights, whatever happens to their groups."""

    def __init__(self, weights: Mapping[str, float], seed: int) -> None:
        self._tasks = list(weights)
        self._weights = list(weights.values())
        self._seed = seed

    def choose(self, index: int, instance: str) -> str:
        choice = derive_random(self._seed, "task", "train", instance, index)
        return choice.choices(self._tasks, weights=self._weights)[0]

    def observe(self, task: str, level: int | None, signal: float) -> None:
        """Nothing is learned."""

    def skip(self, task: str) -> None:
        """Nothing is learned."""

    def metrics(self) -> dict[str, float]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """There is no state."""


TaskChooser: TypeAlias = WeightedTasks | LearnableTasks


class LevelChooser(Protocol):
    """Chooses the difficulty of a draw; None means reasoning-gym's own defaults."""

    def choose(self, task: str, index: int) -> Level | None: ...


@dataclass(frozen=True)
class RandomLevels:
    """Uniform over each task's ladder; a function of (seed, task, index)."""

    ladders: Mapping[str, Ladder]
    seed: int

    def choose(self, task: str, index: int) -> Level | None:
        return derive_random(self.seed, "level", task, index).choice(self.ladders[task].levels)


@dataclass(frozen=True)
class CurriculumLevels:
    """Where the curriculum stands for the task at the time of the draw."""

    ladders: Mapping[str, Ladder]
    curriculum: Curriculum

    def choose(self, task: str, index: int) -> Level | None:
        return self.ladders[task].level(self.curriculum.level(task))


@dataclass(frozen=True)
class LearnableLevels:
    """Of the levels that the curriculum leaves open, the one whose groups are likeliest to carry a signal."""

    ladders: Mapping[str, Ladder]
    curriculum: Curriculum
    bandit: SignalBandit

    def choose(self, task: str, index: int) -> Level | None:
        return self.ladders[task].level(self.bandit.best_level(task, self.curriculum.open_levels(task)))


def build_choosers(
    *,
    task_sampling: str,
    complexity_mode: str | None,
    weights: Mapping[str, float],
    ladders: Mapping[str, Ladder],
    curriculum: Curriculum,
    seed: int,
    task_floor: float,
) -> tuple[TaskChooser, LevelChooser | None]:
    """The task chooser and the level chooser; None means reasoning-gym's own defaults.

    `weights` has every served task; `uniform` ignores what they are, and says so if they differ.
    """
    follows = complexity_mode == "curriculum"
    levels: LevelChooser | None = RandomLevels(ladders, seed) if complexity_mode == "random" else None
    if task_sampling == "learnability":
        bandit = SignalBandit({task: len(ladders[task]) if follows else 1 for task in weights})
        open_levels = curriculum.open_levels if follows else None
        tasks = LearnableTasks(weights, seed, bandit, open_levels=open_levels, floor=task_floor)
        return tasks, LearnableLevels(ladders, curriculum, bandit) if follows else levels
    if task_sampling == "uniform":
        if len(set(weights.values())) > 1:
            logger.warning("task_sampling is uniform: the task weights only leave out tasks of weight 0.")
        weights = dict.fromkeys(weights, 1.0)
    return WeightedTasks(weights, seed), CurriculumLevels(ladders, curriculum) if follows else levels
