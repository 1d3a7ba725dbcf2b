"""Scores -> rewards: partial credit, the length penalty, what is masked.

score ── credit_of ──> credit ── neutral_if_unscored, length_penalty ──> reward
                       (by itself)     (given the whole group)
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Literal

from ..records import CORRECT_THRESHOLD, MIN_COMPLETION_TOKENS, Completion, Rollout, Score
from ..verification.grade import FULL_CREDIT

PENALTY_START = 0.75
"""Share of `max_token_length` above which a sequence is penalised."""

PartialCredit = Literal["exact", "native"]


def credit_of(score: Score, partial_credit: PartialCredit) -> float:
    """What a score is worth by itself, in [0, 1].

    A right answer is worth 1. A wrong one is worth nothing under `exact`, and under `native` what reasoning-gym's
    verifier pays for it; but nothing if the verifier takes it for right.
    """
    if score.value >= FULL_CREDIT:
        return 1.0
    return score.native if partial_credit == "native" and score.native < FULL_CREDIT else 0.0


def rollouts_of(
    completions: Sequence[Completion],
    scores: Sequence[Score],
    partial_credit: PartialCredit,
    max_token_length: int,
    mask_too_long: bool,
    min_tokens: int = MIN_COMPLETION_TOKENS,
) -> list[Rollout]:
    """The rollouts of one group, in order, with everything that is made of their scores.

    `completions` and `scores` are of equal length and of one problem; `max_token_length` counts the tokens
    of prompt and completion; `mask_too_long`: completions that the token budget cut off are not trained on, nor are
    those of fewer than `min_tokens`.
    """
    credits = [credit_of(score, partial_credit) for score in scores]
    lengths = [len(completion.tokens) for completion in completions]
    # Before the penalty, so that an unscored completion does not hide that all others are right, and after it again.
    penalised = length_penalty(neutral_if_unscored(scores, credits), lengths, max_token_length)
    rewards = neutral_if_unscored(scores, penalised)
    masked = functools.partial(mask_reason, mask_too_long=mask_too_long, min_tokens=min_tokens)
    return list(map(Rollout, completions, scores, rewards, map(masked, completions, scores), credits))


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
