"""Which difficulty level a draw gets: uniformly from the task's ladder, where its curriculum stands, or the more
instructive of the levels that the curriculum leaves open.

Who chooses tasks and levels in a run: the combination that `task_sampling` and `complexity_mode` ask for.

                  task_sampling:  uniform, weighted     learnability
complexity_mode: none             fixed shares          one arm for each task
                 random           fixed shares          one arm for each task, over all its levels
                 curriculum       fixed shares,         one arm for each task and level; of the levels that the
                                  its level             curriculum leaves open the likeliest to carry a signal
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from ..tasks.catalog import Task
from ..tasks.difficulty_ladder import Ladder, Level, Ranges, build_ladder
from ..utils.seeding import derive_random
from .curriculum import Curriculum
from .item_stream import LevelChooser
from .task_bandit import LearnableTasks, SignalBandit, TaskChooser, WeightedTasks

logger = logging.getLogger(__name__)


WITHOUT_EFFECT = {"self_reference": "its generator never reads its difficulty, so every level asks the same questions"}
"""Tasks whose levels differ in their config and in nothing else, in reasoning-gym 0.1.25."""


def build_ladders(tasks: Iterable[Task], *, difficulty_range: Ranges) -> dict[str, Ladder]:
    """The ladder of each task, its overrides included. Levels left out are in the debug log."""
    ladders = {
        task.name: build_ladder(task.name, difficulty_range=difficulty_range, overrides=dict(task.overrides))
        for task in tasks
    }
    for task, ladder in ladders.items():
        for level, reason in ladder.left_out:
            logger.debug("Level %d of %s is left out: %s.", level, task, reason)
    return ladders


def describe(ladders: Mapping[str, Ladder]) -> str:
    """One line on how many levels there are, which tasks have only one, and whose levels are all the same."""
    sizes = [len(ladder) for ladder in ladders.values()]
    single = sorted(task for task, ladder in ladders.items() if len(ladder) == 1)
    remarks = [f"one level only: {', '.join(single)}"] if single else []
    remarks += [f"{task}: {reason}" for task, reason in WITHOUT_EFFECT.items() if task in ladders]
    return "; ".join([f"{len(ladders)} tasks with {min(sizes)} to {max(sizes)} levels", *remarks])


class RandomLevels:
    """Uniform over each task's ladder; a function of (seed, task, index)."""

    def __init__(self, ladders: Mapping[str, Ladder], seed: int) -> None:
        self._ladders = ladders
        self._seed = seed

    def choose(self, task: str, index: int) -> Level | None:
        return derive_random(self._seed, "level", task, index).choice(self._ladders[task].levels)


class CurriculumLevels:
    """Where the curriculum stands for the task at the time of the draw."""

    def __init__(self, ladders: Mapping[str, Ladder], curriculum: Curriculum) -> None:
        self._ladders = ladders
        self._curriculum = curriculum

    def choose(self, task: str, index: int) -> Level | None:
        return self._ladders[task].level(self._curriculum.level(task))


class LearnableLevels:
    """Of the levels that the curriculum leaves open, the one whose groups are likeliest to carry a signal."""

    def __init__(self, ladders: Mapping[str, Ladder], curriculum: Curriculum, bandit: SignalBandit) -> None:
        self._ladders = ladders
        self._curriculum = curriculum
        self._bandit = bandit

    def choose(self, task: str, index: int) -> Level | None:
        return self._ladders[task].level(self._bandit.best_level(task, self._curriculum.open_levels(task)))


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
    if task_sampling != "learnability":
        if task_sampling == "uniform" and len(set(weights.values())) > 1:
            logger.warning("task_sampling is uniform: the task weights only leave out tasks of weight 0.")
        given = dict.fromkeys(weights, 1.0) if task_sampling == "uniform" else weights
        levels = CurriculumLevels(ladders, curriculum) if follows else None
        return WeightedTasks(given, seed), levels or _random(complexity_mode, ladders, seed)
    bandit = SignalBandit({task: len(ladders[task]) if follows else 1 for task in weights})
    open_levels = curriculum.open_levels if follows else None
    tasks = LearnableTasks(weights, seed, bandit, open_levels=open_levels, floor=task_floor)
    if follows:
        return tasks, LearnableLevels(ladders, curriculum, bandit)
    return tasks, _random(complexity_mode, ladders, seed)


def _random(complexity_mode: str | None, ladders: Mapping[str, Ladder], seed: int) -> LevelChooser | None:
    return RandomLevels(ladders, seed) if complexity_mode == "random" else None
