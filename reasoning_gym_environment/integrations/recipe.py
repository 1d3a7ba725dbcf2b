"""The recipe of an item, from which another process makes the same item again, and grades for recipes.

    Problem ── Recipe.of ──> Recipe ── as_row ──> a dict of texts and numbers, in JSON lines or parquet
    a row ── Recipe.from_row ──> Recipe ── RecipeGrader ──> the same item, once for all its completions ──> grades
    rows of `export items`, completions ── grade_rows ──> a Grade for each

JSON and parquet change the metadata of most items, so a row carries the recipe and not the item. The process that
grades makes the item again. The digest of the question shows whether it is the same item. This module needs no trainer.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

from ..api import Grade, PromptedProblem, Tasks
from ..errors import EnvironmentSetupError, GenerationError, NoRightAnswerError
from ..records import AnswerFormat, Outcome, Problem, Score, to_json
from ..sampling.seeds import question_digest
from ..utils.loop_thread import PerProcess

__all__ = [
    "Recipe",
    "RecipeGrader",
    "UnscoredError",
    "grade_rows",
    "grader_for",
    "metrics_of",
    "text_of",
]

logger = logging.getLogger(__name__)

KEPT_ITEMS = 1024
KEPT_CHARS = 64 << 20
"""Items that a `RecipeGrader` remembers, and their characters in all."""

RECIPE = "recipe"
"""The key of the recipe in the metadata of a row for NeMo Gym."""

Row: TypeAlias = Mapping[str, Any]


class UnscoredError(Exception):
    """There is no score, although the answer may be right. Trainers exclude the completion."""


@dataclass(frozen=True)
class Recipe:
    """All fields are texts or numbers, because a column of a table has one type."""

    task: str
    seed: int
    config: str
    """The config of reasoning-gym, as JSON."""
    level: int | None
    """None for an item without a level."""
    question_digest: str
    """The result of `sampling.seeds.question_digest` for the question as reasoning-gym wrote it.

    It does not depend on the settings with which the row was made.
    """
    answer_format: str = AnswerFormat.TAGS.value
    """The form in which the prompt of the row asks for the answer."""

    @classmethod
    def of(cls, problem: Problem) -> Recipe:
        """The recipe of a problem that a stream, a held-out set or `Tasks.make` has made."""
        config = json.dumps(to_json(dict(problem.config)), sort_keys=True)
        return cls(
            problem.task,
            problem.seed,
            config,
            problem.level,
            question_digest(problem.library_question),
            problem.answer_format.value,
        )

    def as_row(self) -> dict[str, Any]:
        """The recipe as a dict."""
        return asdict(self)

    @classmethod
    def from_row(cls, row: Row) -> Recipe:
        """The recipe of a row, which may have more keys. Raises EnvironmentSetupError if it has no recipe."""
        try:
            level = row["level"]
            # pandas reads a missing number as NaN, the only number that differs from itself.
            is_missing = level is None or level != level
            config = row["config"]
            if not isinstance(json.loads(config), dict):
                raise ValueError(f"config: {config!r:.60} is not a JSON object")
            return cls(
                task=str(row["task"]),
                seed=int(row["seed"]),
                config=config,
                level=None if is_missing else int(level),
                question_digest=str(row["question_digest"]),
                answer_format=AnswerFormat(row.get("answer_format") or AnswerFormat.TAGS).value,
            )
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise EnvironmentSetupError(
                f"Expected a row of `export items` with task, seed, config, level and question_digest: {error!r}."
            ) from error

    async def make(self, tasks: Tasks) -> PromptedProblem:
        """Make the item again, as the settings of `tasks` say.

        Raises UnknownNameError for a task that is not served, and GenerationError if the item cannot be made, if strict
        verification finds no right answer to it, or if this process makes another question.
        """
        served = tasks.catalog[self.task]
        config = json.loads(self.config)
        try:
            problem = await tasks._make(served.name, self.seed, config, needs_right_answer=True)
        except NoRightAnswerError as error:
            raise GenerationError(
                f"{self.task}, seed {self.seed}: the recipe was made with verification native, and this process has "
                "verification strict, which finds no right answer to its question. Grade it with verification native."
            ) from error
        if question_digest(problem.library_question) != self.question_digest:
            raise GenerationError(
                f"{self.task}, seed {self.seed}: the recipe gives another question in this process. Install the same "
                "release of reasoning-gym everywhere, and set the same task_modules."
            )
        return replace(problem, answer_format=AnswerFormat(self.answer_format))


class RecipeGrader:
    """Makes the items of recipes and grades their completions. Any thread may call the methods.

    The completions of a group often arrive one by one. They share an item, which the first completion makes.
    """

    def __init__(self, tasks: Tasks) -> None:
        self.tasks = tasks
        self._thread = tasks._thread
        self._making: dict[Recipe, asyncio.Task[PromptedProblem]] = {}
        self._chars: dict[Recipe, int] = {}
        """The items that were made, the oldest first."""

    def grade(
        self,
        recipe: Recipe,
        completions: Sequence[str],
        *,
        thinking_opened: bool = False,
        question: str | None = None,
    ) -> list[Grade]:
        """Grade completions of a recipe, in order.

        If this process cannot make the item, the rewards are None, and the explanation of each score says why. Raises
        UnknownNameError for a task that is not served, and EnvironmentSetupError for the recipe of another question, if
        the caller knows the `question` of its row.
        """
        return self._thread.run(self._grade(recipe, completions, thinking_opened, question))

    def grade_rows(self, rows: Sequence[Row], completions: Sequence[str], *, thinking_opened: bool) -> list[Grade]:
        """Grade a completion for each row, in order. A row is a mapping with the fields of a recipe.

        If this process cannot make the item of a row, the reward is None, and the explanation of the score says why.
        Raises EnvironmentSetupError for a row without a recipe, and UnknownNameError for a task that is not served.
        """
        if len(rows) != len(completions):
            raise ValueError(f"Expected a completion for each of {len(rows)} rows, got {len(completions)}.")
        recipes = [Recipe.from_row(row) for row in rows]
        groups: dict[Recipe, list[str]] = {}
        for recipe, completion in zip(recipes, completions, strict=True):
            groups.setdefault(recipe, []).append(completion)
        graded = self._thread.run(self._grade_groups(groups, thinking_opened))
        remaining = dict(zip(groups, map(iter, graded), strict=True))
        return [next(remaining[recipe]) for recipe in recipes]

    async def _grade_groups(self, groups: Mapping[Recipe, Sequence[str]], thinking_opened: bool) -> list[list[Grade]]:
        work = [self._grade(recipe, completions, thinking_opened) for recipe, completions in groups.items()]
        return await asyncio.gather(*work)

    async def _grade(
        self,
        recipe: Recipe,
        completions: Sequence[str],
        thinking_opened: bool,
        question: str | None = None,
    ) -> list[Grade]:
        try:
            problem = await self._item(recipe)
        except GenerationError as error:
            logger.warning("%d completions are unscored: %s", len(completions), error)
            score = Score(0.0, Outcome.CRASHED, explanation=str(error))
            return [Grade(None, score)] * len(completions)
        # A clarified question begins with the question of reasoning-gym.
        if question is not None and not question.startswith(problem.library_question.rstrip()):
            raise EnvironmentSetupError(
                f"Expected the recipe of the item, got the recipe of another item of {recipe.task}. Export the row "
                "again."
            )
        return await self.tasks._grade(problem, completions, thinking_opened)

    async def _item(self, recipe: Recipe) -> PromptedProblem:
        making = self._making.get(recipe)
        if making is None:
            making = self._making[recipe] = asyncio.ensure_future(self._make(recipe))
        # A caller that is cancelled must not cancel the item that other callers wait for.
        return await asyncio.shield(making)

    async def _make(self, recipe: Recipe) -> PromptedProblem:
        try:
            problem = await recipe.make(self.tasks)
        except BaseException:
            # The next caller tries again.
            del self._making[recipe]
            raise
        self._chars[recipe] = len(str(problem.entry))
        while len(self._chars) > KEPT_ITEMS or sum(self._chars.values()) > KEPT_CHARS:
            oldest = next(iter(self._chars))
            del self._chars[oldest], self._making[oldest]
        return problem


def metrics_of(grade: Grade) -> dict[str, float]:
    """`unscored`, and of a completion with a score also the verifier's `score`, `correct` and `format_failure`."""
    if grade.reward is None:
        return {"unscored": 1.0}
    outcome = grade.score.outcome
    return {
        "unscored": 0.0,
        "score": grade.score.value,
        "correct": float(outcome is Outcome.CORRECT),
        "format_failure": float(outcome is Outcome.FORMAT_FAILURE),
    }


_graders = PerProcess[RecipeGrader]()
"""The graders of this process, by the arguments of `Tasks` as JSON."""


def grader_for(settings: Mapping[str, Any]) -> RecipeGrader:
    """The grader of this process for these arguments of `Tasks`, which are JSON data.

    The first call starts the workers, which end with the process. Raises EnvironmentSetupError if they do not start.
    """
    try:
        key = json.dumps(settings, sort_keys=True)
    except TypeError as error:
        raise EnvironmentSetupError(
            f"Expected settings that are texts and numbers, got {settings!r:.200}. Separate names by commas."
        ) from error
    return _graders.get(key, lambda: RecipeGrader(Tasks(**settings)))


# --- rows of `export items`


def grade_rows(
    tasks: Tasks,
    rows: Sequence[Row],
    completions: Sequence[str],
    *,
    thinking_opened: bool = False,
) -> list[Grade]:
    """Grade a completion for each row, in order, as `RecipeGrader.grade_rows` does."""
    return RecipeGrader(tasks).grade_rows(rows, completions, thinking_opened=thinking_opened)


def text_of(completion: Any) -> str:
    """The text of a completion: plain text, or the model's last message of a conversation."""
    if isinstance(completion, str):
        return completion
    contents = [message.get("content") for message in completion if message.get("role") == "assistant"]
    last = contents[-1] if contents else None
    return last if isinstance(last, str) else ""
