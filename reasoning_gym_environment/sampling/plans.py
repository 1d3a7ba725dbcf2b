"""What the item stream has promised: a plan for each index, from its choice until its group is settled.

chosen ──> drawn ahead ──> handed out ──> settled
└──────────── pending: saved, and drawn again after a restart ───────────┘
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Any

from ..errors import EnvironmentSetupError


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
    plans = [_plan(entry, below) for entry in _as_list(saved)]
    plans.sort(key=lambda plan: plan.index)
    return [plan for plan in plans if plan.task in tasks], [plan for plan in plans if plan.task not in tasks]


def _as_list(saved: Any) -> Iterable[Any]:
    if not isinstance(saved, list):
        raise EnvironmentSetupError(f"A sampler's state needs a list of pending items, got {saved!r}.")
    return saved


def _plan(entry: Any, below: int) -> Plan:
    match entry:
        case [int(index), str(task), int() | None as level] if 0 <= index < below and (level is None or level >= 0):
            return Plan(index, task, level)
    raise EnvironmentSetupError(
        f"A pending item of a sampler's state is [index, task, level] with an index below {below}, got {entry!r}."
    )
