"""Which verifiers evaluate the model's answer as code, and what they evaluate it with here instead.

`GUARDS` is the pinned list: each task, and the name through which its verifier was found to evaluate text.
`unguarded_tasks()` compares the list with the installed reasoning-gym (and the user's own datasets), so that a
verifier that starts to evaluate text is noticed, not run. `install()` is for grading workers only: it changes modules
of reasoning-gym and sympy in place.

What a verifier reaches is read from its compiled code, without running it (`findings`). Calls through containers and
closures are not seen; the sandbox is there for those.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from ..tasks import reasoning_gym_source as library
from .bounded_eval import bounded_fraction, evaluate_python, evaluate_symbolic
from .solvers import rules_of_word_ladder

GUARDS: Mapping[str, str] = {
    **dict.fromkeys(("binary_matrix", "spiral_matrix", "string_insertion", "n_queens"), "eval"),
    # These two evaluate only text of the item itself; with a guard nobody has to take that on trust.
    **dict.fromkeys(("number_sorting", "bitwise_arithmetic"), "eval"),
    **dict.fromkeys(("countdown", "puzzle24"), "parse_expr"),
    **dict.fromkeys(("simple_integration", "intermediate_integration"), "sympy"),
    **{"polynomial_multiplication": "sp", "coin_flip": "Fraction"},
}


def unguarded_tasks() -> dict[str, str]:
    """Registered tasks whose verifier evaluates text and is not covered by a guard: task -> reason.

    Reads the code of every registered verifier; changes nothing. Import the user's task modules first.
    """
    found = {task: findings(dataset) - {GUARDS.get(task)} for task, (dataset, _) in sorted(library.registry().items())}
    return {
        task: f"its verifier reaches {', '.join(sorted(names))}, which no guard covers"
        for task, names in found.items()
        if names
    }


def install() -> dict[str, str]:
    """Put every guard in place, in this process, and return the tasks that stay unguarded, with reasons.

    The one file that a solver reads is read here too: a worker that is confined could not.
    """
    unguarded = unguarded_tasks()
    # Inside sympy every function, also `sympify`, makes expressions of text with `parse_expr`.
    for module in ("sympy", "sympy.parsing", "sympy.parsing.sympy_parser"):
        vars(importlib.import_module(module))["parse_expr"] = evaluate_symbolic
    evaluators = {"eval": evaluate_python, "parse_expr": evaluate_symbolic, "Fraction": bounded_fraction}
    registry = library.registry()
    for task, name in GUARDS.items():
        if name in evaluators and task in registry and task not in unguarded:
            vars(sys.modules[registry[task][0].__module__])[name] = evaluators[name]
    if "word_ladder" in registry:
        rules_of_word_ladder()
    return unguarded


# --- does a verifier evaluate text? ---

EVALUATING_BUILTINS = frozenset({"eval", "exec", "__import__", "open", "breakpoint", "globals", "__builtins__"})
EVALUATING_MODULES = frozenset(
    [
        *("sympy", "latex2sympy2_extended", "math_verify", "numexpr", "asteval", "simpleeval", "pandas"),
        *("pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml", "runpy"),
        *("os", "posix", "subprocess", "pty", "ctypes", "cffi", "importlib", "multiprocessing", "socket"),
    ]
)


def findings(dataset_class: type) -> frozenset[str]:
    """The names in its modules through which `dataset_class.score_answer` can evaluate text.

    Followed is everything that it can name: its methods, base classes, and functions and classes of its own library.
    A finding is a name that leads to code made from text: `eval` and its kin, or a module such as sympy that
    evaluates strings it is given.
    """
    libraries = {"reasoning_gym", _package(dataset_class)}
    todo = _methods(dataset_class, "score_answer")
    found: set[str] = set()
    seen: set[types.FunctionType] = set()
    for function in todo:
        if function in seen:
            continue
        seen.add(function)
        scope = function.__globals__
        names = _names_in(function.__code__)
        found |= (EVALUATING_BUILTINS | EVALUATING_MODULES) & (names - scope.keys())
        for value in (scope[name] for name in names & scope.keys()):
            if isinstance(value, types.ModuleType) and _package(value) in libraries:
                todo += [one for name in names for one in _functions(vars(value).get(name))]
            elif _package(value) in libraries:
                todo += _functions(value)
        found |= {name for name in names & scope.keys() if _evaluates(scope[name])}
        todo += [method for name in names for method in _methods(dataset_class, name)]
    return frozenset(found)


def _methods(dataset_class: type, name: str) -> list[types.FunctionType]:
    return [one for base in dataset_class.__mro__ if name in vars(base) for one in _functions(vars(base)[name])]


def _functions(value: Any) -> list[types.FunctionType]:
    """The function that this is, or wraps, and those of a class."""
    if isinstance(value, type):
        return [one for member in vars(value).values() if not isinstance(member, type) for one in _functions(member)]
    value = getattr(value, "__wrapped__", getattr(value, "__func__", getattr(value, "fget", value)))
    return [value] if isinstance(value, types.FunctionType) else []


def _names_in(code: types.CodeType) -> set[str]:
    """The names of globals, attributes and imported packages in `code` and the functions inside it."""
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return {name.partition(".")[0] for name in code.co_names}.union(*map(_names_in, inner))


def _evaluates(value: Any) -> bool:
    # Fraction("1e1000000000") fills memory.
    return any(value is one for one in (eval, exec, open, Fraction)) or _package(value) in EVALUATING_MODULES


def _package(value: Any) -> str:
    """The package that a module is of, or a function or class comes from."""
    module = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
    return module.partition(".")[0] if isinstance(module, str) else ""
