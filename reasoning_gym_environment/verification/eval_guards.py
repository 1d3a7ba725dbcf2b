"""Which verifiers evaluate the model's answer as code, and what they evaluate it with here instead.

`GUARDS` is the pinned list: task, the names its verifier was found to reach, and the harmless evaluator that
takes their place. `unguarded_tasks()` compares the list with the installed reasoning-gym (and the user's own
datasets), so that a verifier that starts to evaluate text is noticed, not run. `install()` is for scoring
workers only: it changes modules of reasoning-gym and sympy in place.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..tasks import reasoning_gym_source as library
from .bounded_arithmetic import BoundedFraction, evaluate_integers, evaluate_literal
from .verifier_scan import findings

_INTEGRATION = frozenset({"sympy.Symbol", "sympy.diff", "sympy.parse_expr", "sympy.simplify"})


@dataclass(frozen=True)
class Guard:
    """`name`, in the module of the verifier, is replaced; `reaches` is what the verifier reached before."""

    name: str
    make: Callable[[], Any]
    reaches: frozenset[str]


class GuardError(Exception):
    """A guard did not take effect: the verifier still reaches what it should not."""


def _literals() -> Any:
    return evaluate_literal


def _integers() -> Any:
    return evaluate_integers


def _fractions() -> Any:
    return BoundedFraction


def _parser() -> Any:
    # sympy takes half a second to import, and only workers need it.
    from .bounded_sympy import ExpressionParser

    return ExpressionParser()


def _sympy() -> Any:
    """A module like sympy, whose ways from text to expressions lead through the bounded grammar."""
    import sympy

    proxy = types.ModuleType("sympy")
    vars(proxy).update(vars(sympy))
    parser = _parser()
    for name in ("parse_expr", "sympify", "S"):
        setattr(proxy, name, parser)
    return proxy


_EVAL = frozenset({"eval"})
_PARSE_EXPR = frozenset({"parse_expr of sympy"})
GUARDS: Mapping[str, Guard] = {
    "binary_matrix": Guard("eval", _literals, _EVAL),
    "spiral_matrix": Guard("eval", _literals, _EVAL),
    "string_insertion": Guard("eval", _literals, _EVAL),
    "n_queens": Guard("eval", _literals, _EVAL),
    # These two evaluate only text of the item itself; with a guard nobody has to take that on trust.
    "number_sorting": Guard("eval", _literals, _EVAL),
    "bitwise_arithmetic": Guard("eval", _integers, _EVAL),
    "countdown": Guard("parse_expr", _parser, _PARSE_EXPR),
    "puzzle24": Guard("parse_expr", _parser, _PARSE_EXPR),
    "simple_integration": Guard("sympy", _sympy, _INTEGRATION),
    "intermediate_integration": Guard("sympy", _sympy, _INTEGRATION),
    "polynomial_multiplication": Guard("sp", _sympy, frozenset({"sp.parse_expr"})),
    "coin_flip": Guard("Fraction", _fractions, frozenset({"Fraction of fractions"})),
}


def unguarded_tasks() -> dict[str, str]:
    """Registered tasks whose verifier evaluates text and is not covered by a guard: task -> reason.

    Reads the code of every registered verifier; changes nothing. Import the user's task modules first.
    """
    return dict(_reasons(frozenset()))


def components(task: str, config: Mapping[str, Any]) -> set[str]:
    """`task` and, where its config lists datasets (reasoning-gym's `composite`), those too."""
    names = {task}
    for part in config.get("datasets") or ():
        name = part.get("name") if isinstance(part, Mapping) else getattr(part, "name", None)
        inner = part.get("config") if isinstance(part, Mapping) else getattr(part, "config", None)
        if isinstance(name, str):
            names |= components(name, inner or {})
    return names


def install() -> dict[str, str]:
    """Put every guard in place, in this process, and return the tasks that stay unguarded, with reasons.

    Raises GuardError if a guard does not take effect.
    """
    unguarded = unguarded_tasks()
    registry = library.registry()
    placed: list[Any] = [_guard_sympy()]
    for task, guard in GUARDS.items():
        if task in registry and task not in unguarded:
            shim = guard.make()
            setattr(sys.modules[registry[task][0].__module__], guard.name, shim)
            placed.append(shim)
    safe = frozenset(map(id, placed))
    open_ends = {task: reason for task, reason in _reasons(safe) if task not in unguarded}
    if open_ends:
        raise GuardError(f"guards without effect: {open_ends}")
    return unguarded


def _guard_sympy() -> Any:
    """Close the way from text to code inside sympy, which `sympify`, and so every function, takes."""
    parser = _parser()

    def parse_expr(text: object, local_dict: dict[str, Any] | None = None, *_: object, **__: object) -> Any:
        return parser(text, local_dict)

    for module in ("sympy", "sympy.parsing", "sympy.parsing.sympy_parser"):
        vars(importlib.import_module(module))["parse_expr"] = parse_expr
    return parse_expr


def _reasons(safe: frozenset[int]) -> Iterator[tuple[str, str]]:
    for task, (dataset_class, _config) in sorted(library.registry().items()):
        found = findings(dataset_class, safe)
        guard = GUARDS.get(task)
        # A verifier that reaches less than it did is covered all the same.
        extra = sorted(found - (guard.reaches if guard and not safe else frozenset()))
        if extra:
            yield task, f"its verifier reaches {', '.join(extra)}, which no guard covers"
