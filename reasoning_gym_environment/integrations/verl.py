"""The reward function for verl (docs/verl.md).

    extra_info of a row ── Recipe ──> the item, once for all completions of a group ──┐
    solution_str ─────────────────────────────────────────────────────────────> sandbox ──> {"score": ..., ...}

`compute_score` is an ordinary function, and not a coroutine, because verl's reward manager `remote` refuses coroutines.
verl's reward managers call an ordinary function in a separate thread. This thread waits while the worker processes
grade, so grading delays neither verl's event loop nor the completions in other threads. This module does not import
verl. Its imports are absolute, because verl before 0.7 loads a reward function from the path of a file only.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from reasoning_gym_environment.errors import GenerationError
from reasoning_gym_environment.integrations.recipe import Recipe, items_for
from reasoning_gym_environment.records import Outcome
from reasoning_gym_environment.utils.clock import now

__all__ = ["UnscoredError", "compute_score", "compute_scores"]

logger = logging.getLogger(__name__)

BATCH_THREADS = 16
"""The number of threads that grade the completions of a batch."""
LOG_EVERY_S = 60.0
"""Least number of seconds between two log lines about unscored completions."""


class UnscoredError(Exception):
    """There is no score, although the answer may be right. verl 0.9 then trains on the rest of the group."""


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
    Raises EnvironmentSetupError for a row without a recipe, an unknown task, or invalid settings.
    """
    recipe = Recipe.from_row(extra_info or {})
    items = items_for(settings)
    try:
        problem = items.get(recipe)
    except GenerationError as error:
        return _unscored(recipe, str(error), unscored_reward)
    [grade] = items.tasks.grade(problem, [solution_str], thinking_opened=thinking_opened)
    if grade.reward is None:
        outcome = grade.score.outcome.value
        return _unscored(recipe, f"{outcome} {grade.score.explanation}".strip(), unscored_reward)
    return {
        "score": grade.reward,
        "correct": float(grade.score.outcome is Outcome.CORRECT),
        "format_failure": float(grade.score.outcome is Outcome.FORMAT_FAILURE),
        "unscored": 0.0,
    }


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


def _unscored(recipe: Recipe, reason: str, reward: float | None) -> dict[str, float]:
    """The result of an unscored completion that gets `reward`. Raises UnscoredError if `reward` is None."""
    sentence = f"{recipe.task}, seed {recipe.seed}: {reason}"
    _unscored_log.note(sentence)
    if reward is None:
        raise UnscoredError(
            f"A completion could not be scored ({sentence}). verl 0.9 drops the completion. Set unscored_reward for "
            "earlier releases."
        )
    return {"score": float(reward), "correct": 0.0, "format_failure": 0.0, "unscored": 1.0}


class _UnscoredLog:
    """Counts the unscored completions of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_unscored = 0
        self._next_log = -math.inf

    def note(self, sentence: str) -> None:
        """Count a completion. Log the count, unless the last such log line is less than LOG_EVERY_S seconds old."""
        with self._lock:
            self._num_unscored += 1
            if now() < self._next_log:
                return
            self._next_log = now() + LOG_EVERY_S
        logger.warning(
            "%d completions of this process could not be scored so far. The last one: %s",
            self._num_unscored,
            sentence,
        )


_unscored_log = _UnscoredLog()


def _forget_the_parents_log() -> None:
    global _unscored_log
    _unscored_log = _UnscoredLog()


# Another thread of the parent may hold the lock at the time of the fork.
os.register_at_fork(after_in_child=_forget_the_parents_log)
