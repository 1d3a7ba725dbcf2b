"""A worker that has died is started again, until that works: a machine may be short of processes for a moment."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ..errors import EnvironmentSetupError
from ..utils.outage_log import Outage

FIRST_DELAY_S = 0.1
MAX_DELAY_S = 10.0


class Revival:
    """Starts workers of one kind again; `who` begins a sentence, such as "A scoring worker"."""

    def __init__(self, logger: logging.Logger, who: str) -> None:
        self._outage = Outage(logger, who, first_delay_s=FIRST_DELAY_S, max_delay_s=MAX_DELAY_S)

    async def revive(self, start: Callable[[], Awaitable[None]]) -> None:
        """Call `start` until it raises no EnvironmentSetupError; the work of a pool without workers waits meanwhile."""
        while True:
            try:
                await start()
            except EnvironmentSetupError as error:
                await asyncio.sleep(self._outage.failed(str(error), "it is started again, its work waits"))
            else:
                self._outage.over()
                return
