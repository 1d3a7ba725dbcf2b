"""The levels of its ladder that a task may use. A level is closed if its items often cannot be made.

    an item is too long, before KNOWN_ITEMS items of its level were seen           ──> the level is closed
    LATE_ITEMS of a level's last KNOWN_ITEMS items, and LATE_SHARE of them, fail    ──> the level is closed

An item fails if it is too long, is not made in time, cannot be made, or has only held-out questions. An item of which
the workers die does not count: usually the machine is short of memory, and then the items of all levels fail.

In a run of weeks, three of thousands of items are late by chance, and one is too long. A closed level does not open
again, so a level is closed only if its items fail often. A task's lowest level is never closed, because there is no
easier level to fall back on: the stream skips its failing items one by one. Results are processed in item order, so the
open levels do not depend on which worker was faster.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, Field, NonNegativeInt

from ..tasks.difficulty_ladder import Ladder, Level
from .item_maker import TOO_LONG, loading

logger = logging.getLogger(__name__)

KNOWN_ITEMS = 100
"""Number of recent items of a level that count. A level with so many items is not closed for one long question."""

LATE_ITEMS = 3
"""A level is closed only if at least this many of its recent items failed."""

LATE_SHARE = 0.15
"""A level is closed only if at least this share of its recent items failed."""


LevelKey: TypeAlias = tuple[str, int]
"""Task and level."""

Window: TypeAlias = deque[bool]
"""Whether each of the last KNOWN_ITEMS items of a level failed."""


class _SavedLimits(BaseModel):
    """The form of a `state_dict`. The number in `recent` is the length of a window without failures."""

    closed: list[tuple[str, int, str]] = []
    recent: list[tuple[str, NonNegativeInt, Annotated[int, Field(ge=0, le=KNOWN_ITEMS)] | list[bool]]] = []
    replaced: dict[str, NonNegativeInt] = {}


class LevelLimits:
    """The closed levels of each task."""

    def __init__(self, ladders: Mapping[str, Ladder]) -> None:
        self._ladders = ladders
        self._closed: dict[LevelKey, str] = {}
        """Why a level is closed."""
        self._recent: dict[LevelKey, Window] = {}
        self._replaced: Counter[str] = Counter()

    def level(self, task: str, index: int) -> Level:
        """The highest open level that is not above `index`."""
        return self._open_down_from(task, index)[0]

    def top_level(self, task: str) -> int:
        """The highest level of the task that has no closed level below it."""
        closed = [level for name, level in self._closed if name == task]
        return min(closed, default=len(self._ladders[task])) - 1

    def from_level_down(self, task: str, index: int) -> list[Level]:
        """The level `index`, even if it has closed since it was chosen, and the open levels below it, highest first.

        An index above the ladder means its last level.
        """
        top = self._ladders[task].levels[: index + 1][-1]
        below = self._open_down_from(task, top.index - 1) if top.index else []
        return [top, *below]

    def made(self, task: str, level: int) -> None:
        """Count an item of this level that was in time and fits."""
        self._window(task, level).append(False)

    def exceeded(self, task: str, level: int, reason: str, detail: str) -> None:
        """Count an item of this level that failed for `reason`: TOO_LONG, TIMED_OUT, FAILED or HELD_OUT."""
        if level == 0:
            return
        self._replaced[reason] += 1
        window = self._window(task, level)
        is_too_long = reason == TOO_LONG and len(window) < KNOWN_ITEMS
        window.append(not is_too_long)
        fails_often = sum(window) >= max(LATE_ITEMS, LATE_SHARE * len(window))
        if (task, level) not in self._closed and (is_too_long or fails_often):
            self._closed[task, level] = reason
            logger.warning(
                "Level %d of %s is not used from here on (%s): %s.",
                level,
                task,
                reason,
                detail,
            )

    def metrics(self) -> dict[str, float]:
        """The number of failed items by reason, and the number of closed levels."""
        values = {"train/closed_levels": float(len(self._closed))}
        for reason, count in self._replaced.items():
            values[f"train/replaced_{reason}"] = float(count)
        return values

    def state_dict(self) -> dict[str, Any]:
        """Closed levels and recent failures, as JSON.

        A window without failures is saved as its length, and only when it is full. Most levels have such a window.
        """
        recent: list[list[Any]] = []
        for (task, level), window in self._recent.items():
            if any(window):
                recent.append([task, level, list(window)])
            elif len(window) == KNOWN_ITEMS:
                recent.append([task, level, KNOWN_ITEMS])
        closed = [[task, level, reason] for (task, level), reason in self._closed.items()]
        return {
            "closed": closed,
            "recent": recent,
            "replaced": dict(self._replaced),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`. {} starts afresh.

        Closed levels that no task has here are dropped. Raises EnvironmentSetupError, and changes nothing, if the state
        is malformed.
        """
        with loading("level limits"):
            saved = _SavedLimits.model_validate(dict(state))
        self._closed = {}
        for task, level, reason in saved.closed:
            if self._can_be_closed(task, level):
                self._closed[task, level] = reason
        self._recent = {}
        for task, level, window in saved.recent:
            failed = [False] * window if isinstance(window, int) else window
            self._recent[task, level] = deque(failed, maxlen=KNOWN_ITEMS)
        self._replaced = Counter(saved.replaced)

    def _open_down_from(self, task: str, index: int) -> list[Level]:
        levels = self._ladders[task].levels[: index + 1]
        return [level for level in reversed(levels) if (task, level.index) not in self._closed]

    def _can_be_closed(self, task: str, level: int) -> bool:
        return task in self._ladders and 0 < level < len(self._ladders[task])

    def _window(self, task: str, level: int) -> Window:
        return self._recent.setdefault((task, level), deque(maxlen=KNOWN_ITEMS))
