"""One thread that runs functions in turn and never keeps the process from ending."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

Result = TypeVar("Result")


class DaemonThread:
    """Like a one-thread executor, but a function that hangs does not block the interpreter's exit."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._closed = False
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, call: Callable[[], Result]) -> Future[Result]:
        """Queue a call. Raises RuntimeError after close."""
        if self._closed:
            raise RuntimeError("the thread is closed")
        future: Future[Result] = Future()
        self._calls.put((future, call))
        return future

    def close(self) -> None:
        """Let the thread end after the call in progress. Safe to call twice."""
        self._closed = True
        self._calls.put(None)

    def _run(self) -> None:
        while (work := self._calls.get()) is not None:
            future, call = work
            if not future.set_running_or_notify_cancel():
                continue
            # Whatever the call raises belongs to whoever waits for its result.
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001
                future.set_exception(error)
