"""An event loop in a separate thread, for programs that are not asynchronous."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, Protocol, TypeVar

from ..errors import EnvironmentSetupError

T = TypeVar("T")

CLOSED = (
    "The reasoning-gym workers are closed. Use Tasks within its `with` block. After fork(), create a new Tasks (a data "
    "loader that draws from it needs num_workers=0)."
)


class Service(Protocol):
    """The interface of an object that a LoopThread starts, uses and closes."""

    async def start(self) -> None:
        """Begin. Raises EnvironmentSetupError."""

    async def close(self) -> None:
        """End everything that `start` has begun."""


class LoopThread:
    """An event loop in a separate thread, which runs a service until `close` or the end of the program."""

    def __init__(self, service: Service) -> None:
        """Start the thread and the service. Raises EnvironmentSetupError, and ends the thread, if the start fails."""
        self._service = service
        self._pid = os.getpid()
        self._is_closed = False
        self._running: set[concurrent.futures.Future[Any]] = set()
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
        # asyncio.Runner would start another thread in the end, which Python 3.12 refuses when the program ends.
        try:
            self._loop.run_until_complete(self._live())
        finally:
            self._loop.close()

    async def _live(self) -> None:
        await self._closing.wait()
        await self._service.close()
        # Without their workers, most tasks have failed by now.
        unfinished = asyncio.all_tasks() - {asyncio.current_task()}
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine, and wait for its result. Raises EnvironmentSetupError once the thread is closed."""
        running = self._submit(work)
        try:
            return running.result()
        except BaseException as error:
            # After Ctrl-C no caller waits for the result.
            running.cancel()
            if self._is_closed and isinstance(error, concurrent.futures.CancelledError):
                raise EnvironmentSetupError(CLOSED) from None
            raise

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function in the thread of the loop, and wait for its result. No coroutine runs meanwhile."""

        async def called() -> T:
            return function(*arguments)

        return self.run(called())

    async def run_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine for a caller in another event loop. Cancelling the caller cancels the coroutine."""
        return await asyncio.wrap_future(self._submit(work))

    def close(self) -> None:
        """Cancel all coroutines, and wait for the end of the thread. Safe to call twice, and in a forked process."""
        if self._is_gone:
            return
        self._is_closed = True
        atexit.unregister(self.close)
        # Only the submitted coroutines. asyncio has further tasks while it starts a process, and waits forever if they
        # are cancelled.
        for running in list(self._running):
            running.cancel()
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()

    def _submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        if self._is_gone:
            work.close()
            raise EnvironmentSetupError(CLOSED)
        running = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return running

    @property
    def _is_gone(self) -> bool:
        return self._is_closed or os.getpid() != self._pid


class PerProcess(Generic[T]):
    """Objects that all threads of a process share, by key. Any thread may call `get`.

    A forked process makes its own objects, because it lacks the threads of its parent.
    """

    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def get(self, key: str, make: Callable[[], T]) -> T:
        """The object of this key. The first call makes it, and concurrent calls wait. After an error the next call
        tries again.
        """
        with self._lock:
            if key not in self._made:
                self._made[key] = make()
            return self._made[key]

    def _forget(self) -> None:
        # A new lock too, because another thread of the parent may hold the lock at the time of the fork.
        self._lock = threading.Lock()
        self._made: dict[str, T] = {}
