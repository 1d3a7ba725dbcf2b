"""An answer that is right, for items of every task that allows one: the item's own, or one made from its metadata."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from .formulas import truth_table

_Square = tuple[float, float]


def positive_control(task: str, entry: Mapping[str, Any]) -> str | None:
    """A right answer to `entry`, or None.

    There is none for rush_hour, for cubes of other sizes than 3, and where all premises of propositional_logic
    are tautologies, from which nothing follows.
    """
    if entry["answer"] is not None:
        return str(entry["answer"])
    construct = _CONSTRUCTED.get(task)
    return None if construct is None else construct(entry)


def _coloring(entry: Mapping[str, Any]) -> str:
    return json.dumps(entry["metadata"]["possible_answer"])


def _cube_moves(entry: Mapping[str, Any]) -> str | None:
    return entry["metadata"]["example_correct_answer"] or None  # cubes of other sizes than 3 have none


def _conclusion(entry: Mapping[str, Any]) -> str | None:
    """The example, or where that is a single letter (none was found) all premises at once, if they say anything."""
    metadata = entry["metadata"]
    example = str(metadata["example_answer"])
    if len(example) > 1:
        return example
    premises = " ∧ ".join(f"({premise})" for premise in metadata["premises"])
    table, rows = truth_table(premises, metadata["variables"])
    return None if table == (1 << rows) - 1 else premises


def _box_plan(entry: Mapping[str, Any]) -> str:
    """One box after the other: along its column, along its row, onto its target."""
    squares = {_square(place): items for place, items in entry["metadata"]["initial_state"].items()}
    targets = [(square, item) for square, items in squares.items() for item in items if item.startswith("target_")]
    steps: list[dict[str, str]] = []
    for start, items in squares.items():
        for box in (item for item in items if item.startswith("box_")):
            goal, target = next(pair for pair in targets if pair[1] == box.replace("box_", "target_", 1))
            targets.remove((goal, target))
            here = start
            while here != goal:
                following = _one_step(here, goal)
                steps.append({_agent(here): f"move({box}, square[{following[0]}, {following[1]}])"})
                here = following
            steps.append({_agent(here): f"move({box}, {target})"})
    return json.dumps(steps)


def _agent(square: _Square) -> str:
    return f"Agent[{square[0]}, {square[1]}]"


def _square(place: str) -> _Square:
    row, column = place.split("_")
    return float(row), float(column)


def _one_step(square: _Square, goal: _Square) -> _Square:
    row, column = square
    if row != goal[0]:
        return row + (1.0 if goal[0] > row else -1.0), column
    return row, column + (1.0 if goal[1] > column else -1.0)


_CONSTRUCTED: Mapping[str, Callable[[Mapping[str, Any]], str | None]] = {
    "boxnet": _box_plan,
    "graph_color": _coloring,
    "propositional_logic": _conclusion,
    "rubiks_cube": _cube_moves,
}
