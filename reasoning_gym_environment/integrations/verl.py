"""The reward function for verl (docs/trainers.md).

    extra_info of a row: its recipe ── grade(recipe, [solution_str]) ──> {"score": ..., ...} ── report ──> the levels

`compute_score` is an ordinary function, because verl's reward manager `remote` refuses coroutines. verl's managers call
it in a thread, which waits while the worker processes grade. This module does not import verl. Its imports are
absolute, because verl before 0.7 loads a reward function from the path of a file only.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from reasoning_gym_environment.api import Recipe, UnscoredError, grade, report

__all__ = ["compute_score"]

logger = logging.getLogger(__name__)


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: Mapping[str, Any] | None = None,
    *,
    unscored_reward: float | None = None,
    reward_router_address: str | None = None,
    reward_model_tokenizer: Any = None,
    **options: Any,
) -> dict[str, float]:
    """Grade a completion: `score` is the reward, in [0, 1], and `correct`, `format_failure` and `unscored` are 0 or 1.

    `extra_info` has the recipe of the item. The other arguments of verl are ignored. `options` come from
    `reward_kwargs` in verl's configuration: `thinking_opened` and the settings of `grade`.

    Raises UnscoredError for a completion that could not be scored, unless `unscored_reward` gives a score for it.
    Raises EnvironmentSetupError for a row without a recipe, or invalid settings.
    """
    recipe = Recipe.of(extra_info or {})
    [made] = grade(recipe, [solution_str], **options)
    report(recipe, [made.reward])
    reward = made.reward
    if reward is None:
        reason = f"{recipe.task}, seed {recipe.seed}: {made.score.outcome.kind} {made.score.explanation}".strip()
        if unscored_reward is None:
            raise UnscoredError(
                f"A completion could not be scored ({reason}). verl 0.9 drops the completion. Set unscored_reward for "
                "earlier releases."
            )
        logger.warning("A completion has no score, so its reward is %g (%s).", unscored_reward, reason)
        reward = float(unscored_reward)
    return {"correct": 0.0, "format_failure": 0.0, **made.metrics, "score": reward}
