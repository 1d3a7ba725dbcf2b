"""Who chooses tasks and levels in a run: the combination that `task_sampling` and `complexity_mode` ask for.

                  task_sampling:  uniform, weighted     learnability
complexity_mode: none             fixed shares          one arm for each task
                 random           fixed shares          one arm for each task, over all its levels
                 curriculum       fixed shares,         one arm for each task and level; of the levels that the
                                  its level             curriculum leaves open the likeliest to carry a signal
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ..tasks.difficulty_ladder import Ladder
from .curriculum import Curriculum
from .item_stream import LevelChooser
from .levels import CurriculumLevels, LearnableLevels, RandomLevels
from .task_bandit import SignalBandit
from .task_choice import LearnableTasks, TaskChooser, WeightedTasks

logger = logging.getLogger(__name__)


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
