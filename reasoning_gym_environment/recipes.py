"""Problems with their prompts, and recipes, from which another process makes the same problem again.

    Problem ── Recipe.of ──> Recipe ── as_row ──> a dict of texts and numbers, in JSON lines or parquet
    a row ── Recipe.of ──> Recipe ── RecipeItems ──> the same problem, once for all its completions

JSON and parquet change the metadata of most items, so a row carries the recipe and not the item. The process that
grades makes the item again. The digest of the question shows whether it is the same item.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, TypeAlias

from .errors import EnvironmentSetupError, GenerationError, NoRightAnswerError
from .inference.prompts import as_dicts, build_messages, system_message
from .records import AnswerFormat, Problem, to_json
from .runtime import Runtime
from .sampling.seeds import question_digest
from .settings.components import TasksSettings
from .tasks import reasoning_gym_source as library
from .tasks.catalog import config_from_json

KEPT_ITEMS = 1024
"""Items that `RecipeItems` remembers. The completions of a larger batch make their items again."""

OWN = "own"
"""The split of a problem that is neither of a stream nor held out."""


@dataclass(frozen=True)
class PromptedProblem(Problem):
    """A problem with its prompt: `messages` are the system message, if any, and the user message, as in chat APIs.

    `entry` is the item as reasoning-gym made it (`question`, `answer`, `metadata`). Do not change it.
    """

    messages: tuple[Mapping[str, str], ...] = ()


def prompted(problem: Problem, settings: TasksSettings) -> PromptedProblem:
    """The problem with its prompt."""
    values = {field.name: getattr(problem, field.name) for field in fields(Problem)}
    messages = as_dicts(build_messages(problem.question, system_message(settings)))
    return PromptedProblem(**values, messages=tuple(messages))


async def make_item(
    runtime: Runtime, task: str, seed: int, config: Mapping[str, Any], *, needs_right_answer: bool = False
) -> PromptedProblem:
    """Make the item of a seed and a config, which may have been stored as JSON.

    Raises UnknownNameError for an unknown task, GenerationError for an item that cannot be made in time, and
    NoRightAnswerError if the answer is needed, and strict verification finds no right answer.
    """
    typed = config_from_json(task, config)
    is_strict = runtime.settings.verification == "strict"
    refuses = is_strict and needs_right_answer
    entry = await runtime.generator.generate(task, seed, typed, mends=is_strict, refuses=refuses)
    problem = Problem(
        task,
        category="",
        split=OWN,
        index=-1,
        seed=seed,
        config=typed,
        entry=dict(entry),
        answer_format=runtime.settings.answer_format,
    )
    return prompted(problem, runtime.settings)


def check_datasets(runtime: Runtime) -> None:
    """Raise EnvironmentSetupError for a dataset that this process has registered and the workers have not."""
    registered = library.registry()
    for task in runtime.catalog.names:
        dataset, _ = registered[task]
        is_of_library = dataset.__module__.startswith("reasoning_gym.")
        if not is_of_library and not runtime.settings.task_modules:
            raise EnvironmentSetupError(
                f"{task}: the worker processes do not know this dataset, because only this process has registered "
                f"it. Name the module that registers it (found: {dataset.__module__}): Tasks(..., "
                "task_modules=...), with a dotted name or the path of a .py file. Or exclude the task."
            )


Row: TypeAlias = Mapping[str, Any]


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

    It does not depend on the settings with which the row was made. "" stands for any question.
    """
    answer_format: str = AnswerFormat.TAGS.value
    """The form in which the prompt of the row asks for the answer."""
    level_store: str = ""
    """The path of the store of levels that learns the rewards; "" for an item that no store has given out."""
    row: int = -1
    """The number of the row in the store."""

    @classmethod
    def of(cls, source: Recipe | Problem | Row) -> Recipe:
        """The recipe of a problem, or of a row, which may have more keys.

        The problem comes from a stream, a held-out set, or `Tasks.make`. Raises EnvironmentSetupError if a row has no
        recipe.
        """
        if isinstance(source, Recipe):
            return source
        if isinstance(source, Problem):
            recipe = cls.of_seed(source.task, source.seed, source.config, source.answer_format)
            return replace(recipe, level=source.level, question_digest=question_digest(source.library_question))
        try:
            return cls._of_row(source)
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise EnvironmentSetupError(
                "Expected a recipe, which rows of `export items` and of a store of levels have, with task, seed, "
                f"config, level and question_digest: {error!r:.200}."
            ) from error

    @classmethod
    def of_seed(cls, task: str, seed: int, config: Mapping[str, Any], answer_format: AnswerFormat) -> Recipe:
        """The recipe of a seed and a config, whatever the question is, and whether or not it has a right answer."""
        return cls(task, seed, json.dumps(to_json(dict(config)), sort_keys=True), None, "", answer_format.value)

    @classmethod
    def _of_row(cls, row: Row) -> Recipe:
        level = row["level"]
        # pandas reads a missing number as NaN, the only number that differs from itself.
        is_missing = level is None or level != level
        config = row["config"]
        if not isinstance(json.loads(config), dict):
            raise ValueError(f"config: {config!r:.60} is not a JSON object")
        store = str(row.get("level_store") or "")
        return cls(
            task=str(row["task"]),
            seed=int(row["seed"]),
            config=config,
            level=None if is_missing else int(level),
            question_digest=str(row["question_digest"]),
            answer_format=AnswerFormat(row.get("answer_format") or AnswerFormat.TAGS).value,
            level_store=store,
            row=int(row["row"]) if store else -1,
        )

    def as_row(self) -> dict[str, Any]:
        """The recipe as a dict. It has the place in a store only if there is a store."""
        row = asdict(self)
        if not self.level_store:
            del row["level_store"], row["row"]
        return row

    async def make(self, runtime: Runtime) -> PromptedProblem:
        """Make the problem again, as the settings of the runtime say.

        Raises UnknownNameError for a task that is not served, and GenerationError if the item cannot be made, if strict
        verification finds no right answer to it, or if this process makes another question.
        """
        served = runtime.catalog[self.task]
        config = json.loads(self.config)
        try:
            problem = await make_item(
                runtime, served.name, self.seed, config, needs_right_answer=bool(self.question_digest)
            )
        except NoRightAnswerError as error:
            raise GenerationError(
                f"{self.task}, seed {self.seed}: the recipe was made with verification native, and this process has "
                "verification strict, which finds no right answer to its question. Grade it with verification native."
            ) from error
        if self.question_digest and question_digest(problem.library_question) != self.question_digest:
            raise GenerationError(
                f"{self.task}, seed {self.seed}: the recipe gives another question in this process. Install the same "
                "release of reasoning-gym everywhere, and set the same task_modules."
            )
        return replace(
            problem, category=served.category, level=self.level, answer_format=AnswerFormat(self.answer_format)
        )


class RecipeItems:
    """The problems of recipes. The completions of a group often arrive one by one, and share one problem.

    The methods run in the event loop of the runtime.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._making: dict[Recipe, asyncio.Task[PromptedProblem]] = {}
        """The items that were made or are being made, the oldest first."""

    async def problem(self, recipe: Recipe) -> PromptedProblem:
        """The problem, which the first caller makes. Raises what `Recipe.make` raises."""
        making = self._making.get(recipe)
        if making is None:
            making = self._making[recipe] = asyncio.ensure_future(self._make(recipe))
            if len(self._making) > KEPT_ITEMS:
                del self._making[next(iter(self._making))]
        # A caller that is cancelled must not cancel the item that other callers wait for.
        return await asyncio.shield(making)

    async def _make(self, recipe: Recipe) -> PromptedProblem:
        try:
            return await recipe.make(self._runtime)
        except BaseException:
            # The next caller tries again.
            self._making.pop(recipe, None)
            raise
