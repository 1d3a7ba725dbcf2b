"""Which items have been observed: Atropos may run an item twice, and it must teach the curriculum once.

Atropos cancels groups in progress and puts their items back when an evaluation starts or its queue is full.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .errors import EnvironmentSetupError

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
