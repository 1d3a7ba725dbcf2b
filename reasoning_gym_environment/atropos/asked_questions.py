"""The questions of an evaluation, and the request of each question. A subclass may change both.

    env.test_items_with_scorers ── asked_questions ──> EvalSet
    a question of it ── QuestionsOfHook ──> env.rollout_and_score_eval ──> its score and its sample

`rollout_and_score_eval` returns only a score. So our own method leaves the sample of the question, with its completion,
in a context variable, and QuestionsOfHook takes it from there.
"""

from __future__ import annotations

import contextlib
import math
from contextvars import ContextVar
from typing import Any

from ..errors import EnvironmentSetupError
from ..evaluation.questions import EvalSet
from ..group import TestItem, problem_of
from ..records import Problem, Score, outcome_of
from ..storage.lines import sample_fields, sample_of, unscored_fields
from .hooks import Hooks


async def make_questions(env: Hooks) -> None:
    """Make the questions of `env.test_items_with_scorers`, unless they exist or a subclass has set another list.

    Raises EnvironmentSetupError if there is no question.
    """
    if env.test_items_with_scorers is env.run.test_items:
        await env.run.questions()


async def asked_questions(env: Hooks) -> EvalSet:
    """The questions of `env.test_items_with_scorers`, which a subclass may have edited or replaced."""
    run = env.run
    await make_questions(env)
    answer_format = env.config.answer_format
    problems = [problem_of(entry, dataset, answer_format) for entry, dataset in env.test_items_with_scorers]
    return run.eval_set_of(problems)


_samples_of_hook: ContextVar[list[dict[str, Any]]] = ContextVar("_samples_of_hook")
"""Receives the sample of a question, because `rollout_and_score_eval` returns only its score."""


class QuestionsOfHook:
    """Asks each question through the environment's method `rollout_and_score_eval`.

    The method returns the score. The sample also has the completion if the method is ours, or calls ours.
    """

    def __init__(self, env: Hooks, questions: EvalSet) -> None:
        """`questions` come from `asked_questions`, in the order of the environment's list. They are not hashable."""
        self._env = env
        self._items: dict[int, TestItem] = {}
        for problem, item in zip(questions, env.test_items_with_scorers, strict=True):
            self._items[id(problem)] = item

    async def __call__(self, problem: Problem, attempt: int) -> dict[str, Any]:
        samples: list[dict[str, Any]] = []
        # The evaluator starts an asyncio task for each question, and each task has a separate context.
        _samples_of_hook.set(samples)
        try:
            score = await self._env.rollout_and_score_eval(self._items[id(problem)])
        except EnvironmentSetupError:
            raise
        except Exception as error:  # noqa: BLE001
            reason = f"rollout_and_score_eval failed: {type(error).__name__}: {error}"
            return self._unscored(problem, attempt, reason)
        sample = samples[-1] if samples else self._unscored(problem, attempt, None)
        return {**sample, "attempt": attempt, **_fields_of_hook(sample, score)}

    def _unscored(self, problem: Problem, attempt: int, reason: str | None) -> dict[str, Any]:
        messages = self._env.run.prompts.messages(problem.question)
        return sample_of(problem, messages, attempt, unscored_fields(reason))


def _fields_of_hook(sample: dict[str, Any], score: Any) -> dict[str, Any]:
    """The fields of a sample that the score of a subclass changes."""
    if score == sample["credit"]:
        return {}
    if score is None:
        return unscored_fields("rollout_and_score_eval returned no score")
    if not isinstance(score, (int, float)) or not math.isfinite(score):
        return unscored_fields(f"rollout_and_score_eval returned {score!r:.100}")
    value = float(score)
    answer = sample["model_parsed"]
    return sample_fields(Score(value, outcome_of(value), answer=answer, native=value), credit=value)


async def rollout_and_score(env: Hooks, test_item: TestItem) -> float | None:
    """The implementation of `rollout_and_score_eval`: the score of one question, or None if it is unscored."""
    problem = problem_of(*test_item, env.config.answer_format)
    sample = await env.run.evaluator.evaluate_one(problem)
    with contextlib.suppress(LookupError):
        # If other code calls the method, the sample is unused.
        _samples_of_hook.get().append(sample)
    credit: float | None = sample["credit"]
    return credit
