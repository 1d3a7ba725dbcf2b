"""Which verifiers evaluate the model's answer as code, and what they evaluate it with here instead.

`GUARDS` is the pinned list: task, the names its verifier was found to reach, and the harmless evaluator that
takes their place. `unguarded_tasks()` compares the list with the installed reasoning-gym (and the user's own
datasets), so that a verifier that starts to evaluate text is noticed, not run. `install()` is for grading
workers only: it changes modules of reasoning-gym and sympy in place.

What a verifier reaches is read from its compiled code, without running it (`findings`). Calls through containers
built at run time are not seen; the sandbox is there for those.
"""

from __future__ import annotations

import builtins
import dis
import importlib
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..tasks import reasoning_gym_source as library
from .bounded_eval import BoundedFraction, ExpressionParser, evaluate_integers, evaluate_literal
from .solvers import known_words

_INTEGRATION = frozenset({"sympy.Symbol", "sympy.diff", "sympy.parse_expr", "sympy.simplify"})


@dataclass(frozen=True)
class Guard:
    """`name`, in the module of the verifier, is replaced; `reaches` is what the verifier reached before."""

    name: str
    make: Callable[[], Any]
    reaches: frozenset[str]


class GuardError(Exception):
    """A guard did not take effect: the verifier still reaches what it should not."""


def _sympy() -> Any:
    """A module like sympy, whose ways from text to expressions lead through the bounded grammar."""
    import sympy

    proxy = types.ModuleType("sympy")
    vars(proxy).update(vars(sympy) | dict.fromkeys(("parse_expr", "sympify", "S"), ExpressionParser()))
    return proxy


_EVAL = frozenset({"eval"})
_LITERALS = Guard("eval", lambda: evaluate_literal, _EVAL)
_EXPRESSIONS = Guard("parse_expr", ExpressionParser, frozenset({"parse_expr of sympy"}))
GUARDS: Mapping[str, Guard] = {
    "binary_matrix": _LITERALS,
    "spiral_matrix": _LITERALS,
    "string_insertion": _LITERALS,
    "n_queens": _LITERALS,
    # These two evaluate only text of the item itself; with a guard nobody has to take that on trust.
    "number_sorting": _LITERALS,
    "bitwise_arithmetic": Guard("eval", lambda: evaluate_integers, _EVAL),
    "countdown": _EXPRESSIONS,
    "puzzle24": _EXPRESSIONS,
    "simple_integration": Guard("sympy", _sympy, _INTEGRATION),
    "intermediate_integration": Guard("sympy", _sympy, _INTEGRATION),
    "polynomial_multiplication": Guard("sp", _sympy, frozenset({"sp.parse_expr"})),
    "coin_flip": Guard("Fraction", lambda: BoundedFraction, frozenset({"Fraction of fractions"})),
}


def unguarded_tasks() -> dict[str, str]:
    """Registered tasks whose verifier evaluates text and is not covered by a guard: task -> reason.

    Reads the code of every registered verifier; changes nothing. Import the user's task modules first.
    """
    return dict(_reasons(frozenset()))


def install() -> dict[str, str]:
    """Put every guard in place, in this process, and return the tasks that stay unguarded, with reasons.

    The one file that a solver reads is read here too: a worker that is confined could not. Raises GuardError if a
    guard does not take effect.
    """
    unguarded = unguarded_tasks()
    registry = library.registry()
    placed: list[Any] = [_guard_sympy()]
    for task, guard in GUARDS.items():
        if task in registry and task not in unguarded:
            shim = guard.make()
            setattr(sys.modules[registry[task][0].__module__], guard.name, shim)
            placed.append(shim)
    if "word_ladder" in registry:
        known_words()
    safe = frozenset(map(id, placed))
    open_ends = {task: reason for task, reason in _reasons(safe) if task not in unguarded}
    if open_ends:
        raise GuardError(f"guards without effect: {open_ends}")
    return unguarded


def _guard_sympy() -> Any:
    """Close the way from text to code inside sympy, which `sympify`, and so every function, takes."""
    parser = ExpressionParser()

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


# --- does a verifier evaluate text? ---

EVALUATING_BUILTINS = frozenset(
    {"eval", "exec", "compile", "__import__", "open", "breakpoint", "globals", "vars", "__builtins__"}
)
EVALUATING_MODULES = frozenset(
    [
        *("sympy", "latex2sympy2_extended", "math_verify", "numexpr", "asteval", "simpleeval", "pandas"),
        *("pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml", "code", "codeop", "runpy"),
        *("os", "posix", "subprocess", "pty", "ctypes", "cffi", "importlib", "multiprocessing", "socket"),
    ]
)
HUNG_BY_ONE_NUMBER = Fraction
"""Fraction("1e1000000000") fills memory, so naming it is a finding too."""
_EVALUATE = tuple(getattr(builtins, name) for name in sorted(EVALUATING_BUILTINS) if hasattr(builtins, name))


def findings(dataset_class: type, safe: frozenset[int] = frozenset()) -> frozenset[str]:
    """The text-evaluating names `dataset_class.score_answer` can reach, as its code spells them.

    Followed is everything that it can name: its methods, base classes, and functions and classes of its own library.
    A finding is a name that leads to code made from text: `eval` and its kin, or a module such as sympy that
    evaluates strings it is given. `sp.diff` is an attribute of a module imported as `sp`, `Fraction of fractions` a
    function or class by the module it comes from. Objects whose id is in `safe` (the guards' own) are no findings.
    """
    libraries = {"reasoning_gym", _package(dataset_class)}
    todo = _methods(dataset_class, "score_answer")
    found: set[str] = set()
    seen: set[types.FunctionType] = set()
    for function in todo:
        if function in seen:
            continue
        seen.add(function)
        uses, scope = _names_used(function.__code__), function.__globals__
        attributes = uses["attribute"]
        found |= EVALUATING_BUILTINS & uses["global"] - scope.keys()
        found |= EVALUATING_MODULES & {name.partition(".")[0] for name in uses["import"]}
        reached = [(name, scope[name]) for name in sorted(uses["global"] & scope.keys())]
        reached += [("a closure", cell.cell_contents) for cell in function.__closure__ or ()]
        modules: set[int] = set()
        for name, value in reached:
            package = _package(value)
            if id(value) in safe:
                continue
            if isinstance(value, types.ModuleType):
                package = value.__name__.partition(".")[0]
                named = sorted(attributes & set(dir(value)))
                if package in EVALUATING_MODULES:
                    found |= {f"{name}.{attribute}" for attribute in named}
                elif package in libraries and id(value) not in modules:
                    modules.add(id(value))
                    reached += [(attribute, vars(value).get(attribute)) for attribute in named]
            elif isinstance(value, (list, tuple, set, frozenset, dict)):
                members = value.values() if isinstance(value, dict) else value
                kinds = (types.FunctionType, types.BuiltinFunctionType, type)
                reached += [(name, member) for member in members if isinstance(member, kinds)]
            elif any(value is builtin for builtin in _EVALUATE):
                found.add(f"{value.__name__} as {name}")
            elif value is HUNG_BY_ONE_NUMBER or package in EVALUATING_MODULES:
                found.add(f"{name} of {package}")
            elif package in libraries:
                todo += _functions(value)
        todo += [method for name in attributes for method in _methods(dataset_class, name)]
    return frozenset(found)


def _methods(dataset_class: type, name: str) -> list[types.FunctionType]:
    return [one for base in dataset_class.__mro__ if name in vars(base) for one in _functions(vars(base)[name])]


def _functions(value: Any) -> list[types.FunctionType]:
    """The function that this is, or wraps, and those of a class."""
    if isinstance(value, type):
        return [one for member in vars(value).values() if not isinstance(member, type) for one in _functions(member)]
    value = getattr(value, "__wrapped__", getattr(value, "__func__", getattr(value, "fget", value)))
    return [value] if isinstance(value, types.FunctionType) else []


def _names_used(code: types.CodeType) -> dict[str, set[str]]:
    """The names in `code` and the functions inside it, by what is done with them."""
    used: dict[str, set[str]] = {"global": set(), "import": set(), "attribute": set()}
    codes = [code]
    for one in codes:
        codes += [constant for constant in one.co_consts if isinstance(constant, types.CodeType)]
        for step in dis.get_instructions(one):
            if step.argval in one.co_names:
                use = {"LOAD_GLOBAL": "global", "LOAD_NAME": "global", "IMPORT_NAME": "import"}
                used[use.get(step.opname, "attribute")].add(step.argval)
    return used


def _package(value: Any) -> str:
    module = getattr(value, "__module__", None)
    return module.partition(".")[0] if isinstance(module, str) else ""
