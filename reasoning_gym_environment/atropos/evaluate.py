"""Evaluations: the held-out questions asked and graded, during training and by the command `evaluate`."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import hashlib
import json
import logging
import math
import time
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import EnvironmentSetupError
from ..evaluation.questions import EvalSet
from ..evaluation.results import (
    TASK_TABLE,
    print_table,
    result_line,
    summarise,
    task_table,
)
from ..evaluation.runner import METRICS, SAMPLES, AnswerLog, grading, sample_of, scored_fields
from ..inference.prompts import system_prompt
from ..items import TestItem, problem_of
from ..records import Problem, Score, outcome_of
from ..run import Mode, Run
from ..utils.resilience import BackgroundCalls
from . import preflight
from .hooks import Hooks

logger = logging.getLogger(__name__)

UNFINISHED = ".unfinished"
"""Name of the folder for the results while they are written. The report skips hidden folders."""


async def evaluate_command(env: Hooks) -> None:
    """The command `evaluate`, with an environment that is not set up yet. Raises EnvironmentSetupError."""
    preflight.refuse_testing(env.inference)
    config = env.config
    await preflight.check_offline_use(config, env.inference, env.budget, evaluates=True)
    await env.setup()
    if config.dry_run:
        questions = await asked_questions(env)
        with _answer_log(env, questions) as answers:
            logger.info("%s", env.run.evaluator.plan(questions, answers))
        return
    await env.evaluate()
    if env.eval_metrics:
        # An evaluation of a subclass has left its metrics here. Ours has logged them.
        preflight.begin_wandb_run(config)
        await env.wandb_log()


async def evaluate(env: Hooks) -> dict[str, float]:
    """Evaluate the present model: for the command `evaluate`, or while training continues. Returns the metrics."""
    if env.run.mode is Mode.EVALUATE:
        return await _evaluate_once(env)
    return await _evaluate_in_training(env)


async def evaluate_at_step(env: Hooks) -> None:
    """An evaluation of `serve`. The questions are made before `evaluate`, because that of a subclass may read them."""
    try:
        await make_questions(env)
    except EnvironmentSetupError as error:
        logger.error("%s", error)
        return
    await env.evaluate()


async def _evaluate_once(env: Hooks) -> dict[str, float]:
    """Ask all questions, resume where an earlier start of the command stopped, and print the results.

    The log of answers gets the command's settings, as YAML, so that it can be resumed. Raises EnvironmentSetupError.
    """
    config = env.config
    questions = await asked_questions(env)
    parameters = _parameters(env.run, questions)
    with _answer_log(env, questions) as answers:
        logger.info("%s", env.run.evaluator.plan(questions, answers))
        preflight.begin_wandb_run(config)
        started = time.time()
        ask = QuestionsOfHook(env)
        samples = await env.run.evaluator.samples(questions, answers, ask=ask, show_progress=True)
        results = summarise(samples)
        logger.info("%s", result_line(results, questions.manifest))
        if config.data_dir_to_save_evals is not None:
            await _write(
                env,
                Path(config.data_dir_to_save_evals),
                results,
                samples,
                parameters,
                started,
            )
        answers.finish()
    metrics = _metrics(env.run, results, questions)
    env.eval_metrics.extend(metrics.items())
    logger.info("Spent: %s.", env.inference.spending.total())
    await env.wandb_log()
    # The table comes last: if the reader of the output has gone away, printing fails, and the results must be complete.
    print_table(results, questions.describe())
    return _numbers(metrics)


def _answer_log(env: Hooks, questions: EvalSet) -> AnswerLog:
    identity = {**_parameters(env.run, questions), "model_name": env.inference.model_name}
    return AnswerLog(env.config.data_dir_to_save_evals, identity, settings=env.settings_as_yaml)


async def _evaluate_in_training(env: Hooks) -> dict[str, float]:
    """Evaluate the present model while training continues; the next log step logs the metrics, too.

    An evaluation that scored nothing has no metrics. The log explains it.
    """
    try:
        metrics = await _evaluate_present_model(env)
    except EnvironmentSetupError as error:
        logger.error("%s", error)
        return {}
    env.eval_metrics.extend(metrics.items())
    return _numbers(metrics)


async def _evaluate_present_model(env: Hooks) -> dict[str, Any]:
    """The metrics of one evaluation. Raises EnvironmentSetupError.

    Each evaluation has its own folder in `data_dir_to_save_evals`, named after the trainer's step at its first request,
    so that two of them can be compared. A disk that refuses the results is logged.
    """
    run = env.run
    # The first evaluation makes its questions, and the trainer makes steps meanwhile.
    questions = await asked_questions(env)
    step = run.state.step
    started = time.time()
    with AnswerLog(None, {}) as answers:
        samples = await run.evaluator.samples(questions, answers, ask=QuestionsOfHook(env))
    results = summarise(samples)
    logger.info("%s", result_line(results, questions.manifest))
    if run.config.data_dir_to_save_evals is not None:
        folder = Path(run.config.data_dir_to_save_evals, f"step-{step}")
        try:
            await _write(env, folder, results, samples, _parameters(run, questions), started)
        except OSError as error:
            # Training continues, and the log has the numbers.
            logger.error("Evaluation not written to data_dir_to_save_evals: %s", error)
    return _metrics(run, results, questions)


# --- questions and completions that a subclass may change


async def make_questions(env: Hooks) -> None:
    """Make the questions of `env.test_items_with_scorers`, unless they exist or a subclass has a list of its own.

    Raises EnvironmentSetupError if there is no question.
    """
    if env.test_items_with_scorers is env.run.test_items:
        await env.run.questions()


async def asked_questions(env: Hooks) -> EvalSet:
    """The questions of `env.test_items_with_scorers`, which a subclass may have edited or replaced."""
    run = env.run
    await make_questions(env)
    problems = [problem_of(entry, dataset) for entry, dataset in env.test_items_with_scorers]
    return run.eval_set_of(problems)


_samples_of_hook: ContextVar[list[dict[str, Any]]] = ContextVar("_samples_of_hook")
"""Receives the sample of a question, because `rollout_and_score_eval` returns only its score."""


class QuestionsOfHook:
    """Asks each question through the environment's method `rollout_and_score_eval`.

    What the method returns is the score. The sample also has the completion if the method is ours, or calls ours.
    """

    def __init__(self, env: Hooks) -> None:
        self._env = env
        self._items: dict[tuple[str, str], TestItem] = {}
        for entry, dataset in env.test_items_with_scorers:
            self._items[_key(problem_of(entry, dataset))] = (entry, dataset)

    async def __call__(self, problem: Problem, attempt: int) -> dict[str, Any]:
        samples: list[dict[str, Any]] = []
        # Each question is asked in a task of its own, which has its own context.
        _samples_of_hook.set(samples)
        try:
            score = await self._env.rollout_and_score_eval(self._items[_key(problem)])
        except EnvironmentSetupError:
            raise
        except Exception as error:  # noqa: BLE001
            reason = f"rollout_and_score_eval failed: {type(error).__name__}: {error}"
            return sample_of(problem, attempt, unscored_reason=reason)
        sample = samples[-1] if samples else sample_of(problem, attempt)
        return {**sample, "attempt": attempt, **_fields_of_hook(sample, score)}


def _key(problem: Problem) -> tuple[str, str]:
    recipe = json.dumps(problem.config, sort_keys=True, default=str)
    return problem.task, f"{problem.index}/{problem.seed}/{recipe}/{problem.question}"


def _fields_of_hook(sample: dict[str, Any], score: Any) -> dict[str, Any]:
    """The fields of a sample that the score of a subclass changes."""
    if score == sample["credit"]:
        return {}
    if score is None:
        return scored_fields(None, "rollout_and_score_eval returned no score")
    if not isinstance(score, (int, float)) or not math.isfinite(score):
        return scored_fields(None, f"rollout_and_score_eval returned {score!r:.100}")
    value = float(score)
    answer = sample["model_parsed"]
    return scored_fields(Score(value, outcome_of(value), answer=answer, native=value), credit=value)


async def rollout_and_score(env: Hooks, test_item: TestItem) -> float | None:
    """What `rollout_and_score_eval` does: the score of one question, or None if it could not be scored."""
    sample = await env.run.evaluator.evaluate_one(problem_of(*test_item))
    with contextlib.suppress(LookupError):
        # Nobody waits for the sample if other code calls the method.
        _samples_of_hook.get().append(sample)
    credit: float | None = sample["credit"]
    return credit


# --- results


async def _write(
    env: Hooks,
    folder: Path,
    results: Any,
    samples: list[dict[str, Any]],
    parameters: dict[str, Any],
    started: float,
) -> None:
    """Let Atropos write metrics.json and samples.jsonl to `folder`. Raises OSError.

    A thread writes them, because a disk that hangs must not stop the event loop. A process that is killed meanwhile
    leaves the files of an earlier evaluation, or whole new files.
    """
    unfinished = folder / UNFINISHED
    writer = copy.copy(env)
    writer.config = env.config.model_copy(update={"data_dir_to_save_evals": str(unfinished)})
    writing = writer.evaluate_log(
        results.metrics(with_tasks=True),
        start_time=started,
        end_time=time.time(),
        samples=samples,
        generation_parameters=parameters,
        verbose=False,
    )

    def write() -> None:
        asyncio.run(writing)
        for name in (SAMPLES, METRICS):
            (unfinished / name).replace(folder / name)
        unfinished.rmdir()

    await BackgroundCalls("results").submit(write)


def _metrics(run: Run, results: Any, questions: EvalSet) -> dict[str, Any]:
    """The metrics to log; with wandb also a table by task."""
    metrics: dict[str, Any] = results.metrics()
    if run.config.use_wandb:
        metrics[TASK_TABLE] = task_table(results, questions.manifest)
    return metrics


def _numbers(metrics: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if isinstance(value, float)}


def _parameters(run: Run, questions: EvalSet) -> dict[str, Any]:
    """The questions, and how answers are sampled and graded: two results compare only if these are the same."""
    config = run.config
    parameters: dict[str, Any] = {
        "temperature": config.eval_temperature,
        "n": config.eval_completions,
        "max_new_tokens": run.budget.of_evaluation(0),
        "system_prompt": hashlib.sha256(system_prompt.encode()).hexdigest()[:16],
        "verification": config.eval_verification,
        "partial_credit": config.eval_partial_credit,
        "grading": grading(config.eval_verification),
        "reasoning_gym_environment_version": __version__,
    }
    found = run.inference.found
    if found:
        # What the servers support, according to the first requests.
        parameters["found_of_servers"] = found
    return {**parameters, **questions.describe()}
