"""What a wrong answer to an item earns without any work on it: the baseline that partial credit is counted from.

    paid = WRONG_PAYS * max(0, (score - baseline) / (1 - baseline)), and 1 for full credit

A learner finds whatever pays. Much of the partial credit of reasoning-gym is paid for what owes nothing to the problem:
the cells that the question gives, an answer that lists all options, the middle of a range. Which baseline an item has
is decided by its task:

    right or wrong    The task's partial credit cannot be told from such an answer's: the baseline is 1, and only full
                      credit is paid. So is every task that leaves scoring to reasoning-gym's base class, which pays any
                      text that contains the right answer its share of the characters: a guess with a blank and a
                      bracket, or a line of the question, would be paid too.
    graded            Partial credit is worth something: the baseline is a floor, or what the best of a few answers
                      that need no work earns on this very item, whichever is higher. They are graded in the sandbox
                      together with the group.
    unknown           A dataset of one's own: answers that fit anywhere are graded with each group, and what is above
                      them is paid whole: what its partial credit means, its author knows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..records import Status, Verdict
from ..tasks import reasoning_gym_source as library
from ..tasks.measured_data import load_facts
from ..verification.grade import FULL_CREDIT

Item = Mapping[str, Any]
Effortless = Callable[[Item], Iterable[str]]

RIGHT_OR_WRONG = 1.0
"""As a baseline: nothing short of full credit is paid."""

WRONG_PAYS = 0.1
"""At most, in a task of reasoning-gym: who does the work and then spoils it should lose by that. Where no completion of
a group is right, a trainer that divides by the deviation of the rewards learns the same from a tenth.
"""


@dataclass(frozen=True)
class Graded:
    """Partial credit of a task that counts: above `floor`, and above what `answers` earn on the item."""

    floor: float | Callable[[Item], float] = 0.0
    answers: Effortless = lambda entry: ()


class Baseline:
    """Of one item: which `answers` to grade beside the group's, and what follows from their verdicts."""

    def __init__(self, task: str, entry: Item) -> None:
        self.answers: tuple[str, ...] = ()
        self._floor = RIGHT_OR_WRONG
        rule = _rule(task, entry)
        self._is_broken = False
        if rule is None:
            return
        try:
            answers = tuple(dict.fromkeys(rule.answers(entry)))
            self._floor = min(1.0, rule.floor(entry) if callable(rule.floor) else rule.floor)
            self.answers = answers
        # An item that lacks what the task's always have.
        except (AttributeError, LookupError, TypeError, ValueError):
            self._is_broken = True

    def is_known(self, verdicts: Sequence[Verdict]) -> bool:
        """Whether `answers` could be made and graded."""
        return not self._is_broken and all(one.status in (Status.SCORED, Status.VERIFIER_ERROR) for one in verdicts)

    def value(self, verdicts: Sequence[Verdict]) -> float:
        """The baseline, in [0, 1], given the verdicts on `answers`.

        Where one of them is right, what is almost like it owes nothing to work either, and nothing but full credit is
        paid; nor is it where one could not be scored.
        """
        return max([self._floor, *(one.value for one in verdicts)]) if self.is_known(verdicts) else RIGHT_OR_WRONG


def paid(task: str, value: float, base: float) -> float:
    """What a score above its item's baseline is worth, in [0, 1]."""
    if value >= FULL_CREDIT:
        return 1.0
    return (WRONG_PAYS if _is_of_the_library(task) else 1.0) * share_above(value, base)


def share_above(value: float, base: float) -> float:
    """Of what there is between its baseline and full credit, the share that a score reaches."""
    return 0.0 if value <= base else (value - base) / (1.0 - base)


def _rule(task: str, entry: Item) -> Graded | None:
    """None for right or wrong."""
    if task == "composite":
        return _rule(str(entry["metadata"]["source_dataset"]), entry)
    if _is_of_the_library(task) or library.has_base_verifier(task):
        return GRADED.get(task)
    return _UNKNOWN


@functools.cache
def _is_of_the_library(task: str) -> bool:
    return task == "composite" or task in load_facts()[1]


# --- answers that need no work ---


def _anywhere(entry: Item) -> Iterable[str]:
    """For a dataset nobody has looked at: constants, and the question itself."""
    yield from ("0", "1", "-1", "10", "yes", "no", "True", "False", "A", "x", "[]", "{}", "I do not know.")
    yield str(entry["question"])


def _hardly_sorted(entry: Item) -> Iterable[str]:
    """The words of word_sorting as they are given, or in the order of their first letters alone, also from the end; and
    sorted the wrong way round, or with case left out of account.
    """
    words, right = entry["metadata"]["transformed_words"], list(entry["metadata"]["sorted_words"])
    goes_down = right != sorted(right)
    by_first = [sorted(order, key=lambda word: word[:1], reverse=goes_down) for order in (words, words[::-1])]
    # Where these are right the item is right or wrong: the right order with one word spoiled would be paid.
    yield from (", ".join(order) for order in (words, words[::-1], *by_first))
    # This is the work, but for capitals, which come first.
    by_letters = sorted(words, key=str.lower)
    yield from (", ".join(order) for order in (right[::-1], by_letters, by_letters[::-1]) if order != right)


def _hardly_reversed(entry: Item) -> Iterable[str]:
    """The word as it stands, its last letter put in front, its ends swapped, and one letter all along."""
    word = str(entry["metadata"]["word"])
    yield from (word, word[-1:] + word[:-1], word[-1:] + word[1:], word[-1:] + word[1:-1] + word[:1])
    for letter in sorted({*word.lower(), *"aeinorst"}):
        yield letter * len(word)
        yield word[-1:] + letter * (len(word) - 2) + word[:1]


# --- which partial credit counts ---

_UNKNOWN = Graded(answers=_anywhere)

GRADED: Mapping[str, Graded] = {
    # A solution that is longer than it need be, or not finished; the floors are paid for whatever can be read.
    "knight_swap": Graded(floor=0.05),
    "shortest_path": Graded(),
    # Right to a digit less.
    "polynomial_equations": Graded(floor=0.95),
    # Letters and words in their place. A real model learns spell_backward a third better so (docs/scoring.md).
    "spell_backward": Graded(floor=lambda entry: max(0.5, 2.0 / len(entry["answer"])), answers=_hardly_reversed),
    # A guess gets one of a few words right now and then, seldom two.
    "word_sorting": Graded(
        floor=lambda entry: max(0.3, 1.0 / max(len(entry["metadata"]["sorted_words"]), 1)), answers=_hardly_sorted
    ),
}
"""Tasks of reasoning-gym whose partial credit is paid. All others are right or wrong."""
