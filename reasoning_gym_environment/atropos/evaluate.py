"""Evaluations: the held-out questions asked and graded, during training and by the command `evaluate`."""

from __future__ import annotations

import logging
import time
from typing import Any

from atroposlib.envs.base import BaseEnv

from ..evaluation.journal import Journal, grading
from ..evaluation.questions import EvalSet
from ..evaluation.results import TASK_TABLE, print_table, result_line, summarise, task_table
from ..inference.prompts import EVAL_BUDGET_FACTOR
from . import preflight

logger = logging.getLogger(__name__)


async def evaluate_once(env: BaseEnv, settings: str = "") -> None:
    """The command `evaluate`, of an environment that is not set up. Raises EnvironmentSetupError.

    `settings` is kept beside the results, as YAML, so that the command can be resumed.
    """
    if not env.config.dry_run:
        first = preflight.first_request(env.config, env.tokenizer, evaluates=True)
        await preflight.check_offline_use(env.config, env.inference, first)
    env.inference.servers.gives_up_after_s = preflight.UNAVAILABLE_S
    # Nothing is trained on: the ladders of all tasks, which take seconds to build, would not be used.
    await env.start_parts(env.config.model_copy(update={"complexity_mode": None}))
    questions = await env.questions()
    if env.config.dry_run:
        with _journal(env, questions, settings) as journal:
            logger.info("%s", env.evaluator.plan(questions, journal))
        return
    preflight.begin_wandb_run(env.config, str(env.name))
    env.eval_metrics.extend((await evaluate(env, questions, is_command=True, settings=settings)).items())
    logger.info("Spent: %s.", env.inference.spending.total())
    await env.wandb_log()


async def evaluate(env: BaseEnv, questions: EvalSet, *, is_command: bool = False, settings: str = "") -> dict[str, Any]:
    """Ask and grade the questions; the metrics, with wandb also a table by task. Raises EnvironmentSetupError.

    The command resumes what an earlier start has answered. During training each evaluation is of another model: it
    takes the place of the last one.
    """
    started = time.time()
    with _journal(env, questions, settings if is_command else None) as journal:
        if is_command:
            logger.info("%s", env.evaluator.plan(questions, journal))
        samples = await env.evaluator.samples(questions, journal, show_progress=is_command)
        results = summarise(samples)
        logger.info("%s", result_line(results, questions.manifest))
        if is_command:
            print_table(results, questions.describe())
        if env.config.data_dir_to_save_evals is not None:
            try:
                await env.evaluate_log(
                    results.metrics(with_tasks=True),
                    start_time=started,
                    end_time=time.time(),
                    samples=samples,
                    generation_parameters=_parameters(env, questions),
                    verbose=False,
                )
            except OSError as error:
                if is_command:
                    raise
                # Training goes on, and the log has the numbers.
                logger.error("Evaluation not written to data_dir_to_save_evals: %s", error)
        journal.finish()
    metrics: dict[str, Any] = results.metrics()
    return {**metrics, TASK_TABLE: task_table(results, questions.manifest)} if env.config.use_wandb else metrics


def _journal(env: BaseEnv, questions: EvalSet, settings: str | None) -> Journal:
    """The answers of earlier starts; none without `settings`."""
    folder = None if settings is None else env.config.data_dir_to_save_evals
    model = env.server.servers[0].config.model_name
    return Journal(folder, {**_parameters(env, questions), "model_name": model}, settings=settings or "")


def _parameters(env: BaseEnv, questions: EvalSet) -> dict[str, Any]:
    """The questions, and how answers are sampled and graded: two results compare only if these are the same."""
    config = env.config
    return {
        "temperature": config.eval_temperature,
        "n": config.eval_completions,
        "max_new_tokens": EVAL_BUDGET_FACTOR * config.max_token_length,
        "verification": config.eval_verification,
        "grading": grading(config.eval_verification),
        "scoring_timeout_s": config.scoring_timeout_s,
        # What the servers take less of than is set.
        **({"found_of_servers": found} if (found := env.inference.found) else {}),
        **questions.describe(),
    }
