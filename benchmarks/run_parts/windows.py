"""A time in which a run is measured, and what happened in it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Window:
    """From one moment to another, on the monotonic clock."""

    began: float
    ended: float

    def rate(self, received: Sequence[tuple[float, int]]) -> float:
        """Groups per second; `received` has times, and the groups until then. Between two times they count evenly."""
        times = [moment for moment, _ in received]
        groups = [count for _, count in received]
        before, after = np.interp([self.began, self.ended], times, groups)
        return float(after - before) / (self.ended - self.began)

    def mean_open(self, intervals: Iterable[tuple[float, float]]) -> float:
        """How many of the intervals, given by begin and end, are open at a time, on average over the window."""
        overlaps = (min(end, self.ended) - max(begin, self.began) for begin, end in intervals)
        return sum(max(0.0, overlap) for overlap in overlaps) / (self.ended - self.began)

    def inside(self, moments: Sequence[float]) -> list[float]:
        return [moment for moment in moments if self.began <= moment <= self.ended]

    def longest_gap(self, moments: Sequence[float]) -> float:
        """Seconds between two moments, or between a moment and an end of the window."""
        marks = [self.began, *self.inside(moments), self.ended]
        return max(after - before for before, after in itertools.pairwise(marks))
