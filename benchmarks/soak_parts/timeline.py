"""What was seen along a run, by the number of groups, and what it says: levels, slopes, rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

WARM = 0.05
"""Share of the groups at which the first level is read."""

SETTLED = 0.2
"""Share of the groups after which slopes are taken: by then each task came, and workers loaded what they need."""

SAMPLES_PER_LEVEL = 3


@dataclass(frozen=True)
class Sample:
    """What all instances held together at one moment, by who holds it (serve, workers) and what."""

    groups: int
    held: dict[str, dict[str, float]]


def holdings(samples: Sequence[Sample], groups: int) -> dict[str, Any]:
    """For serve and for its workers, each quantity at the start, in the middle and at the end, and its slopes."""
    if not samples:
        return {}
    return {
        who: {what: _levels(samples, groups, who, what) for what in samples[0].held[who] if what != "cpu_s"}
        for who in samples[0].held
    }


def _levels(samples: Sequence[Sample], groups: int, who: str, what: str) -> dict[str, float | None]:
    points = [(sample.groups, sample.held[who][what]) for sample in samples]
    return {
        "start": _level(points, WARM * groups),
        "middle": _level(points, 0.5 * groups),
        "end": _level(points, groups),
        "highest": _rounded(max(value for _, value in points)),
        "per_1000_groups": _slope(points, SETTLED * groups),
        "per_1000_groups_in_second_half": _slope(points, 0.5 * groups),
    }


def _level(points: Sequence[tuple[int, float]], groups: float) -> float:
    """The median of the samples nearest to so many groups; handles go up and down with the requests in flight."""
    nearest = sorted(points, key=lambda point: abs(point[0] - groups))[:SAMPLES_PER_LEVEL]
    return _rounded(float(np.median([value for _, value in nearest])))


def _slope(points: Sequence[tuple[int, float]], since: float) -> float | None:
    """Least squares, per thousand groups; None for fewer than four points."""
    settled = [point for point in points if point[0] >= since]
    if len({count for count, _ in settled}) < 4:
        return None
    counts, values = zip(*settled, strict=True)
    return _rounded(1000 * float(np.polyfit(counts, values, 1)[0]))


def rates(history: Sequence[tuple[float, int]], groups: int) -> dict[str, float]:
    """Groups per second from the first group on: over all, the first and the last tenth. History is (s, groups)."""
    began = max(index for index, (_, count) in enumerate(history) if count == 0)
    times, counts = zip(*history[began:], strict=True)

    def between(first: float, last: float) -> float:
        start, end = np.interp([first * groups, last * groups], counts, times)
        return _rounded((last - first) * groups / max(float(end - start), 1e-9))

    return {"all": between(0, 1), "first_tenth": between(0, 0.1), "last_tenth": between(0.9, 1)}


def cpu_ms_per_group(samples: Sequence[Sample]) -> dict[str, dict[str, float | None]]:
    """Processor time of serve and of its workers by part of the run; from the first sample on, without the start-up.

    A worker that ends takes its time along. None where two samples are not far enough apart.
    """
    parts = {"all": (0.0, 1.0), "first_tenth": (0.0, 0.1), "last_tenth": (0.9, 1.0)}
    return {who: {part: _cpu_ms(samples, who, *ends) for part, ends in parts.items()} for who in samples[0].held}


def _cpu_ms(samples: Sequence[Sample], who: str, first: float, last: float) -> float | None:
    until = samples[-1].groups
    start = min(samples, key=lambda sample: abs(sample.groups - first * until))
    end = min(samples, key=lambda sample: abs(sample.groups - last * until))
    groups = end.groups - start.groups
    return _rounded(1e3 * (end.held[who]["cpu_s"] - start.held[who]["cpu_s"]) / groups) if groups else None


def _rounded(value: float) -> float:
    return round(value, 2)
