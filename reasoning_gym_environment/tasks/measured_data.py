"""Measurements that are shipped in the folder `data`, because they take too long for every start.

    levels.json            the levels of each task, and its excluded levels                   benchmarks/facts
    task_facts.json        items of each task and level: distinct questions, length, time     benchmarks/facts
    names.json             settings                                                docs/make_reference.py

The measurements belong to a single release of reasoning-gym. A task without measurements, such as a user's own, has no
facts. The levels of levels.json also serve another release, as far as its configs validate.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parent.parent / "data"


def packaged(name: str) -> Any:
    """The JSON document of that name."""
    return json.loads((DATA / name).read_text(encoding="utf-8"))


@functools.cache
def load_facts(version: str) -> Mapping[str, Any]:
    """The measured items of each task, as JSON, at the `default` config and at the `levels`, easiest first.

    `distinct` is the number of different questions of `draws` items, `chars` the median length of a question, and `ms`
    the median time to make an item. `failed` items could not be made in time. The mapping is empty for another release
    of reasoning-gym.
    """
    document = packaged("task_facts.json")
    return document["tasks"] if document["reasoning_gym_version"] == version else {}


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
