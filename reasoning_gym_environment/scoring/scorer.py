"""From completions to scores.

completion ── extract_answer (extraction.py) ──> answer ── grader ──> Verdict ──> Score ──> reward (rewards.py)
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from ..records import Completion, Outcome, Problem, Score, Verdict, VerdictStatus, outcome_of
from ..workers.grader import SandboxGrader
from .extraction import extract_answer

logger = logging.getLogger(__name__)


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
            extract_answer(
                text,
                answer_format=problem.answer_format,
                thinking_opened=thinking_opened,
                may_be_empty=may_be_empty,
            )
            for text in texts
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
        if self._native and verdict.status is VerdictStatus.SCORED:
            verdict = replace(verdict, value=verdict.native)
        return Score(
            value=verdict.value,
            outcome=_outcome(verdict),
            answer=answer,
            explanation=verdict.detail,
            native=verdict.native,
        )


def _outcome(verdict: Verdict) -> Outcome:
    if verdict.status is not VerdictStatus.SCORED:
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
            logger.warning("%s. First: %r.", warning, self._first_text)
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
            return (
                f"{self._unreadable} of {self._count} completions hold no readable answer{cut_off}. If the model "
                "writes answers in another form than answer_format, see docs/prompts.md, otherwise docs/cold_start.md"
            )
        if self._cut_off >= threshold:
            return f"{self._cut_off} of {self._count} completions were cut off. See docs/cold_start.md"
        if len(self._values) == 1 and self._check_after > FIRST_CHECK:
            return f"All {self._count} completions have the score {self._values.pop():g}. See docs/cold_start.md"
        return ""
