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
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ..errors import EnvironmentSetupError

STOP_S = 10.0
"""How long a process may take to end when it is asked to."""

T = TypeVar("T")


async def within(seconds: float | None, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled after so many seconds (None: never), or when this is.

    Raises asyncio.TimeoutError if it has no result by then. Waits for the end of `work` in any case.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task], timeout=seconds)
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
    if task.cancelled():
        raise asyncio.TimeoutError
    return task.result()


async def watched(work: Any, *others: Any) -> None:
    """Wait for the end of `work`, then cancel the others; raises what any of all raises before."""
    tasks = [asyncio.ensure_future(one) for one in (work, *others)]
    try:
        pending = set(tasks)
        while not tasks[0].done():
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Background:
    """Makes one call at a time, in the order in which they came; its thread lives while there are any."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._lock = threading.Lock()

    @property
    def unfinished(self) -> int:
        """Calls that have not returned, the one being made included."""
        return len(self._calls)

    def submit(self, function: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        """Have a call made; its result is for the running event loop, and need not be waited for.

        Cancelling the result takes the call back if it has not begun.
        """
        result: Future[T] = Future()
        with self._lock:
            self._calls.append((result, partial(function, *arguments)))
            if len(self._calls) == 1:
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
        return asyncio.wrap_future(result)

    def _work(self) -> None:
        is_left = True
        while is_left:
            result, call = self._calls[0]
            value, error = _made(call) if result.set_running_or_notify_cancel() else (None, None)
            # Before its result is told, so that whoever has the result no longer sees it among the unfinished.
            with self._lock:
                self._calls.popleft()
                is_left = bool(self._calls)
            if error is not None:
                result.set_exception(error)
            elif not result.cancelled():
                result.set_result(value)


def _made(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return call(), None
    except BaseException as error:  # noqa: BLE001
        return None, error


async def in_background(function: Callable[..., T], *arguments: Any) -> T:
    """The result of one call in a thread of its own."""
    return await Background("in-background").submit(function, *arguments)


@contextlib.asynccontextmanager
async def running(
    module: str, *arguments: str, log: Path, pass_fd: int | None = None, env: dict[str, str] | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """`python -m module arguments` in a session of its own, its output in `log`; ended with the block."""
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            module,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, **(env or {})},
            pass_fds=() if pass_fd is None else (pass_fd,),
            start_new_session=True,
        )
    try:
        yield process
    finally:
        await stop(process)


async def stop(process: asyncio.subprocess.Process) -> int:
    """Ask the process to end, then insist; returns its exit code."""
    if process.returncode is None:
        # Not by the process's own methods: they would take its exit code away from the loop, which waits for it.
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)
        try:
            await within(STOP_S, process.wait())
        except asyncio.TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)
    return await process.wait()


async def fail_if_it_ends(process: asyncio.subprocess.Process, name: str, log: Path) -> None:
    """Returns only by raising EnvironmentSetupError, when the process ends although it should still run."""
    code = await process.wait()
    printed = await asyncio.to_thread(log.read_text, encoding="utf-8", errors="replace")
    last = (printed.strip().splitlines() or ["it printed nothing"])[-1]
    raise EnvironmentSetupError(f"{name} ended with code {code}: {last} (all of it: {log})")
