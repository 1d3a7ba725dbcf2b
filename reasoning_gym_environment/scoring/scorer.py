"""From completions to scores.

completion ── extract_answer (extraction.py) ──> answer ── grader ──> Verdict ──> Score ──> reward (rewards.py)
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ..records import Completion, Outcome, Problem, Score, Verdict, outcome_of
from ..workers.grader import SandboxGrader
from .extraction import extract_answer

logger = logging.getLogger(__name__)


class Scorer:
    """Scores the completions of one problem as one batch.

    Set `thinking_opened` if the chat template has already opened the thinking in the prompt.
    """

    def __init__(self, grader: SandboxGrader, *, thinking_opened: bool = False) -> None:
        self._grader = grader
        self._thinking_opened = thinking_opened

    async def score(self, problem: Problem, completions: Sequence[Completion]) -> list[Score]:
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
                thinking_opened=self._thinking_opened,
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
            elif extraction.failure is not None:
                score = Score(0.0, extraction.failure)
            else:
                verdict = next(unused_verdicts)
                outcome = verdict.failure or outcome_of(verdict.value)
                score = Score(verdict.value, outcome, extraction.answer, verdict.detail, verdict.native)
            _log_score(problem.task, len(scores), score)
            scores.append(score)
        return scores


def _log_score(task: str, number: int, score: Score) -> None:
    logger.debug(
        "%s, completion %d: answer %.200r, score %.3f, outcome %s. %s",
        task,
        number,
        score.answer,
        score.value,
        score.outcome.value,
        score.explanation,
    )
