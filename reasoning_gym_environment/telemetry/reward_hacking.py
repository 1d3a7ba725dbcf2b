"""A sign of reward hacking, measured for each task during a run: many answers are the same answer.

The items of these answers differ, and the answer is mostly wrong. After each group of a task, the watch measures the
last WINDOW groups of the task. It warns once for each task, with two examples. The sign is a reason to look at the
rollouts, not a proof, and it changes nothing else. Completions without a readable answer do not count. A restart
forgets all measurements.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean

from ..records import Group, Outcome, Rollout

logger = logging.getLogger(__name__)

WINDOW = 64
"""Number of recent groups of a task that are measured together."""

ROLLOUTS_PER_GROUP = 16
"""Further rollouts of a large group are ignored, to save memory."""

MIN_ITEMS = 32
"""Number of different items that must show the sign. With fewer items, an honest guess looks like it too often."""

WARN_SHARE = 0.4
"""The repeated answer must be at least this share of the answers."""

MAX_RIGHT = 0.25
"""A repeated answer that is right more often than this is an honest guess, such as True for a yes-or-no question."""

MIN_PAID = 0.1
"""A repeated answer must earn at least this reward on average."""


@dataclass(frozen=True)
class Answer:
    """One answer to one item. `paid` is its reward before the length penalty."""

    item: int
    key: int
    text: str
    paid: float
    is_right: bool


@dataclass(frozen=True)
class RepeatedAnswer:
    """The sign of reward hacking: its share of the answers, a description, and the answers that show it."""

    share: float
    description: str
    answers: Sequence[Answer]

    def examples(self) -> str:
        """Two answers that show the sign best: wrong answers before right answers, then the highest paid."""
        ranked = sorted(self.answers, key=lambda answer: (answer.is_right, -answer.paid))
        return "; ".join(f"{answer.text!r} earned {answer.paid:.2f}" for answer in ranked[:2])


class HackingWatch:
    """Observes scored groups and warns of reward hacking."""

    def __init__(self) -> None:
        self._groups: defaultdict[str, deque[list[Answer]]] = defaultdict(lambda: deque(maxlen=WINDOW))
        self._shares: dict[str, float] = {}
        """The share of the repeated answer, for each task whose recent answers show the sign."""
        self._warned: set[str] = set()

    def observe(self, group: Group) -> None:
        """Add one scored group, measure its task, and warn of a new sign."""
        task = group.problem.task
        answers = _answers_of(group)
        if not answers:
            return
        self._groups[task].append(answers)
        sign = repeated_answer(list(chain.from_iterable(self._groups[task])))
        if sign is None:
            self._shares.pop(task, None)
            return
        self._shares[task] = sign.share
        if task not in self._warned:
            self._warned.add(task)
            logger.warning("%s may be hacked: %s (%s).", task, sign.description, sign.examples())

    def metrics(self) -> dict[str, float]:
        """The share of the repeated answer, for each task that shows the sign."""
        return {f"hacking/repeated_answer/{task}": share for task, share in self._shares.items()}


def repeated_answer(answers: Sequence[Answer]) -> RepeatedAnswer | None:
    """The sign of reward hacking in the recent answers to the items of one task."""
    counts = Counter(answer.key for answer in answers)
    [(most_common, count)] = counts.most_common(1)
    share = count / len(answers)
    same = [answer for answer in answers if answer.key == most_common]
    items = len({answer.item for answer in same})
    right = fmean(answer.is_right for answer in same)
    paid = fmean(answer.paid for answer in same)
    if share < WARN_SHARE or items < MIN_ITEMS:
        return None
    if right > MAX_RIGHT or paid < MIN_PAID:
        return None
    description = f"one answer is {share:.0%} of all answers, to {items} different items, and right in {right:.0%}"
    return RepeatedAnswer(share, description, same)


def _answers_of(group: Group) -> list[Answer]:
    item = hash(group.problem.question)
    answers = []
    for rollout in group.scored[:ROLLOUTS_PER_GROUP]:
        text = rollout.score.answer
        if text is not None:
            answers.append(_answer(item, rollout, text))
    return answers


def _answer(item: int, rollout: Rollout, text: str) -> Answer:
    return Answer(
        item=item,
        key=key_of(text),
        text=" ".join(text[:60].split()),
        paid=rollout.base_reward,
        is_right=rollout.score.outcome is Outcome.CORRECT,
    )


def key_of(answer: str) -> int:
    """A number that is equal for answers that differ only in blanks and case. A number is shorter than most answers."""
    return hash(" ".join(answer.casefold().split()))
