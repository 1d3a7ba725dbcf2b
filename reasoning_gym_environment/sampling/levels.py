"""The task and the level of each item, and the items that come from an easier level than planned.

`choose_task` draws the task of an index, and a LevelChooser its level, as `complexity_mode` asks for it. An item that
is too long, is not made in time, cannot be made, or has only held-out questions comes from the next easier level
instead (item_maker.py). LevelCounts counts these items. It also tells the curriculum, which moves a task down from a
level that gives no items. The stream reports the items in the order of their index, so the levels do not depend on
which worker was faster.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from pydantic import NonNegativeInt, TypeAdapter

from ..settings.components import SamplingSettings
from ..tasks.difficulty_ladder import Ladder, Level
from .curriculum import Curriculum
from .seeds import derive_random

logger = logging.getLogger(__name__)

OFTEN = 10
"""A level is reported once this many of its items, and at least half of them, came from an easier level."""

LevelChooser: TypeAlias = Callable[[str, int], Level]
"""Task and index -> the level of an item."""

_REPLACED = TypeAdapter(dict[str, NonNegativeInt])


def choose_task(weights: Mapping[str, float], seed: int, instance: str, index: int) -> str:
    """The task of an index of the training stream, drawn with probabilities in proportion to the weights."""
    random = derive_random(seed, "task", "train", instance, index)
    return random.choices(list(weights), weights=list(weights.values()))[0]


def level_chooser(
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


class LevelCounts:
    """Counts the items of each level that could be made, and those that came from an easier level instead.

    A `curriculum` is told of each item.
    """

    def __init__(self, curriculum: Curriculum | None = None) -> None:
        self._curriculum = curriculum
        self._made: Counter[tuple[str, int]] = Counter()
        self._failed: Counter[tuple[str, int]] = Counter()
        self._reported: set[tuple[str, int]] = set()
        self._replaced: Counter[str] = Counter()

    def made(self, task: str, level: int) -> None:
        """Count an item of this level."""
        self._made[task, level] += 1
        if self._curriculum is not None:
            self._curriculum.note_made(task, level)

    def exceeded(self, task: str, level: int, reason: str, detail: str) -> None:
        """Count an item that this level could not give, for `reason`: TOO_LONG, TIMED_OUT, FAILED or HELD_OUT."""
        if level == 0:
            # No level is easier, so the stream skips the item.
            return
        self._replaced[reason] += 1
        self._failed[task, level] += 1
        self._report_if_often(task, level, reason, detail)
        if self._curriculum is not None:
            self._curriculum.note_unmade(task, level)

    def metrics(self) -> dict[str, float]:
        """The number of replaced items by reason."""
        return {f"train/replaced_{reason}": float(count) for reason, count in self._replaced.items()}

    def state_dict(self) -> dict[str, int]:
        """The number of replaced items by reason."""
        return dict(self._replaced)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`. Raises ValueError if it is malformed."""
        self._replaced = Counter(_REPLACED.validate_python(dict(state)))

    def _report_if_often(self, task: str, level: int, reason: str, detail: str) -> None:
        key = (task, level)
        failed = self._failed[key]
        if key in self._reported or failed < max(OFTEN, self._made[key]):
            return
        self._reported.add(key)
        logger.warning(
            "%d of %d items of level %d of %s came from an easier level (%s): %s. Further ones are only counted.",
            failed,
            failed + self._made[key],
            level,
            task,
            reason,
            detail,
        )
