"""From completions to scores: find the one answer in each, have the answers graded, name what became of them.

    thinking ... </think>   text with exactly one <answer>...</answer> ── grader ──> Verdict ──> Score
    └── never searched ──┘  └───────── searched ─────────┘

The thinking is everything up to the last `</think>`: chat templates may open `<think>` in the prompt, so the
opening tag need not be there. An answer that stands only inside the thinking does not count.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..records import Completion, FormatFailure, Outcome, Problem, Score, Status, Verdict
from ..utils.outage_log import RepeatedEvents
from ..workers import AnswerGrader
from .rewards import Baseline

logger = logging.getLogger(__name__)

_THINK_TAG = re.compile(r"<(/?)think>", re.IGNORECASE | re.ASCII)
_ANSWER_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE | re.ASCII)

NO_BASELINE = "the baseline of an item is not known, only full credit is paid"

_MEANING = {
    FormatFailure.NO_ANSWER: "no complete <answer></answer> after the thinking",
    FormatFailure.MULTIPLE_ANSWERS: "more than one <answer></answer> after the thinking",
    FormatFailure.UNFINISHED_THINKING: "<think> was never closed",
    FormatFailure.EMPTY_ANSWER: "the <answer></answer> is empty",
}

_WITHOUT_VALUE = {
    Status.VERIFIER_ERROR: Outcome.VERIFIER_ERROR,
    Status.TIMEOUT: Outcome.TIMEOUT,
    Status.MEMORY: Outcome.MEMORY,
    Status.CRASHED: Outcome.CRASHED,
}


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
    """Scores the completions of one problem as one batch; `with_baselines`: finds their item's baseline, too."""

    def __init__(self, grader: AnswerGrader, *, with_baselines: bool = False) -> None:
        self._grader = grader
        self._with_baselines = with_baselines
        self._events = RepeatedEvents(logger)

    async def score(
        self, problem: Problem, completions: Sequence[Completion], *, thinking_opened: bool = False
    ) -> list[Score]:
        """One Score per completion, in order. Completions without an answer, or with a flaw, never reach a verifier."""
        found = [
            Extraction() if c.flaw else extract_answer(c.text, thinking_opened=thinking_opened) for c in completions
        ]
        answers = [extraction.answer for extraction in found if extraction.answer is not None]
        verdicts, base = await self.verdicts(problem, answers) if answers else ([], 0.0)
        graded = iter(zip(answers, verdicts, strict=True))
        scores = [
            _verdict_score(*next(graded), base)
            if extraction.answer is not None
            else Score(0.0, Outcome.BAD_REPLY, explanation=completion.flaw)
            if completion.flaw
            else Score(0.0, Outcome.FORMAT_FAILURE, failure=extraction.failure)
            for completion, extraction in zip(completions, found, strict=True)
        ]
        for number, score in enumerate(scores):
            _log_completion(problem.task, number, score)
        return scores

    async def verdicts(self, problem: Problem, answers: Sequence[str]) -> tuple[list[Verdict], float]:
        """One verdict per answer, in order, and the item's baseline in [0, 1]: 0 where none is asked for."""
        beside = Baseline(problem.task, problem.entry) if self._with_baselines else None
        asked = [*answers, *beside.answers] if beside else answers
        verdicts = await self._grader.grade(problem.task, problem.config, problem.entry, asked)
        if beside is None:
            return verdicts, 0.0
        effortless = verdicts[len(answers) :]
        if not beside.is_known(effortless):
            self._events.note(NO_BASELINE, problem.task)
        return verdicts[: len(answers)], beside.value(effortless)

    def metrics(self) -> dict[str, float]:
        """Groups whose baseline could not be found."""
        return {"scoring/baselines_unknown": float(self._events.counts[NO_BASELINE])}


async def score_patiently(
    scorer: Scorer, problem: Problem, completions: Sequence[Completion], *, thinking_opened: bool
) -> list[Score]:
    """Their scores; one that could not be had is tried for once more, because our machine may have been busy."""
    scores = await scorer.score(problem, completions, thinking_opened=thinking_opened)
    if all(score.outcome.is_scored for score in scores):
        return scores
    return await scorer.score(problem, completions, thinking_opened=thinking_opened)


def _verdict_score(answer: str, verdict: Verdict, baseline: float) -> Score:
    return Score(
        value=verdict.value,
        outcome=_outcome(verdict),
        answer=answer,
        explanation=f"bare={verdict.bare} tagged={verdict.tagged} {verdict.detail}".rstrip(),
        native=verdict.native,
        baseline=baseline,
    )


def _outcome(verdict: Verdict) -> Outcome:
    if verdict.status in _WITHOUT_VALUE:
        return _WITHOUT_VALUE[verdict.status]
    if verdict.value >= 1.0:
        return Outcome.CORRECT
    return Outcome.PARTIAL if verdict.value > 0.0 else Outcome.WRONG


def _log_completion(task: str, number: int, score: Score) -> None:
    if score.failure is not None:
        logger.debug("%s, completion %d: no answer: %s.", task, number, _MEANING[score.failure])
        return
    said = (score.answer, score.explanation, score.value, score.outcome.value)
    logger.debug("%s, completion %d: answer %.200r, %s, best %.3f: %s.", task, number, *said)
