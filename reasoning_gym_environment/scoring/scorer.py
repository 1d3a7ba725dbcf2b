"""Problem + completions -> one Score per completion: extract the answer, have it graded, name the outcome."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ..records import Completion, Outcome, Problem, Score
from ..workers import AnswerGrader, Status, Verdict
from .extraction import Extraction, extract_answer, violation_detail

logger = logging.getLogger(__name__)

_UNSCORED = {
    Status.TIMEOUT: Outcome.TIMEOUT,
    Status.MEMORY: Outcome.MEMORY,
    Status.CRASHED: Outcome.CRASHED,
}


class Scorer:
    """Scores the completions of one problem as one batch."""

    def __init__(self, grader: AnswerGrader) -> None:
        self._grader = grader

    async def score(
        self, problem: Problem, completions: Sequence[Completion], *, thinking_opened: bool = False
    ) -> list[Score]:
        """One Score per completion, in order. Completions without an answer never reach a verifier."""
        found = [extract_answer(c.text, thinking_opened=thinking_opened) for c in completions]
        answers = [extraction.answer for extraction in found if extraction.answer is not None]
        verdicts: list[Verdict] = []
        if answers:
            verdicts = await self._grader.grade(problem.task, problem.config, problem.entry, answers)
        graded = iter(zip(answers, verdicts, strict=True))
        scores = [
            _format_failure(extraction) if extraction.answer is None else _verdict_score(*next(graded))
            for extraction in found
        ]
        for number, score in enumerate(scores):
            _log_completion(problem.task, number, score)
        return scores


def _format_failure(extraction: Extraction) -> Score:
    return Score(value=0.0, outcome=Outcome.FORMAT_FAILURE, failure=extraction.failure)


def _verdict_score(answer: str, verdict: Verdict) -> Score:
    return Score(
        value=verdict.value,
        outcome=_outcome(verdict),
        answer=answer,
        explanation=f"bare={verdict.bare} tagged={verdict.tagged} {verdict.detail}".rstrip(),
        native=verdict.native,
    )


def _outcome(verdict: Verdict) -> Outcome:
    if verdict.status in _UNSCORED:
        return _UNSCORED[verdict.status]
    if verdict.status is Status.VERIFIER_ERROR:
        return Outcome.VERIFIER_ERROR
    if verdict.value >= 1.0:
        return Outcome.CORRECT
    return Outcome.PARTIAL if verdict.value > 0.0 else Outcome.WRONG


def _log_completion(task: str, number: int, score: Score) -> None:
    if score.failure is not None:
        logger.debug("%s, completion %d: no answer: %s.", task, number, violation_detail(score.failure))
    else:
        logger.debug(
            "%s, completion %d: answer %.200r, %s, best %.3f: %s.",
            task,
            number,
            score.answer,
            score.explanation,
            score.value,
            score.outcome.value,
        )
