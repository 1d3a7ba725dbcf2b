"""Writes records that were paid for: what the disk does not take waits in memory, and is written when there is room.

put(record) ──> a thread appends it ──> True
                    └─(the disk refuses it, or does not answer)──> a line in the log now and every minute,
                                                                   and the next attempt in RETRY_S seconds
stop ──> one last attempt for each record that waits ──> True, or False: it is lost

`put` waits as long as it takes. `offer` is for records that a run can do without, such as dumps: it does not wait for a
disk that is unavailable, and at most MOST_WAITING records wait in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from ..utils.resilience import RETRY_S, BackgroundCalls, Outage

logger = logging.getLogger(__name__)

PATIENCE_S = 4.0
"""A disk that takes longer than this to write a record counts as unavailable. At shutdown, the record is lost."""

MOST_WAITING = 64
"""Further records that are offered are lost, because a disk that stays full must not fill the memory."""


class DiskQueue:
    """Calls `append(record)` in a thread for each record, in the order of the calls of `put`.

    `append` raises OSError if the disk refuses the record, and can then be called again with the same record. `name` is
    what the records are, in the plural. `remedy` is the end of the log line about a disk that is unavailable.
    """

    def __init__(self, append: Callable[[Any], None], *, name: str, remedy: str) -> None:
        self._append = append
        self._name = name
        self._remedy = remedy
        self._disk = BackgroundCalls(name)
        self._outage = Outage(logger, f"The disk of the {name}")
        self._waiting: deque[tuple[Any, asyncio.Future[bool]]] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._is_ending = asyncio.Event()
        self._is_full = False
        """Whether an offered record was lost since the disk took the last one."""
        self.hangs = False
        """Whether the disk does not answer."""
        self.lost = 0
        """The number of records that were not written."""

    @property
    def is_stuck(self) -> bool:
        """Whether records wait because the disk does not take them."""
        return self._outage.is_on

    async def put(self, record: Any) -> bool:
        """Write a record, however long it takes. Returns False if `stop` came first and the last attempt failed.

        If the caller is cancelled, the record is written all the same. Raises what `append` raises except OSError.
        """
        written = asyncio.get_running_loop().create_future()
        self._waiting.append((record, written))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())
        return await asyncio.shield(written)

    async def offer(self, record: Any) -> bool:
        """Write a record, but do not wait for a disk that is unavailable. Returns False if the record is lost.

        Raises what `append` raises except OSError.
        """
        if len(self._waiting) >= MOST_WAITING:
            if not self._is_full:
                logger.warning(
                    "%d %s wait for the disk. Until it takes them, all others are lost.", MOST_WAITING, self._name
                )
                self._is_full = True
            self.lost += 1
            return False
        writing = asyncio.ensure_future(self.put(record))
        await asyncio.wait([writing], timeout=0.0 if self.is_stuck else PATIENCE_S)
        return not writing.done() or writing.result()

    def stop(self) -> None:
        """From now on, make one attempt for each record that waits or comes, because the process ends."""
        self._is_ending.set()

    async def close(self, close: Callable[[], None]) -> None:
        """Write what waits, with one attempt each, then call `close` in the thread. Raises OSError.

        Does not wait for a disk that hangs. Safe to call twice.
        """
        self.stop()
        if self._writing is not None:
            await asyncio.wait([self._writing])
        if self.lost:
            logger.error("The disk did not take %d %s, which are lost.", self.lost, self._name)
            self.lost = 0
        if self.hangs:
            return
        # If the caller gives up waiting, the next call of this method must not wait again.
        self.hangs = True
        await self._disk.submit(close)
        self.hangs = False

    def metrics(self, prefix: str) -> dict[str, float]:
        """Outages of the disk since the start; see `Outage.metrics`."""
        return self._outage.metrics(prefix)

    async def _write(self) -> None:
        """Write the records that wait, one after the other."""
        while self._waiting:
            record, written = self._waiting[0]
            try:
                is_written = await self._is_written(record)
            except Exception as error:  # noqa: BLE001
                # It is no fault of the disk, so the caller must see it.
                written.set_exception(error)
            else:
                self.lost += not is_written
                written.set_result(is_written)
            self._waiting.popleft()

    async def _is_written(self, record: Any) -> bool:
        while True:
            # An attempt that began before `stop` is not the last one: the disk may have space since then.
            is_last = self._is_ending.is_set()
            problem = await self._problem_of(record)
            if problem is None:
                self._outage.over()
                self._is_full = False
                return True
            if is_last:
                return False
            self._outage.failed(problem, self._remedy)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S):
                    await self._is_ending.wait()

    async def _problem_of(self, record: Any) -> str | None:
        """Try to write a record. Returns None, or why the disk did not take it."""
        if self.hangs:
            return "the disk does not answer"
        call = self._disk.submit(self._append, record)
        while not call.done():
            await asyncio.wait([call], timeout=PATIENCE_S)
            if not call.done():
                if self._is_ending.is_set():
                    self.hangs = True
                    return "the disk does not answer"
                self._outage.failed(f"no answer for {PATIENCE_S:g} s", self._remedy)
        try:
            call.result()
        except OSError as error:
            return str(error)
        return None
