"""Which levels a task may use: those whose questions fit the prompt budget and whose items are made in time.

    an item is too long, at first sight                         ──> its level is closed
    3 of a level's last 10 items are not in time, or not made   ──> its level is closed

The item itself is drawn again from the next lower open level. A task's lowest level is never closed: below it there is
nothing to fall back on, so its items are skipped one by one. Facts are taken in in the order of the items, so which
levels are open does not depend on which worker was faster.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import EnvironmentSetupError
from ..tasks.difficulty_ladder import Ladder, Level

logger = logging.getLogger(__name__)

LATE_ITEMS = 3
RECENT_ITEMS = 10

TOO_LONG = "prompt_too_long"
TIMED_OUT = "generation_timed_out"
FAILED = "generation_failed"


class LevelLimits:
    """Open and closed levels of each task. `on_close(task, level)` is told of every level that closes."""

    def __init__(
        self, ladders: Mapping[str, Ladder], on_close: Callable[[str, int], None] = lambda task, level: None
    ) -> None:
        self._ladders = ladders
        self._on_close = on_close
        self._closed: dict[str, dict[int, str]] = {}
        self._recent: dict[tuple[str, int], deque[bool]] = {}
        self._lowered: Counter[str] = Counter()

    def level(self, task: str, index: int) -> Level:
        """The highest open level that is not above `index`; the lowest is always open."""
        closed = self._closed.get(task, {})
        while index > 0 and index in closed:
            index -= 1
        return self._ladders[task].level(min(index, len(self._ladders[task]) - 1))

    def from_level_down(self, task: str, index: int) -> list[Level]:
        """The level `index`, even if it is closed by now, and the open ones below it, the highest first."""
        closed = self._closed.get(task, {})
        levels = self._ladders[task].levels[: index + 1]
        return [level for level in reversed(levels) if level.index in (0, index) or level.index not in closed]

    def made(self, task: str, level: int) -> None:
        """An item of this level was made in time and fits."""
        self._window(task, level).append(False)

    def exceeded(self, task: str, level: int, reason: str, detail: str) -> None:
        """An item of this level is not used for `reason`, TOO_LONG, TIMED_OUT or FAILED."""
        if level == 0:
            return
        self._lowered[reason] += 1
        window = self._window(task, level)
        window.append(reason != TOO_LONG)
        if reason == TOO_LONG or sum(window) >= LATE_ITEMS:
            self._close(task, level, reason, detail)

    def closed(self) -> dict[str, dict[int, str]]:
        """The closed levels of each task, with the reason."""
        return {task: dict(levels) for task, levels in sorted(self._closed.items())}

    def metrics(self) -> dict[str, float]:
        """Items drawn from a lower level by reason, and how many levels are closed."""
        values = {f"train/lowered_{reason}": float(count) for reason, count in self._lowered.items()}
        return {**values, "train/closed_levels": float(sum(map(len, self._closed.values())))}

    def state_dict(self) -> dict[str, Any]:
        """Closed levels and recent lateness, as JSON."""
        return {
            "closed": [[task, level, why] for task, levels in self._closed.items() for level, why in levels.items()],
            "recent": [[task, level, list(late)] for (task, level), late in self._recent.items() if any(late)],
            "lowered": dict(self._lowered),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`; tasks that are not served here are ignored. Raises EnvironmentSetupError."""
        try:
            closed = [(str(task), int(level), str(why)) for task, level, why in state.get("closed", [])]
            recent = [
                (str(task), int(level), [bool(one) for one in late]) for task, level, late in state.get("recent", [])
            ]
            self._lowered = Counter(state.get("lowered", {}))
        except (TypeError, ValueError) as error:
            raise EnvironmentSetupError(f"The saved level limits cannot be used: {error}.") from error
        self._closed, self._recent = {}, {}
        for task, level, why in closed:
            if 0 < level < len(self._ladders.get(task, ())):
                self._closed.setdefault(task, {})[level] = why
                self._on_close(task, level)
        for task, level, late in recent:
            self._recent[task, level] = deque(late, maxlen=RECENT_ITEMS)

    def _window(self, task: str, level: int) -> deque[bool]:
        return self._recent.setdefault((task, level), deque(maxlen=RECENT_ITEMS))

    def _close(self, task: str, level: int, reason: str, detail: str) -> None:
        if level in self._closed.get(task, {}):
            return
        self._closed.setdefault(task, {})[level] = reason
        logger.warning("Level %d of %s is not used from here on (%s): %s.", level, task, reason, detail)
        self._on_close(task, level)
