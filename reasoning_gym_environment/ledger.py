"""The one place where an attempt to make a group begins and ends.

    async with ledger.attempt(item) as attempt:     begins
        ... collect, postprocess, send ...          each may say how the attempt ends: attempt.conclude(...)
                                                    ends, exactly once

The way in which the block ends decides what happens to the item:

    with a word               the item is finished, and the outcome is counted
    without completions       the item is requeued a bounded number of times, and then given up
    cancelled, or no word     the item is requeued, even if a subclass catches the cancellation
    an error                  the item is finished as a fault, and only its group is lost
    EnvironmentSetupError     the item is requeued, and the run ends with the error

The methods of the environment find their attempt with `current_attempt`, which follows the running task. So an attempt
does not depend on what a subclass makes of items and dicts. If other code calls these methods, there is no attempt:
then they only compute, and nothing is begun or ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from .errors import EnvironmentSetupError
from .group import drawn_problem
from .records import Group, GroupOutcome, Problem
from .sampling.pending_items import MAX_FAILURES, PendingItems
from .telemetry.telemetry import Telemetry
from .utils.resilience import RepeatedEvents

logger = logging.getLogger(__name__)

KEPT = (GroupOutcome.SENT, GroupOutcome.WRITTEN)
"""Outcomes that no later word and no error changes."""

FAULT = "error_in_the_environment"
"""The name of an unexpected failure, after which the group is lost."""

GIVEN_UP = "item_given_up"
"""The failure of an item whose requests may be the cause of the outages."""


@dataclass(frozen=True)
class Failure:
    """Why an attempt has no completions.

    A refused prompt is not requested again. The attempt `counts` as a failure of the item if a server accepted its
    request, because the request may have crashed the server.
    """

    reason: str
    is_refused: bool = False
    counts: bool = True
    in_outage: bool = False


class Attempt:
    """One attempt to make a group, or several groups, of an item."""

    def __init__(self, item: Any, step: int | None, changed: asyncio.Event | None = None) -> None:
        """`step` is the trainer's current step, or None without a trainer. `changed` is set when a place is free."""
        self.item = item
        self.problem: Problem | None = drawn_problem(item)
        """The problem of the item stream, or None for an item that a subclass has made."""
        self.step = step
        self.groups: list[Group] = []
        """The groups with completions, in the order in which they got them."""
        self.is_paid = False
        """Whether there are completions, which a cancellation would waste."""
        self.is_delivering = False
        """Whether only the delivery of the groups remains."""
        self.is_given_back = False
        """Whether a subclass has asked for another attempt with the same item, which keeps the item pending."""
        self.is_cancelled = False
        """Whether the loop has cancelled the attempt. A subclass may catch the cancellation."""
        self.outcome: GroupOutcome | None = None
        self.failure: Failure | None = None
        self.has_ended = False
        self._task = asyncio.current_task()
        self._changed = changed

    def cancel(self) -> None:
        """Cancel the attempt. Its item is requeued, unless a group has been sent or written."""
        self.is_cancelled = True
        if self._task is not None:
            self._task.cancel()

    @property
    def task_is_cancelled(self) -> bool:
        """Whether the loop has cancelled the attempt, or other code its task, as the end of a program does."""
        return self.is_cancelled or (self._task is not None and self._task.cancelling() > 0)

    def conclude(self, outcome: GroupOutcome) -> None:
        """Say how the attempt ends. A later word replaces an earlier one, unless a group is sent or written."""
        if self.outcome in KEPT:
            return
        is_lost = self.is_cancelled and outcome not in KEPT
        self.outcome = GroupOutcome.CANCELLED if is_lost else outcome

    def fail(self, failure: Failure) -> None:
        """Say that the attempt brought no completions."""
        self.failure = failure
        self.conclude(GroupOutcome.INFERENCE_FAILED)

    def add(self, group: Group) -> None:
        """Note a group with completions."""
        self.is_paid = True
        if self.outcome not in KEPT:
            self.outcome = None
        if not any(known is group for known in self.groups):
            self.groups.append(group)

    def begin_delivery(self) -> None:
        """Say that only the delivery remains, which needs no place among the groups in sampling."""
        self.is_delivering = True
        if self._changed is not None:
            self._changed.set()

    @property
    def task_name(self) -> str:
        """The reasoning-gym task of the item."""
        problem = self.groups[0].problem if self.groups else self.problem
        return "unknown" if problem is None else problem.task


_current: ContextVar[Attempt | None] = ContextVar("_current", default=None)


def current_attempt() -> Attempt | None:
    """The attempt that the running task belongs to, or None if other code has called the environment.

    A task that a subclass has started may run longer than the attempt.
    """
    attempt = _current.get()
    return None if attempt is None or attempt.has_ended else attempt


@contextlib.contextmanager
def entered(attempt: Attempt) -> Iterator[Attempt]:
    """Make this the current attempt. By itself, this neither begins nor ends it."""
    token = _current.set(attempt)
    try:
        yield attempt
    finally:
        _current.reset(token)


class Ledger:
    """Begins and ends the attempts of one run. `pending` are the items of its stream.

    If it does not `requeue` items without completions, they are dropped.
    """

    def __init__(
        self,
        pending: PendingItems,
        telemetry: Telemetry,
        failures: RepeatedEvents,
        *,
        requeues: bool,
    ) -> None:
        self.in_progress: set[Attempt] = set()
        self.changed = asyncio.Event()
        """Set when there may be room for another attempt."""
        self._pending = pending
        self._telemetry = telemetry
        self._failures = failures
        self._requeues = requeues

    @contextlib.asynccontextmanager
    async def attempt(self, item: Any, step: int | None) -> AsyncIterator[Attempt]:
        """One attempt with an item, which begins at the trainer's step `step`."""
        attempt = Attempt(item, step, self.changed)
        self.in_progress.add(attempt)
        if attempt.problem is not None:
            self._pending.begin(attempt.problem)
        try:
            with entered(attempt):
                yield attempt
        except EnvironmentSetupError:
            attempt.conclude(GroupOutcome.CANCELLED)
            raise
        except asyncio.CancelledError as error:
            if attempt.task_is_cancelled:
                attempt.conclude(GroupOutcome.CANCELLED)
                raise
            # A hook has waited for another task, which was cancelled.
            self._note_error(attempt, error)
        except Exception as error:  # noqa: BLE001
            self._note_error(attempt, error)
        finally:
            self.in_progress.discard(attempt)
            self._end(attempt)
            self.changed.set()

    def give_back(self, item: Any) -> None:
        """Requeue an item that no attempt has used."""
        problem = drawn_problem(item)
        if problem is not None:
            self._pending.requeue(problem)

    def drop(self, attempt: Attempt | None, outcome: GroupOutcome, reason: str) -> None:
        """Log that a scored group is not sent, and say so to its attempt, if there is one."""
        if attempt is not None:
            attempt.conclude(outcome)
            if attempt.is_cancelled:
                return
        self._failures.note("group_dropped", "group dropped", reason)

    def _note_error(self, attempt: Attempt, error: BaseException) -> None:
        """Log an error of ours or of a subclass, the first one with its traceback."""
        if attempt.is_cancelled:
            # The error follows from the cancellation.
            attempt.conclude(GroupOutcome.CANCELLED)
            return
        detail = f"{attempt.task_name}: {type(error).__name__}: {str(error) or 'no message'}"
        name = FAULT
        what = "error in the environment, its group is lost"
        if attempt.outcome in KEPT:
            name = "error_after_a_group"
            what = "error in the environment after a group was handed on"
        self._failures.note(name, what, detail)
        if self._failures.counts[name] == 1:
            advice = "Please report it, unless it comes from your own class."
            logger.error("First occurrence, with traceback. %s", advice, exc_info=error)
        attempt.conclude(GroupOutcome.FAULT)

    def _end(self, attempt: Attempt) -> None:
        """End an attempt: its item is finished, pending, or given up."""
        attempt.has_ended = True
        outcome = attempt.outcome or GroupOutcome.CANCELLED
        self._telemetry.ended(outcome, attempt.task_name)
        if outcome is GroupOutcome.INFERENCE_FAILED and attempt.failure is not None:
            is_pending = self._is_repeated(attempt, attempt.failure)
        elif outcome is GroupOutcome.CANCELLED and not attempt.is_given_back:
            is_pending = attempt.problem is not None and self._pending.requeue(attempt.problem)
        else:
            is_pending = attempt.is_given_back
        if attempt.problem is not None and not is_pending:
            self._pending.finish(attempt.problem)

    def _is_repeated(self, attempt: Attempt, failure: Failure) -> bool:
        """Requeue an item without completions, a bounded number of times, or drop it. Returns whether it is pending.

        After three failures the item is given up (sampling/pending_items.py). A refused item is dropped immediately.
        """
        name = "item_dropped"
        what = "item dropped, no completions"
        number = "" if attempt.problem is None else f"item {attempt.problem.index}, "
        detail = f"{number}{attempt.task_name}"
        is_repeated = attempt.is_given_back
        if is_repeated:
            name = "item_requeued"
            what = "item asked again by a subclass, no completions"
        elif self._requeues and attempt.problem is not None and not failure.is_refused:
            is_repeated = self._pending.requeue(attempt.problem, is_failure=failure.counts, in_outage=failure.in_outage)
            name = "item_requeued"
            what = "item requeued, no completions"
            if not is_repeated:
                name = GIVEN_UP
                what = "item given up, no completions"
                detail += f", after {MAX_FAILURES} failures"
        self._failures.note(name, what, f"{detail}: {failure.reason}")
        return is_repeated
