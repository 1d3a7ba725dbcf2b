"""From the scores of a group to its rewards, and which sequences carry no advantage. Pure functions.

Score ── base_reward ──> base reward ── neutral_if_unscored, length_penalty ──> reward
         (each score alone)             (the whole group)
"""

from __future__ import annotations

from collections.abc import Sequence

from ..records import CORRECT_THRESHOLD, Completion, MaskReason, Rollout, Score
from ..settings.components import PartialCredit
from ..verification.grade import FULL_SCORE

PENALTY_START = 0.75
"""Share of `max_token_length` above which a sequence is penalised."""


def base_reward(score: Score, partial_credit: PartialCredit) -> float:
    """The reward in [0, 1] that a score earns, regardless of the other completions of the group.

    A right answer earns 1. With `exact`, any other answer earns 0. With `native`, it earns the score of reasoning-gym's
    verifier, or 0 if that verifier considers the answer right.
    """
    if score.value >= FULL_SCORE:
        return 1.0
    if partial_credit == "native" and score.native is not None and score.native < FULL_SCORE:
        return score.native
    return 0.0


def rollouts_of(
    completions: Sequence[Completion],
    scores: Sequence[Score],
    partial_credit: PartialCredit,
    max_token_length: int,
    mask_too_long: bool,
) -> list[Rollout]:
    """Compute the rewards of one group and return its rollouts in order.

    `completions` and `scores` have equal length and belong to one problem. `max_token_length` counts the tokens of
    prompt and completion. If `mask_too_long` is set, completions that the token limit cut off get a mask reason, so
    that the trainer does not learn from them.
    """
    base_rewards = [base_reward(score, partial_credit) for score in scores]
    lengths = [len(completion.tokens) for completion in completions]
    # The penalty applies only if every completion of the group is right. Unscored completions first get the mean of
    # the scored completions, because a reward of 0 would prevent the penalty. The penalty changes this mean, so
    # afterwards the unscored completions get the new mean.
    penalised = length_penalty(neutral_if_unscored(scores, base_rewards), lengths, max_token_length)
    rewards = neutral_if_unscored(scores, penalised)
    rollouts = []
    for completion, score, reward, base in zip(completions, scores, rewards, base_rewards, strict=True):
        reason = mask_reason(completion, score, mask_too_long=mask_too_long)
        rollouts.append(Rollout(completion, score, reward, reason, base))
    return rollouts


def length_penalty(values: Sequence[float], lengths: Sequence[int], max_token_length: int) -> list[float]:
    """Reduce the values of long sequences if every value of the group is at least CORRECT_THRESHOLD.

    `lengths` are tokens, prompt included. A sequence keeps its value up to 75% of `max_token_length`. Above that, the
    value falls linearly to 0 at 100%. There is no penalty in a group with a wrong answer, because there the difference
    between right and wrong matters more than brevity.
    """
    if min(values, default=0.0) < CORRECT_THRESHOLD:
        return list(values)
    start = PENALTY_START * max_token_length
    slope = 1.0 / (max_token_length - start)
    penalised = []
    for value, length in zip(values, lengths, strict=True):
        factor = 1.0 - (length - start) * slope
        penalised.append(value * min(1.0, max(0.0, factor)))
    return penalised


def neutral_if_unscored(scores: Sequence[Score], rewards: Sequence[float]) -> list[float]:
    """Replace the reward of every unscored completion by the mean of the scored completions, or by 0 if there are none.

    The trainer gets unscored completions with an advantage of zero. If their reward were 0, they would still lower the
    mean of the group, and a group whose scores are all equal would seem to carry a signal.
    """
    scored = [reward for score, reward in zip(scores, rewards, strict=True) if score.outcome.is_scored]
    neutral = _mean(scored)
    return [reward if score.outcome.is_scored else neutral for score, reward in zip(scores, rewards, strict=True)]


def _mean(values: Sequence[float]) -> float:
    """The mean, or 0 without values. If all values are equal, the mean is exactly this value."""
    if not values:
        return 0.0
    # The computed mean of equal numbers may differ from them in the last digit, which would look like a signal.
    if len(set(values)) == 1:
        return values[0]
    return sum(values) / len(values)


def mask_reason(completion: Completion, score: Score, *, mask_too_long: bool) -> MaskReason | None:
    """Why this sequence is sent with `set_advantage_to_zero`, or None if the trainer learns from it.

    A truncated completion does not show whether its reasoning was good. An unscored completion has no reward.
    A completion that is empty or invalid stays in its group, because Atropos drops a group with a missing sequence.
    """
    if completion.invalid_reason is not None:
        return completion.invalid_reason
    if not score.outcome.is_scored:
        return MaskReason(f"unscored_{score.outcome.value}")
    if mask_too_long and completion.finish_reason == "length":
        return MaskReason.TOO_LONG
    if completion.num_completion_tokens == 0:
        return MaskReason.EMPTY
    return None
