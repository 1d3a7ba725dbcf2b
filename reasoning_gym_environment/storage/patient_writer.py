"""Writes records that were paid for. A disk that is full or hangs for a while delays them and loses none.

    write(record) ──> a thread writes the record
                         ├─(no space, no answer)──> log it now and every minute, and try again until it works
                         ├─(another error, such as a missing permission)──> OSError
                         └─(no space, no answer, after `stop_waiting`)──> OSError

The records wait in memory. The caller starts no work that would bring further records while `is_waiting` is true.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable
from typing import Any

from ..utils.resilience import BackgroundCalls, Outage

logger = logging.getLogger(__name__)

PASSING = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.EAGAIN,
)
"""Errors after which the same write can succeed: somebody frees space, or a file server comes back.

After any other error, such as a missing permission, the user must start the command again with another file.
"""

RETRY_S = 2.0
"""Seconds between two attempts to write a record."""

PATIENCE_S = 4.0
"""A disk that takes longer than this to write a record counts as unavailable. At shutdown, the record is lost."""


class PatientWriter:
    """Calls `append(record)` in a thread for each record, in the order of the calls of `write`.

    `append` raises OSError if the disk refuses the record, and can then be called again with the same record. `name` is
    what the records are, in the plural. `remedy` is the end of the log line about a disk that is unavailable.
    """

    def __init__(self, append: Callable[[dict[str, Any]], None], *, name: str, remedy: str) -> None:
        self._append = append
        self._remedy = remedy
        self._disk = BackgroundCalls(name)
        self._outage = Outage(logger, f"The disk of the {name}")
        self._turn = asyncio.Lock()
        self._may_wait = True
        self.hangs = False
        """Whether the disk has not answered the last call: a write for PATIENCE_S, or the end of the file."""
        self.lost = 0
        """The number of records that were not written."""

    @property
    def is_waiting(self) -> bool:
        """Whether a record waits until the disk takes it."""
        return self._outage.is_on

    def stop_waiting(self) -> None:
        """From now on, make one attempt for each record that waits or comes, because the process ends."""
        self._may_wait = False

    async def write(self, record: dict[str, Any]) -> None:
        """Write a record. Raises OSError if it is not written."""
        try:
            async with self._turn:
                await self._write(record)
        except OSError:
            self.lost += 1
            raise

    async def finish(self, close: Callable[[], None]) -> None:
        """Call `close` in the thread, after all writes. Does nothing if the disk hangs. Raises OSError."""
        if self.hangs:
            return
        # If the caller gives up waiting, the next call of this method must not wait again.
        self.hangs = True
        await self._disk.submit(close)
        self.hangs = False

    async def _write(self, record: dict[str, Any]) -> None:
        while True:
            if self.hangs and not self._may_wait:
                raise TimeoutError(errno.ETIMEDOUT, "the disk does not answer")
            # An attempt that began before `stop_waiting` is not the last one: the disk may have space since then.
            is_last = not self._may_wait
            try:
                await self._answer(self._disk.submit(self._append, record))
            except OSError as error:
                if error.errno not in PASSING or is_last:
                    raise
                self._outage.failed(str(error), self._remedy)
                if self._may_wait:
                    await asyncio.sleep(RETRY_S)
            else:
                self._outage.over()
                return

    async def _answer(self, call: asyncio.Future[None]) -> None:
        """Wait for the disk. Raises OSError if it refuses the call, or does not answer and there is no time left."""
        while not call.done():
            await asyncio.wait([call], timeout=PATIENCE_S)
            self.hangs = not call.done()
            if self.hangs:
                if not self._may_wait:
                    raise TimeoutError(errno.ETIMEDOUT, "the disk does not answer")
                self._outage.failed(f"no answer for {PATIENCE_S:g} s", self._remedy)
        call.result()
