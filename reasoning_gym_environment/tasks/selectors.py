"""Selectors: how a person names tasks, in include and exclude lists and in weights.

A selector is a task's name (`countdown`), a glob over names (`*_arithmetic`), or a category
(`category:logic`, globs allowed: `category:a*`). A selector that matches no task is a mistake, never an
empty choice. Pure functions; `categories` always maps every known task's name to its category.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from ..errors import EnvironmentSetupError, UnknownNameError, nearest, unknown_name

CATEGORY_PREFIX = "category:"
DEFAULT_WEIGHT = 1.0
NO_WEIGHT = "its weight is 0"
_GLOB_CHARACTERS = "*?[]"


def is_exact(selector: str) -> bool:
    """Whether the selector is one task's name rather than a glob or a category."""
    return not selector.startswith(CATEGORY_PREFIX) and not any(c in selector for c in _GLOB_CHARACTERS)


def matching(selector: str, categories: Mapping[str, str]) -> set[str]:
    """The names of the tasks that `selector` stands for, at least one; UnknownNameError if there is none."""
    if selector.startswith(CATEGORY_PREFIX):
        pattern = selector[len(CATEGORY_PREFIX) :].strip()
        found = {name for name, category in categories.items() if fnmatchcase(category, pattern)}
        if not found:
            known = sorted(set(categories.values()))
            raise unknown_name("category", pattern, known, f"Categories: {', '.join(known)}.")
    elif is_exact(selector):
        found = {selector} & set(categories)
        if not found:
            raise unknown_name("task", selector, categories, _hint(selector, categories))
    else:
        found = {name for name in categories if fnmatchcase(name, selector)}
        if not found:
            raise _unmatched_glob(selector, categories)
    return found


def _hint(name: str, categories: Mapping[str, str]) -> str:
    """Where to look; for someone who wrote `logic` and meant `category:logic`, that."""
    if name in categories.values():
        return f"For the whole category write {CATEGORY_PREFIX}{name}."
    return "`reasoning-gym-env tasks` lists all."


def _unmatched_glob(pattern: str, categories: Mapping[str, str]) -> UnknownNameError:
    close = nearest("".join(c for c in pattern if c not in _GLOB_CHARACTERS), categories)
    meant = f" Nearest tasks: {', '.join(close)}." if close else ""
    return UnknownNameError(f"No task matches {pattern!r}.{meant}")


def left_out(
    include: Sequence[str],
    exclude: Sequence[str],
    weights: Mapping[str, float],
    categories: Mapping[str, str],
) -> dict[str, str]:
    """Name -> reason, for the tasks that the user's choice rules out.

    An empty `include` means all; `exclude` wins over it. `weights` has every task's weight, as
    `resolve_weights` returns them. Raises UnknownNameError for a selector that matches nothing.
    """
    excluded = {name for selector in exclude for name in matching(selector, categories)}
    included = {name for selector in include for name in matching(selector, categories)}
    reasons: dict[str, str] = {}
    for name in categories:
        if name in excluded:
            reasons[name] = "excluded by exclude_tasks"
        elif include and name not in included:
            reasons[name] = "not in include_tasks"
        elif weights[name] == 0:
            reasons[name] = NO_WEIGHT
    return reasons


def resolve_weights(weights: Mapping[str, float], categories: Mapping[str, str]) -> dict[str, float]:
    """Every task's weight, 1.0 where nothing is said.

    A task's own name wins over globs and categories; among those the later one wins. Raises
    EnvironmentSetupError for a weight that is not a finite number >= 0, UnknownNameError for a selector
    that matches nothing.
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
    """`"a, b"` or `["a", "b"]` -> `["a", "b"]`: stripped, without empty parts and repetitions.

    Raises ValueError for anything that is not text.
    """
    if value is None:
        return []
    if not isinstance(value, (str, Sequence, set, frozenset)):
        raise ValueError(f"expected names as text or a list of them, got {value!r}")
    parts = [value] if isinstance(value, str) else list(value)
    for part in parts:
        if not isinstance(part, str):
            raise ValueError(f"expected names as text, got {part!r} ({type(part).__name__})")
    names = (name.strip() for part in parts for name in part.split(","))
    return list(dict.fromkeys(name for name in names if name))


def parse_weights(value: str | Sequence[str] | Mapping[str, float] | None) -> dict[str, float]:
    """`"countdown=2,category:logic=0.5"`, a list of such or a mapping -> selector -> weight, in order.

    Raises ValueError for a part that is not `selector=number`, a selector given twice, or a weight that
    is negative or not finite.
    """
    if isinstance(value, Mapping):
        return {str(selector).strip(): _checked_weight(selector, weight) for selector, weight in value.items()}
    weights: dict[str, float] = {}
    for part in parse_names(value):
        selector, equals, number = (piece.strip() for piece in part.rpartition("="))
        if not equals or not selector:
            raise ValueError(f"expected selector=weight, such as countdown=2.0, got {part!r}")
        if selector in weights:
            raise ValueError(f"the weight of {selector!r} is given twice")
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
