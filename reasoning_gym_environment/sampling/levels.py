"""Which difficulty level a draw gets: uniformly from the task's ladder, where its curriculum stands, or the more
instructive of the levels that the curriculum leaves open."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from ..tasks.catalog import Task
from ..tasks.difficulty_ladder import Ladder, Level, Ranges, build_ladder
from ..utils.seeding import derive_random
from .curriculum import Curriculum
from .task_bandit import SignalBandit

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
