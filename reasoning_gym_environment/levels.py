"""Which difficulty level a draw gets: uniformly from the task's ladder, where its curriculum stands, or the more
instructive of the levels that the curriculum leaves open."""

from __future__ import annotations

from collections.abc import Mapping

from .curriculum import Curriculum
from .difficulty import Ladder, Level
from .seeding import derive_random
from .signal_bandit import SignalBandit


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
