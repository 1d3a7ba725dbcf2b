"""From completions to scores.

completion ── extract_answer (extraction.py) ──> answer ── grader ──> Verdict ──> Score ──> reward (rewards.py)
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ..records import Completion, Outcome, Problem, Score, Verdict, VerdictStatus, outcome_of
from ..workers.grader import SandboxGrader
from .extraction import extract_answer

logger = logging.getLogger(__name__)


class Scorer:
    """Scores the completions of one problem as one batch."""

    def __init__(self, grader: SandboxGrader) -> None:
        self._grader = grader

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
                score = _score_of_verdict(extraction.answer, next(unused_verdicts))
            _log_score(problem.task, len(scores), score)
            scores.append(score)
        return scores


def _score_of_verdict(answer: str, verdict: Verdict) -> Score:
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
