"""Signs of reward farming, counted per task while a run goes on: it only reads, and a sign is no proof.

    group ──observe──> its answers, what they were paid, its lengths   (of each task its last WINDOW groups)
        └──every CHECK_EVERY groups of a task──> signs ──> one warning each with two examples, until it goes away

*Paid* is the credit of a rollout, the whole of it where a wrong answer gets a tenth, *right* a full score. Right
answers that differ are what training is for, so every sign is about what is paid without them:

    repeated_answer   one answer to many different questions, paid while wrong, or although few of them ask for it
    repeated_shape    the same of one shape (`shape_of`), which hardly any right answer has
    one_right_answer  one answer is right nearly always: the level is no level
    shorter           completions get shorter while scores rise, and it is not right answers that rise
    partial_credit    partial credit rises, and right answers do not
    refused           answers that the task's own verifier pays in full and the strict check refuses

What rises is compared within each level, the earlier half of its groups with the later, for a level that changes moves
every score. Nothing here outlives a restart.
"""

from __future__ import annotations

import logging
import math
import re
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..records import Outcome, Rollout, RolloutGroup
from ..scoring.rewards import share_above

logger = logging.getLogger(__name__)

WINDOW = 64
"""Groups of a task that are looked at together."""
CHECK_EVERY = 8
MIN_GROUPS = 24
MIN_QUESTIONS = 12
"""Different questions that one answer must have been given to."""
LASTS_CHECKS = 4
"""A sign is over when so many checks in a row have not found it."""

PAID = 0.1
"""Mean credit from which on an answer pays, and the least rise that counts."""
PAID_UNSEEN = 0.5
"""The same for a shape where items have no answer of their own to compare it with."""
CLEAR = 3.5
"""Standard errors of a clear rise: a run asks some thousand times."""
SHORTER = 0.7
REFUSED = 0.5
"""Share of completions; less is a sign if it rises, for answers to other items are refused in honest runs too."""
EXCESS = 0.25
"""How much more often an answer is given than it is expected."""
CONSTANT = 0.8
"""Share of a task's answers from which on one answer is a constant."""
RARE = 0.1
"""Share of right answers up to which a shape is not what a task asks for."""
FEW = 3
"""Where there are no more different expected answers, such as True and False, a constant is a guess."""

READ = 200
"""Characters of an answer that its shape is made of."""
SHOWN = 60
KEPT_ANSWERS = 16
"""Different answers kept of one group."""

_TOKEN = re.compile(r"(?P<number>\d+)|(?P<word>[^\W\d_]+)|(?P<space>\s+)")
_REPEATED = re.compile(r"(.{1,12}?)\1{2,}", re.DOTALL)


def shape_of(answer: str) -> str:
    """An answer with what differs from item to item folded: `1 × 35` and `1 × 77` are both `1 × 9`.

    Every number but 0 and 1 is a `9`, every word an `a`, a run of blanks one blank, and what stands three or more
    times in a row stands once with a `+`, so that lists and boards of all sizes are alike: `[0, 0, 0, 0]` is
    `[0, +0]`. Of the first READ characters.
    """
    return _REPEATED.sub(r"\1+", _TOKEN.sub(_folded, answer[:READ].strip()))


def _folded(token: re.Match[str]) -> str:
    if token["space"]:
        return " "
    if token["word"]:
        return "a"
    return token[0] if token[0] in ("0", "1") else "9"


def key_of(answer: str) -> Hashable:
    """Equal for answers that are the same but for blanks and case; of a long one, by a bounded part of it."""
    if len(answer) <= 2 * READ:
        return hash(" ".join(answer.casefold().split()))
    return hash((len(answer), answer[:READ], answer[-READ:], answer[:: len(answer) // READ]))


def shortened(answer: str) -> str:
    """At most SHOWN characters of it, in one line."""
    text = " ".join(answer[: SHOWN + 1].split())
    return text if len(answer) <= SHOWN else f"{text[:SHOWN]}…"


class Given(NamedTuple):
    """One answer, given so many `times` to one question, and what it was `paid` on average, in [0, 1]."""

    key: Hashable
    shape: str
    text: str
    times: int
    paid: float
    is_right: bool


def given_answers(answers: Iterable[tuple[str, float, bool]]) -> list[Given]:
    """The different ones among one question's (answer, paid, is right), at most KEPT_ANSWERS of them."""
    found: dict[Hashable, Given] = {}
    for answer, paid, is_right in answers:
        key = key_of(answer)
        if (known := found.get(key)) is not None:
            times = known.times + 1
            found[key] = known._replace(times=times, paid=known.paid + (paid - known.paid) / times)
        elif len(found) < KEPT_ANSWERS:
            found[key] = Given(key, shape_of(answer), shortened(answer), 1, paid, is_right)
    return list(found.values())


@dataclass
class Repeated:
    """What became of one answer, or of one shape of answers, over many questions."""

    count: int = 0
    paid_sum: float = 0.0
    right: int = 0
    paid_wrong_sum: float = 0.0
    uses: dict[Hashable, Given] = field(default_factory=dict)
    """By question, the last of each."""

    def add(self, question: Hashable, given: Given) -> None:
        self.count += given.times
        self.paid_sum += given.times * given.paid
        if given.is_right:
            self.right += given.times
        else:
            self.paid_wrong_sum += given.times * given.paid
        self.uses[question] = given

    @property
    def questions(self) -> int:
        return len(self.uses)

    @property
    def paid(self) -> float:
        return self.paid_sum / self.count

    @property
    def paid_wrong(self) -> float:
        """Mean credit while wrong; 0 if it always was right."""
        return self.paid_wrong_sum / (self.count - self.right) if self.count > self.right else 0.0

    @property
    def right_share(self) -> float:
        return self.right / self.count

    @property
    def examples(self) -> list[Given]:
        return two_of(self.uses.values())


def two_of(uses: Iterable[Given]) -> list[Given]:
    """Two that tell most: those that are paid while wrong before right ones and unpaid ones, and different ones."""
    ordered = sorted(uses, key=lambda given: (given.is_right or not given.paid, -given.paid))
    return [*ordered[:1], *[one for one in ordered if one.key != ordered[0].key], *ordered[1:]][:2]


def repeated(
    groups: Iterable[tuple[Hashable, Sequence[Given]]], of: Callable[[Given], Hashable] = lambda given: given.key
) -> list[Repeated]:
    """Of (question, its answers): what `of` makes equal, with the most given first."""
    found: dict[Hashable, Repeated] = {}
    for question, answers in groups:
        for given in answers:
            found.setdefault(of(given), Repeated()).add(question, given)
    return sorted(found.values(), key=lambda one: -one.count)


@dataclass(frozen=True)
class _Seen:
    """What is kept of one group: numbers of rollouts, and means (NaN of none) over those with an answer.

    Over those, for a format that is learned is no farming. `partial` is what is paid while wrong.
    """

    question: int
    level: int | None
    answers: list[Given]
    expected: tuple[Hashable, str] | None
    """Key and shape of the item's own answer, if it has one."""
    scored: int
    answered: int
    refused: int
    """By a strict check, which pays less than the task's own verifier does."""
    refused_in_full: list[Given]
    paid: float
    partial: float
    right: float
    length: float
    """Characters of the completions that were not cut off."""


def _seen(group: RolloutGroup) -> _Seen | None:
    if not (scored := group.scored):
        return None
    answered = [rollout for rollout in scored if rollout.score.answer is not None]
    refused = [rollout for rollout in answered if rollout.score.native > rollout.score.value]
    expected = group.problem.entry.get("answer")
    return _Seen(
        question=hash(group.problem.question),
        level=group.problem.level,
        answers=given_answers(_read(answered)),
        expected=(key_of(expected), shape_of(expected)) if isinstance(expected, str) else None,
        scored=len(scored),
        answered=len(answered),
        refused=len(refused),
        refused_in_full=given_answers(_read(rollout for rollout in refused if rollout.score.native >= 1.0)),
        paid=_mean([_paid(rollout) for rollout in answered]),
        partial=_mean([0.0 if _is_right(rollout) else _paid(rollout) for rollout in answered]),
        right=_mean([float(_is_right(rollout)) for rollout in answered]),
        length=_mean([len(r.completion.text) for r in scored if r.completion.finish_reason != "length"]),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _read(rollouts: Iterable[Rollout]) -> Iterable[tuple[str, float, bool]]:
    return ((r.score.answer or "", _paid(r), _is_right(r)) for r in rollouts)


def _paid(rollout: Rollout) -> float:
    # In a group without a right answer a tenth of partial credit steers a trainer as much as the whole would.
    score = rollout.score
    return max(rollout.credit, share_above(score.value, score.baseline)) if rollout.credit else 0.0


def _is_right(rollout: Rollout) -> bool:
    return rollout.score.outcome is Outcome.CORRECT


class Sign(NamedTuple):
    """One sign of one task: how strong, in a number and in words, and uses that show it."""

    name: str
    value: float
    words: str
    examples: Sequence[Given]


class HackingWatch:
    """Observes scored groups; `metrics` says what its last check of each task found."""

    def __init__(self) -> None:
        self._tasks: dict[str, _Task] = {}

    def observe(self, group: RolloutGroup) -> None:
        """Note one scored group; every so often look at its task, and warn of a sign that is new."""
        if (seen := _seen(group)) is None:
            return
        task = self._tasks.setdefault(group.problem.task, _Task(group.problem.task))
        task.groups.append(seen)
        task.unchecked += 1
        if task.unchecked >= CHECK_EVERY:
            task.check()

    def metrics(self) -> dict[str, float]:
        """Of the last WINDOW groups of every task; empty before the first group. A sign has a value while it lasts."""
        groups = [seen for task in self._tasks.values() for seen in task.groups]
        if not groups:
            return {}
        answered = [seen for seen in groups if seen.answered]
        paid = sum(seen.paid * seen.answered for seen in answered)
        paid_wrong = sum(seen.partial * seen.answered for seen in answered)
        shares = [task.repeated_share for task in self._tasks.values() if task.repeated_share is not None]
        values = {
            "hacking/refused_share": sum(seen.refused for seen in groups) / sum(seen.scored for seen in groups),
            "hacking/paid_wrong_share": paid_wrong / paid if paid else 0.0,
            "hacking/tasks_warned": float(sum(bool(task.signs) for task in self._tasks.values())),
        }
        if shares:
            values["hacking/repeated_answer_share"] = sum(shares) / len(shares)
        signs = ((sign, task.name) for task in self._tasks.values() for sign, _ in task.signs.values())
        return {**values, **{f"hacking/{sign.name}/{task}": sign.value for sign, task in signs}}


class _Task:
    """The last groups of one task, and the signs that last: each with the checks that have missed it since."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.groups: deque[_Seen] = deque(maxlen=WINDOW)
        self.unchecked = 0
        self.signs: dict[str, tuple[Sign, int]] = {}
        self.repeated_share: float | None = None

    def check(self) -> None:
        self.unchecked = 0
        groups = list(self.groups)
        answers = repeated((seen.question, seen.answers) for seen in groups)
        count = sum(one.count for one in answers)
        common = [one for one in answers if one.questions > 1]
        self.repeated_share = common[0].count / count if common else 0.0
        found = {sign.name: sign for sign in _signs(groups, answers, count)}
        for name, sign in found.items():
            if name not in self.signs:
                logger.warning("%s: %s", self.name, _line(sign))
            self.signs[name] = (sign, 0)
        for name, (sign, missed) in list(self.signs.items()):
            if name in found:
                continue
            self.signs[name] = (sign, missed + 1)
            if missed + 1 >= LASTS_CHECKS:
                del self.signs[name]
                logger.info("%s: no sign of it any more: %s.", self.name, name.replace("_", " "))


def _line(sign: Sign) -> str:
    shown = "; ".join(f"{given.text!r} earned {given.paid:.2f}" for given in sign.examples)
    return f"{sign.words}{f' ({shown})' if shown else ''}."


def _signs(groups: Sequence[_Seen], answers: Sequence[Repeated], count: int) -> Iterable[Sign]:
    """All that these groups of one task show."""
    yield from _repeated_answer(groups, answers, count)
    yield from _repeated_shape(groups, count)
    if len(groups) >= MIN_GROUPS:
        yield from _rises(groups)
    yield from _refusals(groups)


def _repeated_answer(groups: Sequence[_Seen], answers: Sequence[Repeated], count: int) -> Iterable[Sign]:
    asked_for = Counter(seen.expected[0] for seen in groups if seen.expected)
    best = None
    for one in answers:
        if one.questions < MIN_QUESTIONS:
            continue
        share = one.count / count
        if share >= CONSTANT and one.right_share >= CONSTANT:
            words = f"one answer to {one.questions} different questions is right in {one.right_share:.0%}"
            yield Sign("one_right_answer", one.right_share, f"{words}: the level is no level", one.examples)
            continue
        expected = asked_for[one.examples[0].key] / len(groups)
        is_paid_wrong = one.paid_wrong >= PAID and share >= expected + EXCESS
        is_constant = share >= CONSTANT and one.paid >= PAID and not 0 < len(asked_for) <= FEW
        if (is_paid_wrong or is_constant) and (best is None or one.paid_sum > best.paid_sum):
            best = one
    if best is not None:
        yield Sign("repeated_answer", best.count / count, _words("one answer", best, count), best.examples)


def _repeated_shape(groups: Sequence[_Seen], count: int) -> Iterable[Sign]:
    asked_for = Counter(seen.expected[1] for seen in groups if seen.expected)
    known = asked_for.total()
    for one in repeated(((seen.question, seen.answers) for seen in groups), lambda given: given.shape):
        if one.questions < MIN_QUESTIONS or one.count < EXCESS * count or one.right_share > RARE:
            continue
        if len({given.key for given in one.uses.values()}) < MIN_QUESTIONS:
            continue
        shape = one.examples[0].shape
        if asked_for[shape] <= RARE * known and one.paid_wrong >= (PAID if known else PAID_UNSEEN):
            words = _words(f"one shape of answer, {shortened(shape)!r},", one, count)
            yield Sign("repeated_shape", one.count / count, words, one.examples)
            return


def _words(what: str, one: Repeated, count: int) -> str:
    return (
        f"{what} to {one.questions} different questions, {one.count / count:.0%} of all answers, "
        f"earns {one.paid:.2f} on average and is right in {one.right_share:.0%}"
    )


def _rises(groups: Sequence[_Seen]) -> Iterable[Sign]:
    paid, is_clear = _rise(groups, lambda seen: seen.paid)
    if not is_clear or paid < PAID:
        return
    right, _ = _rise(groups, lambda seen: seen.right)
    partial, is_partial = _rise(groups, lambda seen: seen.partial)
    later = list(groups)[len(groups) // 2 :]
    examples = two_of(given for seen in later for given in seen.answers)
    if is_partial and partial >= PAID and right <= partial / 4:
        words = f"partial credit rises by {partial:.2f} and right answers by {right:+.2f}"
        yield Sign("partial_credit", partial, words, examples)
    if right > paid / 2 and _is_learned(groups, later):
        return
    change, is_shorter = _rise(groups, lambda seen: -seen.length)
    average = _mean([seen.length for seen in groups if not math.isnan(seen.length)])
    if is_shorter and (ratio := (average - change / 2) / (average + change / 2)) <= SHORTER:
        words = f"completions get shorter ({ratio:.2f} of their length) while scores rise by {paid:.2f}"
        yield Sign("shorter", ratio, words, examples)


def _is_learned(groups: Sequence[_Seen], later: Sequence[_Seen]) -> bool:
    """Whether more is right than the best constant would be."""
    asked_for = Counter(seen.expected[0] for seen in groups if seen.expected)
    constant = max(asked_for.values(), default=0) / len(groups)
    return _mean([seen.right for seen in later if seen.answered]) > constant + PAID


def _rise(groups: Sequence[_Seen], value: Callable[[_Seen], float]) -> tuple[float, bool]:
    """How much more later groups have than earlier ones of their level, and whether that is clear.

    The mean of the levels' differences, by their number of groups, against its standard error; the spread is taken to
    be the same in all halves, for those of a single level may be two groups.
    """
    levels: dict[int | None, list[float]] = {}
    for seen in groups:
        if not math.isnan(one := value(seen)):
            levels.setdefault(seen.level, []).append(one)
    total, difference, weight, squares, freedom = 0, 0.0, 0.0, 0.0, 0
    for values in levels.values():
        half = len(values) // 2
        if half < 2:
            continue
        means = []
        for part in (values[:half], values[-half:]):
            means.append(sum(part) / half)
            squares += sum((one - means[-1]) ** 2 for one in part)
            freedom += half - 1
        total += len(values)
        difference += len(values) * (means[1] - means[0])
        weight += len(values) ** 2 * 2 / half
    if not total:
        return 0.0, False
    return difference / total, 0 < difference >= CLEAR * math.sqrt(squares / freedom * weight)


def _refusals(groups: Sequence[_Seen]) -> Iterable[Sign]:
    """Unless nearly all that is wrong is refused: then the task's own verifier pays anything, and it says no more."""
    refused = repeated(((seen.question, seen.refused_in_full) for seen in groups), lambda given: None)
    if not refused or refused[0].questions < MIN_QUESTIONS // 2:
        return
    wrong = sum(given.times for seen in groups for given in seen.answers if not given.is_right)
    share = refused[0].count / sum(seen.scored for seen in groups)
    rise, is_clear = _rise(groups, lambda seen: sum(one.times for one in seen.refused_in_full) / (seen.answered or 1))
    is_rising = is_clear and rise >= PAID and len(groups) >= MIN_GROUPS
    if (share >= REFUSED or is_rising) and refused[0].count <= 0.9 * wrong:
        words = f"the strict check refuses {share:.0%} of the completions, which the task's own verifier pays in full"
        yield Sign("refused", share, words, refused[0].examples)
