"""Does a verifier evaluate text? Answered from its compiled code, without running it.

From a dataset's `score_answer`, everything is followed that it can name: its methods, base classes, and
functions and classes of its own library. A *finding* is a name that leads to code made from text: `eval`
and its kin, or a module such as sympy that evaluates strings it is given. Calls through containers built at
run time are not seen; the sandbox is there for those.
"""

from __future__ import annotations

import builtins
import dis
import types
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

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

    `sp.diff` is an attribute of a module imported as `sp`, `Fraction of fractions` a function or class by
    the module it comes from. Objects whose id is in `safe` (the guards' own) are no findings.
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
