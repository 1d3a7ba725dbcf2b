"""Turn completions into rewards: grade the answer of each completion, compute the rewards.

completion ── extract_answer (extraction.py) ──> answer ── grader ──> Verdict ──> Score

Score ── base_reward ──> base reward ── neutral_if_unscored, length_penalty ──> reward
         (each score alone)             (the whole group)
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from ..records import (
    CORRECT_THRESHOLD,
    MIN_COMPLETION_TOKENS,
    Completion,
    Outcome,
    Problem,
    Rollout,
    Score,
    Status,
    Verdict,
    outcome_of,
)
from ..settings.components import PartialCredit
from ..verification.grade import FULL_SCORE
from ..workers.grader import SandboxGrader
from .extraction import extract_answer

logger = logging.getLogger(__name__)


# --- scores ---


class Scorer:
    """Scores the completions of one problem as one batch.

    If `native` is set, the score of an answer is the score of reasoning-gym's own verifier.
    """

    def __init__(self, grader: SandboxGrader, *, native: bool = False) -> None:
        self._grader = grader
        self._native = native
        self._signal = SignalWatch()

    async def score(
        self,
        problem: Problem,
        completions: Sequence[Completion],
        *,
        thinking_opened: bool = False,
    ) -> list[Score]:
        """One Score for each completion, in order.

        Invalid completions, and completions without an answer, do not reach a verifier.
        """
        # An invalid completion counts as empty text, so no answer is found in it, and the grader does not get it.
        texts = ["" if completion.invalid_reason else completion.text for completion in completions]
        may_be_empty = problem.entry.get("answer") == ""
        extractions = [
            extract_answer(text, thinking_opened=thinking_opened, may_be_empty=may_be_empty) for text in texts
        ]
        answers = [extraction.answer for extraction in extractions if extraction.answer is not None]
        verdicts: list[Verdict] = []
        if answers:
            verdicts = await self._grader.grade(problem.task, problem.config, problem.entry, answers)
        unused_verdicts = iter(verdicts)
        scores: list[Score] = []
        for completion, extraction in zip(completions, extractions, strict=True):
            if completion.invalid_reason:
                score = Score(0.0, Outcome.BAD_REPLY, explanation=completion.invalid_reason)
            elif extraction.answer is None:
                score = Score(0.0, Outcome.FORMAT_FAILURE, failure=extraction.failure)
            else:
                score = self._score_of_verdict(extraction.answer, next(unused_verdicts))
            _log_score(problem.task, len(scores), score)
            scores.append(score)
        self._signal.observe(completions, scores)
        return scores

    def _score_of_verdict(self, answer: str, verdict: Verdict) -> Score:
        if self._native and verdict.status is Status.SCORED:
            verdict = replace(verdict, value=verdict.native)
        return Score(
            value=verdict.value,
            outcome=_outcome(verdict),
            answer=answer,
            explanation=f"bare={verdict.bare} tagged={verdict.tagged} {verdict.detail}".rstrip(),
            native=verdict.native,
        )


def _outcome(verdict: Verdict) -> Outcome:
    if verdict.status is not Status.SCORED:
        return Outcome(verdict.status.value)
    return outcome_of(verdict.value)


def _log_score(task: str, number: int, score: Score) -> None:
    found = f"answer {score.answer!r:.200}"
    if score.failure:
        found = f"no answer ({score.failure.value})"
    logger.debug(
        "%s, completion %d: %s, score %.3f, outcome %s. %s",
        task,
        number,
        found,
        score.value,
        score.outcome.value,
        score.explanation,
    )


async def score_with_retry(
    scorer: Scorer,
    problem: Problem,
    completions: Sequence[Completion],
    *,
    thinking_opened: bool,
) -> list[Score]:
    """Score the completions. If the grader fails to score some of them, score these completions a second time.

    The grader can fail because the machine is busy. The second attempt then usually succeeds.
    """
    scores = await scorer.score(problem, completions, thinking_opened=thinking_opened)
    failed = []
    for number, (completion, score) in enumerate(zip(completions, scores, strict=True)):
        if not score.outcome.is_scored and not completion.invalid_reason:
            failed.append(number)
    if failed:
        again = [completions[number] for number in failed]
        new_scores = await scorer.score(problem, again, thinking_opened=thinking_opened)
        for number, score in zip(failed, new_scores, strict=True):
            scores[number] = score
    return scores


FIRST_CHECK = 15
"""The first check comes after this many completions. Each further check comes after ten times as many new completions
as the previous check."""
NEARLY_ALL = 0.9
"""A check warns if at least this share of the completions has no answer, or is truncated."""


class SignalWatch:
    """Warns if the model can hardly learn anything from its completions.

    The warning comes if nearly all completions have no readable answer, if nearly all completions are truncated, or if
    all completions have the same score. The first check ignores equal scores, because the scores of a few completions
    can be equal by chance.
    """

    def __init__(self) -> None:
        self._check_after = FIRST_CHECK
        self._reset()

    def _reset(self) -> None:
        self._count = 0
        self._unreadable = 0
        self._cut_off = 0
        self._values: set[float] = set()
        self._first_text = ""

    def observe(self, completions: Sequence[Completion], scores: Sequence[Score]) -> None:
        for completion, score in zip(completions, scores, strict=True):
            if score.outcome.is_scored:
                self._add(completion, score)
        if self._count < self._check_after:
            return
        warning = self._warning()
        if warning:
            logger.warning("%s. First: %r. See docs/cold_start.md.", warning, self._first_text)
        self._check_after *= 10
        self._reset()

    def _add(self, completion: Completion, score: Score) -> None:
        if self._count == 0:
            self._first_text = completion.text[:200]
        self._count += 1
        self._unreadable += score.failure is not None
        self._cut_off += completion.finish_reason == "length"
        self._values.add(score.value)

    def _warning(self) -> str:
        threshold = NEARLY_ALL * self._count
        if self._unreadable >= threshold:
            cut_off = f" ({self._cut_off} were cut off)" if self._cut_off else ""
            return f"{self._unreadable} of {self._count} completions hold no readable <answer>{cut_off}"
        if self._cut_off >= threshold:
            return f"{self._cut_off} of {self._count} completions were cut off"
        if len(self._values) == 1 and self._check_after > FIRST_CHECK:
            return f"All {self._count} completions have the score {self._values.pop():g}"
        return ""


# --- rewards ---

PENALTY_START = 0.75
"""Share of `max_token_length` above which a sequence is penalised."""


def base_reward(score: Score, partial_credit: PartialCredit) -> float:
    """The reward in [0, 1] that a score earns, regardless of the other completions of the group.

    A right answer earns 1. With `exact`, any other answer earns 0. With `native`, it earns the score of reasoning-gym's
    verifier, or 0 if that verifier considers the answer right.
    """
    if score.value >= FULL_SCORE:
        return 1.0
    if partial_credit == "native" and score.native < FULL_SCORE:
        return score.native
    return 0.0


def rollouts_of(
    completions: Sequence[Completion],
    scores: Sequence[Score],
    partial_credit: PartialCredit,
    max_token_length: int,
    mask_too_long: bool,
    min_tokens: int = MIN_COMPLETION_TOKENS,
) -> list[Rollout]:
    """Compute the rewards of one group and return its rollouts in order.

    `completions` and `scores` have equal length and belong to one problem. `max_token_length` counts the tokens of
    prompt and completion. Completions with fewer than `min_tokens` tokens get a mask reason, so that the trainer does
    not learn from them. If `mask_too_long` is set, completions that the token limit cut off get a mask reason too.
    """
    base_rewards = [base_reward(score, partial_credit) for score in scores]
    lengths = [len(completion.tokens) for completion in completions]
    # The penalty applies only if every completion of the group is right. Unscored completions first get the mean of
    # the others, because a reward of 0 would prevent the penalty. The penalty changes this mean, so afterwards the
    # unscored completions get the new mean.
    penalised = length_penalty(neutral_if_unscored(scores, base_rewards), lengths, max_token_length)
    rewards = neutral_if_unscored(scores, penalised)
    rollouts = []
    for completion, score, reward, base in zip(completions, scores, rewards, base_rewards, strict=True):
        reason = mask_reason(completion, score, mask_too_long=mask_too_long, min_tokens=min_tokens)
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


def mask_reason(
    completion: Completion,
    score: Score,
    *,
    mask_too_long: bool,
    min_tokens: int = MIN_COMPLETION_TOKENS,
) -> str | None:
    """Why this sequence is sent with `set_advantage_to_zero`, or None if the trainer learns from it.

    A truncated completion does not show whether its reasoning was good. An unscored completion has no reward.
    A completion that is too short or invalid stays in its group, because Atropos drops a group with a missing sequence.
    """
    if completion.invalid_reason is not None:
        return completion.invalid_reason
    if not score.outcome.is_scored:
        return f"unscored_{score.outcome.value}"
    if mask_too_long and completion.finish_reason == "length":
        return "too_long"
    if completion.num_completion_tokens < min_tokens:
        return "too_short"
    return None
