"""What was measured once, and is shipped because it is too slow to find out at every start: the folder `data`.

    task_facts.json        items of each task and level: distinct questions, length, time    benchmarks/facts
    farming.json           which wrong answers are still paid, and what one constant solves  benchmarks/audit
    published_*.json       results of published models, and their configs                    benchmarks/facts

Facts and verdicts are of one release of reasoning-gym. A task that is not in them, such as a user's own, was not
measured: it has no facts, and is not kept out of training for its verifier.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parent.parent / "data"

LOW_ENTROPY = 300
"""A config with fewer different questions than this comes back to the same ones within an ordinary run."""
MIN_REPEATS = 2
"""One question seen twice may be chance."""


def packaged(name: str) -> Any:
    """The JSON document of that name."""
    return json.loads((DATA / name).read_text(encoding="utf-8"))


# --- items


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
    def questions(self) -> float:
        """About how many different questions there are; infinite if none came twice.

        Of N equally likely ones, n draws show N (1 - (1 - 1/N)^n) on average (the occupancy problem), solved for N.
        Where some are likelier than others this is too low, which is the safe side.
        """
        if self.distinct >= self.draws:
            return math.inf
        low, high = float(max(self.distinct, 1)), 1e9
        for _ in range(60):
            middle = math.sqrt(low * high)
            expected = -middle * math.expm1(self.draws * math.log1p(-1.0 / middle)) if middle > 1.0 else 1.0
            low, high = (middle, high) if expected < self.distinct else (low, middle)
        return high

    @property
    def is_low_entropy(self) -> bool:
        return self.draws - self.distinct >= MIN_REPEATS and self.questions < LOW_ENTROPY


@dataclass(frozen=True)
class TaskFacts:
    """`default` at reasoning-gym's default config, `levels` along the ladder, easiest first."""

    default: ItemFacts
    levels: tuple[ItemFacts, ...] = field(default=())

    @property
    def low_entropy_levels(self) -> list[int]:
        return [index for index, facts in enumerate(self.levels) if facts.is_low_entropy]


@functools.cache
def load_facts(version: str) -> Mapping[str, TaskFacts]:
    """The facts by task; none for another release of reasoning-gym."""
    document = packaged("task_facts.json")
    entries = document["tasks"] if document["reasoning_gym_version"] == version else {}
    return {task: _facts(entry) for task, entry in entries.items()}


def _facts(entry: Mapping[str, Any]) -> TaskFacts:
    return TaskFacts(ItemFacts(**entry["default"]), tuple(ItemFacts(**level) for level in entry["levels"]))


def low_entropy_note(tasks: Iterable[str], facts: Mapping[str, TaskFacts], *, with_levels: bool) -> str:
    """One line on the served tasks that come back to the same few questions; "" if there are none.

    `with_levels`: whether items are drawn along the ladders; else the default configs count.
    """
    poor = [task for task in sorted(tasks) if task in facts and _is_poor(facts[task], with_levels)]
    if not poor:
        return ""
    weights = ",".join(f"{task}=0.2" for task in poor)
    return f"{', '.join(poor)} come back to the same few questions; to draw them less often: task_weights: '{weights}'"


def _is_poor(facts: TaskFacts, with_levels: bool) -> bool:
    if with_levels and facts.levels:
        return len(facts.low_entropy_levels) * 2 > len(facts.levels)
    return facts.default.is_low_entropy


# --- verifiers


@functools.cache
def _constants(version: str) -> dict[str, list[dict[str, Any]]]:
    """By task, the answers that are right on more than half of a config's items; none for another release."""
    document = packaged("farming.json")
    found: dict[str, list[dict[str, Any]]] = document["constants"]
    return found if document["reasoning_gym_version"] == version else {}


def solved_by_constant(version: str, task: str, config: Mapping[str, Any]) -> str:
    """The blind answer that earns too much at this config, in words; "" if none was found."""
    known = _constants(version).get(task, ())
    plain = json.loads(json.dumps(dict(config), default=str)) if known else {}
    for one in known:
        if one["config"] == plain:
            return f"one blind answer is paid: {one['answer']!r:.40} is right on {one['share']:.0%} of its items"
    return ""
