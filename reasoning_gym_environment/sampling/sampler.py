"""The item stream with what steers it: tasks and levels are chosen, and the choosers learn from what was earned.

    SamplingSettings, ladders ── build_sampler ──> Sampler: stream <── task chooser, level chooser <── curriculum
    a problem of the stream ── answered, graded ──> observe: chooser and curriculum, once for each item

Whoever trains, and with what, holds one of these.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..records import Problem, RolloutGroup
from ..tasks.catalog import Catalog, progress
from ..tasks.difficulty_ladder import Ladder, Ranges, build_ladders, describe
from . import SamplingSettings
from .choosers import TaskChooser, build_choosers
from .curriculum import Curriculum
from .item_maker import ItemMaker, LevelLimits
from .item_stream import ItemStream

logger = logging.getLogger(__name__)


@dataclass
class Sampler:
    """Which item comes next."""

    stream: ItemStream
    chooser: TaskChooser
    curriculum: Curriculum
    follows_curriculum: bool

    def observe_group(self, group: RolloutGroup) -> None:
        self.observe(group.problem, [rollout.credit for rollout in group.scored], has_signal=group.has_signal)

    def observe(self, problem: Problem, credits: Sequence[float], *, has_signal: bool) -> None:
        """Let the choosers see what the completions of a problem earned, once for each item of the stream.

        `credits`, each in [0, 1], are of those that could be scored: a timeout or crash of our own is not the model's
        failure. `has_signal`: their rewards differ.
        """
        if not problem.is_of_stream:
            return
        if not credits:
            self.chooser.skip(problem.task)
        elif self.stream.ledger.is_new_observation(problem.index):
            self.learn(problem.task, problem.level, credits, has_signal)

    def learn(self, task: str, level: int | None, credits: Sequence[float], has_signal: bool) -> None:
        """The same, of a group that is new for certain."""
        self.chooser.observe(task, level, sum(credits) / len(credits), has_signal)
        if self.follows_curriculum and level is not None:
            self.curriculum.observe(task, level, credits)

    def metrics(self) -> dict[str, float]:
        parts = (
            self.stream,
            self.chooser,
            self.stream.ledger,
            *((self.curriculum,) if self.follows_curriculum else ()),
        )
        return {name: value for part in parts for name, value in part.metrics().items()}

    @property
    def stateful(self) -> dict[str, Any]:
        """The parts that observed scores or drawn items move, in the order in which they are saved and loaded."""
        return {
            "sampler": self.stream,
            "curriculum": self.curriculum,
            "chooser": self.chooser,
            "observed": self.stream.ledger,
        }


async def ladders_of(
    catalog: Catalog, complexity_mode: str | float | None, difficulty_range: Ranges
) -> dict[str, Ladder]:
    """Every task's ladder; in a thread, for thousands of configs are tried and the event loop must heed signals."""
    if complexity_mode is None:
        return {}
    tasks = progress("difficulty ladders")(catalog.tasks)
    ladders = await asyncio.to_thread(build_ladders, tasks, difficulty_range=difficulty_range)
    logger.info("Difficulty %s: %s.", complexity_mode, describe(ladders))
    return ladders


def build_sampler(settings: SamplingSettings, maker: ItemMaker, ladders: Mapping[str, Ladder]) -> Sampler:
    """A new stream of the maker's tasks; `ladders` are those of `ladders_of`."""
    curriculum = Curriculum(
        target_accuracy=settings.curriculum_target_accuracy,
        ladder_sizes={task: len(ladder) for task, ladder in ladders.items()},
    )
    chooser, levels = build_choosers(
        task_sampling=settings.task_sampling,
        complexity_mode=settings.complexity_mode,
        weights={task.name: task.weight for task in maker.catalog.tasks},
        ladders=ladders,
        curriculum=curriculum,
        seed=settings.seed,
        task_floor=settings.task_floor,
    )
    stream = ItemStream(
        maker,
        seed=settings.seed,
        instance=settings.instance_id or "0",
        levels=levels,
        tasks=chooser,
        limits=LevelLimits(ladders, on_close=curriculum.end_below),
        prefetch=settings.prefetch_items,
    )
    return Sampler(stream, chooser, curriculum, settings.follows_curriculum)
