"""Selectors: how settings and commands name tasks.

    countdown        a task
    *_arithmetic     all tasks whose names match this pattern
    category:logic   all tasks of a category; category:math stands for four categories
    all              all tasks

A selector that matches no task is an error, which suggests the nearest names. All functions are pure. `categories`
always maps the name of every known task to its category.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from ..errors import unknown_name

ALL = "all"
CATEGORY_PREFIX = "category:"
MATH = "math"
MATHEMATICAL = frozenset({"algebra", "arithmetic", "geometry", "probability"})
"""The categories that `category:math` stands for. reasoning-gym has no category of this name."""
DEFAULT_WEIGHT = 1.0
NO_WEIGHT = "its weight is 0"


def shortened(tasks: Sequence[str], most: int = 5) -> str:
    """At most `most` names, and how many more there are, such as `ab, acre, aiw, arc_1d, arc_agi and 100 more`."""
    more = f" and {len(tasks) - most:,} more" if len(tasks) > most else ""
    return ", ".join(tasks[:most]) + more


def matching(selector: str, categories: Mapping[str, str]) -> set[str]:
    """The names of the tasks that `selector` matches. Raises UnknownNameError if it matches no task."""
    if selector == ALL:
        return set(categories)
    if selector.startswith(CATEGORY_PREFIX):
        return _in_category(selector.removeprefix(CATEGORY_PREFIX).strip(), categories)
    found = {name for name in categories if fnmatchcase(name, selector)}
    if not found:
        raise unknown_name("task", selector, categories, _hint(selector, categories))
    return found


def _in_category(category: str, categories: Mapping[str, str]) -> set[str]:
    wanted = MATHEMATICAL if category == MATH else {category}
    found = {name for name, own in categories.items() if own in wanted}
    if not found:
        known = sorted({MATH, *categories.values()})
        raise unknown_name("category", category, known, f"Categories: {', '.join(known)}.")
    return found


def _hint(name: str, categories: Mapping[str, str]) -> str:
    """How to find the right name. `logic` was probably meant as `category:logic`."""
    if name == MATH or name in categories.values():
        return f"For the whole category write {CATEGORY_PREFIX}{name}."
    return "`reasoning-gym-env tasks` lists all tasks."


def excluded_tasks(
    include: Sequence[str],
    exclude: Sequence[str],
    weights: Mapping[str, float],
    categories: Mapping[str, str],
) -> dict[str, str]:
    """The tasks that the user's settings exclude, name -> reason.

    An empty `include` means all tasks. `exclude` takes precedence over `include`. `weights` has the weight of every
    task, as `resolve_weights` returns them. Raises UnknownNameError for a selector that matches no task.
    """
    excluded = matching_any(exclude, categories)
    included = matching_any(include or [ALL], categories)
    reasons: dict[str, str] = {}
    for name in categories:
        if name in excluded:
            reasons[name] = "excluded by exclude_tasks"
        elif name not in included:
            reasons[name] = "not in include_tasks"
        elif weights[name] == 0:
            reasons[name] = NO_WEIGHT
    return reasons


def matching_any(selectors: Sequence[str], categories: Mapping[str, str]) -> set[str]:
    """The names of the tasks that one of the selectors matches. Raises UnknownNameError like `matching`."""
    return set[str]().union(*(matching(selector, categories) for selector in selectors))


def resolve_weights(weights: Mapping[str, float], categories: Mapping[str, str]) -> dict[str, float]:
    """The weight of every task, 1.0 by default.

    A task's own name takes precedence over other selectors, and a later selector over an earlier selector. Raises
    UnknownNameError for a selector that matches no task.
    """
    resolved = dict.fromkeys(categories, DEFAULT_WEIGHT)
    for selector in sorted(weights, key=lambda selector: selector in categories):
        resolved.update(dict.fromkeys(matching(selector, categories), weights[selector]))
    return resolved


def parse_names(value: str | Sequence[str] | None) -> list[str]:
    """`"a, b"` or `["a", "b"]` -> `["a", "b"]`, without spaces, empty parts and repetitions.

    Raises ValueError for an argument that is not text.
    """
    if value is None:
        return []
    if not isinstance(value, (str, Sequence, set, frozenset)):
        raise ValueError(f"expected names as text or a list of them, got {value!r}")
    parts = [value] if isinstance(value, str) else list(value)
    names: dict[str, None] = {}
    for part in parts:
        if not isinstance(part, str):
            raise ValueError(f"expected names as text, got {part!r} ({type(part).__name__})")
        names |= dict.fromkeys(name.strip() for name in part.split(","))
    return [name for name in names if name]
