"""Measurements that are shipped in the folder `data`, because they take too long for every start.

    levels.json            the levels of each task, and its excluded levels                   benchmarks/facts
    task_facts.json        items of each task and level: distinct questions, length, time     benchmarks/facts
    names.json             tasks with their categories, and settings               docs/make_reference.py

The measurements belong to a single release of reasoning-gym. A task without measurements, such as a user's own, has no
facts. The levels of levels.json also serve another release, as far as its configs validate.
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

    docs/make_reference.py writes the file.
    """
    document = packaged("names.json")
    categories: dict[str, str] = document["tasks"]
    return categories if document["reasoning_gym_version"] == version else {}


def _facts(entry: Mapping[str, Any]) -> TaskFacts:
    levels = [ItemFacts(**level) for level in entry["levels"]]
    return TaskFacts(ItemFacts(**entry["default"]), tuple(levels))


# --- levels


@dataclass(frozen=True)
class TaskLevels:
    """The levels of a task, easiest first."""

    levels: tuple[Mapping[str, Any], ...]
    """For each level, the fields in which its config differs from the default config, as JSON has them."""
    excluded: tuple[tuple[int, str], ...] = ()
    """The levels of reasoning-gym that are not served: their number in the curriculum, and the reason."""
    constant_answer: str = ""
    """Why an answer without work earns too much at every level, or ""."""
    note: str = ""
    """What else there is to know about the levels, or ""."""


@functools.cache
def load_levels() -> Mapping[str, TaskLevels]:
    """The levels of each task of reasoning-gym."""
    found = {}
    for task, entry in packaged("levels.json")["tasks"].items():
        excluded = tuple((number, reason) for number, reason in entry.pop("excluded", ()))
        found[task] = TaskLevels(tuple(entry.pop("levels")), excluded, **entry)
    return found
