"""Watches a run of `serve` or `process`: its alarms, and its status."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from ..run import Run
from ..telemetry.alarms import Rule, Sign, nothing_sent, task_rules
from .status import Status

logger = logging.getLogger(__name__)

LOOK_S = 5.0
"""Seconds between two looks at the alarms."""

LOOKS_PER_STATUS = 12
"""The log has the status once a minute."""

NOT_SENT_S = 60.0
"""After this long without a group for the trainer, although groups end or there is room for more, an alarm says so."""


class RunWatch:
    """Looks at a run every few seconds. Its loop adds `rules`.

    `waits_for` says what the loop waits for, and `is_stalled` whether it starts no group although there is room.
    """

    def __init__(
        self,
        run: Run,
        waits_for: Callable[[], str],
        rules: Iterable[Rule] = (),
        is_stalled: Callable[[], bool] = bool,
    ) -> None:
        self._telemetry = run.telemetry
        self._api = run.api
        self._waits_for = waits_for
        self._is_stalled = is_stalled
        self._status = Status(run)
        window = self._telemetry.window
        self._telemetry.alarms.add(
            [
                Rule("nothing_sent", self._nothing_sent, NOT_SENT_S),
                *task_rules(window, run.config.exclude_tasks),
                *rules,
            ]
        )

    async def follow(self) -> None:
        """Look at the run until this is cancelled, and then once more at its alarms."""
        try:
            while True:
                for _ in range(LOOKS_PER_STATUS):
                    await asyncio.sleep(LOOK_S)
                    self._telemetry.alarms.look()
                    self._status.look()
                lines = self._status.lines(self._waits_for(), self._telemetry.alarms.on)
                logger.info("Status: %s", "\n  ".join(lines))
        finally:
            self._telemetry.alarms.look()

    def _nothing_sent(self) -> Sign | None:
        if not self._api.may_send.is_set():
            # The untrained model is being evaluated.
            return None
        return nothing_sent(self._telemetry.window, self._waits_for(), is_stalled=self._is_stalled())
