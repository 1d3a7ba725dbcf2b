"""JSON data with another value at any place, for tests of what reads files and requests of anybody."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Place = tuple[Any, ...]
"""The keys and indices that lead to a value."""


def places(value: Any, place: Place = ()) -> Iterator[Place]:
    """The place of every value, but of the first three of a list only."""
    yield place
    children: list[Any] = []
    if isinstance(value, dict):
        children = list(value)
    elif isinstance(value, list):
        children = list(range(min(len(value), 3)))
    for child in children:
        yield from places(value[child], (*place, child))


def changed(data: Any, place: Place, value: Any) -> Any:
    """A copy with another value at this place."""
    if not place:
        return value
    copy = data.copy()
    copy[place[0]] = changed(data[place[0]], place[1:], value)
    return copy
