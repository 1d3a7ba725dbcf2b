"""Evaluations: the held-out questions asked and graded, during training and by the command `evaluate`."""

from __future__ import annotations

import logging
import time
from typing import Any

from atroposlib.envs.base import BaseEnv

from ..evaluation.questions import EvalSet
from ..evaluation.results import TASK_TABLE, print_table, result_line, summarise, task_table
from ..evaluation.runner import Journal, grading
from . import preflight

logger = logging.getLogger(__name__)


async def evaluate_once(env: BaseEnv, settings: str = "") -> None:
    """The command `evaluate`, of an environment that is not set up. Raises EnvironmentSetupError.

    `settings` is kept beside the results, as YAML, so that the command can be resumed.
    """
    await preflight.check_offline_use(env, evaluates=True)
    # Nothing is trained on: the ladders of all tasks, which take seconds to build, would not be used.
    await env.start_parts(env.config.model_copy(update={"complexity_mode": None}))
    questions = await env.questions()
    if not env.config.dry_run:
        preflight.begin_wandb_run(env)
    metrics = await evaluate(env, questions, settings)
    if not env.config.dry_run:
        env.eval_metrics.extend(metrics.items())
        logger.info("Spent: %s.", env.inference.spending.total())
        await env.wandb_log()


async def evaluate(env: BaseEnv, questions: EvalSet, settings: str | None = None) -> dict[str, Any]:
    """Ask and grade the questions; the metrics, with wandb also a table by task. Raises EnvironmentSetupError.

    The command, which gives `settings`, resumes what an earlier start has answered. During training each evaluation is
    of another model: it takes the place of the last one.
    """
    started, is_command, parameters = time.time(), settings is not None, _parameters(env, questions)
    folder, model = env.config.data_dir_to_save_evals, env.server.servers[0].config.model_name
    identity = {**parameters, "model_name": model}
    with Journal(folder if is_command else None, identity, settings=settings or "") as journal:
        if is_command:
            logger.info("%s", env.evaluator.plan(questions, journal))
            if env.config.dry_run:
                return {}
        samples = await env.evaluator.samples(questions, journal, show_progress=is_command)
        results = summarise(samples)
        logger.info("%s", result_line(results, questions.manifest))
        if is_command:
            print_table(results, questions.describe())
        if folder is not None:
            try:
                await env.evaluate_log(
                    results.metrics(with_tasks=True),
                    start_time=started,
                    end_time=time.time(),
                    samples=samples,
                    generation_parameters=parameters,
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


def _parameters(env: BaseEnv, questions: EvalSet) -> dict[str, Any]:
    """The questions, and how answers are sampled and graded: two results compare only if these are the same."""
    config = env.config
    return {
        "temperature": config.eval_temperature,
        "n": config.eval_completions,
        "max_new_tokens": env.token_budget.of_evaluation(0),
        "verification": config.eval_verification,
        "grading": grading(config.eval_verification),
        "scoring_timeout_s": config.scoring_timeout_s,
        # What the servers take less of than is set.
        **({"found_of_servers": found} if (found := env.inference.found) else {}),
        **questions.describe(),
    }
