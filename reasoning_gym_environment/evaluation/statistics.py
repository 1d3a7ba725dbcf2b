"""Estimates with 95% intervals from completions that are clustered by question, and stratified by task.

The completions of one question share its difficulty, so they are worth less than as many independent completions. The
unit that varies is the question (the cluster). The tasks (the strata) are the evaluated tasks, not a sample of tasks.

Sources of the formulas:
    clustered standard errors, paired differences    Miller, "Adding Error Bars to Evals", arXiv 2411.00640, 2.2 and 4.2
    strata                                           Cochran, Sampling Techniques (3rd ed.), 5.3 and 5A.12
    score interval for small counts                  Wilson, JASA 22 (1927), 209-212
    effective number of questions                    Kish, Survey Sampling (1965), 11.7
    exact limit when no case is seen                 Clopper and Pearson, Biometrika 26 (1934), 404-413
    pass@k                                           Chen et al., arXiv 2107.03374, equation 1
    degrees of freedom of several strata             Satterthwaite, Biometrics Bulletin 2 (1946), 110-114
    Student's t quantile                             Peizer and Pratt, JASA 63 (1968), 1416-1456

Pure functions over plain numbers.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import NormalDist, fmean
from typing import Any

MIN_QUESTIONS = 30
"""With fewer effective questions than this the interval is Wilson's: a normal interval is too short near 0 and 1."""

MIN_EXPECTED = 5.0
"""The interval is also Wilson's with fewer right or wrong answers than this, counted in effective questions."""

TAIL = 0.025
"""Probability that the truth lies above the interval, and the same below it."""

_Z = NormalDist().inv_cdf(1 - TAIL)
"""Quantile of the normal distribution for the two-sided 95% interval."""


@dataclass(frozen=True)
class Question:
    """The values of one question's completions. `stratum` is usually its task."""

    stratum: Hashable
    values: tuple[float, ...]


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95% interval, and the number of questions that have values."""

    value: float
    low: float
    high: float
    questions: int


def share(questions: Iterable[Question]) -> Estimate | None:
    """The mean over all completions of values in [0, 1], with its interval; None without any value.

    Where there are many questions and neither outcome is rare, the interval is `bounded_interval` with the clustered
    `half_width`. Otherwise it is Wilson's interval for `effective_number` questions. That number makes no assumption
    about what the completions of one question have in common.

    The coverage of Wilson's interval was computed for 3 to 12 questions, with equal numbers of completions, and with
    one question that has up to 8 times as many completions. In the worst case the completions of a question are all
    alike. The coverage is then 95 to 96 % on average over the true shares from 0.01 to 0.99, and it falls to 82 % at
    single true shares close to 0 or 1, as it does for independent trials. In simulations of questions whose difficulty
    has a beta distribution with a mean from 0.1 to 0.6, it is 94 % or more.
    """
    known = _with_values(questions)
    if not known:
        return None
    values = _all_values(known)
    # Rounding errors may move the mean out of range.
    mean = min(1.0, max(0.0, fmean(values)))
    size = effective_number(known)
    rarer_outcomes = size * min(mean, 1 - mean)
    if size >= MIN_QUESTIONS and rarer_outcomes >= MIN_EXPECTED:
        return Estimate(mean, *bounded_interval(mean, half_width(known), size, lowest=0.0), len(known))
    return Estimate(mean, *wilson(mean, size), len(known))


def mean_of(questions: Iterable[Question]) -> Estimate | None:
    """The mean over all completions of values such as lengths; None without any value.

    The interval is the mean +- `half_width`, without what is below 0. A single question shows no spread, so its limits
    are 0 and infinity.
    """
    known = _with_values(questions)
    if not known:
        return None
    values = _all_values(known)
    mean = fmean(values)
    half = half_width(known) if len(known) > 1 else math.inf
    return Estimate(mean, max(min(0.0, mean), mean - half), mean + half, len(known))


def _with_values(questions: Iterable[Question]) -> list[Question]:
    return [question for question in questions if question.values]


def _all_values(questions: Iterable[Question]) -> list[float]:
    return list(chain.from_iterable(question.values for question in questions))


def half_width(questions: Sequence[Question]) -> float:
    """Half of the interval of the mean over all completions; 0 if no value varies within the strata.

    It is the clustered standard error times a quantile of Student's t.

    The variance of a stratum is the sum over its questions of (the sum of the deviations of the question's completions
    from the mean of the stratum) squared, with the correction C / (C - 1) for C questions. The variances of the strata
    are added and divided by the squared number of completions. With one stratum this is Miller's clustered error.
    A stratum of a single question does not show its spread. All such strata are pooled into one. If there is only one
    such stratum, it is pooled with the smallest other stratum. Pooling overstates the spread.

    The degrees of freedom of t follow Satterthwaite. If one stratum holds most of the variance, its degrees of freedom
    count almost alone.
    """
    strata = _strata(questions)
    variances = [_stratum_variance(stratum) for stratum in strata]
    whole = math.fsum(variances)
    if whole == 0:
        return 0.0
    inverse_freedoms = []
    for stratum, variance in zip(strata, variances, strict=True):
        share_of_whole = variance / whole
        inverse_freedoms.append(share_of_whole**2 / (len(stratum) - 1))
    freedom = 1 / math.fsum(inverse_freedoms)
    completions = sum(len(question.values) for question in questions)
    return t_quantile(freedom) * math.sqrt(whole) / completions


def _strata(questions: Iterable[Question]) -> list[list[Question]]:
    """The questions by stratum, in groups of at least two if there are two questions.

    All strata of a single question form one group. A single such stratum joins the smallest other group.
    """
    by_stratum: dict[Hashable, list[Question]] = {}
    for question in questions:
        by_stratum.setdefault(question.stratum, []).append(question)
    groups = [group for group in by_stratum.values() if len(group) > 1]
    single = [group[0] for group in by_stratum.values() if len(group) == 1]
    if len(single) > 1:
        groups.append(single)
    elif single and groups:
        min(groups, key=len).extend(single)
    return groups


def _stratum_variance(questions: Sequence[Question]) -> float:
    """Variance of the sum of all values of one stratum."""
    size = len(questions)
    counts = [len(question.values) for question in questions]
    totals = [math.fsum(question.values) for question in questions]
    mean = math.fsum(totals) / sum(counts)
    squares = [(total - mean * count) ** 2 for total, count in zip(totals, counts, strict=True)]
    return math.fsum(squares) * size / (size - 1)


def effective_number(questions: Sequence[Question]) -> float:
    """Kish's effective number: how many questions with equal numbers of completions give as much information.

    The result is from 1 to the number of questions. It is the number of questions if all have as many completions.
    """
    counts = [len(question.values) for question in questions]
    squares = [count**2 for count in counts]
    return sum(counts) ** 2 / sum(squares)


def bounded_interval(mean: float, half: float, size: float, *, lowest: float) -> tuple[float, float]:
    """The interval `mean` +- `half` of values in [`lowest`, 1], extended to what `size` questions cannot exclude.

    A share p of all questions may have values that no question of the sample has: the sample misses them all with
    probability (1 - p) ** size. The largest p for which that is TAIL is the exact limit of Clopper and Pearson. With
    these questions at one end of the range, the true mean is p of the way from the observed mean to that end.
    So questions that all have the same value do not prove that other values cannot occur, and a `half` of zero, or of a
    rounding error, has no effect.
    """
    unseen = 1 - TAIL ** (1 / size)
    below = max(half, unseen * (mean - lowest))
    above = max(half, unseen * (1 - mean))
    low = max(lowest, mean - below)
    high = min(1.0, mean + above)
    return low, high


def wilson(mean: float, size: float) -> tuple[float, float]:
    """Wilson's score interval for a proportion `mean` of `size` independent trials; `size` need not be whole.

    Values in [0, 1] that are not all 0 or 1 vary less than this interval assumes.
    """
    variance = mean * (1 - mean) / size
    spread = _Z * math.sqrt(variance + _Z**2 / (4 * size**2))
    scale = 1 + _Z**2 / size
    middle = mean + _Z**2 / (2 * size)
    low = (middle - spread) / scale
    high = (middle + spread) / scale
    return max(0.0, low), min(1.0, high)


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Unbiased chance that at least one of `k` completions is right, if `correct` of `n` are: 1 - C(n-c,k) / C(n,k)."""
    all_wrong = math.comb(n - correct, k) / math.comb(n, k)
    return 1.0 - all_wrong


def pass_ks(completions: int) -> list[int]:
    """The k to report for that many completions of a question: the powers of two, and the number itself."""
    ks = []
    k = 1
    while k < completions:
        ks.append(k)
        k *= 2
    if completions:
        ks.append(completions)
    return ks


def paired_difference(first: Mapping[Any, Question], second: Mapping[Any, Question]) -> Estimate | None:
    """Mean of `second` minus `first` over the questions that both have values for; None if there is none.

    The values are in [0, 1]. Every question counts once, with the difference of its means. Pairing removes the spread
    between questions, so the interval is shorter than the intervals of the two sides suggest. It is `bounded_interval`
    with Student's `half_width`. Fewer than six questions therefore never exclude zero, as in an exact sign test.
    """
    differences = []
    # The interval can depend on the order of the tasks (`_strata`), and a set would have a new order in every process.
    for key, before in first.items():
        after = second.get(key)
        if after and before.values and after.values:
            difference = fmean(after.values) - fmean(before.values)
            differences.append(Question(before.stratum, (difference,)))
    if not differences:
        return None
    size = len(differences)
    mean = fmean(_all_values(differences))
    return Estimate(mean, *bounded_interval(mean, half_width(differences), size, lowest=-1.0), size)


def t_quantile(freedom: float) -> float:
    """Two-sided 95% quantile of Student's t for a freedom of at least 1. It is up to 4% too large, and 1% from 2 on.

    From 2 on, it is the inverse of Peizer and Pratt's formula. From 1 to 2, its logarithm is interpolated linearly in
    1/freedom. The quantile for 1 is exact.
    """
    if freedom < 2:
        weight = 2 / freedom - 1
        return float(12.706204736**weight * t_quantile(2) ** (1 - weight))
    spread = (freedom - 5 / 6) / (freedom - 2 / 3 + 0.1 / freedom) ** 2
    return math.sqrt(freedom * math.expm1(spread * _Z**2))
