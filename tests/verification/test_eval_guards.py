from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import sympy

from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.verification import eval_guards as guard
from reasoning_gym_environment.verification.verifier_scan import findings

evaluate = eval
VALIDATORS = {"python": eval}


class Plain:
    def score_answer(self, answer: str, entry: dict[str, Any]) -> float:
        return float(answer == entry["answer"])


class Direct:
    def score_answer(self, answer: str, entry: dict[str, Any]) -> float:
        return float(eval(answer))


class Aliased:
    def score_answer(self, answer: str, entry: dict[str, Any]) -> float:
        return float(evaluate(answer))


class ThroughAMethod:
    def score_answer(self, answer: str, entry: dict[str, Any]) -> float:
        return self._compare(answer)

    def _compare(self, answer: str) -> float:
        return max(float(eval(part)) for part in answer.split())


class Inherited(ThroughAMethod):
    def score_answer(self, answer: str, entry: dict[str, Any]) -> float:
        return super().score_answer(answer, entry)


def helper(answer: str) -> float:
    return float(sympy.sympify(answer))


class ThroughAFunction:
    def score_answer(self, answer: str, entry: dict[str, Any]) -> float:
        return helper(answer)


class ThroughATable:
    def score_answer(self, answer: str, entry: dict[str, Any]) -> float:
        return float(VALIDATORS["python"](answer))


class ImportsInside:
    def score_answer(self, answer: str, entry: dict[str, Any]) -> float:
        from sympy import sympify

        return float(sympify(answer))


class ReadsFractions:
    def score_answer(self, answer: str, entry: dict[str, Any]) -> float:
        return float(Fraction(answer))


class Harmless:
    """`compile` and `open` as attributes of something else evaluate nothing."""

    def score_answer(self, answer: str, entry: dict[str, Any]) -> float:
        import re

        return float(bool(re.compile(entry["answer"]).match(answer)))


FOUND = {
    Plain: set(),
    Harmless: set(),
    Direct: {"eval"},
    Aliased: {"eval as evaluate"},
    ThroughAMethod: {"eval"},
    Inherited: {"eval"},
    ThroughAFunction: {"sympy.sympify"},
    ThroughATable: {"eval as VALIDATORS"},
    ImportsInside: {"sympy"},
    ReadsFractions: {"Fraction of fractions"},
}


@pytest.mark.parametrize("verifier", FOUND, ids=lambda verifier: verifier.__name__)
def test_the_scan_finds_what_a_verifier_evaluates_text_with(verifier: type) -> None:
    assert findings(verifier) == FOUND[verifier]


def test_the_pinned_list_is_what_the_scan_finds_in_reasoning_gym() -> None:
    found = {task: findings(dataset) for task, (dataset, _) in library.registry().items()}
    assert {task: names for task, names in found.items() if names} == {
        task: entry.reaches for task, entry in guard.GUARDS.items()
    }


def test_no_task_of_reasoning_gym_is_unguarded() -> None:
    assert guard.unguarded_tasks() == {}


def registry_with(monkeypatch: pytest.MonkeyPatch, task: str, verifier: type) -> None:
    registry = {**library.registry(), task: (verifier, object)}
    monkeypatch.setattr(library, "registry", lambda: registry)


def test_a_users_task_that_evaluates_text_is_unguarded(monkeypatch: pytest.MonkeyPatch) -> None:
    registry_with(monkeypatch, "mine", Direct)
    assert guard.unguarded_tasks() == {"mine": "its verifier reaches eval, which no guard covers"}


def test_a_pinned_task_that_reaches_more_than_before_is_unguarded(monkeypatch: pytest.MonkeyPatch) -> None:
    registry_with(monkeypatch, "countdown", ThroughAFunction)
    assert guard.unguarded_tasks() == {"countdown": "its verifier reaches sympy.sympify, which no guard covers"}


def test_a_pinned_task_that_evaluates_nothing_any_more_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    registry_with(monkeypatch, "countdown", Plain)
    assert guard.unguarded_tasks() == {}


def test_a_composite_is_as_guarded_as_its_parts() -> None:
    part = types.SimpleNamespace(name="countdown", weight=1, config={})
    nested = {"datasets": [{"name": "composite", "config": {"datasets": [part]}}]}
    assert guard.components("composite", nested) == {"composite", "countdown"}
    assert guard.components("chain_sum", {"min_terms": 2}) == {"chain_sum"}


INSTALL = """
import reasoning_gym, sympy
from reasoning_gym_environment.workers import guard
assert guard.install() == {}
marker = "open('/dev/null'), created.append(1)"
import builtins
builtins.created = []
for task in guard.GUARDS:
    dataset = reasoning_gym.create_dataset(task, seed=1, size=1)
    entry = dataset[0]
    assert dataset.score_answer(str(entry["answer"]), entry) == 1.0 or task == "countdown", task
    try:
        dataset.score_answer("created.append(1)", entry)
    except ValueError:
        pass
for function in (sympy.sympify, sympy.S, sympy.simplify, sympy.expand, sympy.parse_expr):
    try:
        function("created.append(1)")
    except (ValueError, TypeError):
        pass
assert builtins.created == []
print("guarded")
"""


def run_python(code: str) -> str:
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    return result.stdout.strip() or result.stderr


def test_installed_guards_leave_no_way_from_text_to_code() -> None:
    assert run_python(INSTALL) == "guarded"


INEFFECTIVE = """
from reasoning_gym_environment.workers import guard
guard.GUARDS = {**guard.GUARDS, "countdown": guard.Guard("elsewhere", guard._parser, guard._PARSE_EXPR)}
try:
    guard.install()
except guard.GuardError as error:
    print(error)
"""


def test_a_guard_without_effect_is_an_error() -> None:
    assert run_python(INEFFECTIVE).startswith("guards without effect: {'countdown'")


def test_scanning_leaves_reasoning_gym_as_it_is() -> None:
    guard.unguarded_tasks()
    module = sys.modules[library.registry()["countdown"][0].__module__]
    verifier: Callable[..., Any] = vars(module)["parse_expr"]
    assert verifier.__module__ == "sympy.parsing.sympy_parser"
