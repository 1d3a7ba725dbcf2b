"""Strict verification and normalization, as a worker applies them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.verification.grade import NATIVE, Standards, Status, Verdict, grade
from reasoning_gym_environment.verification.standards import standards_for
from reasoning_gym_environment.workers.grader import SandboxGrader

ENTRY: dict[str, Any] = {"question": "?", "answer": "5", "metadata": {}}
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


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def grader() -> AsyncIterator[SandboxGrader]:
    grader = SandboxGrader(num_workers=1, strict=True, lossless=True)
    await grader.start()
    yield grader
    await grader.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_workers_apply_both_and_count_them(grader: SandboxGrader, caplog: pytest.LogCaptureFixture) -> None:
    entry = library.create_dataset(UNSOUND, seed=1, size=1)[0]
    oracle = str(entry["answer"])
    refused, right = await grader.grade(UNSOUND, {}, entry, ["anything at all", oracle])
    assert (refused.value, refused.native, right.value) == (0.0, 1.0, 1.0)
    chain = library.create_dataset("chain_sum", seed=1, size=1)[0]
    [recovered] = await grader.grade("chain_sum", {}, chain, [f"**{chain['answer']}**"])
    assert recovered.value == 1.0 > recovered.native
    counts = grader.metrics()
    assert (counts["grading/refused_answers"], counts["grading/recovered_answers"]) == (1.0, 1.0)
    assert caplog.text.count(f"Answers to {UNSOUND} are refused by the stricter check") == 1
