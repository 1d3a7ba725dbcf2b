"""One answer, two formats, one verdict; then the stricter check, and the answer without its decoration."""

from __future__ import annotations

import io
import math
import sys
from typing import Any

import pytest

from reasoning_gym_environment.records import Status, Verdict
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.verification.grade import NATIVE, Standards, grade, normalize, standards_for

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
FORMATS = [
    (1.0, RuntimeError("must not run"), Verdict(1.0, bare=1.0)),
    (0.25, 1.0, Verdict(1.0, bare=0.25, tagged=1.0)),
    (0.2, 0.1, Verdict(0.2, bare=0.2, tagged=0.1)),
    (0.0, 0.0, Verdict(0.0, bare=0.0, tagged=0.0)),
    (BAD, 0.5, Verdict(0.5, bare=None, tagged=0.5, detail="ValueError: bad")),
    (0.5, BAD, Verdict(0.5, bare=0.5, tagged=None, detail="ValueError: bad")),
    (math.nan, 0.5, Verdict(0.5, bare=None, tagged=0.5, detail=NOT_A_NUMBER)),
    (ValueError("x" * 10_000), 0.0, Verdict(0.0, bare=None, tagged=0.0, detail="ValueError: " + "x" * 188)),
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
        assert (verdict.value, verdict.status) == (value, Status.SCORED)


def test_a_verifier_that_gives_no_number_in_either_format_is_an_error_worth_zero() -> None:
    raised = (BAD, RecursionError(), AssertionError(), MemoryError(), SystemExit(0), KeyboardInterrupt())
    for raw in (*raised, math.nan, None, "five", [1.0], 10**400):
        verdict = grade(Verifier(raw, raw), ENTRY, "x")
        assert (verdict.value, verdict.status) == (0.0, Status.VERIFIER_ERROR)
        assert verdict.detail


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


REFUSE_ALL = Standards(refuse=lambda entry, answer, native: "it is not nice")
UNQUOTE = Standards(normalize=lambda answer, oracle: answer.strip('"'))


def stumble(*_: Any) -> str:
    raise RecursionError("too deep")


STUMBLING = Standards(refuse=stumble)


def test_a_refused_answer_keeps_its_native_score_beside_the_strict_one() -> None:
    for standards, remark in ((REFUSE_ALL, "it is not nice"), (STUMBLING, "RecursionError: too deep")):
        verdict = grade(generous, ENTRY, "x", standards)
        assert (verdict.value, verdict.native, verdict.status) == (0.0, 1.0, Status.SCORED)
        assert verdict.detail == f"refused, reasoning-gym pays 1: {remark}"
    # The check is not asked about what the verifier pays nothing for.
    assert grade(exact, ENTRY, "x", STUMBLING) == grade(exact, ENTRY, "x")


def test_a_decorated_answer_is_recovered_for_the_check_to_judge_and_nothing_is_lost_by_it() -> None:
    verdict = grade(exact, ENTRY, '"5"', UNQUOTE)
    assert (verdict.value, verdict.native, verdict.detail) == (1.0, 0.0, "scored without its decoration")
    assert grade(exact, ENTRY, '"5"', Standards(refuse=REFUSE_ALL.refuse, normalize=UNQUOTE.normalize)).value == 0.0
    assert grade(exact, {**ENTRY, "answer": '"5"'}, '"5"', UNQUOTE) == Verdict(1.0, bare=1.0)
    assert grade(exact, ENTRY, '"6"', UNQUOTE) == grade(exact, ENTRY, '"6"')


def test_standards_are_chosen_by_settings_and_by_an_items_own_task() -> None:
    assert standards_for(UNSOUND, strict=False, lossless=False) == NATIVE
    entry = {**library.create_dataset(UNSOUND, seed=1, size=1)[0]}
    entry["metadata"] = {**entry["metadata"], "source_dataset": UNSOUND}
    refuse = standards_for("composite", strict=True, lossless=False).refuse
    assert refuse(entry, "anything at all", 1.0)


# --- decoration ---

DECORATED = {
    "12": [
        *("12.", " 12\n", "\\boxed{12}", "$\\boxed{\\text{12}}$.", "**12**", "**12.**"),
        *("`12`", '"12"', "$12$", "\\(12\\)", "```\n12\n```", "```text\n12\n```."),
    ],
    "[1, 2]": ["```json\n[1, 2]\n```"],
    "not\n12": ["```not\n12\n```"],
    "ab": ["```ab```"],
    "-5": ["−5", "**−5**"],
    "1200": ["1,200"],
    "-1234567.25": ["-1,234,567.25"],
    "\\frac{1}{2}": ["\\boxed{\\frac{1}{2}}"],
}
PLAIN = [
    *("12", "x = 12", "1,2,3", "12,00", "0.5", "...", '"a", "b"', "**a** and **b**", "{1, 2}", "''", "\\boxed{}"),
    *("−x", "5−3"),
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
