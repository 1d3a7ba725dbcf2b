"""What a verifier pays to answers of known worth: what is tried, what is measured, and what is found.

    probes ──> Auditor (generation and grading workers) ──> Paid ──> Findings

An answer is right, right for another item, or an answer to nothing. A task's items are made twice, every probe is
graded in the sandbox, and what was paid is judged.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import fmean
from typing import Any

from ..errors import GenerationError
from ..records import Status, Verdict
from ..sampling.item_maker import ItemGenerator
from ..sampling.seeds import derive_random, derive_seed
from ..verification.bounded_arithmetic import BoundedFraction
from ..verification.grade import FULL_CREDIT
from ..workers import AnswerGrader
from .known_answers import reference_answer

logger = logging.getLogger(__name__)

# --- what is tried ---


class AnswerKind(str, Enum):
    """What an answer is, by the way it was made. Right answers come first."""

    ORACLE = "oracle"
    TAGGED = "oracle in tags"
    PERIOD = "oracle and a period"
    BOXED = "oracle in \\boxed{}"
    OTHER = "another item's oracle"
    CONSTANT = "a constant"
    ENUMERATION = "an enumeration"
    GARBAGE = "garbage"
    NEAR_MISS = "a near miss"


WORTHLESS = (AnswerKind.CONSTANT, AnswerKind.ENUMERATION, AnswerKind.GARBAGE)
"""Answers that owe nothing to the item. Where one happens to be the oracle answer it is not tried."""

CONSTANTS = ("0", "1", "-1", "2", "10", "100", "yes", "no", "True", "False", "None", "A", "a", "[]", "{}", "nan", "inf")
ENUMERATIONS = (
    " ".join(str(number) for number in range(21)),
    ", ".join("ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
    "abcdefghijklmnopqrstuvwxyz",
    "yes no True False",
)
GARBAGE = (
    *("I do not know.", "x", "?", "-"),
    *("The answer is left to the reader as an exercise.", "((((", "lorem ipsum\ndolor"),
)


@dataclass(frozen=True)
class Probe:
    """One answer to try on the item number `item`; `label` is the same for the same trick on every item."""

    item: int
    kind: AnswerKind
    answer: str
    label: str = ""


def build_probes(task: str, entries: Sequence[Mapping[str, Any]], oracles: Sequence[str | None]) -> list[Probe]:
    """Every probe for these items of a task; `oracles` are their right answers, None where none is known."""
    rng = derive_random(0, "audit", task)
    everything = ", ".join(dict.fromkeys(oracle for oracle in oracles if oracle))
    probes: list[Probe] = []
    for item, (entry, oracle) in enumerate(zip(entries, oracles, strict=True)):
        if oracle:
            probes += [
                Probe(item, AnswerKind.ORACLE, oracle),
                Probe(item, AnswerKind.TAGGED, f"<answer>{oracle}</answer>"),
                Probe(item, AnswerKind.PERIOD, f"{oracle}."),
                Probe(item, AnswerKind.BOXED, f"\\boxed{{{oracle}}}"),
            ]
        others = dict.fromkeys(other for other in oracles if other and not same(other, oracle))
        probes += [Probe(item, AnswerKind.OTHER, other) for other in others]
        worthless = [
            *((AnswerKind.CONSTANT, text, text) for text in CONSTANTS),
            *((AnswerKind.ENUMERATION, text, text) for text in ENUMERATIONS),
            (AnswerKind.ENUMERATION, everything, "<every oracle answer>"),
            *((AnswerKind.GARBAGE, text, text) for text in GARBAGE),
            (AnswerKind.GARBAGE, str(entry["question"]), "<the question itself>"),
        ]
        probes += [Probe(item, *worth) for worth in worthless if worth[1] and not same(worth[1], oracle)]
        if oracle:
            probes += [Probe(item, AnswerKind.NEAR_MISS, text) for text in near_misses(oracle, rng)]
    return probes


def same(text: str, oracle: str | None) -> bool:
    """Whether both say the same: equal but for case and blanks, or equal as numbers."""
    if oracle is None:
        return False
    if "".join(text.lower().split()) == "".join(oracle.lower().split()):
        return True
    try:
        return float(BoundedFraction(text)) == float(BoundedFraction(oracle))
    except (ValueError, ZeroDivisionError, OverflowError):
        return False


def near_misses(oracle: str, rng: random.Random) -> list[str]:
    """The oracle answer with one character changed, doubled, or its second half missing."""
    at = rng.randrange(len(oracle))
    other = rng.choice([character for character in "0123456789abcx" if character != oracle[at]])
    changed = f"{oracle[:at]}{other}{oracle[at + 1 :]}"
    candidates = (changed, f"{oracle} {oracle}", oracle[: len(oracle) // 2].strip())
    return [text for text in candidates if text and not same(text, oracle)]


# --- what is found ---

MAX_WORTHLESS = 0.5
"""A worthless answer that is paid this much on average counts as correct in training."""
MAX_OTHERS = 0.1
"""How often an answer to another item may get full credit: several solutions are often right."""
LOW_ENTROPY = 0.5


class Trust(str, Enum):
    """One word on a task's verifier, the worst first."""

    BROKEN = "refuses its oracle"
    PAYS_GARBAGE = "pays garbage"
    ACCEPTS_OTHERS = "accepts other items' answers"
    NO_ORACLE = "no oracle"
    SOUND = "sound"


@dataclass(frozen=True)
class Paid:
    """What one answer got, in [0, 1]: with the stricter checks, or without."""

    kind: AnswerKind
    label: str
    value: float


@dataclass(frozen=True)
class Findings:
    """All that was measured of one task. Scores are means over items, in [0, 1]; counts are of answers or items."""

    task: str
    category: str
    verdict: Trust
    native_verdict: Trust
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


def mean_by_kind(paid: Sequence[Paid]) -> dict[AnswerKind, float]:
    """The mean pay of each kind of answer; a worthless kind is as bad as its best-paid answer."""
    means: dict[AnswerKind, float] = {}
    for kind in AnswerKind:
        of_kind = [one for one in paid if one.kind is kind]
        if of_kind and kind in WORTHLESS:
            means[kind] = max(_means_by_label(of_kind).values())
        elif of_kind:
            means[kind] = fmean(one.value for one in of_kind)
    return means


def full_credit_to_others(paid: Sequence[Paid]) -> float:
    """The share of other items' oracle answers that get full credit."""
    values = [one.value for one in paid if one.kind is AnswerKind.OTHER]
    return sum(value >= FULL_CREDIT for value in values) / len(values) if values else 0.0


def best_paid_worthless(paid: Sequence[Paid]) -> tuple[str, float]:
    """The worthless answer with the highest mean pay, and that pay."""
    means = _means_by_label([one for one in paid if one.kind in WORTHLESS])
    return max(means.items(), key=lambda found: found[1], default=("", 0.0))


def judge(paid: Sequence[Paid]) -> Trust:
    """The verdict on a verifier, from all that it paid."""
    means = mean_by_kind(paid)
    if any(one.value < FULL_CREDIT for one in paid if one.kind is AnswerKind.ORACLE):
        return Trust.BROKEN
    if max(means.get(kind, 0.0) for kind in WORTHLESS) >= MAX_WORTHLESS:
        return Trust.PAYS_GARBAGE
    if full_credit_to_others(paid) > MAX_OTHERS:
        return Trust.ACCEPTS_OTHERS
    return Trust.SOUND if AnswerKind.ORACLE in means else Trust.NO_ORACLE


def _means_by_label(paid: Sequence[Paid]) -> dict[str, float]:
    by_label: dict[str, list[float]] = {}
    for one in paid:
        by_label.setdefault(one.label, []).append(one.value)
    return {label: fmean(values) for label, values in by_label.items()}


# --- what is measured ---


class Auditor:
    """Audits tasks at reasoning-gym's default configs. `grader` must apply the strict standards.

    `items` of each task are probed; `draws` are made for counting distinct questions and making them again.
    """

    def __init__(
        self,
        generator: ItemGenerator,
        grader: AnswerGrader,
        *,
        items: int,
        draws: int,
        seed: int,
        runs_text: Mapping[str, str],
    ) -> None:
        self._generator = generator
        self._grader = grader
        self._items = items
        self._draws = max(draws, items)
        self._seed = seed
        self._runs_text = runs_text

    async def audit(self, task: str, category: str) -> Findings:
        """What was found of one task. An item that cannot be made is counted, and logged with its reason."""
        made, again = await self._draw(task), await self._draw(task)
        entries = made[: self._items]
        oracles = [reference_answer(task, entry) for entry in entries]
        graded = await self._grade(task, entries, build_probes(task, entries, oracles))
        # What has no score says nothing about what the verifier pays.
        scored = [pair for pair in graded if pair[1].status in (Status.SCORED, Status.VERIFIER_ERROR)]
        paid = [Paid(probe.kind, probe.label, verdict.value) for probe, verdict in scored]
        native = [Paid(probe.kind, probe.label, verdict.native) for probe, verdict in scored]
        best_paid, best_pay = best_paid_worthless(paid)
        return Findings(
            task=task,
            category=category,
            verdict=judge(paid),
            native_verdict=judge(native),
            items=len(entries),
            unmade=self._draws - len(made),
            draws=len(made),
            distinct_questions=len({str(entry["question"]) for entry in made}),
            # Not ==, of which an entry with arrays makes an array.
            regenerates=repr(made) == repr(again),
            pays=_by_name(mean_by_kind(paid)),
            native_pays=_by_name(mean_by_kind(native)),
            others_in_full=full_credit_to_others(paid),
            best_paid=best_paid,
            best_pay=best_pay,
            runs_text=self._runs_text.get(task, ""),
            answers=len(graded),
            raised=sum(verdict.status is Status.VERIFIER_ERROR for _, verdict in graded),
            unscored=len(graded) - len(scored),
        )

    async def _draw(self, task: str) -> list[dict[str, Any]]:
        async def one(index: int) -> dict[str, Any] | None:
            try:
                return await self._generator.generate(task, derive_seed(self._seed, "audit", task, index), {})
            except GenerationError as error:
                logger.warning("An item is left out of the audit: %s", error)
                return None

        return [entry for entry in await asyncio.gather(*map(one, range(self._draws))) if entry is not None]

    async def _grade(
        self, task: str, entries: Sequence[dict[str, Any]], probes: Sequence[Probe]
    ) -> list[tuple[Probe, Verdict]]:
        async def grade_item(item: int) -> list[tuple[Probe, Verdict]]:
            mine = [probe for probe in probes if probe.item == item]
            verdicts = await self._grader.grade(task, {}, entries[item], [probe.answer for probe in mine])
            return list(zip(mine, verdicts, strict=True))

        return [pair for pairs in await asyncio.gather(*map(grade_item, range(len(entries)))) for pair in pairs]


def _by_name(means: Mapping[Any, float]) -> dict[str, float]:
    return {kind.value: round(mean, 4) for kind, mean in means.items()}
