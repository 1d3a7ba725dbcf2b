"""Evaluations: the held-out questions asked and graded, during training and by the command `evaluate`."""

from __future__ import annotations

import asyncio
import copy
import logging
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import EnvironmentSetupError
from ..evaluation.questions import EvalSet
from ..evaluation.results import (
    TASK_TABLE,
    difference_words,
    exact_by_question,
    print_table,
    result_line,
    summarise,
    task_table,
)
from ..evaluation.runner import METRICS, SAMPLES, AnswerLog, FirstEvaluation, grading
from ..run import Mode, Run
from ..storage.append_log import lock
from ..telemetry.telemetry import keep_newest_metrics
from ..utils.resilience import BackgroundCalls
from . import preflight
from .asked_questions import QuestionsOfHook, asked_questions, make_questions
from .hooks import Hooks

logger = logging.getLogger(__name__)

UNFINISHED = ".unfinished"
"""Folder in `data_dir_to_save_evals` for results while they are written. The report skips hidden folders."""


async def evaluate_command(env: Hooks) -> None:
    """The command `evaluate`, with an environment that is not set up yet. Raises EnvironmentSetupError."""
    preflight.refuse_testing(env.inference)
    config = env.config
    await preflight.check_offline_use(config, env.inference, env.prompts, evaluates=True)
    await env.setup()
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


async def evaluate_at_step(env: Hooks, step: int) -> None:
    """An evaluation of `serve`, of the model of a step of the trainer, or a few steps later.

    It makes the questions first, because `evaluate` of a subclass may read them.
    """
    state = env.run.state
    state.evaluated_step = step
    try:
        await make_questions(env)
        await env.evaluate()
        keep_newest_metrics(env.eval_metrics)
    except EnvironmentSetupError as error:
        logger.error("%s", error)
    finally:
        state.evaluated_step = None


async def _evaluate_once(env: Hooks) -> dict[str, float]:
    """Ask all questions, resume where an earlier start of the command stopped, and print the results.

    The log of answers gets the command's settings, as YAML, so that it can be resumed. Raises EnvironmentSetupError.
    """
    config = env.config
    questions = await asked_questions(env)
    parameters = _parameters(env.run, questions)
    identity = {**parameters, "model_name": env.inference.model_name}
    with AnswerLog(config.data_dir_to_save_evals, identity, settings=env.settings_as_yaml) as answers:
        logger.info("%s", env.run.evaluator.plan(questions, answers))
        preflight.begin_wandb_run(config)
        started = time.time()
        ask = QuestionsOfHook(env, questions)
        samples = await env.run.evaluator.samples(questions, answers, ask=ask)
        results = summarise(samples)
        logger.info("%s", result_line(results, questions.manifest))
        if config.data_dir_to_save_evals is not None:
            await _write(
                env,
                Path(config.data_dir_to_save_evals),
                "",
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
    keep_newest_metrics(env.eval_metrics)
    return _numbers(metrics)


async def _evaluate_present_model(env: Hooks) -> dict[str, Any]:
    """The metrics of one evaluation. Raises EnvironmentSetupError.

    Each evaluation has its own folder, named after the step that it was begun for, so that two of them can be compared.
    A disk that refuses the results is logged.
    """
    run = env.run
    questions = await asked_questions(env)
    step = run.state.step if run.state.evaluated_step is None else run.state.evaluated_step
    started = time.time()
    with AnswerLog(None, {}) as answers:
        samples = await run.evaluator.samples(questions, answers, ask=QuestionsOfHook(env, questions))
    results = summarise(samples)
    run.evaluator.newest = f"exact {results.overall.estimates['exact'].value:.1%} at step {step}"
    logger.info("Step %d: %s%s", step, result_line(results, questions.manifest), _since_first(run, step, samples))
    if run.evals_folder is not None:
        try:
            await _write(env, run.evals_folder, f"step-{step}", results, samples, _parameters(run, questions), started)
        except OSError as error:
            # Training continues, and the log has the numbers.
            logger.error("Evaluation not written to %s: %s", run.evals_folder, error)
    return _metrics(run, results, questions)


def _since_first(run: Run, step: int, samples: Sequence[Mapping[str, Any]]) -> str:
    """A sentence on the difference to the first evaluation of this process; "" for the first one."""
    exact = exact_by_question(samples)
    first = run.evaluator.first
    if first is None:
        run.evaluator.first = FirstEvaluation(step, exact)
        return ""
    return f" {difference_words(first.step, first.exact, exact)}."


async def _write(
    env: Hooks,
    shared: Path,
    name: str,
    results: Any,
    samples: list[dict[str, Any]],
    parameters: dict[str, Any],
    started: float,
) -> None:
    """Let Atropos write metrics.json and samples.jsonl to the folder `name` in `shared`. Raises OSError.

    A thread writes them, because a disk that hangs must not stop the event loop. A process that is killed meanwhile
    leaves the files of an earlier evaluation, or whole new files. It also leaves UNFINISHED, which the next evaluation
    replaces. Processes with the same shared folder take turns to write.
    """
    folder = shared / name
    unfinished = shared / UNFINISHED
    writer = copy.copy(env)
    writer.config = env.config.model_copy(update={"data_dir_to_save_evals": str(unfinished)})
    metrics = results.metrics(with_tasks=True)
    ended = time.time()

    def write_files() -> None:
        shutil.rmtree(unfinished, ignore_errors=True)
        try:
            writing = writer.evaluate_log(
                metrics,
                start_time=started,
                end_time=ended,
                samples=samples,
                generation_parameters=parameters,
                verbose=False,
            )
            asyncio.run(writing)
            folder.mkdir(parents=True, exist_ok=True)
            for name in (SAMPLES, METRICS):
                (unfinished / name).replace(folder / name)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    def write() -> None:
        shared.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(shared, os.O_RDONLY)
        try:
            lock(descriptor, shared, waits=True)
            write_files()
        finally:
            os.close(descriptor)

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
        "max_new_tokens": run.prompts.room_for_evaluation(0),
        **run.prompts.identity,
        "verification": config.verification,
        "partial_credit": config.partial_credit,
        "grading": grading(config.verification),
        "reasoning_gym_environment_version": __version__,
    }
    return {**parameters, **questions.describe()}
