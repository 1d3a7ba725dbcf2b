"""Which verifiers evaluate text is found by reading them; what is guarded evaluates nothing any more."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import sympy

from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.verification import eval_guards

evaluate = eval


def helper(answer: str) -> float:
    return float(sympy.sympify(answer))


def verifier(score_answer: Callable[..., Any]) -> type:
    return type("Verifier", (), {"score_answer": score_answer})


Plain = verifier(lambda self, answer, entry: float(answer == entry["answer"]))
Harmless = verifier(lambda self, answer, entry: float(bool(re.compile(entry["answer"]).match(answer))))
Direct = verifier(lambda self, answer, entry: eval(answer))
Aliased = verifier(lambda self, answer, entry: evaluate(answer))
ThroughAFunction = verifier(lambda self, answer, entry: helper(answer))
ReadsFractions = verifier(lambda self, answer, entry: Fraction(answer))


class ThroughAMethod:
    def score_answer(self, answer: str, entry: dict[str, Any]) -> float:
        return self._compare(answer)

    def _compare(self, answer: str) -> float:
        return max(float(eval(part)) for part in answer.split())


class Inherited(ThroughAMethod):
    def score_answer(self, answer: str, entry: dict[str, Any]) -> float:
        return super().score_answer(answer, entry)


class Reader(ThroughAMethod):
    pass


class ThroughABaseOfAHelper:
    def score_answer(self, answer: str, entry: dict[str, Any]) -> float:
        return Reader()._compare(answer)


class ThroughACachedProperty:
    answer = ""

    @functools.cached_property
    def _value(self) -> float:
        return helper(self.answer)

    def score_answer(self, answer: str, entry: dict[str, Any]) -> float:
        self.answer = answer
        return self._value


class ImportsInside:
    def score_answer(self, answer: str, entry: dict[str, Any]) -> float:
        from sympy import sympify

        return float(sympify(answer))


FOUND = {
    **{Plain: set(), Harmless: set(), Direct: {"eval"}, Aliased: {"evaluate"}, ThroughAMethod: {"eval"}},
    **{Inherited: {"eval"}, ThroughAFunction: {"sympy"}, ImportsInside: {"sympy"}, ReadsFractions: {"Fraction"}},
    **{ThroughABaseOfAHelper: {"eval"}, ThroughACachedProperty: {"sympy"}},
}


def test_the_scan_finds_what_a_verifier_evaluates_text_with() -> None:
    assert {verifier: eval_guards.findings(verifier) for verifier in FOUND} == FOUND


def test_the_pinned_list_is_what_the_scan_finds_in_reasoning_gym() -> None:
    found = {task: eval_guards.findings(dataset) for task, (dataset, _) in library.registry().items()}
    assert {task: names for task, names in found.items() if names} == {
        task: {name} for task, name in eval_guards.GUARDS.items()
    }


def test_what_evaluates_text_and_is_not_on_the_list_is_unguarded(monkeypatch: pytest.MonkeyPatch) -> None:
    before = library.registry()
    # A user's own task, and those of the list that reach more, or less, than they did.
    for task, reads, reaches in (
        ("chain_sum", Plain, None),
        ("mine", Direct, "eval"),
        ("countdown", ThroughAFunction, "sympy"),
        ("countdown", Plain, None),
    ):
        monkeypatch.setattr(library, "registry", lambda also={task: (reads, object)}: {**before, **also})
        expected = {task: f"its verifier reaches {reaches}, which no guard covers"} if reaches else {}
        assert eval_guards.unguarded_tasks() == expected
    parser = vars(sys.modules[before["countdown"][0].__module__])["parse_expr"]
    assert parser.__module__ == "sympy.parsing.sympy_parser", "scanning has changed reasoning-gym"


# Each in a process of its own, because installed guards stay.

INSTALL = """
import builtins, sympy
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.verification import eval_guards
library.load()
assert eval_guards.install() == {}
builtins.created = []
for task in eval_guards.GUARDS:
    dataset = library.create_dataset(task, seed=29, size=ITEMS)
    for entry in map(dataset.__getitem__, range(ITEMS)):
        assert dataset.score_answer(str(entry["answer"]), entry) == 1.0, (task, entry)
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
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    return result.stdout.strip().rpartition("\n")[2] or result.stderr


# benchmarks/scoring.py does the same for 2,000 items.
@pytest.mark.parametrize("items", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_installed_guards_leave_no_way_from_text_to_code_and_refuse_no_oracle_answer(items: int) -> None:
    assert run_python(INSTALL.replace("ITEMS", str(items))) == "guarded"
