"""One answer, two formats, one verdict; and a check that decides in the verifier's place."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from reasoning_gym_environment.records import Outcome, Verdict
from reasoning_gym_environment.verification.forms import FORMS
from reasoning_gym_environment.verification.grade import UnreadableItemError, check_for, grade

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


BAD = ValueError("bad")
NOT_A_NUMBER = "the verifier returned NaN"
RAISED_AT = f"test_grade.py, line {Verifier.__call__.__code__.co_firstlineno + 5}"
LONG_DETAIL = f"ValueError: {'x' * (188 - len(f' ({RAISED_AT})'))} ({RAISED_AT})"
FORMATS = [
    (1.0, RuntimeError("must not run"), Verdict(1.0, native=1.0)),
    (0.25, 1.0, Verdict(1.0, native=1.0)),
    (0.2, 0.1, Verdict(0.2, native=0.2)),
    (0.0, 0.0, Verdict(0.0, native=0.0)),
    (BAD, 0.5, Verdict(0.5, native=0.5, detail=f"ValueError: bad ({RAISED_AT})")),
    (0.5, BAD, Verdict(0.5, native=0.5, detail=f"ValueError: bad ({RAISED_AT})")),
    (math.nan, 0.5, Verdict(0.5, native=0.5, detail=NOT_A_NUMBER)),
    (ValueError("x" * 10_000), 0.0, Verdict(0.0, native=0.0, detail=LONG_DETAIL)),
]


def test_the_higher_of_both_formats_counts_and_one_that_raises_counts_zero() -> None:
    for bare, tagged, expected in FORMATS:
        verifier = Verifier(bare, tagged)
        assert grade(verifier, ENTRY, "a b") == expected
        # Full credit for the bare answer is enough.
        assert verifier.answers == ["a b", "<answer>a b</answer>"][: 1 if bare == 1.0 else 2]


def test_values_are_numbers_clipped_to_the_unit_interval() -> None:
    clipped = {1.5: 1.0, -0.5: 0.0, math.inf: 1.0, -math.inf: 0.0, True: 1.0, "0.5": 0.5}
    for raw, value in clipped.items():
        verdict = grade(Verifier(raw), ENTRY, "x")
        assert (verdict.value, verdict.failure) == (value, None)


def test_a_verifier_that_gives_no_number_in_either_format_is_an_error_worth_zero() -> None:
    raised = (BAD, RecursionError(), AssertionError(), SystemExit(0), KeyboardInterrupt())
    for raw in (*raised, math.nan, None, "five", [1.0], 10**400):
        verdict = grade(Verifier(raw, raw), ENTRY, "x")
        assert (verdict.value, verdict.failure) == (0.0, Outcome.VERIFIER_ERROR)
        assert verdict.detail
    # The child process reports that its memory is full.
    with pytest.raises(MemoryError):
        grade(Verifier(MemoryError()), ENTRY, "x")


# --- with a check ---


def exact(answer: str, entry: dict[str, Any]) -> float:
    return float(answer == entry["answer"])


def stumble(entry: Any, answer: str) -> bool:
    raise RecursionError("too deep")


def test_a_check_decides_and_the_native_score_stands_beside_it() -> None:
    same = FORMS["chain_sum"]
    for answer, value, native, detail in (
        ("5", 1.0, 1.0, ""),
        ("**5**", 1.0, 0.0, "right; reasoning-gym pays 0"),
        ("6", 0.0, 0.0, ""),
        ("5 or 6", 0.0, 0.0, ""),
    ):
        verdict = grade(exact, ENTRY, answer, same)
        assert (verdict.value, verdict.native, verdict.failure) == (value, native, None)
        assert verdict.detail == detail
    verdict = grade(exact, ENTRY, "5", stumble)
    assert (verdict.value, verdict.detail) == (0.0, "RecursionError: too deep; reasoning-gym pays 1")
    assert grade(Verifier(BAD, BAD), ENTRY, "5", same) == Verdict(1.0, native=0.0, detail="right; reasoning-gym pays 0")


def test_the_verifier_of_a_checked_task_runs_only_if_its_score_is_needed() -> None:
    verifier = Verifier(RuntimeError("must not run"))
    right = grade(verifier, ENTRY, "5", FORMS["chain_sum"], needs_native=False)
    assert (right, verifier.answers) == (Verdict(1.0), [])
    assert grade(Verifier(0.5), ENTRY, "5", needs_native=False) == Verdict(0.5, native=0.5)


def test_an_item_of_which_no_answer_can_be_checked_is_unreadable_and_its_answers_are_not_wrong() -> None:
    malformed = {"question": "q", "answer": "1+1", "metadata": {}}
    with pytest.raises(UnreadableItemError, match="KeyError"):
        grade(exact, malformed, "2", check_for("countdown", malformed))


def test_the_check_of_a_composite_is_that_of_the_items_own_task() -> None:
    entry = {**ENTRY, "metadata": {"source_dataset": "chain_sum"}}
    check = check_for("composite", entry)
    assert check is not None and check(entry, "5.0")
    assert check_for("of_my_own", entry) is None


@pytest.mark.parametrize("text", ["two\n\nlines", "\r\n tabs\tand ends\n", "half of a pair \ud83d\n" + "x" * 5000])
def test_the_error_of_a_verifier_is_one_line_with_its_place(text: str) -> None:
    def verifier(**_: Any) -> float:
        raise ValueError(text)

    detail = grade(verifier, {"answer": "1", "metadata": {}}, "2").detail
    assert re.fullmatch(r"ValueError: .*\(test_grade.py, line \d+\)", detail)
