"""What takes too long, hangs, is unavailable for a while, or happens thousands of times.

`within` ends a coroutine at its deadline, `watched` with another; `running` ends a process with its block, and
`Background` makes calls that may hang. An `Outage` is logged at its beginning, every minute, and when it is over;
attempts become rarer meanwhile. Of `RepeatedEvents` the first of a kind is logged in full, and every hundredth
as a summary.

asyncio has some of this, with faults that a run cannot live with. `asyncio.wait_for` of Python 3.10 and 3.11 returns a
result that is there at the moment of a cancellation, and forgets the cancellation: a main loop that is being stopped
would go on. The threads of `asyncio.to_thread` are joined at the end of the process: one that hangs, as a call to a
file system may, would hold it up for good.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from asyncio.subprocess import DEVNULL, STDOUT, Process
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from ..errors import EnvironmentSetupError
from .clock import now

T = TypeVar("T")


async def within(seconds: float | None, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled after so many seconds (None: never), or when this is.

    Raises asyncio.TimeoutError if it has no result by then. Waits for the end of `work` in any case.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task], timeout=seconds)
    finally:
        await ended([task])
    if task.cancelled():
        raise TimeoutError
    return task.result()


async def watched(work: Any, *others: Any) -> None:
    """Wait for the end of `work`, then cancel the others; raises what any of all raises before."""
    tasks = [asyncio.ensure_future(one) for one in (work, *others)]
    try:
        while not tasks[0].done():
            running = [task for task in tasks if not task.done()]
            for task in (await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED))[0]:
                task.result()
    finally:
        await ended(tasks)


async def ended(tasks: Iterable[asyncio.Future[Any] | None]) -> None:
    """Cancel the tasks, and wait until they have ended."""
    ending = [task for task in tasks if task is not None]
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


class Background:
    """Makes one call at a time, in the order in which they came, each in a thread that nothing waits for."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._last = threading.Thread()

    @property
    def is_busy(self) -> bool:
        """Whether a call has not returned yet."""
        return self._last.is_alive()

    def submit(self, function: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        """Have a call made; its result is for the running event loop, and need not be waited for.

        Cancelling the result takes the call back if it has not begun.
        """
        result: Future[T] = Future()
        before = self._last

        def make_the_call() -> None:
            if before.ident is not None:
                before.join()
            if result.set_running_or_notify_cancel():
                try:
                    result.set_result(function(*arguments))
                except BaseException as error:  # noqa: BLE001
                    result.set_exception(error)

        self._last = threading.Thread(target=make_the_call, name=self._name, daemon=True)
        self._last.start()
        return asyncio.wrap_future(result)


@contextlib.asynccontextmanager
async def running(module: str, *arguments: str, log: Path) -> AsyncIterator[Process]:
    """`python -m module arguments` in a session of its own, its output in `log`; ended with the block."""
    command = [sys.executable, "-m", module, *arguments]
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=DEVNULL, stdout=output, stderr=STDOUT, start_new_session=True
        )
    try:
        yield process
    finally:
        await stop(process)


async def stop(process: Process) -> int:
    """Ask the process to end, then insist; returns its exit code."""
    # Not by the process's own methods: they would take its exit code away from the loop, which waits for it.
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGTERM)
        with contextlib.suppress(asyncio.TimeoutError):
            return await within(10.0, process.wait())
        os.killpg(process.pid, signal.SIGKILL)
    return await process.wait()


async def fail_if_it_ends(process: Process, name: str, log: Path) -> None:
    """Returns only by raising EnvironmentSetupError, when the process ends although it should still run."""
    code = await process.wait()
    printed = await asyncio.to_thread(log.read_text, encoding="utf-8", errors="replace")
    last = (printed.strip().splitlines() or ["it printed nothing"])[-1]
    raise EnvironmentSetupError(f"{name} ended with code {code}: {last} (all of it: {log})")


# --- what happens again and again: told in a few lines of the log, and counted for the metrics


REMIND_S = 60.0
SUMMARY_EVERY = 100


class Outage:
    """Counts and reports the outages of one other process, and says how long to wait before the next attempt.

    `who` begins a sentence, such as "The trajectory API". Waits double from `first_delay_s` to `max_delay_s`.
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
        self._logger, self._who, self._clock = logger, who, clock
        self._first_delay_s, self._max_delay_s = first_delay_s, max_delay_s
        self._began: float | None = None
        self._delay_s = self._remind_at = self._past_s = 0.0
        self._count = 0

    @property
    def is_on(self) -> bool:
        return self._began is not None

    @property
    def lasted_s(self) -> float:
        """Seconds since the first failure of the present outage; 0 if there is none."""
        return 0.0 if self._began is None else self._clock() - self._began

    def failed(self, detail: str, remedy: str = "") -> float:
        """Note a failed attempt; returns the seconds to wait before the next one."""
        now = self._clock()
        if self._began is None:
            self._began = self._remind_at = now
            self._delay_s = self._first_delay_s
            self._count += 1
        if now >= self._remind_at:
            self._remind_at = now + REMIND_S
            who = f"{self._who} is unavailable" + (f", for {self.lasted_s:.0f} s now" if now > self._began else "")
            self._logger.warning("%s (%s)%s.", who, detail.rstrip("."), remedy and f"; {remedy}")
        delay = self._delay_s
        self._delay_s = min(2 * delay, self._max_delay_s)
        return delay

    def over(self) -> None:
        """Note an attempt that worked; harmless without an outage."""
        if self._began is not None:
            self._logger.warning("%s is back after %.0f s.", self._who, self.lasted_s)
            self._past_s += self.lasted_s
            self._began = None

    def metrics(self, prefix: str) -> dict[str, float]:
        """`{prefix}_outages` and `{prefix}_outage_seconds` since the start; empty if there was none."""
        if not self._count:
            return {}
        return {f"{prefix}_outages": float(self._count), f"{prefix}_outage_seconds": self._past_s + self.lasted_s}


class RepeatedEvents:
    """Counts events by kind, with a summary line after every hundred of a kind and at the end."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._unreported: dict[str, str] = {}
        self.counts: Counter[str] = Counter()
        self.last_detail = ""

    def note(self, kind: str, detail: str) -> None:
        """Count one event; log it if it is the first of its kind."""
        self.counts[kind] += 1
        self.last_detail = detail
        if self.counts[kind] == 1:
            self._log(kind, f"{detail.rstrip('.')}. Further ones are counted.")
            return
        self._unreported[kind] = detail
        if self.counts[kind] % SUMMARY_EVERY == 0:
            self._summarise(kind)

    def summarise(self) -> None:
        """One line for each kind that happened again since its last line."""
        for kind in list(self._unreported):
            self._summarise(kind)

    def metrics(self, prefix: str) -> dict[str, float]:
        """Counts since the start, as `{prefix}_{kind}`; of a kind what stands before its comma."""
        keys = {kind: kind.split(",")[0].replace(" ", "_") for kind in self.counts}
        return {f"{prefix}_{keys[kind]}": float(count) for kind, count in self.counts.items()}

    def _summarise(self, kind: str) -> None:
        self._log(kind, f"{self.counts[kind]} times so far; last: {self._unreported.pop(kind)}")

    def _log(self, kind: str, text: str) -> None:
        self._logger.warning("%s: %s", kind[:1].upper() + kind[1:], text)
