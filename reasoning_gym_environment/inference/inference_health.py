"""Whether inference works, so that a server that is down gets a few attempts and not a storm of them.

    works ──(3 failures in a row)──> away ──(one attempt at a time, ever less often)──(one succeeds)──> works

While it is away everybody else waits for the outcome of that one attempt. A failure then says nothing about the item
that was tried, so it is not held against it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ..errors import InferenceError
from ..utils.outages import Outage

logger = logging.getLogger(__name__)

AWAY_AFTER = 3
"""Failures in a row, of any items, after which inference counts as away."""

FIRST_DELAY_S = 1.0
MAX_DELAY_S = 30.0


class InferenceHealth:
    """Wrap every request in `async with health.attempt():`."""

    def __init__(self, *, first_delay_s: float = FIRST_DELAY_S, max_delay_s: float = MAX_DELAY_S) -> None:
        self._outage = Outage(logger, "Inference", first_delay_s=first_delay_s, max_delay_s=max_delay_s)
        self._failures = 0
        self._is_trying = False
        self._next_attempt = 0.0
        self._changed = asyncio.Event()

    @property
    def is_away(self) -> bool:
        return self._outage.is_on

    @property
    def away_s(self) -> float:
        """Seconds that the present outage has lasted; 0 if there is none."""
        return self._outage.lasted_s

    @asynccontextmanager
    async def attempt(self) -> AsyncIterator[None]:
        """Enter when it is time to ask. An InferenceError from inside counts as a failure, and is passed on."""
        is_probe = await self._my_turn()
        try:
            yield
        except InferenceError as error:
            self._note_failure(str(error), is_probe)
            raise
        else:
            self._failures = 0
            self._outage.over()
        finally:
            if is_probe:
                self._is_trying = False
            self._wake()

    async def _my_turn(self) -> bool:
        """Wait for it; whether this is the one attempt that is made during an outage."""
        loop = asyncio.get_running_loop()
        while self.is_away:
            wait_s = self._next_attempt - loop.time()
            if not self._is_trying and wait_s <= 0:
                self._is_trying = True
                return True
            changed = asyncio.ensure_future(self._changed.wait())
            try:
                await asyncio.wait([changed], timeout=None if self._is_trying else wait_s)
            finally:
                changed.cancel()
        return False

    def _note_failure(self, detail: str, is_probe: bool) -> None:
        self._failures += 1
        # Those that were under way when it went away fail too; only new attempts tell how long it lasts.
        if is_probe or (self._failures >= AWAY_AFTER and not self.is_away):
            delay = self._outage.failed(detail, "items wait and are tried again")
            self._next_attempt = asyncio.get_running_loop().time() + delay

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def metrics(self) -> dict[str, float]:
        return self._outage.metrics("inference/requests")
