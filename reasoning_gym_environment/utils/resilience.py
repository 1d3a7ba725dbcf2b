"""Tools for work that takes too long or hangs, for outages, and for events that happen thousands of times.

`with_deadline` cancels a coroutine at its deadline. `supervise` cancels coroutines when another coroutine ends.
`BackgroundCalls` makes calls that may hang. `Outage` logs the beginning of an outage, its end, and a reminder every
minute, and it increases the delay between attempts. `RepeatedEvents` logs the first event of a kind in full, and a
summary after every hundred events.

asyncio has similar tools, with two defects that a run cannot tolerate. If a cancellation arrives together with a
result, `asyncio.wait_for` of Python 3.10 and 3.11 returns the result and loses the cancellation. A main loop that
should stop would then continue. When the process ends, the interpreter waits for the threads of `asyncio.to_thread`. A
thread that hangs, for example in a call to a file system, would block the exit forever.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import Future
from typing import Any, TypeVar

from .clock import now

T = TypeVar("T")


async def with_deadline(seconds: float | None, work: Awaitable[T]) -> T:
    """The result of `work`. Cancels `work` after `seconds` (None: never), or when the caller is cancelled.

    Raises TimeoutError if `work` has no result by then. Waits until `work` has ended, even if it takes long to react to
    the cancellation.
    """
    async with asyncio.timeout(seconds):
        return await work


async def supervise(work: Any, *others: Any) -> None:
    """Wait until `work` ends, then cancel `others`.

    Raises the exception of `work`, or the first exception of `others` before `work` ends.
    """
    main = asyncio.ensure_future(work)
    tasks = [main, *map(asyncio.ensure_future, others)]
    unfinished = set(tasks)
    try:
        while main in unfinished:
            finished, unfinished = await asyncio.wait(unfinished, return_when=asyncio.FIRST_COMPLETED)
            for task in finished:
                task.result()
    finally:
        await cancel_and_wait(tasks)


async def cancel_and_wait(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Cancel the tasks, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class BackgroundCalls:
    """Makes one call at a time, in the order of submission.

    A daemon thread makes the calls, because the exit of the process does not wait for daemon threads. It ends when no
    call waits.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: deque[Callable[[], None]] = deque()
        self._has_thread = False
        self._lock = threading.Lock()
        """Guards the calls, and whether there is a thread that will make them."""

    def submit(self, function: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        """Schedule a call. The returned future belongs to the running event loop. The caller need not await it.

        A cancellation of the future withdraws the call if it has not begun. If the system allows no further thread,
        the future raises OSError.
        """
        result: Future[T] = Future()

        def make_the_call() -> None:
            if result.set_running_or_notify_cancel():
                try:
                    result.set_result(function(*arguments))
                except BaseException as error:  # noqa: BLE001
                    result.set_exception(error)

        with self._lock:
            self._calls.append(make_the_call)
            if not self._has_thread:
                thread = threading.Thread(target=self._make_calls, name=self._name, daemon=True)
                try:
                    thread.start()
                    self._has_thread = True
                except RuntimeError as error:
                    self._calls.clear()
                    result.set_exception(OSError(errno.EAGAIN, str(error)))
        return asyncio.wrap_future(result)

    def _make_calls(self) -> None:
        while True:
            with self._lock:
                if not self._calls:
                    self._has_thread = False
                    return
                make_the_call = self._calls.popleft()
            make_the_call()


# --- repeated events: a few lines in the log, and counts for the metrics


RETRY_S = 1.0
"""The wait before something that is unavailable is tried again, where nothing speaks for another time."""

REMIND_S = 60.0
SUMMARY_EVERY = 100


class Outage:
    """Counts and logs the outages of another process, and returns the delay before the next attempt.

    `who` is the subject of a sentence, such as "The trajectory API". Delays double from `first_delay_s` to
    `max_delay_s`.
    """

    def __init__(
        self,
        logger: logging.Logger,
        who: str,
        *,
        first_delay_s: float = 0.0,
        max_delay_s: float = 0.0,
        clock: Callable[[], float] = now,
    ) -> None:
        self._logger = logger
        self._who = who
        self._clock = clock
        self._first_delay_s = first_delay_s
        self._max_delay_s = max_delay_s
        self.began: float | None = None
        """When the current outage began; None without an outage."""
        self._delay_s = 0.0
        self._remind_at = 0.0
        self._past_s = 0.0
        self._count = 0

    @property
    def is_on(self) -> bool:
        return self.began is not None

    @property
    def lasted_s(self) -> float:
        """Seconds since the first failure of the current outage; 0 if there is none."""
        return 0.0 if self.began is None else self._clock() - self.began

    def failed(self, detail: str, remedy: str = "") -> float:
        """Note a failed attempt. Returns the seconds to wait before the next attempt."""
        failed_at = self._clock()
        if self.began is None:
            self.began = failed_at
            self._remind_at = failed_at
            self._delay_s = self._first_delay_s
            self._count += 1
        if failed_at >= self._remind_at:
            self._remind_at = failed_at + REMIND_S
            duration = f", for {self.lasted_s:.0f} s now" if failed_at > self.began else ""
            action = f"; {remedy}" if remedy else ""
            self._logger.warning("%s is unavailable%s (%s)%s.", self._who, duration, detail.rstrip("."), action)
        delay = self._delay_s
        self._delay_s = min(2 * delay, self._max_delay_s)
        return delay

    def over(self) -> None:
        """Note a successful attempt, which ends the outage. Has no effect if there is none."""
        if self.began is not None:
            self._logger.warning("%s is back after %.0f s.", self._who, self.lasted_s)
            self._past_s += self.lasted_s
            self.began = None

    def metrics(self, prefix: str) -> dict[str, float]:
        """`{prefix}_outages` and `{prefix}_outage_seconds` since the start. Empty if there was no outage."""
        if not self._count:
            return {}
        return {f"{prefix}_outages": float(self._count), f"{prefix}_outage_seconds": self._past_s + self.lasted_s}


class RepeatedEvents:
    """Counts events by name, and logs a summary after every hundred events of a name and at shutdown."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._unreported: dict[str, tuple[str, str]] = {}
        self.counts: Counter[str] = Counter()
        """By the name of the event, which is also the end of its metric."""
        self.last_detail = ""

    def note(self, name: str, what: str, detail: str) -> None:
        """Count an event of this name. `what` says in the log what happened.

        The log has the first event of a name, and a summary after every hundredth event.
        """
        self.counts[name] += 1
        self.last_detail = detail
        if self.counts[name] == 1:
            self._log(what, f"{detail.rstrip('.')}. Further events of this kind are counted.")
            return
        self._unreported[name] = (what, detail)
        if self.counts[name] % SUMMARY_EVERY == 0:
            self._summarise(name)

    def summarise(self) -> None:
        """Log a summary of the events that have occurred again since their last log line."""
        for name in list(self._unreported):
            self._summarise(name)

    def metrics(self, prefix: str) -> dict[str, float]:
        """Counts since the start, as `{prefix}_{name}`."""
        return {f"{prefix}_{name}": float(count) for name, count in self.counts.items()}

    def _summarise(self, name: str) -> None:
        what, detail = self._unreported.pop(name)
        self._log(what, f"{self.counts[name]} times so far; last: {detail}")

    def _log(self, what: str, text: str) -> None:
        self._logger.warning("%s: %s", what[:1].upper() + what[1:], text)
