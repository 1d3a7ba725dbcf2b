"""One answer, two formats, one verdict."""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Callable
from typing import Any

import pytest

from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.verification.grade import Status, Verdict, grade

ENTRY = {"question": "q", "answer": "5"}


class Verifier:
    """Gives `bare` or `tagged` by the format it is shown, raising what is an exception; remembers the calls."""

    def __init__(self, bare: Any, tagged: Any = 0.0) -> None:
        self.bare, self.tagged = bare, tagged
        self.answers: list[str] = []

    def __call__(self, *, answer: str, entry: dict[str, Any]) -> Any:
        assert entry is ENTRY
        self.answers.append(answer)
        value = self.tagged if answer.startswith("<answer>") else self.bare
        if isinstance(value, BaseException):
            raise value
        return value


def test_full_credit_for_the_bare_answer_does_not_run_the_second_format() -> None:
    verifier = Verifier(1.0, RuntimeError("must not run"))
    assert grade(verifier, ENTRY, "5") == Verdict(value=1.0, bare=1.0)
    assert verifier.answers == ["5"]


def test_second_format_shows_the_answer_in_tags() -> None:
    verifier = Verifier(0.25, 1.0)
    assert grade(verifier, ENTRY, "a b") == Verdict(value=1.0, bare=0.25, tagged=1.0)
    assert verifier.answers == ["a b", "<answer>a b</answer>"]


@pytest.mark.parametrize(("bare", "tagged", "value"), [(0.2, 0.1, 0.2), (0.1, 0.2, 0.2), (0.0, 0.0, 0.0)])
def test_the_higher_format_counts(bare: float, tagged: float, value: float) -> None:
    assert grade(Verifier(bare, tagged), ENTRY, "x").value == value


@pytest.mark.parametrize(
    ("raw", "value"), [(1.5, 1.0), (-0.5, 0.0), (math.inf, 1.0), (-math.inf, 0.0), (True, 1.0), (1, 1.0), ("0.5", 0.5)]
)
def test_values_are_numbers_clipped_to_the_unit_interval(raw: Any, value: float) -> None:
    verdict = grade(Verifier(raw), ENTRY, "x")
    assert verdict.value == value
    assert verdict.status is Status.SCORED


def test_one_format_that_raises_counts_zero_and_leaves_the_other() -> None:
    verdict = grade(Verifier(ValueError("bad"), 0.5), ENTRY, "x")
    assert verdict == Verdict(value=0.5, bare=None, tagged=0.5, detail="ValueError: bad")
    verdict = grade(Verifier(0.5, ValueError("bad")), ENTRY, "x")
    assert verdict == Verdict(value=0.5, bare=0.5, tagged=None, detail="ValueError: bad")


@pytest.mark.parametrize(
    "raw",
    [
        *(ValueError("bad"), RecursionError(), AssertionError(), MemoryError(), SystemExit(0), KeyboardInterrupt()),
        *(math.nan, None, "five", [1.0], 10**400),
    ],
)
def test_a_verifier_that_gives_no_number_in_either_format_is_an_error_worth_zero(raw: Any) -> None:
    verdict = grade(Verifier(raw, raw), ENTRY, "x")
    assert (verdict.value, verdict.status) == (0.0, Status.VERIFIER_ERROR)
    assert verdict.detail


def test_nan_in_one_format_is_named_and_the_other_counts() -> None:
    verdict = grade(Verifier(math.nan, 0.5), ENTRY, "x")
    assert verdict == Verdict(value=0.5, bare=None, tagged=0.5, detail="the verifier returned NaN")


def test_details_are_kept_short() -> None:
    assert len(grade(Verifier(ValueError("x" * 10_000), 0.0), ENTRY, "x").detail) <= 200


def test_real_verifiers_score_the_oracle(grade_chain_sum: Callable[[str], Verdict]) -> None:
    assert grade_chain_sum("oracle").value == 1.0
    assert grade_chain_sum("nonsense").value < 0.5


@pytest.mark.parametrize("answer", ["exit()", "quit()"])
def test_an_answer_that_exits_scores_zero_and_nothing_ends(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())  # exit() closes it
    dataset = library.create_dataset("binary_matrix", seed=1, size=1)
    verdict = grade(dataset.score_answer, dataset[0], answer)
    assert verdict.value == 0.0
    assert "SystemExit" in verdict.detail


@pytest.fixture
def grade_chain_sum() -> Callable[[str], Verdict]:
    dataset = library.create_dataset("chain_sum", seed=3, size=1)
    entry = dataset[0]
    return lambda answer: grade(dataset.score_answer, entry, entry["answer"] if answer == "oracle" else answer)
