"""Trouble that lasts or comes back thousands of times, told in a few lines of the log and counted for the metrics.

Outage           something we depend on is unavailable: logged at the beginning, every minute, and when it is over;
                 asked ever less often
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
    """Counts and reports the outages of one other process, and says how long to wait before the next attempt.

    `who` begins a sentence, such as "The trajectory API". Waits double from `first_delay_s` to `max_delay_s`.
    """

    def __init__(
        self,
        logger: logging.Logger,
        who: str,
        *,
        first_delay_s: float = 0.0,
        max_delay_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logger, self._who, self._clock = logger, who, clock
        self._first_delay_s, self._max_delay_s = first_delay_s, max_delay_s
        self._began: float | None = None
        self._delay_s = self._remind_at = self._past_s = 0.0
        self._count = 0

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
            self._began = self._remind_at = now
            self._delay_s = self._first_delay_s
            self._count += 1
        if now >= self._remind_at:
            self._remind_at = now + REMIND_S
            who = f"{self._who} is unavailable" + (f", for {self.lasted_s:.0f} s now" if now > self._began else "")
            self._logger.warning("%s (%s)%s.", who, detail.rstrip("."), remedy and f"; {remedy}")
        delay = self._delay_s
        self._delay_s = min(2 * delay, self._max_delay_s)
        return delay

    def over(self) -> None:
        """Note an attempt that worked; harmless without an outage."""
        if self._began is not None:
            self._logger.warning("%s is back after %.0f s.", self._who, self.lasted_s)
            self._past_s += self.lasted_s
            self._began = None

    def metrics(self, prefix: str) -> dict[str, float]:
        """`{prefix}_outages` and `{prefix}_outage_seconds` since the start; empty if there was none."""
        if not self._count:
            return {}
        return {f"{prefix}_outages": float(self._count), f"{prefix}_outage_seconds": self._past_s + self.lasted_s}


class RepeatedEvents:
    """Counts events by kind, with a summary line after every hundred of a kind and at the end."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._unreported: dict[str, str] = {}
        self.counts: Counter[str] = Counter()
        self.last_detail = ""

    def note(self, kind: str, detail: str) -> None:
        """Count one event; log it if it is the first of its kind."""
        self.counts[kind] += 1
        self.last_detail = detail
        if self.counts[kind] == 1:
            self._log(kind, f"{detail.rstrip('.')}. Further ones are counted.")
            return
        self._unreported[kind] = detail
        if self.counts[kind] % SUMMARY_EVERY == 0:
            self._summarise(kind)

    def summarise(self) -> None:
        """One line for each kind that happened again since its last line."""
        for kind in list(self._unreported):
            self._summarise(kind)

    def metrics(self, prefix: str) -> dict[str, float]:
        """Counts since the start, as `{prefix}_{kind}`; of a kind what stands before its comma."""
        keys = {kind: kind.split(",")[0].replace(" ", "_") for kind in self.counts}
        return {f"{prefix}_{keys[kind]}": float(count) for kind, count in self.counts.items()}

    def _summarise(self, kind: str) -> None:
        self._log(kind, f"{self.counts[kind]} times so far; last: {self._unreported.pop(kind)}")

    def _log(self, kind: str, text: str) -> None:
        self._logger.warning("%s: %s", kind[:1].upper() + kind[1:], text)
