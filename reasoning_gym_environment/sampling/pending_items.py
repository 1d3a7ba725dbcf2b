"""The pending items of the training stream.

    drawn ── hand_out ──> handed out ── begin ──> in an attempt ── finish ──> forgotten
      ^                                                │
      └───────────────── waiting <── requeue ──────────┘

A draw is pending from the moment its task and level are chosen until its item is finished. The stream saves every
pending draw and repeats it after a restart.

An item that gets no completions is repeated, because the servers may have failed. After MAX_FAILURES failures it is
given up, because the item itself may be the cause: a prompt may crash a server, or get no answer. An attempt counts
only if a server accepted its request. Until the servers work again, items that failed in the outage wait, and the
stream tries the servers with other items. Otherwise an item that crashes them would never let them recover.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ..records import Problem

MAX_FAILURES = 3
"""An item is given up after this many failures."""

MOST_UNUSED = 256
"""So many items may be handed out without an attempt. If there are more, the oldest are forgotten.

`get_next_item` of a subclass may skip items, and other methods of a subclass may draw some. A long run would repeat all
of these items after a restart.
"""


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
        self.observed: set[int] = set()
        """The indices of pending draws whose scores the curriculum has seen. A repetition must not count again."""
        self._unused: dict[int, None] = {}
        """The indices in `handed_out` without an attempt, the oldest first."""
        self._failures: Counter[int] = Counter()
        """The failures of pending items, by index."""
        self._failed_in_outage: set[int] = set()
        """The indices of pending items that failed since all servers became unavailable."""

    # --- for the item stream

    def take_waiting(self) -> Draw | None:
        """Take the next draw that may be repeated now; None if there is none."""
        for draw in self.waiting:
            if draw.index not in self._failed_in_outage:
                self.waiting.remove(draw)
                return draw
        return None

    def hand_out(self, draw: Draw, problem: Problem) -> None:
        """Note that a caller holds the problem of this draw."""
        # The item may come from a level below the level of the draw. A repetition must give the same item.
        self.handed_out[draw.index] = replace(draw, level=problem.level)
        self._unused[draw.index] = None
        if len(self._unused) > MOST_UNUSED:
            self._forget(next(iter(self._unused)))

    def put_back(self, draws: Iterable[Draw]) -> None:
        """Let draws whose items were never handed out be the next ones, in this order."""
        self.waiting.extendleft(reversed(list(draws)))

    def restore(self, draws: Iterable[Draw], observed: Iterable[int] = ()) -> None:
        """Replace all pending draws with these, which wait in this order. Failures are counted anew."""
        self.handed_out.clear()
        self._unused.clear()
        self.observed = set(observed)
        self._failures.clear()
        self._failed_in_outage.clear()
        self.waiting = deque(draws)

    def forget_failures(self, index: int) -> None:
        """Forget the failures of a draw that is pending no longer."""
        self._failures.pop(index, None)
        self._failed_in_outage.discard(index)

    def draws(self) -> list[Draw]:
        """All pending draws."""
        return [*self.handed_out.values(), *self.waiting]

    # --- for the callers of the stream

    def begin(self, problem: Problem) -> None:
        """Note that an attempt uses a problem, so that it stays pending until `finish`."""
        if problem.is_of_stream:
            self._unused.pop(problem.index, None)

    def finish(self, problem: Problem) -> None:
        """Forget a problem: its group was sent, or no group will come of it. Other problems are ignored."""
        if self.is_handed_out(problem):
            self._forget(problem.index)

    def _forget(self, index: int) -> None:
        del self.handed_out[index]
        self._unused.pop(index, None)
        self.forget_failures(index)
        self.observed.discard(index)

    def note_observed(self, problem: Problem) -> bool:
        """Whether these are the first scores of a problem that a caller holds."""
        if not self.is_handed_out(problem) or problem.index in self.observed:
            return False
        self.observed.add(problem.index)
        return True

    def requeue(self, problem: Problem, *, is_failure: bool = False, in_outage: bool = False) -> bool:
        """Let the stream hand a problem out again, after the items that are already drawn ahead.

        A cancellation is no failure. `in_outage` means that all servers are unavailable. Returns False if the problem
        is not handed out, or has failed MAX_FAILURES times. Then the caller must `finish` it.
        """
        if not self.is_handed_out(problem):
            return False
        if is_failure:
            self._failures[problem.index] += 1
            if self._failures[problem.index] >= MAX_FAILURES:
                return False
        if in_outage:
            self._failed_in_outage.add(problem.index)
        self._unused.pop(problem.index, None)
        self.waiting.append(self.handed_out.pop(problem.index))
        return True

    def note_completions(self) -> None:
        """Note that a problem has got its completions, so the servers work."""
        self._failed_in_outage.clear()

    def is_handed_out(self, problem: Problem) -> bool:
        """Whether a caller still has to finish or requeue this problem."""
        return problem.is_of_stream and problem.index in self.handed_out
