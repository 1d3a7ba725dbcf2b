"""Which items have been accepted, and observed: Atropos may run an item twice.

It cancels groups in progress and puts their items back when an evaluation starts or its queue is full. An item teaches
the curriculum once; and one whose group was already accepted is not sampled again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import EnvironmentSetupError
from ..records import Problem

REMEMBERED = 4096
"""Items kept in mind; many more than are ever in progress or waiting to be run again."""


class ObservedItems:
    """Remembers the indices of the last items observed."""

    def __init__(self, capacity: int = REMEMBERED) -> None:
        self._capacity = capacity
        self._indices: dict[int, None] = {}
        self.repeated = 0

    def is_new(self, index: int) -> bool:
        """Whether this is the first observation of the item with this index; a second one is counted."""
        if index in self._indices:
            self.repeated += 1
            return False
        self._indices[index] = None
        if len(self._indices) > self._capacity:
            del self._indices[next(iter(self._indices))]
        return True

    def metrics(self) -> dict[str, float]:
        return {"train/items_observed_again": float(self.repeated)} if self.repeated else {}

    def state_dict(self) -> dict[str, Any]:
        return {"indices": list(self._indices), "repeated": self.repeated}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`; an empty one starts afresh. Raises EnvironmentSetupError if it is malformed."""
        indices, repeated = state.get("indices", []), state.get("repeated", 0)
        if not isinstance(indices, list) or not all(type(number) is int for number in (*indices, repeated)):
            raise EnvironmentSetupError(
                f"The saved list of observed items cannot be used: expected item indices, got {indices!r:.200}."
            )
        self._indices = dict.fromkeys(indices)
        self.repeated = repeated


class AcceptedItems:
    """Remembers the last training items of this process whose groups were accepted."""

    def __init__(self, capacity: int = REMEMBERED) -> None:
        self._capacity = capacity
        self._seeds: dict[tuple[int, int], None] = {}

    def add(self, problem: Problem) -> None:
        if not problem.is_of_stream:
            return
        self._seeds[problem.index, problem.seed] = None
        if len(self._seeds) > self._capacity:
            del self._seeds[next(iter(self._seeds))]

    def has(self, problem: Problem) -> bool:
        return (problem.index, problem.seed) in self._seeds

    def discard(self, problem: Problem) -> None:
        """Its group did not get to the trajectory API: it may be sampled again."""
        self._seeds.pop((problem.index, problem.seed), None)
