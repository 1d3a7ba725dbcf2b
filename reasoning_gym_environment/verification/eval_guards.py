"""Guards for the verifiers that evaluate the model's answer as code.

`GUARDS` is the pinned list of these tasks, each with the name through which its verifier evaluates text.
`unguarded_tasks()` compares the list with the installed reasoning-gym and with the user's own datasets. It reports a
verifier that starts to evaluate text before the verifier runs. `install()` replaces the evaluators in the modules of
reasoning-gym and sympy. Call it in grading workers only.

`findings` reads the compiled code of a verifier without running it. It cannot see calls through containers,
closures, and `import` statements inside functions. The sandbox of the grading workers covers these calls.
"""

from __future__ import annotations

import importlib
import types
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from ..tasks import reasoning_gym_source as library
from .bounded_eval import bounded_fraction, evaluate_python, evaluate_symbolic
from .entries import module_of
from .forms import words_of_story
from .validators import rules_of_word_ladder

GUARDS = {
    "binary_matrix": "eval",
    "spiral_matrix": "eval",
    "string_insertion": "eval",
    "n_queens": "eval",
    # The next two evaluate only text of the item itself. The guard makes that certain.
    "number_sorting": "eval",
    "bitwise_arithmetic": "eval",
    "countdown": "parse_expr",
    "puzzle24": "parse_expr",
    "simple_integration": "sympy",
    "intermediate_integration": "sympy",
    "polynomial_multiplication": "sp",
    "coin_flip": "Fraction",
}
_REPLACEMENTS = {
    "eval": evaluate_python,
    "parse_expr": evaluate_symbolic,
    "Fraction": bounded_fraction,
}
_MODULES_WITH_PARSE_EXPR = ("sympy", "sympy.parsing", "sympy.parsing.sympy_parser")
"""sympy's own functions, such as `sympify`, parse text with the `parse_expr` of these modules."""


def unguarded_tasks() -> dict[str, str]:
    """Registered tasks whose verifier evaluates text and is not covered by a guard: task -> reason.

    Reads the code of every registered verifier and changes nothing. Import the user's task modules first.
    """
    unguarded = {}
    for task, (dataset, _) in sorted(library.registry().items()):
        names = findings(dataset) - {GUARDS.get(task)}
        if names:
            unguarded[task] = f"its verifier reaches {', '.join(sorted(names))}, which no guard covers"
    return unguarded


def install() -> dict[str, str]:
    """Install every guard in this process and return the tasks that stay unguarded, with reasons.

    Also reads the words that word_ladder and letter_jumble accept. A confined worker cannot open these files later.
    """
    unguarded = unguarded_tasks()
    for module in _MODULES_WITH_PARSE_EXPR:
        vars(importlib.import_module(module))["parse_expr"] = evaluate_symbolic
    registry = library.registry()
    for task in GUARDS.keys() & registry.keys() - unguarded.keys():
        name = GUARDS[task]
        if name in _REPLACEMENTS:
            vars(module_of(task))[name] = _REPLACEMENTS[name]
    if "word_ladder" in registry:
        rules_of_word_ladder()
    if "letter_jumble" in registry:
        words_of_story()
    return unguarded


# --- does a verifier evaluate text? ---

EVALUATING_NAMES = frozenset(
    {
        "eval",
        "exec",
        "__import__",
        "open",
        "breakpoint",
        "globals",
        "__builtins__",
        # Packages that evaluate text or run code.
        "sympy",
        "latex2sympy2_extended",
        "math_verify",
        "numexpr",
        "asteval",
        "simpleeval",
        "pandas",
        "pickle",
        "marshal",
        "shelve",
        "dill",
        "cloudpickle",
        "joblib",
        "yaml",
        "runpy",
        "os",
        "posix",
        "subprocess",
        "pty",
        "ctypes",
        "cffi",
        "importlib",
        "multiprocessing",
        "socket",
    }
)


def findings(dataset_class: type) -> frozenset[str]:
    """The names through which `dataset_class.score_answer` can evaluate text.

    A finding is a name that leads to code made from text: `eval` and similar builtins, or a module such as sympy that
    evaluates strings. The search follows the methods and base classes of the dataset, and the functions and classes
    of reasoning-gym and of the package that defines the dataset.
    """
    packages = {"reasoning_gym", _package(dataset_class)}
    pending = _members(dataset_class.__mro__, ["score_answer"])
    found: set[str] = set()
    seen: set[types.FunctionType] = set()
    # The loop also visits the functions that it appends.
    for function in pending:
        if function in seen:
            continue
        seen.add(function)
        names = _names_in(function.__code__)
        pending += _members(dataset_class.__mro__, names)
        for name in names:
            if name not in function.__globals__:
                found |= EVALUATING_NAMES & {name}
                continue
            value = function.__globals__[name]
            if _evaluates(value):
                found.add(name)
            if not isinstance(value, types.ModuleType):
                pending += [used for used in _functions(value) if _package(used) in packages]
            elif _package(value) in packages:
                pending += _members([value], names)
    return frozenset(found)


def _members(owners: Iterable[Any], names: Iterable[str]) -> list[types.FunctionType]:
    """The functions with these names in classes or modules."""
    functions = []
    for owner in owners:
        for name in names:
            functions += _functions(vars(owner).get(name))
    return functions


def _functions(value: Any) -> list[types.FunctionType]:
    """The function itself, the function inside a decorator or property, or the functions of a class and its bases."""
    if not isinstance(value, type):
        inner = value
        for attribute in ("__func__", "fget", "func"):
            inner = getattr(inner, attribute, inner)
        function = getattr(value, "__wrapped__", inner)
        return [function] if isinstance(function, types.FunctionType) else []
    functions = []
    for owner in value.__mro__:
        for member in vars(owner).values():
            if not isinstance(member, type):
                functions += _functions(member)
    return functions


def _names_in(code: types.CodeType) -> set[str]:
    """The names of globals, attributes and imported packages in `code` and in the functions inside it."""
    names = {name.partition(".")[0] for name in code.co_names}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names_in(constant)
    return names


def _evaluates(value: Any) -> bool:
    # Fraction("1e1000000000") fills the memory.
    return any(value is builtin for builtin in (eval, exec, open, Fraction)) or _package(value) in EVALUATING_NAMES


def _package(value: Any) -> str:
    """The package of a module, or the package that defines a function or class."""
    module = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
    return module.partition(".")[0] if isinstance(module, str) else ""
