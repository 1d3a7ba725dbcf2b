"""The reward function for verl (docs/verl.md).

    extra_info of a row ── Recipe ──> the item, once for all completions of a group ──┐
    solution_str ─────────────────────────────────────────────────────────────> sandbox ──> {"score": ..., ...}
    a row of a store of levels (verl_dataset.py) ── report ──> the store learns the reward

`compute_score` is an ordinary function, and not a coroutine, because verl's reward manager `remote` refuses coroutines.
verl's reward managers call an ordinary function in a separate thread. This thread waits while the worker processes
grade, so grading delays neither verl's event loop nor the completions in other threads. This module does not import
verl. Its imports are absolute, because verl before 0.7 loads a reward function from the path of a file only.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from reasoning_gym_environment.integrations.curriculum_rows import report
from reasoning_gym_environment.integrations.recipe import Recipe, UnscoredError, grader_for, metrics_of

__all__ = ["UnscoredError", "compute_score", "compute_scores"]

logger = logging.getLogger(__name__)

BATCH_THREADS = 16
"""The number of threads that grade the completions of a batch."""


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: Mapping[str, Any] | None = None,
    *,
    thinking_opened: bool = False,
    unscored_reward: float | None = None,
    reward_router_address: str | None = None,
    reward_model_tokenizer: Any = None,
    **settings: Any,
) -> dict[str, float]:
    """Grade a completion: `score` is the reward, in [0, 1], and `correct`, `format_failure` and `unscored` are 0 or 1.

    `extra_info` has the recipe of the item. verl also passes `data_source`, `ground_truth`, `reward_router_address` and
    `reward_model_tokenizer`, which this function ignores.

    The other arguments come from `reward_kwargs` in verl's configuration. Set `thinking_opened` if the chat template
    has already opened `<think>` in the prompt. `settings` are settings of `Tasks`.

    The workers start with the first call in each process and end with the process. Any thread may call this function.

    Raises UnscoredError for a completion that could not be scored, unless `unscored_reward` gives a score for it.
    Raises EnvironmentSetupError for a row without a recipe, an unknown task, invalid settings, or a store of levels
    that cannot be written.
    """
    row = extra_info or {}
    recipe = Recipe.from_row(row)
    [grade] = grader_for(settings).grade(recipe, [solution_str], thinking_opened=thinking_opened)
    reward = grade.reward
    report(row, reward)
    if reward is None:
        reason = f"{recipe.task}, seed {recipe.seed}: {grade.score.outcome.value} {grade.score.explanation}".strip()
        if unscored_reward is None:
            raise UnscoredError(
                f"A completion could not be scored ({reason}). verl 0.9 drops the completion. Set unscored_reward for "
                "earlier releases."
            )
        logger.warning("A completion has no score, so its reward is %g (%s).", unscored_reward, reason)
        reward = float(unscored_reward)
    return {"correct": 0.0, "format_failure": 0.0, **metrics_of(grade), "score": reward}


def compute_scores(
    data_sources: Sequence[str],
    solution_strs: Sequence[str],
    ground_truths: Sequence[str],
    extra_infos: Sequence[Mapping[str, Any]],
    **options: Any,
) -> list[dict[str, float]]:
    """The results of `compute_score` for a batch, in order.

    The reward manager `batch` of verl 0.7.0 and earlier calls this function.
    """
    with ThreadPoolExecutor(BATCH_THREADS) as threads:
        score = partial(compute_score, **options)
        return list(threads.map(score, data_sources, solution_strs, ground_truths, extra_infos))
