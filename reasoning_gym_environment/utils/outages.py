"""Somebody we depend on is away: said once, every minute, and when it is over; asked ever less often."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

REMIND_S = 60.0


class Outage:
    """Counts and reports the absences of one other process, and says how long to wait before the next attempt.

    `who` begins a sentence, such as "The trajectory API". Waits double from `first_delay_s` to `max_delay_s`.
    """

    def __init__(
        self,
        logger: logging.Logger,
        who: str,
        *,
        first_delay_s: float,
        max_delay_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logger = logger
        self._who = who
        self._first_delay_s = first_delay_s
        self._max_delay_s = max_delay_s
        self._clock = clock
        self._began: float | None = None
        self._reminded = 0.0
        self._attempts = 0
        self._past_s = 0.0
        self.count = 0

    @property
    def is_on(self) -> bool:
        return self._began is not None

    @property
    def lasted_s(self) -> float:
        """Seconds since the first failure of the present outage; 0 if there is none."""
        return 0.0 if self._began is None else self._clock() - self._began

    def failed(self, detail: str, remedy: str = "") -> float:
        """Note a failed attempt; returns the seconds to wait before the next one."""
        now = self._clock()
        if self._began is None:
            self._began, self._attempts = now, 0
            self.count += 1
        if self._attempts == 0 or now - self._reminded >= REMIND_S:
            self._reminded = now
            since = f", for {self.lasted_s:.0f} s now" if self._attempts else ""
            self._logger.warning("%s is away%s (%s)%s.", self._who, since, detail.rstrip("."), remedy and f"; {remedy}")
        delay = min(self._max_delay_s, self._first_delay_s * 2.0 ** min(self._attempts, 30))
        self._attempts += 1
        return delay

    def over(self) -> None:
        """Note an attempt that worked; harmless without an outage."""
        if self._began is not None:
            self._logger.warning("%s is back after %.0f s.", self._who, self.lasted_s)
            self._past_s += self.lasted_s
            self._began = None

    def metrics(self, prefix: str) -> dict[str, float]:
        """`{prefix}_outages` and `{prefix}_outage_seconds` since the start; empty if there was none."""
        if not self.count:
            return {}
        return {f"{prefix}_outages": float(self.count), f"{prefix}_outage_seconds": self._past_s + self.lasted_s}
