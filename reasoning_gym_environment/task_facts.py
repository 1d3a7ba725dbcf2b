"""Facts about items that are too slow to find out at every start: distinct questions, length, time to make.

They were measured once for a release of reasoning-gym (benchmarks/task_facts.py) and are shipped in
`data/task_facts.json`. Tasks that are not in it, such as a user's own, are "not measured".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parent / "data" / "task_facts.json"
LOW_ENTROPY = 0.5
"""A config of which fewer than this share of the questions drawn are new comes back to the same few items."""


@dataclass(frozen=True)
class ItemFacts:
    """Of `draws` items of one config: `distinct` questions, median characters, median milliseconds to make one.

    `failed` items could not be made, or not in time.
    """

    draws: int
    distinct: int
    chars: int
    ms: float
    failed: int = 0

    @property
    def is_low_entropy(self) -> bool:
        return self.draws > 0 and self.distinct < LOW_ENTROPY * self.draws


@dataclass(frozen=True)
class TaskFacts:
    """`default` at reasoning-gym's default config, `levels` along the ladder, easiest first."""

    default: ItemFacts
    levels: tuple[ItemFacts, ...] = field(default=())

    @property
    def low_entropy_levels(self) -> list[int]:
        return [index for index, facts in enumerate(self.levels) if facts.is_low_entropy]


def load_facts(path: Path = DATA) -> tuple[str, dict[str, TaskFacts]]:
    """The version of reasoning-gym the facts are of, and the facts by task."""
    document = json.loads(path.read_text(encoding="utf-8"))
    return str(document["reasoning_gym_version"]), {task: _facts(entry) for task, entry in document["tasks"].items()}


def _facts(entry: Mapping[str, Any]) -> TaskFacts:
    return TaskFacts(ItemFacts(**entry["default"]), tuple(ItemFacts(**level) for level in entry["levels"]))


def low_entropy_note(tasks: Iterable[str], *, with_levels: bool) -> str:
    """One line on the served tasks that come back to the same few questions; "" if there are none.

    `with_levels`: whether items are drawn along the ladders; else the default configs count.
    """
    _, facts = load_facts()
    poor = [task for task in sorted(tasks) if task in facts and _is_poor(facts[task], with_levels)]
    if not poor:
        return ""
    weights = ",".join(f"{task}=0.2" for task in poor)
    return f"{', '.join(poor)} come back to the same few questions; to draw them less often: task_weights: '{weights}'"


def _is_poor(facts: TaskFacts, with_levels: bool) -> bool:
    if with_levels and facts.levels:
        return len(facts.low_entropy_levels) * 2 > len(facts.levels)
    return facts.default.is_low_entropy
