"""Means with intervals that hold what they say, whatever rounding does, and pass@k without bias."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
from random import Random

import pytest

from reasoning_gym_environment.evaluation.statistics import (
    Estimate,
    Question,
    bounded_interval,
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


def test_wilson_and_t_are_those_of_the_tables() -> None:
    for mean, limits in ((0.0, (0.0, 0.2775)), (1.0, (0.7225, 1.0)), (0.5, (0.2366, 0.7634))):
        assert wilson(mean, 10) == pytest.approx(limits, abs=1e-4)
    for freedom, exact in ((1, 12.706), (1.5, 6.017), (2, 4.303), (2.5, 3.575), (3, 3.182), (5, 2.571), (30, 2.042)):
        most = 1.01 if freedom >= 2 else 1.04
        assert exact * 0.9999 <= t_quantile(freedom) <= exact * most


def test_wilsons_interval_is_that_of_few_questions_and_of_rare_outcomes() -> None:
    for right, size, is_wilsons in ((15, 29, True), (15, 30, False), (4, 60, True), (56, 60, True)):
        estimate = share(Question("t", (float(number < right),)) for number in range(size))
        assert (estimate == Estimate(right / size, *wilson(right / size, size), size)) is is_wilsons
    # A question counts once, however many completions all questions have.
    assert share([Question("t", (1.0,) * 8)] * 5) == Estimate(1.0, *wilson(1.0, 5), 5)
    assert share([]) is share([Question("t", ())]) is None


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
    assert paired_difference(first, second) == Estimate(0.5, *bounded_interval(0.5, 0.0, 1, lowest=-1.0), 1)
    assert paired_difference(first, {}) is None


def test_a_paired_difference_is_the_same_in_every_process() -> None:
    """Python orders the texts of a set anew in each process. Any of the smallest tasks can take in the single one."""
    script = """
from reasoning_gym_environment.evaluation.statistics import Question, paired_difference
tasks = ["a", "a", "b", "b", "c", "c", "d"]
befores = [0.0, 1.0, 0.0, 0.4, 0.5, 0.5, 1.0]
first = {f"{task}{number}": Question(task, (befores[number],)) for number, task in enumerate(tasks)}
second = {key: Question(question.stratum, (0.5,)) for key, question in first.items()}
print(paired_difference(first, second))
"""
    found = set()
    for seed in range(3):
        environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
        found.add(subprocess.check_output([sys.executable, "-c", script], env=environment, text=True))
    assert len(found) == 1


@pytest.mark.parametrize(
    ("difference", "size", "limits"),
    [
        # Clopper and Pearson's upper limits for 0 of 1, 5, 6 and 100 are 0.9750, 0.5218, 0.4593 and 0.0362.
        (0.0, 1, (-0.9750, 0.9750)),
        (0.0, 5, (-0.5218, 0.5218)),
        (1.0, 5, (-0.0436, 1.0)),
        (1.0, 6, (0.0814, 1.0)),
        (-1.0, 6, (-1.0, -0.0814)),
        (0.5, 100, (0.4456, 0.5181)),
    ],
)
def test_equal_differences_leave_room_for_others(difference: float, size: int, limits: tuple[float, float]) -> None:
    first = {number: Question("t", (max(0.0, -difference),)) for number in range(size)}
    second = {number: Question("t", (max(0.0, difference),)) for number in range(size)}
    found = paired_difference(first, second)
    assert found is not None and found.value == difference
    assert (found.low, found.high) == pytest.approx(limits, abs=1e-4)


# --- rounding


def test_a_rounding_error_is_no_spread() -> None:
    for values in ((1 / 3,), (0.1, 0.2, 0.6)):
        found = share([Question("t", values)] * 40)
        assert found is not None and found.high - found.low > 1e-3, "forty questions are never certain"
    for size, answers in ((3, 10), (5, 3)):
        first = {number: Question("t", (0.0,)) for number in range(size)}
        second = {number: Question("t", (1.0, *[0.0] * (answers - 1))) for number in range(size)}
        difference = paired_difference(first, second)
        assert difference is not None
        limits = bounded_interval(1 / answers, 0.0, size, lowest=-1.0)
        assert (difference.low, difference.high) == pytest.approx(limits)
        assert difference.low <= 0.0, "five equal differences are no proof"


# --- coverage with unequal numbers of completions

UNEQUAL = [(8, 1, 1, 1, 1, 1), (8, 1, 1), (1, 2, 3, 4, 5, 6), (4,) * 5 + (1,) * 5]
EQUAL = [(1,) * 3, (4,) * 6, (1,) * 10]


@pytest.mark.parametrize("counts", [*UNEQUAL, *EQUAL])
def test_wilsons_interval_holds_95_in_100_truths_in_the_worst_case(counts: tuple[int, ...]) -> None:
    # Every question has only right or only wrong completions, so all samples can be enumerated.
    samples = []
    for answers in itertools.product((0.0, 1.0), repeat=len(counts)):
        estimate = share(Question("t", (answer,) * count) for answer, count in zip(answers, counts, strict=True))
        assert estimate is not None
        samples.append((sum(answers), estimate))
    truths = [number / 100 for number in range(1, 100)]
    covered = [
        truth**right * (1 - truth) ** (len(counts) - right)
        for truth in truths
        for right, estimate in samples
        if estimate.low <= truth <= estimate.high
    ]
    assert 0.95 <= math.fsum(covered) / len(truths) <= 0.97


@pytest.mark.parametrize(("right", "wrong"), [(0.5, 0.5), (0.3, 0.7), (0.6, 0.4), (0.1, 0.9)])
@pytest.mark.parametrize("counts", UNEQUAL)
def test_wilsons_interval_holds_the_truth_for_questions_of_varied_difficulty(
    counts: tuple[int, ...], right: float, wrong: float
) -> None:
    random = Random(1)
    hits = 0
    for _ in range(1000):
        chances = [random.betavariate(right, wrong) for _ in counts]
        estimate = share(
            Question("t", tuple(float(random.random() < chance) for _ in range(count)))
            for chance, count in zip(chances, counts, strict=True)
        )
        assert estimate is not None
        hits += estimate.low <= right / (right + wrong) <= estimate.high
    assert hits / 1000 >= 0.94


def test_a_mean_length_has_the_interval_of_its_questions() -> None:
    found = mean_of([Question("a", (100.0, 120.0)), Question("a", (300.0,)), Question("a", ())])
    # The deviations of the two questions from the mean add up to nothing: each is 2 * (110 - 520 / 3), or its negative.
    half = 12.706204736 * math.sqrt(4 * (2 * (520 / 3 - 110)) ** 2) / 3
    assert found is not None and (found.low, found.questions) == (0.0, 2)
    assert (found.value, found.high) == pytest.approx((520 / 3, 520 / 3 + half))
    # The length of one question says nothing of others.
    assert mean_of([Question("a", (100.0, 102.0))]) == Estimate(101.0, 0.0, math.inf, 1)
    assert mean_of([]) is None


@pytest.mark.parametrize(
    ("strata", "whole", "freedom"),
    [
        # The variances of the strata are 12 and 39. The only stratum of a single question is pooled with the smallest.
        ({"a": (1, 3), "b": (2, 4, 9), "c": (5,)}, 51, 5202 / 1665),
        # The variances are 4 and 16. The strata of a single question are pooled.
        ({"a": (1, 3), "b": (5,), "c": (9,)}, 20, 25 / 17),
    ],
)
def test_the_spread_within_strata_is_added_and_its_freedom_is_that_of_satterthwaite(
    strata: dict[str, tuple[int, ...]], whole: float, freedom: float
) -> None:
    questions = [Question(stratum, (value + 100.0,)) for stratum, values in strata.items() for value in values]
    found = mean_of(questions)
    assert found is not None
    assert found.high - found.value == pytest.approx(t_quantile(freedom) * math.sqrt(whole) / len(questions))


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


@pytest.mark.parametrize(("more", "less"), [(0.5, 0.5), (0.8, 0.2), (0.1, 0.0), (0.03, 0.03)])
@pytest.mark.parametrize("size", [2, 3, 4, 6, 8, 20, 50])
def test_paired_differences_of_few_questions_hold_the_truth(size: int, more: float, less: float) -> None:
    random = Random(1)
    hits = 0
    for _ in range(500):
        drawn = random.choices((1.0, -1.0, 0.0), (more, less, 1 - more - less), k=size)
        first = {number: Question("t", (max(0.0, -value),)) for number, value in enumerate(drawn)}
        second = {number: Question("t", (max(0.0, value),)) for number, value in enumerate(drawn)}
        difference = paired_difference(first, second)
        assert difference is not None
        hits += difference.low <= more - less <= difference.high
    assert hits / 500 >= 0.91
