"""Evaluations: the held-out questions asked and graded, during training and by the command `evaluate`."""

from __future__ import annotations

import json
import logging
import os
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
from ..storage.append_log import line_of, lock
from ..storage.files import write_atomically
from ..telemetry.telemetry import keep_newest_metrics
from . import preflight
from .asked_questions import QuestionsOfHook, asked_questions, make_questions
from .hooks import Hooks

logger = logging.getLogger(__name__)


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


async def evaluate_at_step(env: Hooks) -> None:
    """An evaluation of `serve`. It makes the questions first, because `evaluate` of a subclass may read them."""
    try:
        await make_questions(env)
        await env.evaluate()
        keep_newest_metrics(env.eval_metrics)
    except EnvironmentSetupError as error:
        logger.error("%s", error)


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
            await _write(env, results, samples, parameters, started)
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

    Each evaluation carries the trainer's steps at which its completions were sampled: other environments may feed the
    trainer. Its folder is named after the first of these steps, so that two evaluations can be compared. A disk that
    refuses the results is logged.
    """
    run = env.run
    questions = await asked_questions(env)
    step = run.state.step
    started = time.time()
    with AnswerLog(None, {}) as answers:
        samples = await run.evaluator.samples(questions, answers, ask=QuestionsOfHook(env, questions))
    last_step = run.state.step
    # The first evaluation of a run holds back all groups until here.
    run.api.may_send.set()
    results = summarise(samples)
    run.evaluator.newest = f"exact {results.overall.estimates['exact'].value:.1%} at step {step}"
    steps = f"Step {step}" if step == last_step else f"Steps {step} to {last_step}"
    logger.info("%s: %s%s", steps, result_line(results, questions.manifest), _since_first(run, step, samples))
    if run.evals_folder is not None:
        parameters = {**_parameters(run, questions), SAMPLED_AT: step, "sampled_until_step": last_step}
        try:
            await _write(env, results, samples, parameters, started)
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
    results: Any,
    samples: list[dict[str, Any]],
    parameters: dict[str, Any],
    started: float,
) -> None:
    """Let the environment write the results. Raises OSError."""
    await env.evaluate_log(
        results.metrics(with_tasks=True),
        start_time=started,
        end_time=time.time(),
        samples=samples,
        generation_parameters=parameters,
        verbose=False,
    )


SAMPLED_AT = "sampled_at_step"
"""The parameter of an evaluation that has the trainer's step at which its first completion was requested."""


def results_folder(env: Hooks, parameters: Mapping[str, Any]) -> Path | None:
    """The folder for the results of an evaluation with these parameters; None if they are not saved."""
    if SAMPLED_AT in parameters and env.run.evals_folder is not None:
        return env.run.evals_folder / f"step-{parameters[SAMPLED_AT]}"
    folder = env.config.data_dir_to_save_evals
    return None if folder is None else Path(folder)


def write_results(folder: Path, document: Mapping[str, Any], samples: Sequence[dict[str, Any]]) -> None:
    """Write metrics.json and samples.jsonl to `folder`. Raises OSError.

    A process that is killed meanwhile leaves each file of an earlier evaluation, or a whole new one. Processes with the
    same folder take turns to write.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        lock(descriptor, folder, waits=True)
        if samples:
            write_atomically(folder / SAMPLES, b"".join(map(line_of, samples)))
        write_atomically(folder / METRICS, json.dumps(document, indent=2).encode())
    finally:
        os.close(descriptor)


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
