"""An event loop in a separate thread, for programs that are not asynchronous."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol, TypeVar

from ..errors import EnvironmentSetupError
from .resilience import cancel_and_wait

T = TypeVar("T")

CLOSED = (
    "The reasoning-gym workers are closed. Use Tasks within its `with` block. After fork(), create a new Tasks (a data "
    "loader that draws from it needs num_workers=0)."
)


class Service(Protocol):
    """What a LoopThread starts, runs and closes."""

    async def start(self) -> None:
        """Begin. Raises EnvironmentSetupError."""

    async def close(self) -> None:
        """End all that `start` has begun."""


class LoopThread:
    """An event loop in a separate thread, which runs a service until `close` or the end of the program."""

    def __init__(self, service: Service) -> None:
        """Start the thread and the service. Raises EnvironmentSetupError, and ends the thread, if the start fails."""
        self._service = service
        self._pid = os.getpid()
        self._is_closed = False
        self._running: set[asyncio.Future[Any]] = set()
        self._not_begun: set[Coroutine[Any, Any, Any]] = set()
        self._closing = asyncio.Event()
        # Here and not in the thread, so that the caller gets the error if there are too many open files.
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, daemon=True)
        self._thread.start()
        atexit.register(self.close)
        try:
            self.run(service.start())
        except BaseException:
            self.close()
            raise

    def _run_loop(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._live())

    async def _live(self) -> None:
        await self._closing.wait()
        # Only the submitted tasks are cancelled here. asyncio has further tasks while it starts a process, and waits
        # forever if they are cancelled.
        await cancel_and_wait(self._running)
        # Other tasks fail without their workers, and end with the loop.
        await self._service.close()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine in the thread. Raises EnvironmentSetupError after `close`, and in a forked process."""
        if self._is_gone:
            work.close()
            raise EnvironmentSetupError(CLOSED)
        self._not_begun.add(work)
        running = asyncio.run_coroutine_threadsafe(self._until_closed(work), self._loop)
        running.add_done_callback(partial(self._close_if_cancelled, work))
        return running

    def _close_if_cancelled(self, work: Coroutine[Any, Any, Any], running: Future[Any]) -> None:
        if running.cancelled():
            self._loop.call_soon_threadsafe(self._close_unless_begun, work)

    def _close_unless_begun(self, work: Coroutine[Any, Any, Any]) -> None:
        """Python warns about a coroutine that was cancelled before its first step, unless it is closed."""
        if work in self._not_begun:
            self._not_begun.remove(work)
            work.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine, and wait for its result."""
        running = self.submit(work)
        try:
            return running.result()
        except BaseException:
            # After Ctrl-C no caller waits for the result.
            running.cancel()
            raise

    async def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine, and await its result in another event loop. Cancelling the wait cancels the coroutine."""
        return await asyncio.wrap_future(self.submit(work))

    def close(self) -> None:
        """Cancel all coroutines, and wait for the end of the thread. Safe to call twice, and in a forked process."""
        if self._is_gone:
            return
        self._is_closed = True
        atexit.unregister(self.close)
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()

    @property
    def _is_gone(self) -> bool:
        return self._is_closed or os.getpid() != self._pid

    async def _until_closed(self, work: Coroutine[Any, Any, T]) -> T:
        if work not in self._not_begun:
            # The caller cancelled the work before this first step, and it was closed.
            raise asyncio.CancelledError
        self._not_begun.remove(work)
        task = asyncio.ensure_future(work)
        self._running.add(task)
        caller = asyncio.current_task()
        assert caller is not None, "asyncio runs this coroutine as a task"
        try:
            return await task
        except asyncio.CancelledError:
            # A caller that has cancelled its work does not take an error, and asyncio would log it.
            if self._is_closed and not caller.cancelling():
                raise EnvironmentSetupError(CLOSED) from None
            raise
        finally:
            self._running.discard(task)
