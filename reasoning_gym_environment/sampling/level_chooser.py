"""The level of each item, as `complexity_mode` asks for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from ..settings import SamplingSettings
from ..tasks.difficulty_ladder import Ladder, Level
from .curriculum import Curriculum
from .item_maker import derive_random

LevelChooser: TypeAlias = Callable[[str, int], Level]
"""Task and index -> the level of an item."""


def build_level_chooser(
    settings: SamplingSettings,
    ladders: Mapping[str, Ladder],
    curriculum: Curriculum,
) -> LevelChooser | None:
    """The chooser of `complexity_mode`; None for reasoning-gym's default configs."""
    mode = settings.complexity_mode
    if mode is None:
        return None

    def choose(task: str, index: int) -> Level:
        ladder = ladders[task]
        if mode == "curriculum":
            return ladder.levels[curriculum.level(task)]
        if mode == "random":
            return derive_random(settings.seed, "level", task, index).choice(ladder.levels)
        return ladder.at(mode)

    return choose
