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
from .bounded_arithmetic import BoundedFraction, evaluate_integers, evaluate_literal

_INTEGRATION = frozenset({"sympy.Symbol", "sympy.diff", "sympy.parse_expr", "sympy.simplify"})


@dataclass(frozen=True)
class Guard:
    """`name`, in the module of the verifier, is replaced; `reaches` is what the verifier reached before."""

    name: str
    make: Callable[[], Any]
    reaches: frozenset[str]


class GuardError(Exception):
    """A guard did not take effect: the verifier still reaches what it should not."""


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
_LITERALS = Guard("eval", lambda: evaluate_literal, _EVAL)
_PARSE_EXPR = frozenset({"parse_expr of sympy"})
GUARDS: Mapping[str, Guard] = {
    "binary_matrix": _LITERALS,
    "spiral_matrix": _LITERALS,
    "string_insertion": _LITERALS,
    "n_queens": _LITERALS,
    # These two evaluate only text of the item itself; with a guard nobody has to take that on trust.
    "number_sorting": _LITERALS,
    "bitwise_arithmetic": Guard("eval", lambda: evaluate_integers, _EVAL),
    "countdown": Guard("parse_expr", _parser, _PARSE_EXPR),
    "puzzle24": Guard("parse_expr", _parser, _PARSE_EXPR),
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
_LIBRARY = "reasoning_gym"


def findings(dataset_class: type, safe: frozenset[int] = frozenset()) -> frozenset[str]:
    """The text-evaluating names `dataset_class.score_answer` can reach, as its code spells them.

    Followed is everything that it can name: its methods, base classes, and functions and classes of its own library.
    A finding is a name that leads to code made from text: `eval` and its kin, or a module such as sympy that
    evaluates strings it is given. `sp.diff` is an attribute of a module imported as `sp`, `Fraction of fractions` a
    function or class by the module it comes from. Objects whose id is in `safe` (the guards' own) are no findings.
    """
    return frozenset(_Scan(dataset_class, safe).run())


class _Scan:
    def __init__(self, dataset_class: type, safe: frozenset[int]) -> None:
        self._class = dataset_class
        self._safe = safe
        self._packages = {_LIBRARY, _package(dataset_class)}
        self._todo: list[types.FunctionType] = []
        self._seen: set[types.FunctionType] = set()

    def run(self) -> Iterator[str]:
        self._follow_attribute("score_answer")
        while self._todo:
            function = self._todo.pop()
            if function not in self._seen:
                self._seen.add(function)
                yield from self._function(function)

    def _function(self, function: types.FunctionType) -> Iterator[str]:
        used: dict[str, set[str]] = {"global": set(), "import": set(), "attribute": set()}
        for code in _codes(function.__code__):
            for step in dis.get_instructions(code):
                if step.argval in code.co_names:
                    used[_use(step.opname)].add(step.argval)
        for name in sorted(used["global"]):
            if name in function.__globals__:
                yield from self._value(name, function.__globals__[name], used["attribute"])
            elif name in EVALUATING_BUILTINS:
                yield name
        yield from sorted(EVALUATING_MODULES & {name.partition(".")[0] for name in used["import"]})
        for name in sorted(used["attribute"]):
            self._follow_attribute(name)
        for cell in function.__closure__ or ():
            yield from self._value("a closure", cell.cell_contents, used["attribute"])

    def _value(self, name: str, value: Any, attributes: set[str]) -> Iterator[str]:
        if id(value) in self._safe:
            return
        if isinstance(value, types.ModuleType):
            yield from self._module(name, value, attributes)
        elif isinstance(value, (list, tuple, set, frozenset, dict)):
            members = value.values() if isinstance(value, dict) else value
            for member in members:
                if isinstance(member, (types.FunctionType, types.BuiltinFunctionType, type)):
                    yield from self._callable(name, member)
        else:
            yield from self._callable(name, value)

    def _module(self, name: str, module: types.ModuleType, attributes: set[str]) -> Iterator[str]:
        root = module.__name__.partition(".")[0]
        if root in EVALUATING_MODULES:
            yield from (f"{name}.{attribute}" for attribute in sorted(attributes & set(dir(module))))
        elif root in self._packages:
            for attribute in attributes & set(vars(module)):
                yield from self._value(attribute, vars(module)[attribute], attributes)

    def _callable(self, name: str, value: Any) -> Iterator[str]:
        if any(value is getattr(builtins, builtin, None) for builtin in EVALUATING_BUILTINS):
            yield f"{value.__name__} as {name}"
        elif value is HUNG_BY_ONE_NUMBER or _package(value) in EVALUATING_MODULES:
            yield f"{name} of {_package(value)}"
        elif _package(value) in self._packages:
            self._follow(value)

    def _follow(self, value: Any) -> None:
        value = getattr(value, "__wrapped__", value)
        if isinstance(value, types.FunctionType):
            self._todo.append(value)
        elif isinstance(value, type):
            for member in vars(value).values():
                self._follow_member(member)

    def _follow_attribute(self, name: str) -> None:
        for base in self._class.__mro__:
            if name in vars(base):
                self._follow_member(vars(base)[name])

    def _follow_member(self, member: Any) -> None:
        if isinstance(member, (staticmethod, classmethod)):
            member = member.__func__
        if isinstance(member, property):
            member = member.fget
        if isinstance(member, types.FunctionType):
            self._todo.append(member)


def _use(opname: str) -> str:
    if opname in ("LOAD_GLOBAL", "LOAD_NAME"):
        return "global"
    return "import" if opname == "IMPORT_NAME" else "attribute"


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _package(value: Any) -> str:
    module = getattr(value, "__module__", None)
    return module.partition(".")[0] if isinstance(module, str) else ""
