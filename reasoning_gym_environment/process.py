"""`process`: groups for a file, many made at a time, written in the order of their items.

    draw items ahead, in order of index ──> make up to `concurrency` groups at once
        ──> hold finished groups back until those before them are written ──> file

The file does not depend on which reply came first. A group that could not be made is replaced by a later item.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from .errors import EnvironmentSetupError

MAX_CONSECUTIVE_FAILURES = 10

HELD_BACK = 4
"""Groups that are in progress or wait for an earlier one, as a multiple of the concurrency: a bound on memory."""


@dataclass
class _Slot:
    """One item in order: `group` is None until it is made, and stays so if it `failed`."""

    item: Any
    group: Any = None
    failed: bool = False


class OrderedGroups:
    """Makes `total` groups and writes them, whatever their scores.

    `draw` gives the next item, `make` its group or None, `write` takes a group with its item; `why` says, for an error,
    what went wrong last.
    """

    def __init__(
        self,
        total: int,
        concurrency: int,
        *,
        draw: Callable[[], Coroutine[Any, Any, Any]],
        make: Callable[[Any], Awaitable[Any]],
        write: Callable[[Any, Any], Awaitable[None]],
        why: Callable[[], str],
    ) -> None:
        self._draw_item, self._make, self._write_group, self._why = draw, make, write, why
        self._unclaimed = total
        self._concurrency = max(1, min(concurrency, total))
        self._to_draw = asyncio.Semaphore(total)
        self._drawn: asyncio.Queue[Any] = asyncio.Queue(maxsize=self._concurrency)
        self._order: deque[_Slot] = deque()
        self._writing = asyncio.Lock()
        self._room = asyncio.Semaphore(HELD_BACK * self._concurrency)
        self._failures_in_a_row = 0
        self._is_over = False

    async def run(self) -> None:
        """Until all are written; when it is cancelled or fails, what is finished by then is written all the same.

        Raises EnvironmentSetupError after ten groups in a row could not be made, and what `draw` and `write` raise.
        """
        drawing = asyncio.create_task(self._draw())
        workers = [asyncio.create_task(self._work()) for _ in range(self._concurrency)]
        making = asyncio.gather(*workers)
        try:
            # Drawing ends only with an error, for which nobody would wait.
            await asyncio.wait((drawing, making), return_when=asyncio.FIRST_COMPLETED)
            await (drawing if drawing.done() else making)
        finally:
            self._is_over = True
            for task in (drawing, *workers):
                task.cancel()
            await asyncio.gather(drawing, making, *workers, return_exceptions=True)
            await self._write_rest()

    async def _draw(self) -> None:
        """Keep items ready in order of index, as many as are still needed; runs until it is cancelled."""
        while True:
            await self._to_draw.acquire()
            await self._drawn.put(await self._draw_item())

    async def _work(self) -> None:
        """Make one group after the other until all are claimed.

        A group whose completions have come when it is cancelled is finished all the same, and the cancellation is spent
        (`shutdown.to_the_end`): so it is asked whether the run is over.
        """
        while self._unclaimed > 0 and not self._is_over:
            self._unclaimed -= 1
            await self._room.acquire()
            slot = _Slot(await self._drawn.get())
            self._order.append(slot)
            slot.group = await self._make(slot.item)
            if slot.group is None:
                slot.failed = True
                self._unclaimed += 1
                self._to_draw.release()
                self._note_failure()
            else:
                self._failures_in_a_row = 0
            await self._write_ready()

    def _note_failure(self) -> None:
        self._failures_in_a_row += 1
        if self._failures_in_a_row >= MAX_CONSECUTIVE_FAILURES:
            raise EnvironmentSetupError(
                f"{self._failures_in_a_row} groups in a row could not be sampled: {self._why()}"
            )

    async def _write_ready(self) -> None:
        """Write the groups that nothing before them holds up."""
        async with self._writing:
            while self._order and (self._order[0].failed or self._order[0].group is not None):
                await self._write(self._order.popleft())

    async def _write_rest(self) -> None:
        """Write what is finished, although groups before it are missing."""
        async with self._writing:
            while self._order:
                await self._write(self._order.popleft())

    async def _write(self, slot: _Slot) -> None:
        self._room.release()
        if slot.group is not None:
            await self._write_group(slot.group, slot.item)
