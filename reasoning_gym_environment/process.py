"""`process`: groups for a file, many made at a time.

    draw items ahead, in order of index ──> make up to `concurrency` groups at once ──> file, each as it is finished

A group that could not be made is replaced by a later item. Nothing that is finished waits for another, so that a
process that is killed loses only what was in progress; the file is put in the order of its items at the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from .errors import EnvironmentSetupError

MAX_CONSECUTIVE_FAILURES = 10


class ManyGroups:
    """Makes `total` groups and writes them, whatever their scores.

    `draw` gives the next item, `make` its group or None, `write` takes a group with its item; `why` says, for an error,
    what went wrong last. Once `is_enough`, no further group is begun; if `begins_alone`, one group is made before all
    others are begun, and tells what they are like.
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
        is_enough: Callable[[], bool] = lambda: False,
        begins_alone: bool = False,
    ) -> None:
        self._is_enough = is_enough
        self._draw_item, self._make, self._write_group, self._why = draw, make, write, why
        self._unclaimed = total
        self._concurrency = max(1, min(concurrency, total))
        self._to_draw = asyncio.Semaphore(total)
        self._drawn: asyncio.Queue[Any] = asyncio.Queue(maxsize=self._concurrency)
        self._failures_in_a_row = 0
        self._is_over = False
        self._others_may = asyncio.Event()
        if not begins_alone:
            self._others_may.set()

    async def run(self) -> None:
        """Until all are written; when it is cancelled or fails, what has its completions is written all the same.

        Raises EnvironmentSetupError after ten groups in a row could not be made, beside those under way, and what
        `draw` and `write` raise.
        """
        drawing = asyncio.create_task(self._draw())
        workers = [asyncio.create_task(self._work(number)) for number in range(self._concurrency)]
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

    async def _draw(self) -> None:
        """Keep items ready in order of index, as many as are still needed; runs until it is cancelled."""
        while True:
            await self._to_draw.acquire()
            await self._drawn.put(await self._draw_item())

    async def _work(self, number: int) -> None:
        """Make one group after the other until all are claimed.

        A group whose completions have come when it is cancelled is finished all the same, and the cancellation is spent
        (`aio.to_the_end`): so it is asked whether the run is over.
        """
        if number > 0:
            await self._others_may.wait()
        while self._unclaimed > 0 and not self._is_over and not self._is_enough():
            self._unclaimed -= 1
            item = await self._drawn.get()
            group = await self._make(item)
            if group is None:
                self._unclaimed += 1
                self._to_draw.release()
                self._note_failure()
            else:
                self._failures_in_a_row = 0
                self._others_may.set()
                await self._write_group(group, item)
        self._others_may.set()

    def _note_failure(self) -> None:
        self._failures_in_a_row += 1
        # Those that were under way together fail together, and tell no more than one.
        if self._failures_in_a_row >= self._concurrency - 1 + MAX_CONSECUTIVE_FAILURES:
            raise EnvironmentSetupError(
                f"{self._failures_in_a_row} groups in a row could not be sampled: {self._why()}"
            )
