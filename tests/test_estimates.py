"""Means with intervals that hold what they say, and pass@k without bias."""

from __future__ import annotations

import itertools
import math
from random import Random

import pytest

from reasoning_gym_environment.estimates import (
    Question,
    clustered_error,
    paired_difference,
    pass_at_k,
    pass_ks,
    share,
    t_quantile,
    wilson,
)


@pytest.mark.parametrize("n", range(1, 8))
def test_pass_at_k_equals_counting_all_subsets(n: int) -> None:
    for correct, k in itertools.product(range(n + 1), range(1, n + 1)):
        subsets = list(itertools.combinations(range(n), k))
        passing = sum(min(subset) < correct for subset in subsets)
        assert pass_at_k(n, correct, k) == pytest.approx(passing / len(subsets))


@pytest.mark.parametrize(("n", "correct", "k"), [(3, 1, 0), (3, 1, 4), (3, 4, 1), (3, -1, 1)])
def test_pass_at_k_refuses_what_cannot_be(n: int, correct: int, k: int) -> None:
    with pytest.raises(ValueError, match="1 <= k <= n"):
        pass_at_k(n, correct, k)


def test_the_ks_are_the_powers_of_two_and_the_number_itself() -> None:
    assert [pass_ks(n) for n in (0, 1, 2, 3, 8, 10)] == [[], [1], [1, 2], [1, 2, 3], [1, 2, 4, 8], [1, 2, 4, 8, 10]]


def test_clustered_error_is_that_of_the_formula_written_out() -> None:
    values = [(1.0, 0.0, 1.0), (0.0, 0.0), (1.0, 1.0, 1.0, 1.0), (0.5,)]
    flat = [value for question in values for value in question]
    mean = sum(flat) / len(flat)
    # Miller, section 2.2: the variance of independent values plus all products within a cluster.
    within = sum((a - mean) * (b - mean) for question in values for a in question for b in question)
    expected = math.sqrt(within * 4 / 3) / len(flat)
    assert clustered_error([Question("task", question) for question in values]) == pytest.approx(expected)


def test_clustered_error_of_single_completions_is_the_usual_standard_error() -> None:
    values = [0.0, 1.0, 1.0, 0.25, 0.5]
    mean = sum(values) / 5
    usual = math.sqrt(sum((value - mean) ** 2 for value in values) / 4 / 5)
    assert clustered_error([Question("task", (value,)) for value in values]) == pytest.approx(usual)


def test_differences_between_tasks_do_not_widen_the_interval() -> None:
    stratified = [Question(task, (value,)) for task, value in zip("aabb", (0.0, 0.0, 1.0, 1.0), strict=True)]
    assert clustered_error(stratified) == 0.0
    assert clustered_error([Question("all", question.values) for question in stratified]) > 0.2


def test_single_questions_of_many_tasks_are_pooled() -> None:
    singles = [Question(task, (float(task < 5),)) for task in range(10)]
    assert clustered_error(singles) == clustered_error([Question("pool", q.values) for q in singles]) > 0
    assert clustered_error(singles[:1]) == 0.0


@pytest.mark.parametrize(
    ("mean", "size", "low", "high"), [(0.0, 10, 0.0, 0.2775), (1.0, 10, 0.7225, 1.0), (0.5, 10, 0.2366, 0.7634)]
)
def test_wilson_interval_is_that_of_the_tables(mean: float, size: int, low: float, high: float) -> None:
    assert wilson(mean, size) == pytest.approx((low, high), abs=1e-4)


def test_few_questions_get_wilsons_interval_however_often_they_were_asked() -> None:
    estimate = share([Question("t", (1.0,) * 8) for _ in range(5)])
    assert estimate is not None
    assert (estimate.method, estimate.questions, estimate.completions) == ("wilson", 5, 40)
    assert (estimate.low, estimate.high) == wilson(1.0, 5)


def test_without_a_value_there_is_no_estimate() -> None:
    assert share([]) is None
    assert share([Question("t", ())]) is None


@pytest.mark.parametrize(("freedom", "exact"), [(1, 12.706), (2, 4.303), (3, 3.182), (5, 2.571), (30, 2.042)])
def test_t_quantile_is_near_that_of_the_tables(freedom: int, exact: float) -> None:
    assert t_quantile(freedom) == pytest.approx(exact, rel=0.01)


def coverage(rates: list[float], per_task: int, k: int, spread: float, runs: int = 400) -> float:
    """How often the interval of the overall share holds the true one, for questions of Beta-distributed difficulty."""
    random, hits = Random(7), 0
    truth = sum(rates) / len(rates)
    for _ in range(runs):
        questions = []
        for task, rate in enumerate(rates):
            for _ in range(per_task):
                chance = random.betavariate(rate / spread, (1 - rate) / spread)
                questions.append(Question(task, tuple(float(random.random() < chance) for _ in range(k))))
        estimate = share(questions)
        assert estimate is not None
        hits += estimate.low <= truth <= estimate.high
    return hits / runs


@pytest.mark.parametrize(
    ("rates", "per_task", "k", "spread"),
    [
        ([0.1, 0.3, 0.5, 0.7, 0.9] * 4, 5, 1, 0.3),
        ([0.1, 0.3, 0.5, 0.7, 0.9] * 4, 5, 4, 0.3),
        ([0.6], 100, 8, 2.0),
        ([0.5] * 40, 2, 3, 0.01),
    ],
)
def test_intervals_hold_the_truth_about_95_times_in_100(
    rates: list[float], per_task: int, k: int, spread: float
) -> None:
    assert 0.92 <= coverage(rates, per_task, k, spread) <= 0.98


@pytest.mark.parametrize("rate", [0.02, 0.5, 0.95])
def test_intervals_of_few_questions_are_not_too_short(rate: float) -> None:
    assert coverage([rate], 8, 4, 0.5) >= 0.93


def test_completions_taken_as_independent_would_have_promised_too_much() -> None:
    random, hits = Random(3), 0
    for _ in range(300):
        chances = [random.betavariate(0.25, 0.25) for _ in range(100)]
        values = [[float(random.random() < chance) for _ in range(8)] for chance in chances]
        naive = share([Question("t", (value,)) for question in values for value in question])
        assert naive is not None
        hits += naive.low <= 0.5 <= naive.high
    assert hits / 300 < 0.7


def test_paired_difference_needs_fewer_questions_than_two_intervals() -> None:
    random = Random(5)
    chances = [random.random() for _ in range(200)]
    first = {i: Question("t", (float(chance > 0.5),)) for i, chance in enumerate(chances)}
    second = {i: Question("t", (float(chance > 0.45),)) for i, chance in enumerate(chances)}
    difference = paired_difference(first, second)
    assert difference is not None
    assert difference.value == pytest.approx(sum(0.45 < chance <= 0.5 for chance in chances) / 200)
    assert 0 < difference.low < difference.value < difference.high
    apart = [share(side.values()) for side in (first, second)]
    assert apart[0].high > apart[1].low  # type: ignore[union-attr]


def test_paired_difference_is_over_shared_and_scored_questions() -> None:
    first = {1: Question("t", (1.0, 0.0)), 2: Question("t", ()), 3: Question("t", (1.0,))}
    second = {1: Question("t", (1.0,)), 2: Question("t", (1.0,)), 4: Question("t", (0.0,))}
    difference = paired_difference(first, second)
    assert difference is not None
    assert (difference.value, difference.low, difference.high, difference.questions) == (0.5, -1.0, 1.0, 1)
    assert paired_difference(first, {}) is None


def test_equal_answers_to_few_questions_leave_room_for_a_difference() -> None:
    side = {number: Question("t", (1.0,)) for number in range(5)}
    difference = paired_difference(side, side)
    assert difference is not None
    assert (difference.low, difference.value, difference.high) == (-wilson(0.0, 5)[1], 0.0, wilson(0.0, 5)[1])
