"""Evaluations: the held-out questions asked and graded, during training and by the command `evaluate`.

    env.test_items_with_scorers ── asked_questions ──> EvalSet
    a question of it ── QuestionsOfHook ──> env.rollout_and_score_eval ──> its score and its sample

A subclass may change the questions and the method. `rollout_and_score_eval` returns only a score. So our own method
leaves the sample of the question, with its completion, in a context variable, and QuestionsOfHook takes it from there.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..errors import EnvironmentSetupError
from ..evaluation.questions import EvalSet
from ..evaluation.results import (
    difference_words,
    exact,
    print_table,
    result_line,
    summarise,
    values_by_question,
)
from ..evaluation.runner import METRICS, SAMPLES, AnswerLog, FirstEvaluation
from ..group import TestItem, problem_of
from ..records import Problem, Score, outcome_of
from ..run import Mode, Run
from ..storage.append_log import line_of, lock
from ..storage.files import write_atomically
from ..storage.lines import sample_fields, sample_of, unscored_fields
from ..telemetry.telemetry import keep_newest_metrics
from . import preflight

if TYPE_CHECKING:
    from ..env import ReasoningGymEnv

logger = logging.getLogger(__name__)


async def evaluate_command(env: ReasoningGymEnv) -> None:
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


async def evaluate(env: ReasoningGymEnv) -> dict[str, float]:
    """Evaluate the present model: for the command `evaluate`, or while training continues. Returns the metrics."""
    if env.run.mode is Mode.EVALUATE:
        return await _evaluate_once(env)
    try:
        metrics = await _evaluate_present_model(env)
    except EnvironmentSetupError as error:
        # It has scored nothing, so it has no metrics.
        logger.error("%s", error)
        return {}
    env.eval_metrics.extend(metrics.items())
    keep_newest_metrics(env.eval_metrics)
    return metrics


async def evaluate_at_step(env: ReasoningGymEnv) -> None:
    """An evaluation of `serve`. It makes the questions first, because `evaluate` of a subclass may read them."""
    try:
        await make_questions(env)
        await env.evaluate()
        keep_newest_metrics(env.eval_metrics)
    except EnvironmentSetupError as error:
        logger.error("%s", error)


async def _evaluate_once(env: ReasoningGymEnv) -> dict[str, float]:
    """Ask all questions, resume where an earlier start of the command stopped, and print the results.

    The log of answers gets the command's settings, as YAML, so that it can be resumed. Raises EnvironmentSetupError.
    """
    config = env.config
    evaluator = env.run.evaluator
    spending = env.inference.spending
    questions = await asked_questions(env)
    parameters = _parameters(env.run, questions)
    identity = {**parameters, "model_name": env.inference.model_name}
    with AnswerLog(config.data_dir_to_save_evals, identity, settings=env.settings_as_yaml) as answers:
        logger.info("%s", evaluator.plan(questions, answers))
        preflight.begin_wandb_run(config)
        started = time.time()
        ask = QuestionsOfHook(env, questions)
        samples = await evaluator.samples(questions, answers, ask=ask)
        results = summarise(samples)
        logger.info("%s", result_line(results, questions.manifest))
        if config.data_dir_to_save_evals is not None:
            await _write(env, results, samples, parameters, started)
        answers.finish()
    metrics = results.metrics()
    env.eval_metrics.extend(metrics.items())
    logger.info("Spent: %s.", spending.total())
    await env.wandb_log()
    # The table comes last: if the reader of the output has gone away, printing fails, and the results must be complete.
    print_table(results, questions.describe())
    return metrics


async def _evaluate_present_model(env: ReasoningGymEnv) -> dict[str, float]:
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
    may_send = run.api.may_send
    may_send.set()
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
    return results.metrics()


def _since_first(run: Run, step: int, samples: Sequence[Mapping[str, Any]]) -> str:
    """A sentence on the difference to the first evaluation of this process; "" for the first one."""
    questions = values_by_question(samples, exact)
    first = run.evaluator.first
    if first is None:
        run.evaluator.first = FirstEvaluation(step, questions)
        return ""
    return f" {difference_words(first.step, first.exact, questions)}."


async def _write(
    env: ReasoningGymEnv,
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


def results_folder(env: ReasoningGymEnv, parameters: Mapping[str, Any]) -> Path | None:
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
        "reasoning_gym_environment_version": __version__,
    }
    return {**parameters, **questions.describe()}


# --- the questions, and how each is asked


async def make_questions(env: ReasoningGymEnv) -> None:
    """Make the questions of `env.test_items_with_scorers`, unless they exist or a subclass has set another list.

    Raises EnvironmentSetupError if there is no question.
    """
    if env.test_items_with_scorers is env.run.test_items:
        await env.run.questions()


async def asked_questions(env: ReasoningGymEnv) -> EvalSet:
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

    def __init__(self, env: ReasoningGymEnv, questions: EvalSet) -> None:
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
        prompts = self._env.prompts
        messages = prompts.messages(problem.question)
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


async def rollout_and_score(env: ReasoningGymEnv, test_item: TestItem) -> float | None:
    """The implementation of `rollout_and_score_eval`: the score of one question, or None if it is unscored."""
    problem = problem_of(*test_item, env.config.answer_format)
    evaluator = env.run.evaluator
    sample = await evaluator.evaluate_one(problem)
    with contextlib.suppress(LookupError):
        # If other code calls the method, the sample is unused.
        _samples_of_hook.get().append(sample)
    credit: float | None = sample["credit"]
    return credit
