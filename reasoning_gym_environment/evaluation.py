"""The held-out set and its score.

The set is fixed by `eval_seed`: the same items in every run, on every instance, and never in training. An item
that the server could not answer is *unscored*: it is counted and named, and does not lower the mean.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from .catalog import Catalog
from .errors import EnvironmentSetupError, GenerationError, InferenceError
from .inference import EVAL_BUDGET_FACTOR, InferenceClient, Sampling
from .prompts import build_messages
from .records import Completion, Problem, Score
from .sampler import TaskSampler
from .scoring import Scorer

logger = logging.getLogger(__name__)

TEMPERATURE = 0.1


@dataclass(frozen=True)
class EvalResult:
    """One held-out problem with what the model made of it; `score` is None when it is unscored."""

    problem: Problem
    completion: Completion | None = None
    score: Score | None = None
    unscored_reason: str = ""


async def build_eval_set(
    catalog: Catalog, sampler: TaskSampler, *, per_task: int, seed: int, show_progress: bool
) -> list[Problem]:
    """`per_task` items of every task, held out from training. Items that cannot be made are named and left out."""
    places = [(task.name, index) for task in catalog.tasks for index in range(per_task)]
    bar = tqdm(total=len(places), desc="evaluation set", unit="item", disable=None if show_progress else True)

    async def draw(task: str, index: int) -> Problem | None:
        try:
            return await sampler.draw(task, index=index, split="eval", seed=seed)
        except GenerationError as error:
            logger.warning("Item %d of %s is left out of the evaluation set: %s", index, task, error)
            return None
        finally:
            bar.update()

    drawing = [asyncio.ensure_future(draw(task, index)) for task, index in places]
    with bar:
        try:
            problems = [problem for problem in await asyncio.gather(*drawing) if problem is not None]
        finally:
            for one in drawing:
                one.cancel()
    for problem in problems:
        sampler.hold_out(problem)
    return problems


class Evaluator:
    """Asks the model every held-out problem once and scores the replies."""

    def __init__(
        self,
        inference: InferenceClient,
        scorer: Scorer,
        *,
        budget: Callable[[int], int | None],
        concurrency: int,
        thinking_opened: bool,
    ) -> None:
        self._inference = inference
        self._scorer = scorer
        self._budget = budget
        self._slots = asyncio.Semaphore(max(1, concurrency))
        self._thinking_opened = thinking_opened

    async def run(self, problems: Sequence[Problem], *, show_progress: bool = False) -> list[EvalResult]:
        """One result per problem, in order."""
        bar = tqdm(total=len(problems), desc="evaluate", unit="item", disable=None if show_progress else True)

        async def one(problem: Problem) -> EvalResult:
            async with self._slots:
                result = await self.evaluate_one(problem)
            bar.update()
            return result

        tasks = [asyncio.ensure_future(one(problem)) for problem in problems]
        with bar:
            try:
                return list(await asyncio.gather(*tasks))
            finally:
                # After an error the others must not go on asking the server.
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def evaluate_one(self, problem: Problem) -> EvalResult:
        """Sample one completion and score it; failures of ours come back as an unscored result."""
        prompt = self._inference.render(build_messages(problem.question))
        budget = self._budget(len(prompt.tokens))
        if budget is None:
            return EvalResult(problem, unscored_reason="prompt_too_long")
        sampling = Sampling(n=1, max_tokens=budget, temperature=TEMPERATURE, split="eval")
        try:
            [completion] = await self._inference.complete(prompt, sampling)
        except InferenceError as error:
            logger.debug("Evaluation item of %s is unscored: %s", problem.task, error)
            return EvalResult(problem, unscored_reason=f"inference failed: {error}")
        [score] = await self._scorer.score(problem, [completion], thinking_opened=self._thinking_opened)
        if not score.outcome.is_scored:
            return EvalResult(problem, completion, score=None, unscored_reason=score.outcome.value)
        return EvalResult(problem, completion, score)


def summarise(results: Sequence[EvalResult]) -> dict[str, float]:
    """`eval/percent_correct` (mean score), the share of format failures, and how many items have no score.

    Raises EnvironmentSetupError if no item could be scored at all.
    """
    scores = [result.score for result in results if result.score is not None]
    reasons = Counter(result.unscored_reason for result in results if result.score is None)
    if reasons:
        logger.warning(
            "%d of %d evaluation items are unscored: %s.",
            sum(reasons.values()),
            len(results),
            "; ".join(f"{reason} ({count})" for reason, count in reasons.most_common(3)),
        )
    if not scores:
        raise EnvironmentSetupError(
            f"Evaluation scored none of {len(results)} items"
            + (f" ({reasons.most_common(1)[0][0]})." if reasons else ": the evaluation set is empty.")
        )
    return {
        "eval/percent_correct": sum(score.value for score in scores) / len(scores),
        "eval/format_failures": sum(score.failure is not None for score in scores) / len(scores),
        "eval/unscored": float(sum(reasons.values())),
    }


def generation_parameters(max_token_length: int) -> dict[str, Any]:
    """How evaluation samples, for the record."""
    return {"temperature": TEMPERATURE, "n": 1, "max_new_tokens": EVAL_BUDGET_FACTOR * max_token_length}


def sample_record(result: EvalResult) -> dict[str, Any]:
    """One line of Atropos' samples.jsonl."""
    problem, score, completion = result.problem, result.score, result.completion
    messages = [dict(message) for message in build_messages(problem.question)]
    if completion is not None:
        messages.append({"role": "assistant", "content": completion.text})
    return {
        "messages": messages,
        "question": problem.question,
        "gold_answer": problem.entry.get("answer"),
        "model_parsed": score.answer if score else None,
        "score": score.value if score else None,
        "native_score": score.native if score else None,
        "correct": bool(score and score.value >= 1.0),
        "outcome": score.outcome.value if score else "unscored",
        "unscored_reason": result.unscored_reason or None,
        "finish_reason": completion.finish_reason if completion else None,
        "task": problem.task,
        "category": problem.category,
        "seed": problem.seed,
        "index": problem.index,
    }
