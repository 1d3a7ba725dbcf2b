"""Calls that may hang, such as those to a file system: a thread makes them in order, and nobody has to wait for it.

The threads of `asyncio.to_thread` are joined at the end of the process, so one that hangs would hold it up for good.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Background:
    """Makes one call at a time, in the order in which they came; its thread lives while there are any."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: deque[Callable[[], None]] = deque()
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

        def call() -> None:
            if result.set_running_or_notify_cancel():
                try:
                    value = function(*arguments)
                except BaseException as error:  # noqa: BLE001
                    result.set_exception(error)
                else:
                    result.set_result(value)

        with self._lock:
            self._calls.append(call)
            if len(self._calls) == 1:
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
        return asyncio.wrap_future(result)

    def _work(self) -> None:
        is_left = True
        while is_left:
            self._calls[0]()
            with self._lock:
                self._calls.popleft()
                is_left = bool(self._calls)


async def in_background(function: Callable[..., T], *arguments: Any) -> T:
    """The result of one call in a thread of its own."""
    return await Background("in-background").submit(function, *arguments)
