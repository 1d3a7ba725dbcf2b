"""The state of each item of the training stream: pending draws, and observed items.

    drawn ── hand_out ──> handed out ── finish ──> forgotten
      ^                       │
      └────── waiting <── requeue

A draw is pending from the moment its task and level are chosen until its item is finished. The stream saves every
pending draw and repeats it after a restart.

**An item that crashes the inference servers.** In an outage, the requests of all items in flight fail, and each of
these items may be the cause. It is a suspect until it gets its completions. An item that fails in MAX_CRASHES outages
is dropped. The exception is an item that had no part in as many other outages of the last hour: these outages have
another cause. Two rules find the cause and spare the other items:

* While an outage lasts, suspects wait, and the stream draws other items. So the servers recover with an item that has
  not failed, and the next crash is a new outage.
* Afterwards the stream hands out one suspect at a time. So the next crash adds to the failures of one suspect only.

At most one suspect is dropped in an outage. The stream drops an innocent item only if the first three outages of an
hour find it without its completions, and if in the last two outages it is the suspect that is handed out. The price of
the rules is that suspects wait for each other: after an outage with 500 groups in flight, the last of these groups
starts when the 499 others have their completions. Meanwhile other groups continue with new items.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import TypeAdapter

from ..records import Problem

MAX_CRASHES = 3
"""The stream drops an item that failed in this many outages, and in most outages of the time."""

HISTORY_S = 3600.0
"""Outages that began up to this long before the first failure of an item show that the servers fail without it."""

MAX_TRIES = 10
"""The stream drops an item after this many failures of any kind.

A request may fail although the servers work: it may never be answered, for example. Such failures prove less than
outages. At the beginning of an outage, before the servers count as unavailable, innocent items fail in the same way.
Therefore three of them are no reason to give an item up.
"""

REMEMBERED = 4096
"""Number of observed items to remember. Far fewer items are pending at any time."""


@dataclass(frozen=True, order=True)
class Draw:
    """Task and level of one index of the training stream; `level` is None for the task's default config."""

    index: int
    task: str
    level: int | None


class PendingItems:
    """The draws that callers hold, and the draws that wait to be repeated.

    Every draw of the stream is in exactly one place: ahead in the stream, in `handed_out`, in `waiting`, or finished.
    Problems of an evaluation or of a caller's own dataset are never pending.
    """

    def __init__(self) -> None:
        self.handed_out: dict[int, Draw] = {}
        """The draws whose problems callers hold, by index."""
        self.waiting: deque[Draw] = deque()
        """The draws to repeat before the stream makes a new one, the next first."""
        self.known: set[int] = set()
        """The indices of the pending draws whose problems a caller has had at least once."""
        self._failures: dict[int, set[float]] = {}
        """The times of the failures of an item, by index. A failure in an outage has the time of the outage."""
        self._outages: dict[int, set[float]] = {}
        """The times of the outages in which a suspect failed, by index."""
        self._history: deque[float] = deque(maxlen=2 * MAX_TRIES)
        """The times of the last outages, without outages whose cause has been found."""
        self._is_outage = False

    # --- for the item stream

    def take_waiting(self, ahead: Iterable[int] = ()) -> Draw | None:
        """Take the next waiting draw that the stream may repeat now; None if there is none.

        `ahead` are the indices that the stream has taken before and has not handed out yet. Draws that are held back
        keep their place. They are available once an item gets its completions, or once the suspect is finished or
        requeued.
        """
        taken = [*self.handed_out, *ahead]
        must_wait = self._is_outage or any(index in self._outages for index in taken)
        for draw in self.waiting:
            if not (must_wait and draw.index in self._outages):
                self.waiting.remove(draw)
                return draw
        return None

    def hand_out(self, draw: Draw, problem: Problem) -> None:
        """Note that a caller holds the problem of this draw."""
        # The item may come from a level below the level of the draw. A repetition must give the same item.
        self.handed_out[draw.index] = replace(draw, level=problem.level)
        self.known.add(draw.index)

    def put_back(self, draws: Iterable[Draw]) -> None:
        """Let draws whose items were never handed out be the next ones, in this order."""
        self.waiting.extendleft(reversed(list(draws)))

    def restore(self, draws: Iterable[Draw], known: Iterable[int] = ()) -> None:
        """Replace all pending draws with these, which wait in this order. Failures are counted anew."""
        self.handed_out.clear()
        self._failures.clear()
        self._outages.clear()
        self._history.clear()
        self._is_outage = False
        self.waiting = deque(draws)
        self.known = {draw.index for draw in self.waiting}.intersection(known)

    def forget(self, index: int) -> None:
        """Forget what is known of a draw that is pending no longer."""
        self.known.discard(index)
        self._failures.pop(index, None)
        self._outages.pop(index, None)

    # --- for the callers of the stream

    def finish(self, problem: Problem) -> None:
        """Forget a problem: its group was sent, or no group will come of it. Other problems are ignored."""
        if self.is_handed_out(problem):
            del self.handed_out[problem.index]
            if self._is_cause(problem.index):
                for began in self._outages[problem.index].intersection(self._history):
                    self._history.remove(began)
            self.forget(problem.index)

    def requeue(self, problem: Problem, *, failed_at: float | None = None, in_outage: bool = False) -> bool:
        """Let the stream hand a problem out again, after the items that are already drawn ahead.

        `failed_at` is the time of a failure, or None for a cancellation, which does not count. With `in_outage`, all
        servers are unavailable, and `failed_at` is the time when that began, so that an outage counts once. Returns
        False if the problem is not handed out, or if it has failed too often. Then the caller must `finish` it.
        """
        if not self.is_handed_out(problem):
            return False
        if failed_at is not None:
            failures = self._failures.setdefault(problem.index, set())
            failures.add(failed_at)
            if in_outage:
                self._note_outage(problem.index, failed_at)
            if len(failures) >= MAX_TRIES or self._is_cause(problem.index):
                return False
        self.waiting.append(self.handed_out.pop(problem.index))
        return True

    def note_completions(self, problem: Problem) -> None:
        """Note that a problem has got its completions. So it is no suspect, and the servers work."""
        self._is_outage = False
        if problem.is_of_stream:
            self._outages.pop(problem.index, None)

    def failures(self, problem: Problem) -> int:
        """How often a problem has failed, as long as it is pending. An outage counts once."""
        return len(self._failures.get(problem.index, ()))

    def is_handed_out(self, problem: Problem) -> bool:
        """Whether a caller still has to finish or requeue this problem."""
        return problem.is_of_stream and problem.index in self.handed_out

    # --- outages

    def _note_outage(self, index: int, began: float) -> None:
        self._is_outage = True
        self._outages.setdefault(index, set()).add(began)
        if began not in self._history:
            self._history.append(began)

    def _is_cause(self, index: int) -> bool:
        """Whether an item has failed in enough outages, and in more than half of all outages of the time."""
        own = self._outages.get(index, set())
        if len(own) < MAX_CRASHES:
            return False
        since = min(own) - HISTORY_S
        others = [began for began in self._history if began >= since and began not in own]
        return len(own) > len(others)


class ObservedItems:
    """The items whose scores the curriculum has seen. A repeated item must not count twice."""

    def __init__(self) -> None:
        self._indices: dict[int, None] = {}
        self._repeated = 0

    def add(self, index: int) -> bool:
        """Whether this is the first observation of the item with this index. Further observations are counted."""
        if index in self._indices:
            self._repeated += 1
            return False
        self._indices[index] = None
        if len(self._indices) > REMEMBERED:
            oldest = next(iter(self._indices))
            del self._indices[oldest]
        return True

    def metrics(self) -> dict[str, float]:
        """The number of repeated observations, if there were any."""
        return {"train/items_observed_again": float(self._repeated)} if self._repeated else {}

    def state_dict(self) -> dict[str, Any]:
        """The remembered indices, oldest first, as JSON."""
        return {"indices": list(self._indices), "repeated": self._repeated}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`; an empty one starts afresh. Raises ValueError if it is malformed."""
        indices = TypeAdapter(list[int]).validate_python(state.get("indices", []))
        self._repeated = int(state.get("repeated", 0))
        self._indices = dict.fromkeys(indices)
