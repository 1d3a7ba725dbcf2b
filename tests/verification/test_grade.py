"""One answer, two formats, one verdict; then the stricter check, and the answer without its decoration."""

from __future__ import annotations

import io
import math
import sys
from typing import Any

import pytest

from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.verification.grade import (
    NATIVE,
    Standards,
    Status,
    Verdict,
    grade,
    normalize,
    standards_for,
)

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


def test_the_higher_format_counts() -> None:
    for bare, tagged, value in ((0.2, 0.1, 0.2), (0.1, 0.2, 0.2), (0.0, 0.0, 0.0)):
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


def test_real_verifiers_score_the_oracle() -> None:
    dataset = library.create_dataset("chain_sum", seed=3, size=1)
    entry = dataset[0]
    assert grade(dataset.score_answer, entry, entry["answer"]).value == 1.0
    assert grade(dataset.score_answer, entry, "nonsense").value < 0.5


def test_an_answer_that_exits_scores_zero_and_nothing_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())  # exit() closes it
    dataset = library.create_dataset("binary_matrix", seed=1, size=1)
    verdict = grade(dataset.score_answer, dataset[0], "exit()")
    assert verdict.value == 0.0
    assert "SystemExit" in verdict.detail


# --- standards ---

UNSOUND = "game_of_life_halting"


def exact(answer: str, entry: dict[str, Any]) -> float:
    return float(answer == entry["answer"])


def generous(answer: str, entry: dict[str, Any]) -> float:
    return 1.0


REFUSE_ALL = Standards(strict=lambda entry, answer, native: 0.0)
UNQUOTE = Standards(normalize=lambda answer, oracle: answer.strip('"'))


def test_a_refused_answer_keeps_its_native_score_beside_the_strict_one() -> None:
    verdict = grade(generous, ENTRY, "x", REFUSE_ALL)
    assert (verdict.value, verdict.native, verdict.status) == (0.0, 1.0, Status.SCORED)
    assert verdict.detail == "reasoning-gym pays 1, the stricter check 0"


def test_the_check_is_not_asked_about_what_the_verifier_pays_nothing_for() -> None:
    def must_not_run(*_: Any) -> float:
        raise AssertionError

    assert grade(exact, ENTRY, "x", Standards(strict=must_not_run)) == grade(exact, ENTRY, "x")


def test_a_decorated_answer_is_recovered_and_its_native_score_stays() -> None:
    verdict = grade(exact, ENTRY, '"5"', UNQUOTE)
    assert (verdict.value, verdict.native, verdict.detail) == (1.0, 0.0, "scored without its decoration")


def test_normalization_never_costs_anything() -> None:
    assert grade(exact, {**ENTRY, "answer": '"5"'}, '"5"', UNQUOTE) == Verdict(1.0, bare=1.0)
    assert grade(exact, ENTRY, '"6"', UNQUOTE) == grade(exact, ENTRY, '"6"')


def test_a_recovered_answer_faces_the_stricter_check_too() -> None:
    both = Standards(strict=REFUSE_ALL.strict, normalize=UNQUOTE.normalize)
    assert grade(exact, ENTRY, '"5"', both).value == 0.0


def test_an_answer_that_the_check_stumbles_over_is_refused() -> None:
    def stumble(entry: dict[str, Any], answer: str, native: float) -> float:
        raise RecursionError("too deep")

    verdict = grade(generous, ENTRY, "((((", Standards(strict=stumble))
    assert (verdict.value, verdict.native, verdict.status) == (0.0, 1.0, Status.SCORED)
    assert "RecursionError: too deep" in verdict.detail


def test_native_standards_change_nothing() -> None:
    assert standards_for(UNSOUND, strict=False, lossless=False) == NATIVE


def test_an_item_of_a_composite_is_held_to_the_standard_of_its_own_task() -> None:
    entry = {**library.create_dataset(UNSOUND, seed=1, size=1)[0]}
    entry["metadata"] = {**entry["metadata"], "source_dataset": UNSOUND}
    strict = standards_for("composite", strict=True, lossless=False).strict
    assert strict(entry, "anything at all", 1.0) == 0.0


# --- decoration ---

DECORATED = {
    "12": [
        "12.",
        " 12\n",
        "\\boxed{12}",
        "$\\boxed{\\text{12}}$.",
        "**12**",
        "**12.**",
        "`12`",
        '"12"',
        "$12$",
        "\\(12\\)",
    ],
    "1200": ["1,200"],
    "-1234567.25": ["-1,234,567.25"],
    "\\frac{1}{2}": ["\\boxed{\\frac{1}{2}}"],
}
PLAIN = [
    *("12", "x = 12", "1,2,3", "12,00", "0.5", "...", '"a", "b"', "**a** and **b**", "{1, 2}", "''", "\\boxed{}"),
    *("\\boxed{1} and \\boxed{2}", "$1 and $2$"),
]
CARRIED = [
    *(("It rains.", "It rains."), ("'a'", "'b'"), ('"a"', '"a"'), ("1,200", "1,200"), ("1,200", "two numbers")),
    *(("$5$", "$5$"), ("**", "*")),
]


def test_decoration_goes_if_it_is_around_the_whole_answer_and_the_oracle_answer_does_not_carry_it() -> None:
    for plain, answers in DECORATED.items():
        assert {normalize(answer, "7") for answer in answers} == {plain}
    assert [normalize(answer, "7") for answer in PLAIN] == PLAIN
    assert [normalize(answer, oracle) for answer, oracle in CARRIED] == [answer for answer, _ in CARRIED]


def test_without_an_oracle_answer_wrappings_go_and_separators_stay() -> None:
    assert {normalize("\\boxed{1,200}.", oracle) for oracle in (None, 5, "")} == {"1,200"}


def test_absurd_answers_are_handled() -> None:
    for answer in ("\\boxed{" * 50_000, "**" * 100_000, "." * 200_000, "1,000" * 40_000):
        assert normalize(answer, "7").strip(".*") in answer
