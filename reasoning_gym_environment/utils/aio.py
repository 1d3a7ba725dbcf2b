"""Waiting for what may take too long, and no longer than for what it is needed for.

`within` ends a coroutine at its deadline, `watched` with another, `to_the_end` not when it is first cancelled;
`running` ends a process with its block, `LoopThread` runs coroutines for callers without a loop, and `Background` makes
calls that may hang. asyncio has the first and the last, with faults that a run cannot live with.
`asyncio.wait_for` of Python 3.10 and 3.11 returns a result that is there at the moment of a cancellation, and forgets
the cancellation: a main loop that is being stopped would go on. The threads of `asyncio.to_thread` are joined at the
end of the process: one that hangs, as a call to a file system may, would hold it up for good.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from concurrent.futures import CancelledError, Future
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ..errors import EnvironmentSetupError

STOP_S = 10.0
"""How long a process may take to end when it is asked to."""

LINGER_S = 1.0
"""How long a thread for calls stays without one: starting another for each group costs as much as writing it."""

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


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """The result of a short piece of work that must not be left half done: cancelling it once is ignored."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        return await task


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
    """Makes one call at a time, in the order in which they came; its thread waits LINGER_S for a further one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._has_thread = False
        self._changed = threading.Condition()

    @property
    def unfinished(self) -> int:
        """Calls that have not returned, the one being made included."""
        return len(self._calls)

    def submit(self, function: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        """Have a call made; its result is for the running event loop, and need not be waited for.

        Cancelling the result takes the call back if it has not begun.
        """
        result: Future[T] = Future()
        with self._changed:
            self._calls.append((result, partial(function, *arguments)))
            if self._has_thread:
                self._changed.notify()
            else:
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
                self._has_thread = True
        return asyncio.wrap_future(result)

    def _work(self) -> None:
        while self._has_call():
            result, call = self._calls[0]
            value, error = _made(call) if result.set_running_or_notify_cancel() else (None, None)
            # Before its result is told, so that whoever has the result no longer sees it among the unfinished.
            self._calls.popleft()
            if error is not None:
                result.set_exception(error)
            elif not result.cancelled():
                result.set_result(value)
            # What a call holds must not be kept until the next one.
            del result, call, value, error

    def _has_call(self) -> bool:
        with self._changed:
            self._has_thread = self._changed.wait_for(lambda: bool(self._calls), LINGER_S)
            return self._has_thread


def _made(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return call(), None
    except BaseException as error:  # noqa: BLE001
        return None, error


async def in_background(function: Callable[..., T], *arguments: Any) -> T:
    """The result of one call in a thread of its own."""
    return await Background("in-background").submit(function, *arguments)


class LoopThread:
    """An event loop in a thread of its own, until `close` or the end of the program; then `at_end` is awaited in it."""

    def __init__(self, name: str, at_end: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._name = name
        self._at_end = at_end
        self._pid = os.getpid()
        self._is_closed = False
        self._lock = threading.Lock()
        self._asked: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Have it run. Raises EnvironmentSetupError once closed, and in a forked process."""
        # After a fork the lock may be held by a thread that is not there.
        if os.getpid() != self._pid:
            work.close()
            raise EnvironmentSetupError(
                f"The {self._name} belong to the process that made them: make others after a fork (a data loader that "
                "draws from them needs num_workers=0)."
            )
        with self._lock:
            if self._is_closed:
                work.close()
                raise self._closed()
            return asyncio.run_coroutine_threadsafe(self._kept(work), self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Its result, for a thread that waits."""
        running = self.submit(work)
        try:
            return running.result()
        except CancelledError:
            raise self._closed() from None
        except BaseException:
            # Ctrl-C: what nobody waits for must not go on.
            running.cancel()
            raise

    async def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Its result, for another event loop, which goes on meanwhile. Cancelling this cancels it."""
        running = self.submit(work)
        try:
            return await asyncio.wrap_future(running)
        except asyncio.CancelledError:
            if self._is_closed:
                raise self._closed() from None
            raise

    def close(self) -> None:
        """Cancel what runs, await the end. Safe to call twice, and of no effect in a forked process."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        try:
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        finally:
            atexit.unregister(self.close)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _closed(self) -> EnvironmentSetupError:
        return EnvironmentSetupError(f"The {self._name} are closed: use them before, or within the `with` block.")

    async def _kept(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.current_task()
        assert task is not None
        self._asked.add(task)
        try:
            return await work
        finally:
            self._asked.discard(task)

    async def _end(self) -> None:
        # First what was asked for, and only that: of a process that is being started asyncio has tasks of its own, and
        # waits for ever if one of them is cancelled.
        await _cancelled(self._asked)
        await self._at_end()
        # What was begun beside it finds its workers gone.
        await _cancelled(asyncio.all_tasks() - {asyncio.current_task()})


async def _cancelled(tasks: Iterable[asyncio.Task[Any] | None]) -> None:
    ending = [task for task in tasks if task is not None]
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


@contextlib.asynccontextmanager
async def running(module: str, *arguments: str, log: Path) -> AsyncIterator[asyncio.subprocess.Process]:
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
