"""Items of a task as training draws them, and their right answers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ..api import ItemStream, PromptedProblem, Tasks


def training_items(tasks: Tasks, seed: int) -> Iterator[PromptedProblem]:
    """An endless iterator of items as a training run draws them. None of them is held out for evaluation."""
    stream = ItemStream(tasks, seed=seed)
    for problem in stream:
        # The item has no completions, so the stream learns nothing from it and counts it as finished.
        stream.observe(problem, [])
        yield problem


def right_answer(task: str, entry: Mapping[str, Any]) -> str | None:
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
