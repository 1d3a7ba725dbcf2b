"""Selectors: the names of tasks in include lists, exclude lists and weights.

A selector is a task's name (`countdown`), a glob over names (`*_arithmetic`), or a category (`category:logic`, globs
allowed: `category:a*`). `category:math` stands for four categories. A selector that matches no task is an error. All
functions are pure. `categories` always maps the name of every known task to its category.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from ..errors import (
    EnvironmentSetupError,
    UnknownNameError,
    nearest,
    unknown_name,
)

CATEGORY_PREFIX = "category:"
MATH = "math"
MATHEMATICAL = frozenset({"algebra", "arithmetic", "geometry", "probability"})
"""The categories that `category:math` stands for. reasoning-gym has no category of this name."""
DEFAULT_WEIGHT = 1.0
NO_WEIGHT = "its weight is 0"
_GLOB_CHARACTERS = "*?[]"
MOST_SHOWN = 5
"""A message names at most this many tasks, and says how many more there are."""


def is_exact(selector: str) -> bool:
    """Whether the selector is one task's name rather than a glob or a category."""
    is_glob = any(character in selector for character in _GLOB_CHARACTERS)
    return not is_glob and not selector.startswith(CATEGORY_PREFIX)


def shortened(tasks: Sequence[str]) -> str:
    """The names of tasks as a message shows them, such as `ab, acre, advanced_geometry, aiw, arc_1d and 100 more`."""
    more = f" and {len(tasks) - MOST_SHOWN} more" if len(tasks) > MOST_SHOWN else ""
    return ", ".join(tasks[:MOST_SHOWN]) + more


def matching(selector: str, categories: Mapping[str, str]) -> set[str]:
    """The names of the tasks that `selector` matches. Raises UnknownNameError if it matches no task."""
    if selector.startswith(CATEGORY_PREFIX):
        return _in_category(selector.removeprefix(CATEGORY_PREFIX).strip(), categories)
    if is_exact(selector):
        if selector not in categories:
            raise unknown_name("task", selector, categories, _hint(selector, categories))
        return {selector}
    found = {name for name in categories if fnmatchcase(name, selector)}
    if not found:
        raise _unmatched_glob(selector, categories)
    return found


def _in_category(pattern: str, categories: Mapping[str, str]) -> set[str]:
    if pattern == MATH:
        return {name for name, category in categories.items() if category in MATHEMATICAL}
    found = {name for name, category in categories.items() if fnmatchcase(category, pattern)}
    if not found:
        known = sorted({MATH, *categories.values()})
        raise unknown_name("category", pattern, known, f"Categories: {', '.join(known)}.")
    return found


def _hint(name: str, categories: Mapping[str, str]) -> str:
    """How to find the right name. `logic` was probably meant as `category:logic`."""
    if name == MATH or name in categories.values():
        return f"For the whole category write {CATEGORY_PREFIX}{name}."
    return "`reasoning-gym-env tasks` lists all tasks."


def _unmatched_glob(pattern: str, categories: Mapping[str, str]) -> UnknownNameError:
    letters = [character for character in pattern if character not in _GLOB_CHARACTERS]
    close = nearest("".join(letters), categories)
    meant = f" Nearest tasks: {', '.join(close)}." if close else ""
    return UnknownNameError(f"No task matches {pattern!r}.{meant}")


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
    excluded = _matching_any(exclude, categories)
    included = _matching_any(include, categories)
    reasons: dict[str, str] = {}
    for name in categories:
        if name in excluded:
            reasons[name] = "excluded by exclude_tasks"
        elif include and name not in included:
            reasons[name] = "not in include_tasks"
        elif weights[name] == 0:
            reasons[name] = NO_WEIGHT
    return reasons


def _matching_any(selectors: Sequence[str], categories: Mapping[str, str]) -> set[str]:
    return set[str]().union(*(matching(selector, categories) for selector in selectors))


def resolve_weights(weights: Mapping[str, float], categories: Mapping[str, str]) -> dict[str, float]:
    """The weight of every task, 1.0 by default.

    A task's own name takes precedence over globs and categories, and a later selector over an earlier selector. Raises
    EnvironmentSetupError for a weight that is not a finite number >= 0, and UnknownNameError for a selector that
    matches no task.
    """
    resolved = dict.fromkeys(categories, DEFAULT_WEIGHT)
    for selector in sorted(weights, key=is_exact):
        try:
            weight = _checked_weight(selector, weights[selector])
        except ValueError as error:
            raise EnvironmentSetupError(str(error)) from error
        resolved.update(dict.fromkeys(matching(selector, categories), weight))
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


def parse_weights(
    value: str | Sequence[str] | Mapping[str, float] | None,
) -> dict[str, float]:
    """`"countdown=2,category:logic=0.5"`, a list of such texts or a mapping -> selector -> weight, in order.

    Raises ValueError for a part that is not `selector=number`, a repeated selector, or a weight that is negative or
    not finite.
    """
    weights: dict[str, float] = {}
    if isinstance(value, Mapping):
        for selector, weight in value.items():
            weights[str(selector).strip()] = _checked_weight(selector, weight)
        return weights
    for part in parse_names(value):
        selector, equals, number = (piece.strip() for piece in part.rpartition("="))
        if not equals or not selector:
            raise ValueError(f"expected selector=weight, such as countdown=2.0, got {part!r}")
        if selector in weights:
            raise ValueError(f"the weight of {selector!r} is set twice")
        weights[selector] = _checked_weight(selector, number)
    return weights


def _checked_weight(selector: object, weight: object) -> float:
    expected = f"the weight of {str(selector)!r} must be a finite number >= 0, got {weight!r}"
    if isinstance(weight, bool) or not isinstance(weight, (int, float, str)):
        raise ValueError(expected)
    try:
        number = float(weight)
    except (ValueError, OverflowError) as error:
        raise ValueError(expected) from error
    if not math.isfinite(number) or number < 0:
        raise ValueError(expected)
    return number
