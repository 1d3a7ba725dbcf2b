"""Scores -> rewards: what a wrong answer earns without any work, partial credit, the length penalty, what is masked.

score ── CreditRule ──> credit ── neutral_if_unscored, length_penalty ──> reward
                        (by itself)          (given the whole group)

Partial credit counts from the baseline of an item, what a wrong answer to it earns without any work on it:

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
from dataclasses import dataclass, field
from typing import Any, Literal

from ..records import CORRECT_THRESHOLD, MIN_COMPLETION_TOKENS, Completion, Rollout, Score, Status, Verdict
from ..tasks import reasoning_gym_source as library
from ..tasks.measured_data import load_facts
from ..verification.grade import FULL_CREDIT

PENALTY_START = 0.75
"""Share of `max_token_length` above which a sequence is penalised."""

PartialCredit = Literal["native", "floor", "binary", "baseline"]


@dataclass(frozen=True)
class CreditRule:
    """How a verifier's score is read as a reward.

    `native`: as it is. `floor`: a score up to what the task's verifier pays to garbage (`floors`, by task) is 0, so
    that two wrong answers do not differ. `binary`: 1 at `threshold` and above, else 0. `baseline`: what it is above the
    baseline of the item.
    """

    mode: PartialCredit = "native"
    floors: Mapping[str, float] = field(default_factory=dict)
    threshold: float = CORRECT_THRESHOLD

    def credit(self, task: str, value: float, baseline: float = 0.0) -> float:
        """The credit for a score in [0, 1] of an item with that baseline."""
        if self.mode == "baseline":
            return paid(task, value, baseline)
        if self.mode == "binary":
            return 1.0 if value >= self.threshold else 0.0
        if self.mode == "floor" and value <= self.floors.get(task, 0.0):
            return 0.0
        return value


def rollouts_of(
    completions: Sequence[Completion],
    scores: Sequence[Score],
    credit_rule: CreditRule,
    task: str,
    max_token_length: int,
    mask_too_long: bool,
    min_tokens: int = MIN_COMPLETION_TOKENS,
) -> list[Rollout]:
    """The rollouts of one group, in order, with everything that is made of their scores.

    `completions` and `scores` are of equal length and of one problem of `task`; `max_token_length` counts the tokens
    of prompt and completion; `mask_too_long`: completions that the token budget cut off are not trained on, nor are
    those of fewer than `min_tokens`.
    """
    credits = [credit_rule.credit(task, score.value, score.baseline) for score in scores]
    rewards = rewards_of(scores, credits, [completion.num_tokens for completion in completions], max_token_length)
    return [
        Rollout(
            completion,
            score,
            reward,
            mask_reason(completion, score, mask_too_long=mask_too_long, min_tokens=min_tokens),
            credit,
        )
        for completion, score, reward, credit in zip(completions, scores, rewards, credits, strict=True)
    ]


def rewards_of(
    scores: Sequence[Score], credits: Sequence[float], lengths: Sequence[int], max_token_length: int
) -> list[float]:
    """What a group is paid for these credits, with sequences of so many tokens (see `length_penalty`)."""
    # Before the penalty, so that an unscored completion does not hide that all others are right, and after it again.
    values = neutral_if_unscored(scores, credits)
    return neutral_if_unscored(scores, length_penalty(values, lengths, max_token_length))


def length_penalty(values: Sequence[float], lengths: Sequence[int], max_token_length: int) -> list[float]:
    """Scale down long sequences once the whole group is correct.

    Only when every value is at least 0.5 is brevity worth learning; then a sequence of `lengths[i]` tokens
    (prompt included) keeps its value up to 75% of `max_token_length` and loses it linearly down to 0 at 100%.
    """
    if min(values, default=0.0) < CORRECT_THRESHOLD:
        return list(values)
    start = PENALTY_START * max_token_length
    slope = 1.0 / (max_token_length - start)
    return [
        value * min(1.0, max(0.0, 1.0 - (length - start) * slope))
        for value, length in zip(values, lengths, strict=True)
    ]


def neutral_if_unscored(scores: Sequence[Score], rewards: Sequence[float]) -> list[float]:
    """Rewards in which a completion that we failed to score has the mean of the others, or 0 if there are none.

    It is sent with its advantage set to zero; a reward of 0 would still lower the mean that the others are compared
    with, and make a group of equal scores look like one with a signal.
    """
    is_scored = [score.outcome.is_scored for score in scores]
    if all(is_scored):
        return list(rewards)
    known = [reward for reward, is_known in zip(rewards, is_scored, strict=True) if is_known]
    # A mean of equal numbers may differ from them in the last digit, which would look like a signal.
    neutral = known[0] if len(set(known)) == 1 else sum(known) / len(known) if known else 0.0
    return [reward if is_known else neutral for reward, is_known in zip(rewards, is_scored, strict=True)]


def mask_reason(
    completion: Completion, score: Score, *, mask_too_long: bool, min_tokens: int = MIN_COMPLETION_TOKENS
) -> str | None:
    """Why this sequence is sent with `set_advantage_to_zero`, or None if it is trained on.

    A truncated completion says nothing about whether its reasoning was good; an unscored one has no reward
    of its own; one that is too short, or has a flaw, is kept only so that the group keeps its size.
    """
    if completion.flaw is not None:
        return completion.flaw
    if not score.outcome.is_scored:
        return f"unscored_{score.outcome.value}"
    if mask_too_long and completion.finish_reason == "length":
        return "too_long"
    if completion.num_completion_tokens < min_tokens:
        return "too_short"
    return None


# --- the baseline of an item

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
