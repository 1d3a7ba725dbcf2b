"""Means with intervals that hold what they say, and pass@k without bias."""

from __future__ import annotations

import itertools
import math
from random import Random

import pytest

from reasoning_gym_environment.evaluation.statistics import (
    Estimate,
    Question,
    half_width,
    mean_of,
    paired_difference,
    pass_at_k,
    pass_ks,
    share,
    t_quantile,
    wilson,
)


def test_pass_at_k_equals_counting_all_subsets() -> None:
    for n in range(1, 8):
        for correct, k in itertools.product(range(n + 1), range(1, n + 1)):
            subsets = list(itertools.combinations(range(n), k))
            passing = sum(min(subset) < correct for subset in subsets)
            assert pass_at_k(n, correct, k) == pytest.approx(passing / len(subsets))
    assert [pass_ks(n) for n in (0, 1, 3, 8, 10)] == [[], [1], [1, 2, 3], [1, 2, 4, 8], [1, 2, 4, 8, 10]]


def test_a_clustered_error_is_that_of_the_formula_written_out() -> None:
    values = [(1.0, 0.0, 1.0), (0.0, 0.0), (1.0, 1.0, 1.0, 1.0), (0.5,)]
    flat = [value for question in values for value in question]
    mean = sum(flat) / len(flat)
    # Miller, section 2.2: the variance of independent values plus all products within a cluster.
    within = sum((a - mean) * (b - mean) for question in values for a in question for b in question)
    expected = math.sqrt(within * 4 / 3) / len(flat)
    assert half_width([Question("task", question) for question in values]) == pytest.approx(t_quantile(3) * expected)


def test_wilson_and_t_are_those_of_the_tables() -> None:
    for mean, limits in ((0.0, (0.0, 0.2775)), (1.0, (0.7225, 1.0)), (0.5, (0.2366, 0.7634))):
        assert wilson(mean, 10) == pytest.approx(limits, abs=1e-4)
    for freedom, exact in ((1, 12.706), (1.5, 6.017), (2, 4.303), (2.5, 3.575), (3, 3.182), (5, 2.571), (30, 2.042)):
        assert t_quantile(freedom) == pytest.approx(exact, rel=0.01 if freedom == int(freedom) else 0.03)


def test_wilsons_interval_is_that_of_few_questions_and_of_rare_outcomes() -> None:
    for right, size, method in ((15, 29, "wilson"), (15, 30, "clustered"), (4, 60, "wilson"), (56, 60, "wilson")):
        estimate = share(Question("t", (float(number < right),)) for number in range(size))
        assert estimate is not None and estimate.method == method
    # Every question counts once.
    assert share([Question("t", (1.0,) * 8)] * 5) == Estimate(1.0, *wilson(1.0, 5), 5, 40, "wilson")
    assert share([]) is share([Question("t", ())]) is None


def test_a_width_rests_on_the_questions_of_the_strata_that_vary() -> None:
    varied = [Question("a", (value,)) for value in (0.0, 1.0, 1.0, 0.0)]
    settled = [Question(task, (1.0,)) for task in "bcdef" for _ in range(20)]
    twice = [*varied, *(Question("b", question.values) for question in varied)]
    singles = [Question(task, (float(task % 2),)) for task in range(100)]
    # Single questions have the freedom of their pool.
    for questions, variance, freedom in (
        (varied, 1 * 4 / 3, 3),
        ([*varied, *settled], 1 * 4 / 3, 3),
        (twice, 2 * 4 / 3, 6),
        (singles, 25 * 100 / 99, 99),
    ):
        assert half_width(questions) == pytest.approx(t_quantile(freedom) * math.sqrt(variance) / len(questions))
    assert half_width(settled) == half_width([]) == 0.0


@pytest.mark.parametrize(
    ("rates", "per_task", "k", "spread", "at_most"),
    [
        ([0.1, 0.3, 0.5, 0.7, 0.9] * 4, 5, 4, 0.3, 0.98),
        ([0.6], 100, 8, 2.0, 0.98),
        # Strata of a few questions, most of them settled: what varies are three to ten questions.
        ([0.02, 0.02, 0.5, 0.98, 0.98], 6, 4, 2.0, 1.0),
        # Thirty questions or more, and one or two right ones: a symmetric interval would be short and end at 0.
        ([0.03], 40, 1, 0.1, 1.0),
        ([0.95], 8, 4, 0.5, 1.0),
    ],
)
def test_intervals_hold_the_truth_about_95_times_in_100(
    rates: list[float], per_task: int, k: int, spread: float, at_most: float
) -> None:
    random, hits, truth = Random(7), 0, sum(rates) / len(rates)

    def asked(task: int) -> Question:
        chance = random.betavariate(rates[task] / spread, (1 - rates[task]) / spread)
        return Question(task, tuple(float(random.random() < chance) for _ in range(k)))

    for _ in range(400):
        estimate = share([asked(task) for task in range(len(rates)) for _ in range(per_task)])
        assert estimate is not None
        hits += estimate.low <= truth <= estimate.high
    assert 0.92 <= hits / 400 <= at_most


def test_paired_difference_is_over_shared_and_scored_questions() -> None:
    first = {1: Question("t", (1.0, 0.0)), 2: Question("t", ()), 3: Question("t", (1.0,))}
    second = {1: Question("t", (1.0,)), 2: Question("t", (1.0,)), 4: Question("t", (0.0,))}
    assert paired_difference(first, second) == Estimate(0.5, -1.0, 1.0, 1, 1, "t")
    assert paired_difference(first, {}) is None
    side = {number: Question("t", (1.0,)) for number in range(5)}
    half = wilson(0.0, 5)[1]
    # Equal answers to few questions leave room for a difference.
    assert paired_difference(side, side) == Estimate(0.0, -half, half, 5, 5, "t")


def test_a_mean_length_has_the_interval_of_its_questions() -> None:
    found = mean_of([Question("a", (100.0, 120.0)), Question("a", (300.0,)), Question("a", ())])
    # The deviations of the two questions from the mean add up to nothing: each is 2 * (110 - 520 / 3), or its negative.
    half = 12.706204736 * math.sqrt(4 * (2 * (520 / 3 - 110)) ** 2) / 3
    assert found is not None and (found.low, found.questions, found.completions) == (0.0, 2, 3)
    assert (found.value, found.high) == pytest.approx((520 / 3, 520 / 3 + half))
    # The length of one question says nothing of others.
    assert mean_of([Question("a", (100.0, 102.0))]) == Estimate(101.0, 0.0, math.inf, 1, 2, "t")
    assert mean_of([]) is None


@pytest.mark.parametrize(
    ("tasks", "per_task"), [([0.5] * 20, 5), ([0.5] + [1.0] * 19, 5), ([0.5] * 3 + [0.0] * 17, 5), ([0.5], 3)]
)
def test_paired_differences_of_equal_sides_hold_zero_about_95_times_in_100(tasks: list[float], per_task: int) -> None:
    random, hits = Random(1), 0

    def side() -> dict[tuple[int, int], Question]:
        asked = [(task, number) for task in range(len(tasks)) for number in range(per_task)]
        return {key: Question(key[0], (float(random.random() < tasks[key[0]]),)) for key in asked}

    for _ in range(500):
        difference = paired_difference(side(), side())
        assert difference is not None
        hits += difference.low <= 0 <= difference.high
    assert hits / 500 >= 0.93
