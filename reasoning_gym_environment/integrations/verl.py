"""The reward function for verl (docs/verl.md).

    extra_info of a row ── Recipe ──> the item, once for all completions of a group ──┐
    solution_str ─────────────────────────────────────────────────────────────> sandbox ──> {"score": ..., ...}

`compute_score` is an ordinary function. verl's reward managers call an ordinary function in a separate thread, and the
manager `remote` refuses coroutines. The thread waits while the worker processes grade, so grading delays neither verl's
event loop nor the completions in other threads. This module does not import verl.
"""

from __future__ import annotations

import json
import logging
import math
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from ..api import Tasks
from ..errors import EnvironmentSetupError, GenerationError
from ..records import Outcome
from ..utils.clock import now
from .recipe import RecentItems, Recipe

__all__ = ["UnscoredError", "compute_score", "compute_scores"]

logger = logging.getLogger(__name__)

TOGETHER = 16
"""The number of threads that grade the completions of a batch."""
LOG_EVERY_S = 60.0
"""Seconds between two lines in the log about unscored completions."""


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

    `extra_info` has the recipe of the item; neither `data_source` nor `ground_truth` is used, and nor are the two
    arguments about reward models. The keyword arguments come from `reward_kwargs` in verl's configuration. Set
    `thinking_opened` if the chat template has already opened `<think>` in the prompt. `settings` are settings of
    `Tasks`. The workers start with the first call in each process and end with the process. Any thread may call this.

    Raises UnscoredError for a completion that could not be scored, unless `unscored_reward` gives a score for it.
    Raises EnvironmentSetupError for a row without a recipe, an unknown task, or invalid settings.
    """
    recipe = Recipe.from_row(extra_info or {})
    items = _process.items(settings)
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
    """The results of `compute_score` for a batch, in order. verl 0.7.0 and earlier can use it with `batch`."""
    with ThreadPoolExecutor(TOGETHER) as threads:
        score = partial(compute_score, **options)
        return list(threads.map(score, data_sources, solution_strs, ground_truths, extra_infos))


def _unscored(recipe: Recipe, reason: str, reward: float | None) -> dict[str, float]:
    """The result with this reward. Raises UnscoredError if there is none."""
    sentence = f"{recipe.task}, seed {recipe.seed}: {reason}"
    _process.note_unscored(sentence)
    if reward is None:
        raise UnscoredError(
            f"A completion could not be scored ({sentence}). verl 0.9 drops the completion. Set unscored_reward for "
            "earlier releases."
        )
    return {"score": float(reward), "correct": 0.0, "format_failure": 0.0, "unscored": 1.0}


class _Process:
    """The workers of this process, by their settings, and the number of its unscored completions."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: dict[str, RecentItems] = {}
        self._num_unscored = 0
        self._log_at = -math.inf

    def items(self, settings: Mapping[str, Any]) -> RecentItems:
        """The items and workers for these settings. The first call starts the workers, and concurrent calls wait.

        Raises EnvironmentSetupError if they do not start. The next call tries again.
        """
        try:
            key = json.dumps(settings, sort_keys=True)
        except TypeError as error:
            raise EnvironmentSetupError(
                f"reward_kwargs: expected texts and numbers, got {settings!r:.200}. Separate names by commas."
            ) from error
        with self._lock:
            if key not in self._items:
                self._items[key] = RecentItems(Tasks(**settings))
            return self._items[key]

    def note_unscored(self, sentence: str) -> None:
        """Count a completion, and log the count unless this happened less than LOG_EVERY_S seconds ago."""
        with self._lock:
            self._num_unscored += 1
            if now() < self._log_at:
                return
            self._log_at = now() + LOG_EVERY_S
        logger.warning(
            "%d completions unscored in this process so far. The last: %s",
            self._num_unscored,
            sentence,
        )


_process = _Process()


def _forget_the_parents_workers() -> None:
    global _process
    _process = _Process()


# A forked process has neither the threads of the parent's workers nor the thread that may hold a lock at that moment.
os.register_at_fork(after_in_child=_forget_the_parents_workers)
