"""Estimates with 95% intervals from completions that are clustered by question, and stratified by task.

The completions of one question share its difficulty, so they are worth less than as many independent ones. The unit
that varies is the question (the cluster); the tasks (the strata) are the ones evaluated, not a sample of tasks.

Sources of the formulas:
    clustered standard errors, paired differences    Miller, "Adding Error Bars to Evals", arXiv 2411.00640, 2.2 and 4.2
    strata                                           Cochran, Sampling Techniques (3rd ed.), 5.3 and 5A.12
    score interval for small counts                  Wilson, JASA 22 (1927), 209-212
    pass@k                                           Chen et al., arXiv 2107.03374, equation 1
    Student's t quantile                             Abramowitz & Stegun, 26.7.5

Pure functions over plain numbers.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

CONFIDENCE = 0.95
MIN_QUESTIONS = 30
"""With fewer questions than this the interval is Wilson's: a normal one would be far too short near 0 and 1."""

MIN_EXPECTED = 5.0
"""And with fewer right or wrong ones than this, counted in whole questions."""

_Z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)


@dataclass(frozen=True)
class Question:
    """The values of one question's completions; `stratum` is what it is compared within, usually its task."""

    stratum: Hashable
    values: tuple[float, ...]


@dataclass(frozen=True)
class Estimate:
    """A mean with its interval. `method` is "clustered", "wilson" or "t"; `questions` is what its width rests on."""

    value: float
    low: float
    high: float
    questions: int
    completions: int
    method: str

    def as_dict(self) -> dict[str, float]:
        return {"value": self.value, "low": self.low, "high": self.high}


def share(questions: Iterable[Question]) -> Estimate | None:
    """The mean over all completions of values in [0, 1], with its interval; None without any value.

    Clustered standard error with z where there are many questions and neither outcome is rare, otherwise Wilson's
    interval with every question counted once, however often it was asked: never too short, whatever the completions
    of one question have in common.
    """
    known = [question for question in questions if question.values]
    if not known:
        return None
    count = sum(len(question.values) for question in known)
    mean = min(1.0, max(0.0, math.fsum(value for question in known for value in question.values) / count))
    size = len(known)
    error = clustered_error(known)
    if size >= MIN_QUESTIONS and min(mean, 1 - mean) * size >= MIN_EXPECTED and error > 0:
        low, high, method = max(0.0, mean - _Z * error), min(1.0, mean + _Z * error), "clustered"
    else:
        (low, high), method = wilson(mean, size), "wilson"
    return Estimate(mean, low, high, size, count, method)


def clustered_error(questions: Sequence[Question]) -> float:
    """Standard error of the mean over all completions.

    Within a stratum, sum over questions of (sum of the deviations of its completions from the stratum's mean), squared,
    with the correction C / (C - 1) for C questions; added over the strata and divided by the squared number of
    completions. With one stratum this is Miller's clustered error. Strata of a single question say nothing of their
    spread: they are pooled into one, which overstates it.
    """
    strata: dict[Hashable, list[Question]] = {}
    for question in questions:
        strata.setdefault(question.stratum, []).append(question)
    single = [members[0] for members in strata.values() if len(members) == 1]
    groups = [members for members in strata.values() if len(members) > 1] + ([single] if len(single) > 1 else [])
    total = sum(len(question.values) for question in questions)
    return math.sqrt(math.fsum(_stratum_variance(group) for group in groups)) / total if total else 0.0


def _stratum_variance(questions: Sequence[Question]) -> float:
    """Variance of the sum of all values of one stratum."""
    count = sum(len(question.values) for question in questions)
    mean = math.fsum(value for question in questions for value in question.values) / count
    squares = math.fsum((math.fsum(question.values) - mean * len(question.values)) ** 2 for question in questions)
    return squares * len(questions) / (len(questions) - 1)


def wilson(mean: float, size: float) -> tuple[float, float]:
    """Wilson's score interval for a proportion `mean` of `size` independent trials.

    For values in [0, 1] that are not all 0 or 1 it is too wide, never too short.
    """
    spread = _Z * math.sqrt(mean * (1 - mean) / size + _Z**2 / (4 * size**2))
    scale = 1 + _Z**2 / size
    middle = mean + _Z**2 / (2 * size)
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Chance that at least one of `k` completions is right, unbiased, from `correct` of `n`: 1 - C(n-c,k) / C(n,k).

    Raises ValueError unless 1 <= k <= n and 0 <= correct <= n.
    """
    if not 1 <= k <= n or not 0 <= correct <= n:
        raise ValueError(f"pass@k needs 1 <= k <= n and 0 <= correct <= n, got n={n}, correct={correct}, k={k}")
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def pass_ks(completions: int) -> list[int]:
    """The k to report for that many completions a question: the powers of two, and the number itself."""
    powers = [2**power for power in range(completions.bit_length()) if 2**power <= completions]
    return sorted({*powers, completions}) if completions else []


def paired_difference(first: Mapping[Hashable, Question], second: Mapping[Hashable, Question]) -> Estimate | None:
    """Mean of `second` less `first` over the questions that both have values for; None if there is none.

    Every question counts once, by the difference of its means. Pairing removes the spread between questions, so the
    interval is shorter than the two taken apart. Student's t with as many degrees of freedom as questions less strata;
    if all differences are equal, Wilson's upper limit for the share of questions with another one.
    """
    differences = [
        Question(first[key].stratum, (_mean(second[key].values) - _mean(first[key].values),))
        for key in first.keys() & second.keys()
        if first[key].values and second[key].values
    ]
    if not differences:
        return None
    mean = _mean([question.values[0] for question in differences])
    strata = len({question.stratum for question in differences})
    freedom = max(1, len(differences) - min(strata, len(differences) - 1))
    error = clustered_error(differences)
    # Equal differences say that others are rare, not that there are none.
    half = t_quantile(freedom) * error if error > 0 else wilson(0.0, len(differences))[1]
    low, high = (mean - half, mean + half) if len(differences) > 1 else (-1.0, 1.0)
    return Estimate(mean, max(-1.0, low), min(1.0, high), len(differences), len(differences), "t")


def t_quantile(freedom: int) -> float:
    """Two-sided 95% quantile of Student's t; its expansion in 1/freedom is good to 1% from 3 on, exact for 1 and 2."""
    if freedom <= 2:
        return {1: 12.706204736, 2: 4.302652730}[max(1, freedom)]
    z = _Z
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return math.fsum(term / freedom**power for power, term in enumerate(terms))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
