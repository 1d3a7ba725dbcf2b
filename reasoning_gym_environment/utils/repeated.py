"""Events that may happen thousands of times: the first of a kind is logged in full, later ones are counted."""

from __future__ import annotations

import logging
from collections import Counter

SUMMARY_EVERY = 100


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
        """Counts since the start, as `{prefix}_{kind}`."""
        return {f"{prefix}_{_key(kind)}": float(count) for kind, count in self.counts.items()}

    def _summarise(self, kind: str) -> None:
        self._logger.warning("%s: %d times so far; last: %s", _sentence(kind), self.counts[kind], self._details[kind])
        self._summarised[kind] = self.counts[kind]


def _sentence(kind: str) -> str:
    return kind[:1].upper() + kind[1:]


def _key(kind: str) -> str:
    return kind.split(",")[0].replace(" ", "_")
