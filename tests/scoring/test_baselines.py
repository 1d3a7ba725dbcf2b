"""What a wrong answer earns without work is not paid, and what was earned by work is."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

import pytest

from reasoning_gym_environment.audit.known_answers import WEAKNESSES, Weakness, reference_answer
from reasoning_gym_environment.audit.measure import same
from reasoning_gym_environment.records import Status, Verdict
from reasoning_gym_environment.scoring.rewards import GRADED, RIGHT_OR_WRONG, WRONG_PAYS, Baseline, paid
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.verification.grade import grade, standards_for

SLOW = {"codeio", "figlet_font", "futoshiki", "intermediate_integration", "puzzle24", "simple_integration", "sudoku"}
EXPLOITS = [
    pytest.param(one, marks=[pytest.mark.slow] * (one.task in SLOW), id=f"{one.task}-{one.kind.value}")
    for one in WEAKNESSES
    if one.exploit is not None
]


@functools.cache
def dataset_of(task: str, size: int = 15, **config: Any) -> Any:
    return library.create_dataset(task, seed=31, size=size, **config)


def pay(task: str, dataset: Any, entry: dict[str, Any], answer: str) -> float:
    """What the commands' own settings pay: strict checks, and the baseline of the item."""
    standards = standards_for(task, strict=True, lossless=False)
    base = Baseline(task, entry)
    verdicts = [grade(dataset.score_answer, entry, text, standards) for text in (answer, *base.answers)]
    return paid(task, verdicts[0].value, base.value(verdicts[1:]))


@pytest.mark.parametrize("weakness", EXPLOITS)
def test_known_answers_that_need_no_work_are_paid_nothing(weakness: Weakness) -> None:
    dataset = library.create_dataset(weakness.task, seed=31, size=15, **weakness.config)
    wrong = []
    for index in range(15):
        entry = dataset[index]
        answer = weakness.exploit(entry)  # type: ignore[misc]
        if not same(answer, reference_answer(weakness.task, entry)):
            wrong.append(pay(weakness.task, dataset, entry, answer))
    assert wrong
    # A guess may be right: everybody does tell the truth now and then.
    assert fmean(one for one in wrong if one < 1.0) <= 0.02
    assert wrong.count(1.0) <= 0.2 * len(wrong)


@pytest.mark.parametrize("task", sorted({*GRADED, "codeio", "knights_knaves", "rubiks_cube"} - SLOW))
def test_right_answers_are_paid_in_full(task: str) -> None:
    dataset = dataset_of(task)
    for index in range(3):
        entry = dataset[index]
        answer = reference_answer(task, entry)
        assert answer is not None
        assert pay(task, dataset, entry, answer) == 1.0


@pytest.mark.parametrize(
    ("task", "config"), [("spell_backward", {}), ("word_sorting", {"min_words": 30, "max_words": 50})]
)
def test_more_of_the_problem_solved_earns_more(task: str, config: dict[str, Any]) -> None:
    """From nothing to the solution, letter by letter or word by word: paid more and more, from nothing to all."""
    dataset, partial = dataset_of(task, **config), 0
    for index in range(8):
        entry = dataset[index]
        end = RIGHT[task](entry)
        steps = [[*end[:done], *"_" * (len(end) - done)] for done in range(len(end) + 1)]
        pays = [pay(task, dataset, entry, JOINED_BY[task].join(step)) for step in steps]
        assert pays == sorted(pays)
        assert all(one <= WRONG_PAYS for one in pays[:-1])
        assert pays[-1] == 1.0
        assert pays[0] == 0.0
        partial += any(0.0 < one <= WRONG_PAYS for one in pays)
    assert partial >= 2, "an item that an answer without work solves is right or wrong"


RIGHT: dict[str, Callable[[dict[str, Any]], Sequence[str]]] = {
    "spell_backward": lambda entry: entry["answer"],
    "word_sorting": lambda entry: entry["metadata"]["sorted_words"],
}
JOINED_BY = {"spell_backward": "", "word_sorting": ", "}


# --- the rule ---


def test_a_score_is_worth_what_it_is_above_the_baseline() -> None:
    for value, base, worth in (
        *((0.0, 0.0, 0.0), (0.5, 0.0, 0.5), (0.5, 0.5, 0.0), (0.75, 0.5, 0.5), (0.4, 0.5, 0.0)),
        *((1.0, 0.5, 1.0), (1.0, RIGHT_OR_WRONG, 1.0), (0.99, RIGHT_OR_WRONG, 0.0)),
    ):
        assert paid("my_own_task", value, base) == pytest.approx(worth)
        for task in ("spell_backward", "composite"):
            assert paid(task, value, base) == pytest.approx(worth if worth == 1.0 else WRONG_PAYS * worth)


def test_the_baseline_is_what_the_best_answer_without_work_earns() -> None:
    base = Baseline("word_sorting", dataset_of("word_sorting")[0])
    assert len(base.answers) > 1
    floor = base.value([Verdict(0.0)] * len(base.answers))
    assert base.value([Verdict(floor + 0.1), Verdict(0.0)]) == floor + 0.1
    assert base.value([Verdict(0.0), Verdict(1.0)]) == RIGHT_OR_WRONG, "what is almost like it needs no work either"
    for status in (Status.TIMEOUT, Status.CRASHED, Status.MEMORY):
        assert base.value([Verdict(0.0, status)]) == RIGHT_OR_WRONG, "what is not known is not paid"


def test_the_task_decides_whether_partial_credit_counts() -> None:
    for task in ("gcd", "codeio", "knights_knaves", "rubiks_cube", "sudoku", "game_of_life"):
        assert Baseline(task, {}).answers == ()
        assert Baseline(task, {}).value([]) == RIGHT_OR_WRONG
    assert Baseline("shortest_path", {}).value([]) == 0.0
    entry = {"metadata": {"source_dataset": "shortest_path"}}
    assert Baseline("composite", entry).value([]) == 0.0
    assert Baseline("word_sorting", {"metadata": {}}).value([]) == RIGHT_OR_WRONG, "an item that is not of the task"


def test_a_dataset_nobody_has_looked_at_is_tried_with_answers_that_fit_anywhere() -> None:
    base = Baseline("my_own_task", {"question": "How many?", "answer": "7"})
    assert "How many?" in base.answers
    assert base.value([Verdict(0.25) for _ in base.answers]) == 0.25
