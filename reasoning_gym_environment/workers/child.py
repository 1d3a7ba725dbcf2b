"""A forked child that does one piece of work: it reports on a pipe, and the process that forked it enforces a deadline.

Whatever the child does to its own memory ends with it, and what its parent has loaded need not be loaded again.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable

TURN_S = 1.0
SHORTAGE_S = 0.1
"""Until a fork that failed is tried again."""
LOOK_AGAIN_S = 0.001
EXIT_ALLOWANCE_S = 0.2
"""How long a child that has closed its pipe may take to end by itself, so that we learn how it ended."""
UNDISTURBED_MS = 20
"""The worker sleeps at first: each page that it writes to while it shares it with a child is copied."""


class ForkedChild:
    """A child that calls `work(descriptor)`, where it writes its results, and exits with the number that this returns.

    As a context manager, it is killed and collected with the block.
    """

    def __init__(self, work: Callable[[int], int]) -> None:
        self._results, writing = os.pipe()
        self._pid = _fork()
        if self._pid == 0:
            code = 1
            try:
                code = work(writing)
            finally:
                os._exit(code)
        os.close(writing)
        self._status: int | None = None
        self._poll = select.poll()
        # Without an event to wait for, it wakes when the child has closed its end.
        self._poll.register(self._results, 0)
        self._poll.poll(UNDISTURBED_MS)
        self._poll.modify(self._results, select.POLLIN)

    def allow(self, seconds: float, wall_factor: float) -> None:
        """From now on it may use so many seconds of processor time, and `wall_factor` times as many by the clock.

        Processor time does not grow with the machine's load, so a busy machine makes no answer and no item late.
        """
        self._processor_end_s = processor_s(self._pid) + seconds
        self._wall_s = seconds * wall_factor

    def read(self) -> bytes:
        """The bytes that it has written, b"" once it has closed its pipe. Raises TimeoutError when its time is over.

        No more than TURN_S counts for one look at the clock: all processes may have been stopped meanwhile.
        """
        while True:
            left_s = min(self._processor_end_s - processor_s(self._pid), self._wall_s)
            turn_s, began = min(max(left_s, LOOK_AGAIN_S), TURN_S), time.monotonic()
            has_data = self._poll.poll(turn_s * 1000.0)
            self._wall_s -= min(time.monotonic() - began, turn_s)
            if has_data:
                return os.read(self._results, 1 << 16)
            if left_s <= 0:
                raise TimeoutError

    def reap(self, patience_s: float = 0.0) -> int:
        """Its wait status; it is killed if it still runs after `patience_s`. Always returns the same status."""
        if self._status is None:
            os.close(self._results)
            deadline = time.monotonic() + patience_s
            while self._status is None:
                pid, status = os.waitpid(self._pid, os.WNOHANG)
                if pid:
                    self._status = status
                elif time.monotonic() >= deadline:
                    os.kill(self._pid, signal.SIGKILL)
                    self._status = os.waitpid(self._pid, 0)[1]
                else:
                    time.sleep(LOOK_AGAIN_S)
        return self._status

    def __enter__(self) -> ForkedChild:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.reap()


def processor_s(pid: int) -> float:
    """The processor time that this process has used; the clock's where that cannot be known, as on macOS."""
    try:
        # The number of its clock, as clock_getcpuclockid(3) gives it on Linux.
        return time.clock_gettime(~pid << 3 | 2)
    except OSError:
        return time.monotonic()


def _fork() -> int:
    """A machine may be short of processes for a moment; how long we wait for one is limited by our parent."""
    while True:
        try:
            return os.fork()
        except OSError:
            time.sleep(SHORTAGE_S)
