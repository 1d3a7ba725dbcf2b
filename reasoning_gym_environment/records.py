"""The values that travel through the environment. All but the Group are immutable.

    Problem ── sampled ──> Completion ── scored ──> Score
                               └───── Rollout ──────┘        (a completion, its score, its reward)
    Group = one Problem, its prompt and the group_size Rollouts sampled for it, from the draw to the trajectory API

A rollout keeps text, tokens and score in one object, so no code pairs values by position in
parallel lists. Standard library only: worker processes import this module.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

MASKED = -100
"""Mask value of a position the trainer must not learn from (prompt tokens)."""

MIN_COMPLETION_TOKENS = 10
"""If a prompt leaves room for fewer tokens, no completion is requested."""

CORRECT_THRESHOLD = 0.5
"""A score at or above this counts as correct in `train/percent_correct` and in the length penalty."""


LIBRARY_QUESTION = "library_question"
"""Key of an entry whose question was clarified: the question as reasoning-gym wrote it."""


class MaskReason(StrEnum):
    """Why the trainer gets a completion with an advantage of zero."""

    # The server did not return these completions whole. They are not scored, and harmless tokens replace theirs.
    NO_TOKENS = "no_tokens"
    UNKNOWN_TOKENS = "unknown_tokens"
    BAD_LOGPROBS = "bad_logprobs"
    ABORTED = "aborted"
    ERROR = "error"
    CONTENT_FILTER = "content_filter"
    INSUFFICIENT_SYSTEM_RESOURCE = "insufficient_system_resource"

    # These completions are whole, and their answers could not be scored.
    UNSCORED_TIMEOUT = "unscored_timeout"
    UNSCORED_MEMORY = "unscored_memory"
    UNSCORED_CRASHED = "unscored_crashed"

    TOO_LONG = "too_long"
    """The token limit cut it off."""

    EMPTY = "empty"

    SET_BY_SUBCLASS = "set_by_subclass"
    """`score` of a subclass gives it no advantage."""


class AnswerFormat(StrEnum):
    """The form in which the prompt asks for the answer; scoring/extraction.py reads it."""

    TAGS = "tags"
    BOXED = "boxed"
    TEXT = "text"


@dataclass(frozen=True)
class Problem:
    """One generated item, and everything needed to generate it again.

    `config` is the reasoning-gym config without `seed` and `size`: with `seed` it is the whole recipe,
    `create_dataset(task, seed=seed, size=1, **config)[0] == entry`. `entry` is the item as
    reasoning-gym returned it (`question`, `answer`, `metadata`); it must not be changed. Strict verification may have
    corrected its answer and clarified its question (verification/questions.py). `level` and
    `complexity` (0 easiest, 1 hardest) are None when reasoning-gym's own defaults were used. `answer_format` is the
    form in which the prompt asks for the answer.
    """

    task: str
    category: str
    split: str
    index: int
    seed: int
    config: Mapping[str, Any]
    entry: dict[str, Any]
    level: int | None = None
    complexity: float | None = None
    answer_format: AnswerFormat = AnswerFormat.TAGS

    @cached_property
    def question(self) -> str:
        return str(self.entry["question"])

    @cached_property
    def library_question(self) -> str:
        """The question as reasoning-gym wrote it, by which the question is held out and named under all settings."""
        return str(self.entry.get(LIBRARY_QUESTION, self.question))

    @cached_property
    def is_of_stream(self) -> bool:
        """Whether the item source drew it for training: it is no evaluation question and of no caller's own dataset."""
        return self.split == "train" and self.index >= 0


@dataclass(frozen=True)
class Completion:
    """A completion that the inference server returned for a prompt.

    `tokens`, `masks` and `logprobs` have one element per position of prompt plus completion, as the
    trainer wants them: prompt positions carry mask -100 and logprob 1.0. `logprobs` is None where the
    server reports none. `finish_reason` is the server's ("stop", "length", ...). `invalid_reason` explains
    why a completion must not count. Such a completion keeps its place in the group, but its tokens are replaced by
    harmless tokens.
    `sampled_at` is the trainer's step when this completion was requested, or None without a trainer.
    """

    text: str
    tokens: list[int]
    masks: list[int]
    logprobs: list[float] | None
    finish_reason: str
    invalid_reason: MaskReason | None = None
    sampled_at: int | None = None

    @cached_property
    def num_completion_tokens(self) -> int:
        return len(self.masks) - self.masks.count(MASKED)


class Outcome(StrEnum):
    """What a completion is worth."""

    CORRECT = "correct"
    PARTIAL = "partial"
    WRONG = "wrong"

    # These completions have no readable answer, and score 0.
    NO_ANSWER = "no_answer"
    MULTIPLE_ANSWERS = "multiple_answers"
    UNFINISHED_THINKING = "unfinished_thinking"
    EMPTY_ANSWER = "empty_answer"

    VERIFIER_ERROR = "verifier_error"
    """The verifier of the task raised an error, and the answer scores 0."""

    # These completions have no score, which does not mean that the answer is wrong.
    TIMEOUT = "timeout"
    MEMORY = "memory"
    CRASHED = "crashed"
    BAD_REPLY = "bad_reply"

    @property
    def is_scored(self) -> bool:
        return self not in (Outcome.TIMEOUT, Outcome.MEMORY, Outcome.CRASHED, Outcome.BAD_REPLY)

    @property
    def is_unreadable(self) -> bool:
        return self.kind == UNREADABLE

    @property
    def kind(self) -> str:
        """The outcome in files and metrics, where all unreadable completions have the same."""
        without_answer = (
            Outcome.NO_ANSWER,
            Outcome.MULTIPLE_ANSWERS,
            Outcome.UNFINISHED_THINKING,
            Outcome.EMPTY_ANSWER,
        )
        return UNREADABLE if self in without_answer else self.value


UNREADABLE = "format_failure"
"""What files and metrics call the outcome of a completion without a readable answer."""

KINDS = tuple(dict.fromkeys(outcome.kind for outcome in Outcome))
"""The outcomes in files and metrics."""


def outcome_of(value: float) -> Outcome:
    """The outcome of a completion with a score of `value`."""
    if value >= 1.0:
        return Outcome.CORRECT
    if value > 0.0:
        return Outcome.PARTIAL
    return Outcome.WRONG


@dataclass(frozen=True)
class Verdict:
    """The result of grading an answer: `value` is its score, in [0, 1].

    `failure` is why the answer has no score of its verifier: VERIFIER_ERROR, TIMEOUT, MEMORY or CRASHED. `native` is
    the score that reasoning-gym alone would give, or None if no setting needs it. For a task with a form or a
    validator, `value` is 1 or 0. For other tasks it is `native`.
    """

    value: float
    failure: Outcome | None = None
    native: float | None = None
    detail: str = ""


@dataclass(frozen=True)
class Score:
    """The verdict on one completion: a value in [0, 1], what it means, and why.

    `native` is the score that reasoning-gym's own verifier gives, or None if no setting needs it.
    """

    value: float
    outcome: Outcome
    answer: str | None = None
    explanation: str = ""
    native: float | None = None

    @property
    def why(self) -> str:
        """Why there is no answer, or no score; "" if there are both."""
        if self.outcome.is_unreadable:
            return self.outcome.value
        return "" if self.outcome.is_scored else self.explanation


@dataclass(frozen=True)
class Rollout:
    """A completion with its score and its reward: the base reward, less the length penalty.

    `mask_reason` explains why the sequence is sent with an advantage of zero, or is None. `base_reward`, in [0, 1],
    depends on the score alone; see `scoring.rewards.base_reward`.
    """

    completion: Completion
    score: Score
    reward: float
    mask_reason: MaskReason | None = None
    base_reward: float = 0.0

    @property
    def outcome(self) -> Outcome:
        return self.score.outcome


@dataclass
class Group:
    """One problem with all that the environment records about it, from the draw to the trajectory API.

    `messages` is the prompt: `[{"role", "content"}, ...]`. `completions` are set when they are sampled, and `rollouts`
    when they are graded. `sampled_at` is the trainer's step when the oldest completion was requested, and `scored_at`
    is the step when the completions were scored. Both are None without a trainer.
    """

    problem: Problem
    messages: list[dict[str, str]]
    rollouts: list[Rollout] = field(default_factory=list)
    completions: list[Completion] = field(default_factory=list)
    sampled_at: int | None = None
    scored_at: int | None = None

    @property
    def rewards(self) -> list[float]:
        return [rollout.reward for rollout in self.rollouts]

    @property
    def scored(self) -> list[Rollout]:
        """The rollouts that have a score."""
        return [rollout for rollout in self.rollouts if rollout.outcome.is_scored]

    @property
    def has_signal(self) -> bool:
        return has_signal(self.rewards, [rollout.mask_reason is not None for rollout in self.rollouts])


def has_signal(rewards: Sequence[float], masked: Sequence[bool]) -> bool:
    """Whether any group-relative advantage is not zero: the reward of an unmasked rollout differs from the mean."""
    if len(set(rewards)) <= 1:
        return False
    mean = sum(rewards) / len(rewards)
    return any(reward != mean for reward, is_masked in zip(rewards, masked, strict=True) if not is_masked)


class GroupOutcome(StrEnum):
    """The outcome of a group whose completions were requested. Each group has one outcome.

        requested ──> the server gave no completions                       inference_failed
        scored ─────> no completion could be scored                        timed_out
                 ├──> the token budget cut off all completions             too_long
                 ├──> no completion has a readable answer                  unreadable
                 ├──> the rewards differ only where the advantage is zero  masked
                 ├──> all answers are wrong / right                        all_wrong, all_right
                 ├──> all rewards are equal for another reason             equal_scores
                 └──> the trajectory API accepted or refused it            sent, send_failed
                      the trainer took too many steps since sampling       stale
                      `process` wrote it to its file                       written
                      its size differs from what the trainer expects       dropped
                      a subclass dropped it                                dropped
        at any time ─> it was stopped and its item is requeued             cancelled
                       an error in this environment, which is logged       fault

    Only `sent` and `written` groups are useful. The inference for all other groups was wasted.
    """

    SENT = "sent"
    WRITTEN = "written"
    ALL_RIGHT = "all_right"
    ALL_WRONG = "all_wrong"
    UNREADABLE = "unreadable"
    EQUAL_SCORES = "equal_scores"
    MASKED = "masked"
    TOO_LONG = "too_long"
    TIMED_OUT = "timed_out"
    SEND_FAILED = "send_failed"
    STALE = "stale"
    DROPPED = "dropped"
    INFERENCE_FAILED = "inference_failed"
    CANCELLED = "cancelled"
    FAULT = "fault"


def outcome_without_signal(group: Group) -> GroupOutcome:
    """Why a scored group carries no training signal. If several reasons apply, the first in this order counts."""
    if not group.scored:
        return GroupOutcome.TIMED_OUT
    finish_reasons = {rollout.completion.finish_reason for rollout in group.rollouts}
    if finish_reasons == {"length"}:
        return GroupOutcome.TOO_LONG
    if all(rollout.outcome.is_unreadable for rollout in group.scored):
        return GroupOutcome.UNREADABLE
    if len(set(group.rewards)) > 1:
        return GroupOutcome.MASKED
    if all(rollout.outcome is Outcome.CORRECT for rollout in group.scored):
        return GroupOutcome.ALL_RIGHT
    if any(group.rewards):
        return GroupOutcome.EQUAL_SCORES
    return GroupOutcome.ALL_WRONG


def to_json(value: Any) -> Any:
    """The value as plain JSON data. Configs hold dataclasses, tuples, keys that are not texts, dates and infinities."""
    if is_dataclass(value) and not isinstance(value, type):
        value = {part.name: getattr(value, part.name) for part in fields(value)}
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (str, int, float)):
        return value
    return str(value)
