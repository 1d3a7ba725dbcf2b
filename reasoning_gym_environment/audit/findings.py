"""From what a verifier paid to a verdict on it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import fmean

from .probes import WORTHLESS, Kind

FULL = 1.0
MAX_WORTHLESS = 0.5
"""A worthless answer that is paid this much on average counts as correct in training."""
MAX_OTHERS = 0.1
"""How often an answer to another item may get full credit: several solutions are often right."""
LOW_ENTROPY = 0.5


class Verdict(str, Enum):
    """One word on a task's verifier, the worst first."""

    BROKEN = "refuses its oracle"
    PAYS_GARBAGE = "pays garbage"
    ACCEPTS_OTHERS = "accepts other items' answers"
    NO_ORACLE = "no oracle"
    SOUND = "sound"


@dataclass(frozen=True)
class Paid:
    """What one answer got: `value` with the stricter checks, `native` without."""

    kind: Kind
    label: str
    value: float
    native: float


@dataclass(frozen=True)
class Findings:
    """All that was measured of one task. Scores are means over items, in [0, 1]; counts are of answers or items."""

    task: str
    category: str
    verdict: Verdict
    native_verdict: Verdict
    items: int
    unmade: int
    draws: int
    distinct_questions: int
    regenerates: bool
    pays: Mapping[str, float]
    native_pays: Mapping[str, float]
    others_in_full: float
    best_paid: str
    best_pay: float
    runs_text: str
    answers: int
    raised: int
    unscored: int

    @property
    def is_low_entropy(self) -> bool:
        """Whether fewer than half of the questions drawn were new."""
        return self.draws > 0 and self.distinct_questions < LOW_ENTROPY * self.draws


def mean_by_kind(paid: Sequence[Paid], *, native: bool) -> dict[Kind, float]:
    """The mean pay of each kind of answer; a worthless kind is as bad as its best-paid answer."""
    means: dict[Kind, float] = {}
    for kind in Kind:
        if kind in WORTHLESS:
            of_labels = _means_by_label([one for one in paid if one.kind is kind], native=native)
            if of_labels:
                means[kind] = max(of_labels.values())
        elif values := [_value(one, native) for one in paid if one.kind is kind]:
            means[kind] = fmean(values)
    return means


def full_credit_to_others(paid: Sequence[Paid], *, native: bool) -> float:
    """The share of other items' oracle answers that get full credit."""
    values = [_value(one, native) for one in paid if one.kind is Kind.OTHER]
    return sum(value >= FULL for value in values) / len(values) if values else 0.0


def best_paid_worthless(paid: Sequence[Paid], *, native: bool) -> tuple[str, float]:
    """The worthless answer with the highest mean pay, and that pay."""
    means = _means_by_label([one for one in paid if one.kind in WORTHLESS], native=native)
    return max(means.items(), key=lambda found: found[1], default=("", 0.0))


def judge(paid: Sequence[Paid], *, native: bool) -> Verdict:
    """The verdict on a verifier, from all that it paid."""
    means = mean_by_kind(paid, native=native)
    if any(_value(one, native) < FULL for one in paid if one.kind is Kind.ORACLE):
        return Verdict.BROKEN
    if max((means.get(kind, 0.0) for kind in WORTHLESS), default=0.0) >= MAX_WORTHLESS:
        return Verdict.PAYS_GARBAGE
    if full_credit_to_others(paid, native=native) > MAX_OTHERS:
        return Verdict.ACCEPTS_OTHERS
    return Verdict.SOUND if Kind.ORACLE in means else Verdict.NO_ORACLE


def _means_by_label(paid: Sequence[Paid], *, native: bool) -> dict[str, float]:
    by_label: dict[str, list[float]] = {}
    for one in paid:
        by_label.setdefault(one.label, []).append(_value(one, native))
    return {label: fmean(values) for label, values in by_label.items()}


def _value(one: Paid, native: bool) -> float:
    return one.native if native else one.value
