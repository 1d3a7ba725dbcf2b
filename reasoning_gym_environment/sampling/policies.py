"""The policies that the settings choose.

                  task_sampling:  uniform, weighted     learnability
complexity_mode: none, random     fixed shares          by progress over all levels of a task
                 curriculum       fixed shares          by progress at the current level of the task
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TypeAlias

from ..settings import SamplingSettings
from ..tasks.difficulty_ladder import Ladder, Level
from .curriculum import Curriculum
from .item_maker import derive_random
from .learnability import FLOOR, LearnableTasks
from .task_policy import TaskPolicy
from .weighted import WeightedTasks

logger = logging.getLogger(__name__)

LevelChooser: TypeAlias = Callable[[str, int], Level]
"""Task and index -> the level of an item."""


def build_task_policy(
    settings: SamplingSettings,
    weights: Mapping[str, float],
    curriculum: Curriculum,
    floor: float = FLOOR,
) -> TaskPolicy:
    """The policy of `task_sampling`. `weights` has every served task.

    `uniform` treats all tasks alike, and logs a warning if the weights differ.
    """
    if settings.task_sampling == "learnability":
        level_of = curriculum.level if settings.complexity_mode == "curriculum" else None
        return LearnableTasks(weights, settings.seed, level_of, floor)
    if settings.task_sampling == "uniform":
        if len(set(weights.values())) > 1:
            logger.warning("task_sampling is uniform: the task weights only exclude tasks of weight 0.")
        weights = dict.fromkeys(weights, 1.0)
    return WeightedTasks(weights, settings.seed)


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
