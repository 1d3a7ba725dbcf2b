"""Grade completions for rows of `export --items`, whose recipes make the items again.

    rows with recipes ── one item for all rows with the same recipe ──> sandbox ──> grade_rows: a Grade for each row
                                                                                 └─> row_rewards: TRL's reward function

This module needs no trainer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from ..api import Grade, Tasks
from ..errors import GenerationError
from ..records import Outcome, Score
from .recipe import Recipe

__all__ = ["grade_rows", "row_rewards"]

logger = logging.getLogger(__name__)

RECIPE = "recipe"
"""The key of the recipe in the metadata of a row for NeMo Gym."""

GRADED_TOGETHER = 32
"""Groups that are graded at the same time."""

Row = Mapping[str, Any]


def grade_rows(
    tasks: Tasks,
    rows: Sequence[Row],
    completions: Sequence[str],
    *,
    thinking_opened: bool = False,
) -> list[Grade]:
    """Grade a completion for each row, in order. A row is a mapping with the fields of a recipe.

    If this process cannot make the item of a row, the reward is None, and the explanation of the score says why. Raises
    EnvironmentSetupError for a row without a recipe, and UnknownNameError for a task that `tasks` does not serve.
    """
    if len(rows) != len(completions):
        raise ValueError(f"Expected a completion for each of {len(rows)} rows, got {len(completions)}.")
    numbers_by_recipe: dict[Recipe, list[int]] = {}
    for number, row in enumerate(rows):
        numbers_by_recipe.setdefault(Recipe.from_row(row), []).append(number)
    groups = [[completions[number] for number in numbers] for numbers in numbers_by_recipe.values()]
    grade_group = partial(_grade_group, tasks, thinking_opened)
    with ThreadPoolExecutor(GRADED_TOGETHER) as threads:
        graded = list(threads.map(grade_group, numbers_by_recipe, groups))
    grades: dict[int, Grade] = {}
    for numbers, group_grades in zip(numbers_by_recipe.values(), graded, strict=True):
        grades.update(zip(numbers, group_grades, strict=True))
    return [grades[number] for number in range(len(rows))]


def _grade_group(tasks: Tasks, thinking_opened: bool, recipe: Recipe, completions: list[str]) -> list[Grade]:
    """Grade all completions of one item."""
    try:
        problem = recipe.make(tasks)
    except GenerationError as error:
        logger.warning("%d completions are unscored: %s", len(completions), error)
        score = Score(0.0, Outcome.CRASHED, explanation=str(error))
        return [Grade(None, score)] * len(completions)
    return tasks.grade(problem, completions, thinking_opened=thinking_opened)


def row_rewards(tasks: Tasks, *, thinking_opened: bool = False) -> Callable[..., list[float | None]]:
    """The reward function for TRL's GRPOTrainer over a dataset of `export --items`.

        trainer = GRPOTrainer(..., train_dataset=dataset, reward_funcs=[row_rewards(tasks)])

    The reward of a completion without a score is None, and TRL does not train on it, unless another reward function
    rewards it. Set `thinking_opened` if the chat template opens `<think>` in the prompt. With several processes, each
    process needs its own `tasks`.
    """

    def reasoning_gym(completions: Sequence[Any], **columns: Any) -> list[float | None]:
        rows: list[dict[str, Any]] = []
        for number in range(len(completions)):
            rows.append({name: columns[name][number] for name in Recipe.__dataclass_fields__ if name in columns})
        texts = [text_of(completion) for completion in completions]
        grades = grade_rows(tasks, rows, texts, thinking_opened=thinking_opened)
        return [grade.reward for grade in grades]

    return reasoning_gym


def text_of(completion: Any) -> str:
    """The text of a completion: plain text, or the model's last message of a conversation."""
    if isinstance(completion, str):
        return completion
    contents = [message.get("content") for message in completion if message.get("role") == "assistant"]
    last = contents[-1] if contents else None
    return last if isinstance(last, str) else ""
