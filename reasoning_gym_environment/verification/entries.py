"""Items of reasoning-gym, their right answers, and access to the code that defines their rules."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

from ..tasks import reasoning_gym_source as library

Entry = Mapping[str, Any]
"""An item as reasoning-gym returns it: `question`, `answer`, `metadata`."""
Check = Callable[[Entry, str], bool]
"""`check(entry, answer)`: whether the answer is right. It may raise an error for an answer that it cannot read."""


def task_of(task: str, entry: Entry) -> str:
    """The task that made the item. An item of `composite` names the task in its metadata."""
    return str(entry["metadata"]["source_dataset"]) if task == "composite" else task


def right_answer(task: str, entry: Entry) -> str | None:
    """A right answer to the item: its own, or the example in its metadata; None if it has neither.

    Some items give an unevaluated integral as their own answer. It does not count as an answer.
    """
    # An item of a dataset of one's own may have no such key.
    answer = entry.get("answer")
    if answer is not None:
        return None if "Integral(" in str(answer) else str(answer)
    if task == "graph_color":
        return json.dumps(entry["metadata"]["possible_answer"])
    if task == "rubiks_cube":
        return entry["metadata"]["example_correct_answer"] or None
    return None


def module_of(task: str) -> Any:
    """The module of reasoning-gym that defines the dataset of `task` and the rules of its game."""
    return sys.modules[library.registry()[task][0].__module__]


def rules_of(task: str) -> Any:
    """A dataset of `task` without items. It gives access to rules that are methods of the dataset."""
    return object.__new__(library.registry()[task][0])
