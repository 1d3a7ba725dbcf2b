"""Asking the model the held-out questions, and what came of each completion.

A completion that the server could not give, or whose grading broke down, is *unscored*: it is counted and named, and
does not lower any mean. An answer whose verifier twice ran out of time or memory scores 0: that is the answer's doing,
and a model must not leave the hard questions out of its accuracy by it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from ..errors import InferenceError
from ..inference.prompts import Sampling, build_messages
from ..records import Completion, Outcome, Problem, Score, plain
from ..sampling.seeds import question_digest
from ..scoring.scorer import Scorer, score_patiently
from .journal import Journal, Key
from .questions import EvalSet

if TYPE_CHECKING:
    # It needs Atropos; who only grades given replies does not.
    from ..inference.client import InferenceClient

logger = logging.getLogger(__name__)

TEMPERATURE = 0.1
RETRY_ROUNDS = 2
"""How often completions that the server did not give are asked for again, after all others."""

RETRY_PAUSE_S = 5.0
NO_COMPLETION = "inference failed"
NO_TOKENS_LEFT = "not asked: limit_tokens is reached"


class Evaluator:
    """Asks the model every held-out problem `completions` times and scores the replies."""

    def __init__(
        self,
        inference: InferenceClient,
        scorer: Scorer,
        *,
        budget: Callable[[int], int | None],
        concurrency: int,
        thinking_opened: bool,
        completions: int = 1,
        temperature: float = TEMPERATURE,
    ) -> None:
        self._inference = inference
        self._scorer = scorer
        self._budget = budget
        self._slots = asyncio.Semaphore(max(1, concurrency))
        self._thinking_opened = thinking_opened
        self._completions = completions
        self._temperature = temperature

    def plan(self, eval_set: EvalSet, journal: Journal) -> str:
        """One sentence on what `samples` will ask."""
        missing = self._missing(eval_set, journal)
        sizes = [len(self._inference.render(build_messages(one.question)).tokens) for one, _ in missing.values()]
        budgets = [self._budget(size) or 0 for size in sizes]
        return self._inference.spending.plan(len(sizes), sum(sizes), sum(budgets))

    def _missing(self, eval_set: EvalSet, journal: Journal) -> dict[Key, tuple[Problem, int]]:
        places = {_key(*place): place for place in self._all_of(eval_set.problems)}
        return {key: place for key, place in places.items() if key not in journal.answered}

    async def samples(
        self, eval_set: EvalSet, journal: Journal, *, show_progress: bool = False
    ) -> list[dict[str, Any]]:
        """`completions` samples of each question, in order: those that `journal` has, and the rest from the model.

        The journal is given each scored sample at once. Raises EnvironmentSetupError if it cannot be written.
        """
        manifest = eval_set.manifest
        kept = dict(journal.answered)
        keys = [_key(*place) for place in self._all_of(eval_set.problems)]
        missing = list(self._missing(eval_set, journal).values())
        if kept:
            logger.info("%d of %d completions are there already.", len(keys) - len(missing), len(keys))

        def keep(result: EvalResult) -> None:
            if result.score is not None:
                journal.add(plain(sample_record(result, manifest)))

        answers = await self._ask_until_answered(missing, show_progress, keep)
        new = {_key(one.problem, one.attempt): plain(sample_record(one, manifest)) for one in answers}
        return [kept.get(key) or new[key] for key in keys]

    async def run(self, problems: Sequence[Problem], *, show_progress: bool = False) -> list[EvalResult]:
        """`completions` results per problem, in order. Failed requests are repeated once all others are answered.

        Nothing is repeated when every request failed: then the server is not there, and the reason is the result.
        """
        return await self._ask_until_answered(self._all_of(problems), show_progress)

    def _all_of(self, problems: Iterable[Problem]) -> list[tuple[Problem, int]]:
        return [(problem, attempt) for problem in problems for attempt in range(self._completions)]

    async def _ask_until_answered(
        self,
        asked: Sequence[tuple[Problem, int]],
        show_progress: bool,
        heed: Callable[[EvalResult], None] = lambda result: None,
    ) -> list[EvalResult]:
        results = await self._ask(asked, "evaluate", show_progress, heed)
        for round_number in range(1, RETRY_ROUNDS + 1):
            again = [place for place, result in enumerate(results) if result.unscored_reason.startswith(NO_COMPLETION)]
            if not again or len(again) == len(results):
                break
            logger.warning(
                "Asking for %d of %d completions again: %s.",
                len(again),
                len(results),
                results[again[0]].unscored_reason.rstrip("."),
            )
            await asyncio.sleep(RETRY_PAUSE_S * round_number)
            repeated = await self._ask([asked[place] for place in again], "evaluate again", show_progress, heed)
            for place, result in zip(again, repeated, strict=True):
                results[place] = result
        return results

    async def _ask(
        self,
        asked: Sequence[tuple[Problem, int]],
        what: str,
        show_progress: bool,
        heed: Callable[[EvalResult], None],
    ) -> list[EvalResult]:
        spending = self._inference.spending
        bar = tqdm(total=len(asked), desc=what, unit="completion", disable=None if show_progress else True)

        async def one(problem: Problem, attempt: int) -> EvalResult:
            async with self._slots:
                if spending.is_over:
                    result = EvalResult(problem, unscored_reason=NO_TOKENS_LEFT, attempt=attempt)
                else:
                    result = await self.evaluate_one(problem, attempt)
            heed(result)
            bar.set_postfix_str(spending.expected(len(asked)), refresh=False)
            bar.update()
            return result

        tasks = [asyncio.ensure_future(one(problem, attempt)) for problem, attempt in asked]
        with bar:
            try:
                return list(await asyncio.gather(*tasks))
            finally:
                # After an error the others must not go on asking the server.
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def evaluate_one(self, problem: Problem, attempt: int = 0) -> EvalResult:
        """Sample one completion and score it; failures of ours come back as an unscored result."""
        prompt = self._inference.render(build_messages(problem.question))
        budget = self._budget(len(prompt.tokens))
        if budget is None:
            return EvalResult(problem, unscored_reason="prompt_too_long", attempt=attempt)
        sampling = Sampling(n=1, max_tokens=budget, temperature=self._temperature, split="eval")
        try:
            with self._inference.spending.under_way(len(prompt.tokens), 1):
                [completion] = await self._inference.complete(prompt, sampling)
        except InferenceError as error:
            logger.debug("Evaluation item of %s is unscored: %s", problem.task, error)
            return EvalResult(problem, unscored_reason=f"{NO_COMPLETION}: {error}", attempt=attempt)
        return await judged(self._scorer, problem, completion, attempt, thinking_opened=self._thinking_opened)


def _key(problem: Problem, attempt: int) -> Key:
    return problem.task, problem.index, problem.seed, question_digest(problem.question), attempt


# --- one completion for one question: graded, and as the line of samples.jsonl that is kept of it


@dataclass(frozen=True)
class Reply:
    """What is kept of a completion. Its token ids, twenty times as large as its text, are for training."""

    text: str
    finish_reason: str
    num_completion_tokens: int


@dataclass(frozen=True)
class EvalResult:
    """One completion for a held-out problem, the `attempt`-th from 0; `score` is None when it is unscored."""

    problem: Problem
    reply: Reply | None = None
    score: Score | None = None
    unscored_reason: str = ""
    attempt: int = 0


async def judged(
    scorer: Scorer, problem: Problem, completion: Completion, attempt: int = 0, *, thinking_opened: bool
) -> EvalResult:
    """The scored completion; what broke our grading is unscored, what was too much for its verifier is wrong."""
    [score] = await score_patiently(scorer, problem, [completion], thinking_opened=thinking_opened)
    reply = Reply(completion.text, completion.finish_reason, completion.num_completion_tokens)
    if score.outcome is Outcome.CRASHED:
        return EvalResult(problem, reply, unscored_reason=score.outcome.value, attempt=attempt)
    return EvalResult(problem, reply, score, attempt=attempt)


def sample_record(result: EvalResult, manifest: str = "") -> dict[str, Any]:
    """One line of Atropos' samples.jsonl."""
    problem, score, reply = result.problem, result.score, result.reply
    messages = [dict(message) for message in build_messages(problem.question)]
    if reply is not None:
        messages.append({"role": "assistant", "content": reply.text})
    return {
        "messages": messages,
        "question": problem.question,
        "gold_answer": problem.entry.get("answer"),
        **scored_fields(score, result.unscored_reason),
        "finish_reason": reply.finish_reason if reply else None,
        "num_completion_tokens": reply.num_completion_tokens if reply else None,
        "task": problem.task,
        "category": problem.category,
        "config": dict(problem.config),
        "seed": problem.seed,
        "index": problem.index,
        "attempt": result.attempt,
        "level": problem.level,
        "complexity": problem.complexity,
        "question_digest": question_digest(problem.question),
        "manifest": manifest,
    }


def scored_fields(score: Score | None, unscored_reason: str = "") -> dict[str, Any]:
    """What a sample says of its score; None where it has none."""
    return {
        "model_parsed": score.answer if score else None,
        "score": score.value if score else None,
        "native_score": score.native if score else None,
        "correct": bool(score and score.value >= 1.0),
        "outcome": score.outcome.value if score else "unscored",
        "format_failure": score.failure.value if score and score.failure else None,
        "unscored_reason": unscored_reason or None,
    }
