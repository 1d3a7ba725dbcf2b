"""The levels that each task may still use. A level is closed if too many of its items fail.

    an item is too long, and the level has had less than KNOWN_ITEMS items            ──> the level is closed
    at least LATE_ITEMS of the last KNOWN_ITEMS items fail, and LATE_SHARE of them    ──> the level is closed

An item fails if it is too long, is not made in time, cannot be made, or has only held-out questions. An item does not
fail if its workers die. The usual cause is a lack of memory, and then such items would close the levels of all tasks.

A closed level does not open again. In a run of weeks with thousands of items, a few items are late or too long by
chance, and they must not close a level. The lowest level of a task is never closed, because there is no easier level.
Instead, the stream skips each of its failing items. The stream reports the items in the order of their index, so the
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
"""Only this many recent items of a level count. After this many items, a single long question closes no level."""

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
        """The level below the lowest closed level of the task, or its last level if none is closed."""
        closed = [level for name, level in self._closed if name == task]
        return min(closed, default=len(self._ladders[task])) - 1

    def from_level_down(self, task: str, index: int) -> list[Level]:
        """The level `index` and the open levels below it, the highest first.

        The first level may be closed, because it may have closed after it was chosen. An index above the ladder means
        the last level.
        """
        ladder = self._ladders[task]
        top = min(index, len(ladder) - 1)
        return [ladder.levels[top], *self._open_down_from(task, top - 1)]

    def made(self, task: str, level: int) -> None:
        """Count an item of this level that did not fail."""
        self._window(task, level).append(False)

    def exceeded(self, task: str, level: int, reason: str, detail: str) -> None:
        """Count an item of this level that failed for `reason`: TOO_LONG, TIMED_OUT, FAILED or HELD_OUT."""
        if level == 0:
            return
        self._replaced[reason] += 1
        window = self._window(task, level)
        closes_at_once = reason == TOO_LONG and len(window) < KNOWN_ITEMS
        # An item that closes its level at once is not recorded as a failure.
        window.append(not closes_at_once)
        fails_often = sum(window) >= max(LATE_ITEMS, LATE_SHARE * len(window))
        if (task, level) not in self._closed and (closes_at_once or fails_often):
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
        """Closed levels and recent items, as JSON. A window without failures, as most are, is saved as its length."""
        recent: list[list[Any]] = []
        for (task, level), window in self._recent.items():
            recent.append([task, level, list(window) if any(window) else len(window)])
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
