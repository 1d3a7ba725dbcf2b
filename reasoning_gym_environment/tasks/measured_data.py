"""Measurements that are shipped in the folder `data`, because they take too long for every start.

    task_facts.json        items of each task and level: distinct questions, length, time     benchmarks/facts
    farming.json           which wrong answers earn a reward, and what a constant solves      benchmarks/questions
    published_*.json       results of published models, and their configs                     benchmarks/facts
    names.json             tasks with their categories, and settings               docs/make_configuration.py

The measurements belong to a single release of reasoning-gym. A task without measurements, such as a user's own, has no
facts, and training does not exclude it for its verifier.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parent.parent / "data"


def packaged(name: str) -> Any:
    """The JSON document of that name."""
    return json.loads((DATA / name).read_text(encoding="utf-8"))


# --- items


@dataclass(frozen=True)
class ItemFacts:
    """Measurements of `draws` items of a config.

    `distinct` is the number of different questions, `chars` the median length of a question, and `ms` the median time
    to make an item, in milliseconds. `failed` items could not be made in time.
    """

    draws: int
    distinct: int
    chars: int
    ms: float
    failed: int = 0


@dataclass(frozen=True)
class TaskFacts:
    """Facts at reasoning-gym's default config, and at the levels of the ladder, easiest first."""

    default: ItemFacts
    levels: tuple[ItemFacts, ...] = field(default=())


@functools.cache
def load_facts(version: str) -> Mapping[str, TaskFacts]:
    """The facts by task; empty for another release of reasoning-gym."""
    document = packaged("task_facts.json")
    entries = document["tasks"] if document["reasoning_gym_version"] == version else {}
    return {task: _facts(entry) for task, entry in entries.items()}


def categories_in_file(version: str) -> dict[str, str]:
    """The category of each task of this release of reasoning-gym; empty if the packaged names are of another release.

    docs/make_configuration.py writes the file.
    """
    document = packaged("names.json")
    categories: dict[str, str] = document["tasks"]
    return categories if document["reasoning_gym_version"] == version else {}


def _facts(entry: Mapping[str, Any]) -> TaskFacts:
    levels = [ItemFacts(**level) for level in entry["levels"]]
    return TaskFacts(ItemFacts(**entry["default"]), tuple(levels))


# --- verifiers


@dataclass(frozen=True)
class AnswerWithoutWork:
    """The best answer without work at a config: a constant, a copy, or what a cheap rule makes of the question."""

    share: float
    """The share of the items that it is right on, above 0.3."""
    reason: str
    """A sentence about it."""
    teaches_nothing: bool
    """Whether it is right on more than half of the items, or on more than 0.05 where many answers are right."""


@functools.cache
def _constants(version: str) -> dict[str, list[dict[str, Any]]]:
    """By task, the answers without work that earn too much; empty for another release of reasoning-gym."""
    document = packaged("farming.json")
    found: dict[str, list[dict[str, Any]]] = document["constants"]
    return found if document["reasoning_gym_version"] == version else {}


def answer_without_work(version: str, task: str, config: Mapping[str, Any]) -> AnswerWithoutWork | None:
    """The answer without work that earns too much at this config; None if there is none."""
    known = _constants(version).get(task, ())
    plain = json.loads(json.dumps(dict(config), default=str)) if known else {}
    for constant in known:
        if constant["config"] == plain:
            share = constant["share"]
            answer = constant["answer"] if constant.get("is_rule") else f"{constant['answer']!r:.40}"
            reason = f"an answer without work earns too much: {answer} is right on {share:.0%} of its items"
            return AnswerWithoutWork(share, reason, constant["teaches_nothing"])
    return None
