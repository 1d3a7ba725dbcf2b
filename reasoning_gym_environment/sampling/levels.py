"""The task and the level of each item, and the levels that each task may use now.

`choose_task` draws the task of an index, and a LevelChooser its level, as `complexity_mode` asks for it. LevelLimits
closes a level for a while if too many of its items fail:

    an item is too long, and the level has had less than KNOWN_ITEMS items                ──> the level is closed
    at least FAILED_ITEMS of the last KNOWN_ITEMS items fail, and FAILED_SHARE of them    ──> the level is closed
    an item fails, and the level has had less than TRIAL_ITEMS items since it opened      ──> the level is closed again
    RETRY_AFTER items of any task, twice as many after each further closing               ──> the level is open again

An item fails if it is too long, is not made in time, cannot be made, or has only held-out questions. An item does not
fail if its workers die. The usual cause is a lack of memory, and then such items would close the levels of all tasks.

**An overloaded machine closes no level.** An item that is late, or that cannot be made, does not count if an item of
another task, or of an easier level of its task, was late as well among the NEIGHBOURS items before it: then the machine
may be the cause. If every seventh item is late, 40 items in a row are in time in one case of 500 only. The lateness of
a level that has never made an item excuses no other, because this level may be too hard. Otherwise a task with several
hopeless levels would protect the levels of all other tasks. The rule has two limits. A task that is alone has only its
easier levels as neighbours, so an overload that makes its hard items late and its easy items not can still close a
level. And if most tasks of a small run have levels that are late for half of their items, these levels protect each
other and stay open. This costs time, and no item.

**A closed level is tried again**, whatever the reason was: the machine may have recovered, and the trainer may have
raised its token limit. The first failing item closes the level again. The distance between the trials doubles, so the
trials of a hopeless level cost about five of the first 100,000 items, and one more whenever the number of items
doubles. A level that was closed by mistake is open again after RETRY_AFTER items. All
distances are counted in items and not in seconds. The stream reports the items in the order of their index, so the open
levels do not depend on which worker was faster.

In a run of weeks with thousands of items, a few items are late or too long by chance, and they must not close a level.
The lowest level of a task is never closed, because there is no easier level. Instead, the stream skips each of its
failing items.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, Field, NonNegativeInt

from ..settings.components import SamplingSettings
from ..tasks.difficulty_ladder import Ladder, Level
from .curriculum import Curriculum
from .item_maker import FAILED, TIMED_OUT, TOO_LONG
from .seeds import derive_random

logger = logging.getLogger(__name__)

KNOWN_ITEMS = 100
"""Only this many recent items of a level count. After this many items, a single long question closes no level."""

FAILED_ITEMS = 3
"""A level is closed only if at least this many of its recent items failed."""

FAILED_SHARE = 0.15
"""A level is closed only if at least this share of its recent items failed."""

NEIGHBOURS = 40
"""A late item does not count if one of this many items before it was late, at another task or at an easier level."""

RETRY_AFTER = 2000
"""A closed level opens again after this many items of any task, and after twice as many whenever it closes again.

The distance starts afresh once the level has had KNOWN_ITEMS items.
"""

TRIAL_ITEMS = 10
"""A level that was closed before is on trial for this many items: the first failing item closes it again."""

OVERLOAD_REASONS = frozenset({TIMED_OUT, FAILED})
"""The reasons that a machine without free processors or memory can cause."""


LevelKey: TypeAlias = tuple[str, int]
"""Task and level."""

Window: TypeAlias = deque[bool]
"""Whether each of the last KNOWN_ITEMS items of a level failed."""


LevelChooser: TypeAlias = Callable[[str, int], Level]
"""Task and index -> the level of an item."""


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


@dataclass
class _Closing:
    """The last closing of a level."""

    reason: str
    times: int
    """How often the level was closed, without KNOWN_ITEMS items in between."""
    opens_at: int
    """The level opens again when the item count reaches this number."""


class _SavedLimits(BaseModel):
    """The form of a `state_dict`. The number in `recent` is the length of a window without failures."""

    closed: list[tuple[str, int, str]] = []
    recent: list[tuple[str, NonNegativeInt, Annotated[int, Field(ge=0, le=KNOWN_ITEMS)] | list[bool]]] = []
    replaced: dict[str, NonNegativeInt] = {}
    items: NonNegativeInt = 0
    closings: list[tuple[str, int, Annotated[int, Field(ge=1, le=100)], NonNegativeInt]] = []
    late: list[tuple[NonNegativeInt, str, int]] = []


class LevelLimits:
    """The closed levels of each task."""

    def __init__(self, ladders: Mapping[str, Ladder]) -> None:
        self._ladders = ladders
        self._items = 0
        """All items that were counted so far. A draw that goes down the ladder counts once for each level."""
        self._closings: dict[LevelKey, _Closing] = {}
        """The levels that are closed, or were closed before."""
        self._recent: dict[LevelKey, Window] = {}
        self._late: deque[tuple[int, str, int]] = deque(maxlen=NEIGHBOURS)
        """The last late items: their number, task and level."""
        self._replaced: Counter[str] = Counter()
        self._has_reported_overload = False

    def level(self, task: str, index: int) -> Level:
        """The highest open level that is not above `index`."""
        return self._open_down_from(task, index)[0]

    def top_level(self, task: str) -> int:
        """The level below the lowest closed level of the task, or its last level if none is closed."""
        levels = range(len(self._ladders[task]))
        closed = [level for level in levels if self._is_closed(task, level)]
        return min(closed, default=len(levels)) - 1

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
        self._items += 1
        if not self._is_closed(task, level):
            self._window(task, level).append(False)

    def exceeded(self, task: str, level: int, reason: str, detail: str) -> None:
        """Count an item of this level that failed for `reason`: TOO_LONG, TIMED_OUT, FAILED or HELD_OUT."""
        self._items += 1
        is_excused = False
        if reason in OVERLOAD_REASONS:
            is_excused = self._is_neighbour_late(task, level)
            self._note_late(task, level)
        if level == 0:
            return
        self._replaced[reason] += 1
        # The items of a closed level began before it was closed.
        if self._is_closed(task, level):
            return
        if is_excused:
            self._report_overload(task, detail)
            return
        items = len(self._window(task, level))
        is_on_trial = (task, level) in self._closings and items < TRIAL_ITEMS
        if is_on_trial or (reason == TOO_LONG and items < KNOWN_ITEMS):
            self._close(task, level, reason, detail)
        else:
            self._fail(task, level, reason, detail)

    def metrics(self) -> dict[str, float]:
        """The number of failed items by reason, and the number of closed levels."""
        values = {"train/closed_levels": float(len(self._closed()))}
        for reason, count in self._replaced.items():
            values[f"train/replaced_{reason}"] = float(count)
        return values

    def state_dict(self) -> dict[str, Any]:
        """Closed levels and recent items, as JSON. A window without failures, as most are, is saved as its length."""
        recent: list[list[Any]] = []
        for (task, level), window in self._recent.items():
            recent.append([task, level, list(window) if any(window) else len(window)])
        closings: list[list[Any]] = []
        for (task, level), closing in self._closings.items():
            closings.append([task, level, closing.times, closing.opens_at])
        return {
            "closed": self._closed(),
            "recent": recent,
            "replaced": dict(self._replaced),
            "items": self._items,
            "closings": closings,
            "late": [list(item) for item in self._late],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`. {} starts afresh.

        Closed levels that no task has here are dropped. Raises ValueError if the state is malformed.
        """
        saved = _SavedLimits.model_validate(dict(state))
        self._items = saved.items
        self._closings = {}
        reasons: dict[LevelKey, str] = {}
        for task, level, reason in saved.closed:
            reasons[task, level] = reason
        for task, level, times, opens_at in saved.closings:
            if self._can_be_closed(task, level):
                self._closings[task, level] = _Closing(reasons.get((task, level), ""), times, opens_at)
        self._recent = {}
        for task, level, window in saved.recent:
            failed = [False] * window if isinstance(window, int) else window
            self._recent[task, level] = deque(failed, maxlen=KNOWN_ITEMS)
        self._late = deque(saved.late, maxlen=NEIGHBOURS)
        self._replaced = Counter(saved.replaced)

    # --- decisions

    def _note_late(self, task: str, level: int) -> None:
        if False in self._recent.get((task, level), ()):
            self._late.append((self._items, task, level))

    def _is_neighbour_late(self, task: str, level: int) -> bool:
        """Whether another task, or an easier level of this task, was late among the last NEIGHBOURS items."""
        for number, late_task, late_level in self._late:
            is_recent = number >= self._items - NEIGHBOURS
            is_other = late_task != task or late_level < level
            if is_recent and is_other:
                return True
        return False

    def _fail(self, task: str, level: int, reason: str, detail: str) -> None:
        """Count a failing item, and close its level if there are too many."""
        window = self._window(task, level)
        window.append(True)
        if sum(window) >= max(FAILED_ITEMS, FAILED_SHARE * len(window)):
            self._close(task, level, reason, detail)

    def _close(self, task: str, level: int, reason: str, detail: str) -> None:
        window = self._window(task, level)
        last = self._closings.get((task, level))
        times = 1
        if last is not None and len(window) < KNOWN_ITEMS:
            times = last.times + 1
        items = RETRY_AFTER * 2 ** (times - 1)
        self._closings[task, level] = _Closing(reason, times, self._items + items)
        # After a trial, only items of the trial count.
        del self._recent[task, level]
        logger.warning(
            "Level %d of %s is not used for the next %d items of the run (%s): %s.",
            level,
            task,
            items,
            reason,
            detail,
        )

    def _report_overload(self, task: str, detail: str) -> None:
        if self._has_reported_overload:
            return
        self._has_reported_overload = True
        logger.warning(
            "Items of %s and of other tasks could not be made at about the same time (%s). If this happens often, the "
            "machine is overloaded: use fewer workers, or free processors and memory. No level is closed for it.",
            task,
            detail,
        )

    def _is_closed(self, task: str, level: int) -> bool:
        closing = self._closings.get((task, level))
        return closing is not None and self._items < closing.opens_at

    def _closed(self) -> list[list[Any]]:
        """Task, level and reason of every closed level."""
        closed: list[list[Any]] = []
        for (task, level), closing in self._closings.items():
            if self._is_closed(task, level):
                closed.append([task, level, closing.reason])
        return closed

    def _open_down_from(self, task: str, index: int) -> list[Level]:
        levels = self._ladders[task].levels[: index + 1]
        return [level for level in reversed(levels) if not self._is_closed(task, level.index)]

    def _can_be_closed(self, task: str, level: int) -> bool:
        return task in self._ladders and 0 < level < len(self._ladders[task])

    def _window(self, task: str, level: int) -> Window:
        return self._recent.setdefault((task, level), deque(maxlen=KNOWN_ITEMS))
