"""Means with intervals that hold what they say, and pass@k without bias."""

from __future__ import annotations

import itertools
import math
from random import Random

import pytest

from reasoning_gym_environment.evaluation.statistics import (
    Estimate,
    Question,
    clustered_error,
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
    for n, correct, k in ((3, 1, 0), (3, 1, 4), (3, 4, 1), (3, -1, 1)):
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


def test_wilson_and_t_are_those_of_the_tables() -> None:
    for mean, limits in ((0.0, (0.0, 0.2775)), (1.0, (0.7225, 1.0)), (0.5, (0.2366, 0.7634))):
        assert wilson(mean, 10) == pytest.approx(limits, abs=1e-4)
    for freedom, exact in ((1, 12.706), (2, 4.303), (3, 3.182), (5, 2.571), (30, 2.042)):
        assert t_quantile(freedom) == pytest.approx(exact, rel=0.01)
    # Between integers: the integral of the density.
    for between, exact in ((1.25, 8.028), (1.5, 6.017), (1.75, 4.949), (2.5, 3.575), (3.5, 2.940)):
        assert t_quantile(between) == pytest.approx(exact, rel=0.03)
        assert t_quantile(math.floor(between)) > t_quantile(between) > t_quantile(math.ceil(between))


def test_wilsons_interval_is_that_of_few_questions_and_of_rare_outcomes() -> None:
    for right, size, method in ((15, 29, "wilson"), (15, 30, "clustered"), (4, 60, "wilson"), (56, 60, "wilson")):
        estimate = share(Question("t", (float(number < right),)) for number in range(size))
        assert estimate is not None and estimate.method == method
    estimate = share([Question("t", (1.0,) * 8) for _ in range(5)])
    assert estimate is not None
    assert (estimate.method, estimate.questions, estimate.completions) == ("wilson", 5, 40)
    assert (estimate.low, estimate.high) == wilson(1.0, 5)
    assert share([]) is share([Question("t", ())]) is None


def test_a_width_rests_on_the_questions_of_the_strata_that_vary() -> None:
    varied = [Question("a", (value,)) for value in (0.0, 1.0, 1.0, 0.0)]
    settled = [Question(task, (1.0,)) for task in "bcdef" for _ in range(20)]
    assert half_width(varied) == pytest.approx(t_quantile(3) * clustered_error(varied))
    assert half_width([*varied, *settled]) == pytest.approx(t_quantile(3) * clustered_error([*varied, *settled]))
    twice = [*varied, *(Question("b", question.values) for question in varied)]
    assert half_width(twice) == pytest.approx(t_quantile(6) * clustered_error(twice))
    nearly = [*varied, *(Question("b", (value / 10,)) for question in varied for value in question.values)]
    freedom = (1 + 0.01) ** 2 / (1 / 3 + 0.01**2 / 3)
    assert half_width(nearly) == pytest.approx(t_quantile(freedom) * clustered_error(nearly))
    assert half_width(settled) == half_width([]) == 0.0
    singles = [Question(task, (float(task % 2),)) for task in range(100)]
    assert half_width(singles) == pytest.approx(t_quantile(99) * clustered_error(singles)), "that of their pool"


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
    ("rates", "per_task", "k", "spread", "at_most"),
    [
        ([0.1, 0.3, 0.5, 0.7, 0.9] * 4, 5, 1, 0.3, 0.98),
        ([0.1, 0.3, 0.5, 0.7, 0.9] * 4, 5, 4, 0.3, 0.98),
        ([0.6], 100, 8, 2.0, 0.98),
        ([0.5] * 40, 2, 3, 0.01, 0.98),
        # Strata of a few questions, most of them settled: what varies are three to ten questions.
        ([0.02, 0.5, 0.98], 10, 1, 1.0, 1.0),
        ([0.02, 0.02, 0.5, 0.98, 0.98], 6, 4, 2.0, 1.0),
        # Thirty questions or more, and one or two right ones: a symmetric interval would be short and end at 0.
        ([0.03], 40, 1, 0.1, 1.0),
        ([0.97], 60, 2, 0.1, 1.0),
        ([0.5], 8, 4, 0.5, 1.0),
        ([0.95], 8, 4, 0.5, 1.0),
    ],
)
def test_intervals_hold_the_truth_about_95_times_in_100(
    rates: list[float], per_task: int, k: int, spread: float, at_most: float
) -> None:
    assert 0.92 <= coverage(rates, per_task, k, spread) <= at_most


def test_paired_difference_is_over_shared_and_scored_questions() -> None:
    first = {1: Question("t", (1.0, 0.0)), 2: Question("t", ()), 3: Question("t", (1.0,))}
    second = {1: Question("t", (1.0,)), 2: Question("t", (1.0,)), 4: Question("t", (0.0,))}
    difference = paired_difference(first, second)
    assert difference is not None
    assert (difference.value, difference.low, difference.high, difference.questions) == (0.5, -1.0, 1.0, 1)
    assert paired_difference(first, {}) is None
    side = {number: Question("t", (1.0,)) for number in range(5)}
    equal = paired_difference(side, side)
    assert equal is not None, "equal answers to few questions leave room for a difference"
    assert (equal.low, equal.value, equal.high) == (-wilson(0.0, 5)[1], 0.0, wilson(0.0, 5)[1])


def test_a_mean_length_has_the_interval_of_its_questions() -> None:
    found = mean_of([Question("a", (100.0, 120.0)), Question("a", (300.0,)), Question("a", ())])
    assert found is not None
    assert (found.value, found.questions, found.completions) == (pytest.approx(520 / 3), 2, 3)
    # The deviations of the two questions from the mean add up to nothing: each is 2 * (110 - 520 / 3), or its negative.
    assert found.high - found.value == pytest.approx(12.706204736 * math.sqrt(4 * (2 * (520 / 3 - 110)) ** 2) / 3)
    assert (found.low, found.method) == (0.0, "t")
    one = mean_of([Question("a", (100.0, 102.0))])
    assert one is not None, "the length of one question says nothing of others"
    assert (one.low, one.value, one.high) == (0.0, 101.0, math.inf)
    assert mean_of([]) is None


def paired(random: Random, tasks: list[float], per_task: int) -> Estimate:
    """Two equal sides: each question is right with the chance of its task, on either side by itself."""
    sides: list[dict[tuple[int, int], Question]] = [
        {
            (task, number): Question(task, (float(random.random() < chance),))
            for task, chance in enumerate(tasks)
            for number in range(per_task)
        }
        for _ in range(2)
    ]
    difference = paired_difference(*sides)
    assert difference is not None
    return difference


def test_paired_differences_of_equal_sides_hold_zero_about_95_times_in_100() -> None:
    for tasks, per_task in (([0.5] * 20, 5), ([0.5] + [1.0] * 19, 5), ([0.5] * 3 + [0.0] * 17, 5), ([0.5], 3)):
        random = Random(1)
        found = [paired(random, tasks, per_task) for _ in range(500)]
        assert sum(one.low <= 0 <= one.high for one in found) / 500 >= 0.93, (tasks, per_task)
