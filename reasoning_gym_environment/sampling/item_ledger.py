"""What became of each item of the stream: the one place that knows which are under way, and which are done.

                      ┌── requeue: no group came of it ──┐    (at most MAX_TRIES times)
                      v                                  │
    planned ──> handed out ──────────────────────────────┴──> done: its group is sent, or is of no use
    └─────────── pending: saved, and drawn again ────────┘
                            after a restart

An item teaches the curriculum once (`is_new_observation`, saved), however often it is drawn. Items that are not of the
stream (those of an evaluation or of a caller's own dataset) are never pending.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..errors import EnvironmentSetupError
from ..records import Problem

MAX_TRIES = 5
"""How often an item is handed out while its group is not done in time."""

REMEMBERED = 4096
"""Observed items kept in mind; many more than are ever under way."""


@dataclass(frozen=True)
class Plan:
    """Which task and level an index of the training stream gets; `level` is None for the default config."""

    index: int
    task: str
    level: int | None

    def as_json(self) -> list[Any]:
        return [self.index, self.task, self.level]


def plans_from(saved: Any, *, below: int, tasks: Container[str]) -> tuple[list[Plan], list[Plan]]:
    """Saved plans in the order of their index: those that can be carried out, and those of tasks not served now.

    Raises EnvironmentSetupError unless `saved` is a list of [index, task, level] with indices under `below`.
    """
    if not isinstance(saved, list):
        raise EnvironmentSetupError(f"A sampler's state needs a list of pending items, got {saved!r}.")
    plans = sorted((_plan(entry, below) for entry in saved), key=lambda plan: plan.index)
    return [plan for plan in plans if plan.task in tasks], [plan for plan in plans if plan.task not in tasks]


def _plan(entry: Any, below: int) -> Plan:
    match entry:
        case [int(index), str(task), int() | None as level] if 0 <= index < below and (level is None or level >= 0):
            return Plan(index, task, level)
    raise EnvironmentSetupError(
        f"A pending item of a sampler's state is [index, task, level] with an index below {below}, got {entry!r}."
    )


class ItemLedger:
    """Plans that are handed out or wait to be drawn again, and the last items observed."""

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self.handed_out: dict[int, Plan] = {}
        self.again: deque[Plan] = deque()
        """Plans to draw before any new one is made."""
        self._tries: dict[int, int] = {}
        self._observed: dict[int, None] = {}
        self._observed_again = 0
        self._remembered = remembered

    # --- for the item stream

    def hand_out(self, plan: Plan, problem: Problem | None = None) -> None:
        """It is pending from here on; with its problem, at the level that this came to in the end."""
        # Drawn again, it must be the same item.
        self.handed_out[plan.index] = plan if problem is None else replace(plan, level=problem.level)

    def restore(self, plans: Iterable[Plan]) -> None:
        """Forget what was pending: these plans are, and are drawn again."""
        self.handed_out.clear()
        self._tries.clear()
        self.again = deque(plans)

    # --- for whoever runs an item

    def done(self, problem: Problem) -> None:
        """Its group is settled: sent, or of no use. Harmless for a problem that is not pending."""
        if problem.is_of_stream and self.handed_out.pop(problem.index, None) is not None:
            self._tries.pop(problem.index, None)

    def requeue(self, problem: Problem, *, is_counted: bool = True) -> bool:
        """Hand a pending problem out once more, after those already drawn; False if it had MAX_TRIES already."""
        plan = self.handed_out.get(problem.index) if problem.is_of_stream else None
        tries = self._tries.get(problem.index, 1)
        if plan is None or tries >= MAX_TRIES:
            self._tries.pop(problem.index, None)
            return False
        self._tries[problem.index] = tries + is_counted
        del self.handed_out[problem.index]
        self.again.append(plan)
        return True

    def is_new_observation(self, index: int) -> bool:
        """Whether this is the first observation of the item with this index; a second one is counted."""
        if index in self._observed:
            self._observed_again += 1
            return False
        self._observed[index] = None
        if len(self._observed) > self._remembered:
            del self._observed[next(iter(self._observed))]
        return True

    # --- what is told and saved (of the observed items; the pending ones are saved with the stream)

    def metrics(self) -> dict[str, float]:
        return {"train/items_observed_again": float(self._observed_again)} if self._observed_again else {}

    def state_dict(self) -> dict[str, Any]:
        return {"indices": list(self._observed), "repeated": self._observed_again}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`; an empty one starts afresh. Raises EnvironmentSetupError if it is malformed."""
        indices, repeated = state.get("indices", []), state.get("repeated", 0)
        if not isinstance(indices, list) or not all(type(number) is int for number in (*indices, repeated)):
            raise EnvironmentSetupError(
                f"The saved list of observed items cannot be used: expected item indices, got {indices!r:.200}."
            )
        self._observed = dict.fromkeys(indices)
        self._observed_again = repeated
