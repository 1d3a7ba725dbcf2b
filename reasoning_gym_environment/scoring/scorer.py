"""From completions to rewards: find the one answer in each, have the answers graded, make rewards of the scores.

    thinking ... </think>   text with exactly one <answer>...</answer> ── grader ──> Verdict ──> Score
    └── never searched ──┘  └───────── searched ─────────┘

The thinking is everything up to the last `</think>`: chat templates may open `<think>` in the prompt, so the
opening tag need not be there. An answer that stands only inside the thinking does not count.

    Score ── credit_of ──> credit ── neutral_if_unscored, length_penalty ──> reward
                           (by itself)     (given the whole group)
"""

from __future__ import annotations

import functools
import logging
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ..records import (
    CORRECT_THRESHOLD,
    MIN_COMPLETION_TOKENS,
    Completion,
    FormatFailure,
    Outcome,
    Problem,
    Rollout,
    Score,
    Status,
    Verdict,
)
from ..verification.grade import FULL_CREDIT
from ..workers.grader import SandboxGrader

logger = logging.getLogger(__name__)

_THINK_TAG = re.compile(r"<(/?)think>", re.IGNORECASE | re.ASCII)
_ANSWER_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE | re.ASCII)

FIRST_LOOK = 15
"""Completions after which it is first said that they teach nothing; then after ten times as many, and so on."""

NEARLY = 0.9


@dataclass(frozen=True)
class Extraction:
    """Either `answer` (stripped, not empty) or `failure` is set; neither if nothing was looked for."""

    answer: str | None = None
    failure: FormatFailure | None = None


def split_thinking(text: str, *, opened: bool = False) -> tuple[str, str | None]:
    """A completion's thinking, with its tags, and what comes after it: None if the thinking never ends.

    `opened`: the prompt already ended inside an open `<think>`, as some chat templates do, so a completion without
    `</think>` never left its thinking. Tags match in any case. Time is linear in the text.
    """
    is_open, end = opened, 0
    for tag in _THINK_TAG.finditer(text):
        is_open = not tag.group(1)
        if not is_open:
            end = tag.end()
    return (text, None) if is_open else (text[:end], text[end:])


def extract_answer(text: str, *, thinking_opened: bool = False) -> Extraction:
    """Find the answer in a completion, after its thinking; see `split_thinking` for what may have opened that."""
    _, reply = split_thinking(text, opened=thinking_opened)
    return Extraction(failure=FormatFailure.UNFINISHED_THINKING) if reply is None else _only_answer(reply)


def _only_answer(text: str) -> Extraction:
    tags = list(_ANSWER_TAG.finditer(text))
    opening = [tag for tag in tags if not tag.group(1)]
    closing = [tag for tag in tags if tag.group(1)]
    if not opening or not closing or closing[-1].start() < opening[0].end():
        return Extraction(failure=FormatFailure.NO_ANSWER)
    if len(opening) > 1 or len(closing) > 1:
        return Extraction(failure=FormatFailure.MULTIPLE_ANSWERS)
    answer = text[opening[0].end() : closing[0].start()].strip()
    if not answer:
        return Extraction(failure=FormatFailure.EMPTY_ANSWER)
    return Extraction(answer=answer)


class Scorer:
    """Scores the completions of one problem as one batch; `native`: as reasoning-gym's own verifiers do."""

    def __init__(self, grader: SandboxGrader, *, native: bool = False) -> None:
        self._grader = grader
        self._native = native
        self._signal = SignalWatch()

    async def score(
        self, problem: Problem, completions: Sequence[Completion], *, thinking_opened: bool = False
    ) -> list[Score]:
        """One Score per completion, in order. Completions that are invalid or have no answer never reach a verifier."""
        found = [
            Extraction() if c.invalid_reason else extract_answer(c.text, thinking_opened=thinking_opened)
            for c in completions
        ]
        answers = [extraction.answer for extraction in found if extraction.answer is not None]
        verdicts = await self._grader.grade(problem.task, problem.config, problem.entry, answers) if answers else []
        graded = iter(zip(answers, verdicts, strict=True))
        scores = []
        for number, (completion, extraction) in enumerate(zip(completions, found, strict=True)):
            if extraction.answer is not None:
                answer, verdict = next(graded)
                if self._native and verdict.status is Status.SCORED:
                    verdict = replace(verdict, value=verdict.native)
                score = _verdict_score(answer, verdict)
            elif completion.invalid_reason:
                score = Score(0.0, Outcome.BAD_REPLY, explanation=completion.invalid_reason)
            else:
                score = Score(0.0, Outcome.FORMAT_FAILURE, failure=extraction.failure)
            _log_completion(problem.task, number, score)
            scores.append(score)
        self._signal.observe(completions, scores)
        return scores


class SignalWatch:
    """Warns at once when hardly anything can be learned: (nearly) no answers, all cut off, all the same reward."""

    def __init__(self) -> None:
        self._look_at = FIRST_LOOK
        self._seen: Counter[str] = Counter()
        self._values: set[float] = set()
        self._first = ""

    def observe(self, completions: Sequence[Completion], scores: Sequence[Score]) -> None:
        for completion, score in zip(completions, scores, strict=True):
            if score.outcome.is_scored and not completion.invalid_reason:
                self._first = self._first if self._seen else completion.text[:200]
                self._seen.update(all=1, unreadable=score.failure is not None, cut=completion.finish_reason == "length")
                self._values.add(score.value)
        count, unreadable, cut_off = (self._seen[name] for name in ("all", "unreadable", "cut"))
        what = ""
        if count < self._look_at:
            return
        if unreadable >= NEARLY * count:
            beside = f" ({cut_off} were cut off)" if cut_off else ""
            what = f"{unreadable} of {count} completions hold no readable <answer>{beside}"
        elif cut_off >= NEARLY * count:
            what = f"{cut_off} of {count} completions were cut off"
        elif len(self._values) == 1 and self._look_at > FIRST_LOOK:
            what = f"All of {count} completions score {self._values.pop():g}"
        if what:
            logger.warning("%s. First: %r. See docs/cold_start.md.", what, self._first)
        self._look_at *= 10
        self._seen.clear()
        self._values.clear()


async def score_patiently(
    scorer: Scorer, problem: Problem, completions: Sequence[Completion], *, thinking_opened: bool
) -> list[Score]:
    """Their scores; one that could not be had is tried for once more, because our machine may have been busy."""
    for _ in range(2):
        scores = await scorer.score(problem, completions, thinking_opened=thinking_opened)
        if all(score.outcome.is_scored for score in scores):
            break
    return scores


def _verdict_score(answer: str, verdict: Verdict) -> Score:
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
    if verdict.value >= 1.0:
        return Outcome.CORRECT
    return Outcome.PARTIAL if verdict.value > 0.0 else Outcome.WRONG


def _log_completion(task: str, number: int, score: Score) -> None:
    found = f"no answer: {score.failure.value}" if score.failure else f"answer {score.answer!r:.200}"
    said = (found, score.explanation, score.value, score.outcome.value)
    logger.debug("%s, completion %d: %s, %s, best %.3f: %s.", task, number, *said)


# --- scores to rewards

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
    of its own; one that is too short or invalid is kept only so that the group keeps its size.
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
