"""Trouble that lasts or comes back thousands of times, told in a few lines of the log and counted for the metrics.

Outage           somebody we depend on is away: said at the beginning, every minute, and when it is over; asked ever
                 less often
RepeatedEvents   the first event of a kind is logged in full, every hundredth is a summary
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

REMIND_S = 60.0
SUMMARY_EVERY = 100


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


class RepeatedEvents:
    """Counts events by kind, with a summary line after every hundred of a kind and at the end."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._summarised: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.last_detail = ""
        self._details: dict[str, str] = {}

    def note(self, kind: str, detail: str) -> None:
        """Count one event; log it if it is the first of its kind."""
        self.counts[kind] += 1
        self.last_detail = self._details[kind] = detail
        if self.counts[kind] == 1:
            self._logger.warning("%s: %s. Further ones are counted.", _sentence(kind), detail.rstrip("."))
            self._summarised[kind] = 1
        elif self.counts[kind] % SUMMARY_EVERY == 0:
            self._summarise(kind)

    def summarise(self) -> None:
        """One line for each kind that happened again since its last line."""
        for kind in self.counts:
            if self.counts[kind] > self._summarised[kind]:
                self._summarise(kind)

    def metrics(self, prefix: str) -> dict[str, float]:
        """Counts since the start, as `{prefix}_{kind}`; of a kind what stands before its comma."""
        keys = {kind: kind.split(",")[0].replace(" ", "_") for kind in self.counts}
        return {f"{prefix}_{keys[kind]}": float(count) for kind, count in self.counts.items()}

    def _summarise(self, kind: str) -> None:
        self._logger.warning("%s: %d times so far; last: %s", _sentence(kind), self.counts[kind], self._details[kind])
        self._summarised[kind] = self.counts[kind]


def _sentence(kind: str) -> str:
    return kind[:1].upper() + kind[1:]
