"""The state of each item of the training stream: pending draws, and observed items.

    drawn ── hand_out ──> handed out ── finish ──> forgotten
      ^                       │
      └────── waiting <── requeue

A draw is pending from the moment its task and level are chosen until its item is finished. The stream saves every
pending draw and repeats it after a restart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import TypeAdapter

from ..records import Problem
from .item_maker import loading

MAX_TRIES = 10
"""An item with so many failures is not requeued.

An innocent item rarely fails in two outages, because it gets its completions between them. An item whose requests crash
the servers fails in every outage that it causes.
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
        """The times of the failures of an item, by index."""

    # --- for the item stream

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
        self.waiting = deque(draws)
        self.known = {draw.index for draw in self.waiting}.intersection(known)

    # --- for the callers of the stream

    def finish(self, problem: Problem) -> None:
        """Forget a problem: its group was sent, or no group will come of it. Other problems are ignored."""
        if self.is_handed_out(problem):
            del self.handed_out[problem.index]
            self.known.discard(problem.index)
            self._failures.pop(problem.index, None)

    def requeue(self, problem: Problem, *, failed_at: float | None = None) -> bool:
        """Let the stream hand a problem out again, after the items that are already drawn ahead.

        `failed_at` is the time of a failure, or None for a cancellation, which does not count. Failures with the same
        time count once. Returns False if the problem is not handed out, or if this is its MAX_TRIES-th failure. Then
        the caller must `finish` it.
        """
        if not self.is_handed_out(problem):
            return False
        if failed_at is not None:
            failures = self._failures.setdefault(problem.index, set())
            failures.add(failed_at)
            if len(failures) >= MAX_TRIES:
                return False
        self.waiting.append(self.handed_out.pop(problem.index))
        return True

    def is_handed_out(self, problem: Problem) -> bool:
        """Whether a caller still has to finish or requeue this problem."""
        return problem.is_of_stream and problem.index in self.handed_out


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
        """Continue from a `state_dict`; an empty one starts afresh. Raises EnvironmentSetupError if it is malformed."""
        with loading("list of observed items"):
            indices = TypeAdapter(list[int]).validate_python(state.get("indices", []))
            repeated = int(state.get("repeated", 0))
        self._indices = dict.fromkeys(indices)
        self._repeated = repeated
