"""Waiting for what may take too long, and no longer than for what it is needed for.

`within` ends a coroutine at its deadline, `watched` with another; `running` ends a process with its block, and
`Background` makes calls that may hang. asyncio has the first and the last, with faults that a run cannot live with.
`asyncio.wait_for` of Python 3.10 and 3.11 returns a result that is there at the moment of a cancellation, and forgets
the cancellation: a main loop that is being stopped would go on. The threads of `asyncio.to_thread` are joined at the
end of the process: one that hangs, as a call to a file system may, would hold it up for good.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from asyncio.subprocess import DEVNULL, STDOUT, Process
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from ..errors import EnvironmentSetupError

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
        raise asyncio.TimeoutError
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
        self._calls: list[Future[Any]] = []
        self._last = threading.Thread()

    @property
    def unfinished(self) -> int:
        """Calls that have not returned, the one being made included."""
        return sum(not call.done() for call in self._calls)

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

        self._calls = [call for call in self._calls if not call.done()] + [result]
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
