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
    Student's t quantile                             Abramowitz & Stegun, 26.7.5

Pure functions over plain numbers.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean

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
    """The values of one question's completions; `stratum` is what it is compared within, usually its task."""

    stratum: Hashable
    values: tuple[float, ...]


@dataclass(frozen=True)
class Estimate:
    """A mean with its interval. `method` is "clustered", "wilson" or "t"."""

    value: float
    low: float
    high: float
    questions: int
    completions: int
    method: str


def share(questions: Iterable[Question]) -> Estimate | None:
    """The mean over all completions of values in [0, 1], with its interval; None without any value.

    Where there are many questions and neither outcome is rare, the interval is `bounded_interval` with the clustered
    `half_width`. Otherwise it is Wilson's interval for `effective_number` questions. That number makes no assumption
    about what the completions of one question have in common.

    The coverage of Wilson's interval was computed for 3 to 12 questions, with equal numbers of completions and with up
    to 8 times as many completions of one question as of the others. In the worst case the completions of a question
    are all alike. The coverage is then 95 to 96 % on average over the true shares from 0.01 to 0.99, and it falls to
    82 % at single true shares close to 0 or 1, as it does for independent trials. In simulations of questions whose
    difficulty has a beta distribution with a mean from 0.1 to 0.6, it is 94 % or more.
    """
    known = [question for question in questions if question.values]
    if not known:
        return None
    count = sum(len(question.values) for question in known)
    total = math.fsum(value for question in known for value in question.values)
    # The values may be out of range by a rounding error.
    mean = min(1.0, max(0.0, total / count))
    size = effective_number(known)
    if size >= MIN_QUESTIONS and min(mean, 1 - mean) * size >= MIN_EXPECTED:
        low, high = bounded_interval(mean, half_width(known), size, lowest=0.0)
        return Estimate(mean, low, high, len(known), count, "clustered")
    low, high = wilson(mean, size)
    return Estimate(mean, low, high, len(known), count, "wilson")


def mean_of(questions: Iterable[Question]) -> Estimate | None:
    """The mean over all completions of values that are never negative, such as lengths; None without any value.

    The interval is the mean +- `half_width`. A single question shows no spread: its limits are 0 and infinity.
    """
    known = [question for question in questions if question.values]
    if not known:
        return None
    values = [value for question in known for value in question.values]
    mean = fmean(values)
    half = half_width(known) if len(known) > 1 else math.inf
    return Estimate(mean, max(0.0, mean - half), mean + half, len(known), len(values), "t")


def half_width(questions: Sequence[Question]) -> float:
    """Half of the interval of the mean over all completions; 0 if nothing varies within the strata.

    The standard error, clustered: within a stratum, sum over questions of (sum of the deviations of its completions
    from the stratum's mean), squared, with the correction C / (C - 1) for C questions; added over the strata and
    divided by the squared number of completions. With one stratum this is Miller's clustered error. Strata of a single
    question say nothing of their spread: they are pooled into one, which overstates it.

    Times Student's t with as many degrees of freedom as the strata that vary give, by Satterthwaite: a stratum that
    holds most of the variance counts alone, however many others there are.
    """
    variances = [(variance, freedom) for variance, freedom in _variances(questions) if variance > 0]
    if not variances:
        return 0.0
    whole = math.fsum(variance for variance, _ in variances)
    shares = [(variance / whole, freedom) for variance, freedom in variances]
    freedom = 1 / math.fsum(share_of_whole**2 / freedom for share_of_whole, freedom in shares)
    count = sum(len(question.values) for question in questions)
    return t_quantile(freedom) * math.sqrt(whole) / count


def _variances(questions: Iterable[Question]) -> list[tuple[float, int]]:
    """The variance of the sum of all values, and its degrees of freedom, of each stratum of several questions."""
    strata: dict[Hashable, list[Question]] = {}
    for question in questions:
        strata.setdefault(question.stratum, []).append(question)
    single = [members[0] for members in strata.values() if len(members) == 1]
    groups = [group for group in (*strata.values(), single) if len(group) > 1]
    return [(_stratum_variance(group), len(group) - 1) for group in groups]


def _stratum_variance(questions: Sequence[Question]) -> float:
    """Variance of the sum of all values of one stratum."""
    size = len(questions)
    counts = [len(question.values) for question in questions]
    totals = [math.fsum(question.values) for question in questions]
    mean = math.fsum(totals) / sum(counts)
    deviations = [total - mean * count for total, count in zip(totals, counts, strict=True)]
    squares = math.fsum(deviation**2 for deviation in deviations)
    return squares * size / (size - 1)


def effective_number(questions: Sequence[Question]) -> float:
    """How many questions with equal numbers of completions are worth as much as these, by Kish's formula.

    The result is at least 1, at most the number of questions, and equal to it if all have as many completions.
    """
    counts = [len(question.values) for question in questions]
    return sum(counts) ** 2 / sum(count**2 for count in counts)


def bounded_interval(mean: float, half: float, size: float, *, lowest: float) -> tuple[float, float]:
    """The interval `mean` +- `half` of values in [`lowest`, 1], extended to what `size` questions cannot exclude.

    A share p of all questions may have values that no question of the sample has: the sample misses them all with
    probability (1 - p) ** size. The largest p for which that is TAIL is the exact limit of Clopper and Pearson. With
    these questions at one end of the range, the true mean is p of the way from the observed mean to that end.
    So questions that all have the same value are no proof that others do not exist, and a `half` of zero, or of a
    rounding error, has no effect.
    """
    unseen = 1 - TAIL ** (1 / size)
    low = mean - max(half, unseen * (mean - lowest))
    high = mean + max(half, unseen * (1 - mean))
    return max(lowest, low), min(1.0, high)


def wilson(mean: float, size: float) -> tuple[float, float]:
    """Wilson's score interval for a proportion `mean` of `size` independent trials; `size` need not be whole.

    Values in [0, 1] that are not all 0 or 1 vary less than this interval assumes.
    """
    spread = _Z * math.sqrt(mean * (1 - mean) / size + _Z**2 / (4 * size**2))
    scale = 1 + _Z**2 / size
    middle = mean + _Z**2 / (2 * size)
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Chance that at least one of `k` completions is right, unbiased, from `correct` of `n`: 1 - C(n-c,k) / C(n,k)."""
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def pass_ks(completions: int) -> list[int]:
    """The k to report for that many completions a question: the powers of two, and the number itself."""
    powers = [2**power for power in range(completions.bit_length()) if 2**power <= completions]
    return sorted({*powers, completions}) if completions else []


def paired_difference(first: Mapping[Hashable, Question], second: Mapping[Hashable, Question]) -> Estimate | None:
    """Mean of `second` less `first` over the questions that both have values for; None if there is none.

    The values are in [0, 1]. Every question counts once, by the difference of its means. Pairing removes the spread
    between questions, so the interval is shorter than the intervals of the two sides suggest. It is `bounded_interval`
    with Student's `half_width`. Fewer than six questions therefore never exclude zero, as in an exact sign test.
    """
    differences = []
    for key in first.keys() & second.keys():
        before = first[key]
        after = second[key]
        if before.values and after.values:
            difference = fmean(after.values) - fmean(before.values)
            differences.append(Question(before.stratum, (difference,)))
    if not differences:
        return None
    size = len(differences)
    mean = fmean([question.values[0] for question in differences])
    low, high = bounded_interval(mean, half_width(differences), size, lowest=-1.0)
    return Estimate(mean, low, high, size, size, "t")


def t_quantile(freedom: float) -> float:
    """Two-sided 95% quantile of Student's t for any freedom from 1 on, good to 1% from 2 on and never 3% off.

    Exact for 1 and 2, its expansion in 1/freedom from 3 on; between these the logarithm is straight in 1/freedom.
    """
    if freedom >= 3:
        z = _Z
        terms = (
            z,
            (z**3 + z) / 4,
            (5 * z**5 + 16 * z**3 + 3 * z) / 96,
            (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        )
        return math.fsum(term / freedom**power for power, term in enumerate(terms))
    below = max(1, math.floor(freedom))
    known = {1: 12.706204736, 2: 4.302652730, 3: t_quantile(3)}
    weight = (1 / below - 1 / max(1.0, freedom)) * below * (below + 1)
    return float(known[below] ** (1 - weight) * known[below + 1] ** weight)
