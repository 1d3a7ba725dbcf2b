"""The datasets a scoring worker keeps: building one takes up to 0.3 s, and every group needs the one of its config.

Most take next to no memory; a few hold word lists or puzzles (one of arc_agi takes 30 MB), and a curriculum asks
for many configs. So the memory limit is held by giving up large ones, used longest ago first, which leaves the
hundreds of small ones alone.
"""

from __future__ import annotations

import gc
import pickle
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from ..tasks import reasoning_gym_source as library
from .confinement import MemoryMeter

MAX_DATASETS = 2048
MAX_BYTES = 72 << 20
"""Enough for every task of reasoning-gym at its default config (67 MB)."""
LARGE_BYTES = 1 << 20


class DatasetCache:
    """Verifiers by task and config."""

    def __init__(self, meter: MemoryMeter) -> None:
        self._meter = meter
        self._kept: OrderedDict[bytes, tuple[Callable[..., float], int]] = OrderedDict()
        self._costs: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def verifier(self, task: str, config: Mapping[str, Any]) -> Callable[..., float]:
        """`score_answer` of the dataset; raises what building it raises."""
        key = pickle.dumps((task, sorted(config.items())))
        if key not in self._kept:
            before = self._meter.resident_bytes()
            # Neither is used in scoring; a seed keeps the constructor from drawing one.
            dataset = library.create_dataset(task, **{"seed": 0, "size": 1, **config})
            # A dataset that fits into memory freed before seems to take none: its like is the better guide.
            grown = self._meter.resident_bytes() - before
            self._costs[task] = max(grown, self._costs.get(task, 0))
            self._kept[key] = (dataset.score_answer, self._costs[task])
            self._make_room(key)
        self._kept.move_to_end(key)
        return self._kept[key][0]

    def _make_room(self, newest: bytes) -> None:
        excess = sum(cost for _, cost in self._kept.values()) - MAX_BYTES
        others = [(key, cost) for key, (_, cost) in self._kept.items() if key != newest]
        given_up = [] if len(self._kept) <= MAX_DATASETS else [others[0]]
        for key, cost in others:
            if excess > 0 and cost >= LARGE_BYTES and (key, cost) not in given_up:
                given_up.append((key, cost))
                excess -= cost
        for key, _ in given_up:
            del self._kept[key]
        if any(cost >= LARGE_BYTES for _, cost in given_up):
            gc.collect()
