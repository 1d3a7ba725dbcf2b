"""Rows of a store of levels. Reading a row makes its item, at the current level of its task (docs/curriculum.md).

    new_store ──> a store of levels, in a file
    row n is read ── CurriculumRows ──> task of n, its level now ──> item ──> LevelStore.keep ──> CurriculumRow
    its completions are graded ── report ──> LevelStore.add ──> the levels of later rows

Trainers that read rows in one process and grade completions in others need nothing but the file's path: it has all
settings, and each row has the path and its own number.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..api import PromptedProblem, Tasks, prompted
from ..errors import EnvironmentSetupError
from ..inference.prompts import as_dicts, build_messages, system_message
from ..records import Problem
from ..sampling.item_maker import ItemAddress, ItemResult
from ..sampling.level_store import LevelStore, StoreSettings, check_is_new
from ..sampling.levels import choose_task
from ..settings.components import SamplingSettings, checked
from ..utils.loop_thread import PerProcess
from .item_formats import ExportedItem
from .recipe import Recipe

__all__ = ["CurriculumRow", "CurriculumRows", "new_store", "report"]

logger = logging.getLogger(__name__)

LEVEL_STORE = "level_store"
"""The key of the path of the store in a row."""
ROW = "row"
"""The key of the number of a row in its store."""

DEFAULT_ROWS = 1_000_000

AT_ONCE = 32
"""Items that `read` makes at the same time."""

TRIES = 100
"""Reading a row fails after this many draws without an item."""


@dataclass(frozen=True)
class PromptLimit:
    """Replaces items whose prompts have more than `tokens` tokens."""

    tokenizer: Any
    tokens: int
    template_options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the chat template."""

    def excess(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Why a prompt does not fit; "" if it fits."""
        ids = self.tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=True, tokenize=True, return_dict=False, **self.template_options
        )
        if len(ids) <= self.tokens:
            return ""
        return f"the prompt has {len(ids)} tokens, and the limit is {self.tokens}"


@dataclass(frozen=True)
class CurriculumRow:
    """A row that was read."""

    number: int
    recipe: Recipe
    problem: PromptedProblem
    store: Path

    @property
    def exported(self) -> ExportedItem:
        """The row for a format of `export items`."""
        answer = str(self.problem.entry.get("answer") or "")
        return ExportedItem(self.problem, "train", self.number, answer, self.fields)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that `RecipeGrader` and `report` need."""
        return {**self.recipe.as_row(), LEVEL_STORE: str(self.store), ROW: self.number}


def new_store(
    path: str | Path,
    *,
    group_size: int,
    rows: int = DEFAULT_ROWS,
    seed: int = 42,
    curriculum_target_accuracy: float = 0.7,
    **settings: Any,
) -> LevelStore:
    """Make a store of levels for these settings of `Tasks`. Every task begins at its lowest level.

    `group_size` is the number of completions of each row, and `rows` the number of rows that a trainer may read: at
    least its steps times the prompts of a step. Raises EnvironmentSetupError for an invalid setting, or if the file
    exists.
    """
    for name, value in (("group_size", group_size), ("rows", rows)):
        if not isinstance(value, int) or value < 1:
            raise EnvironmentSetupError(f"{name}: expected a whole number from 1, got {value!r:.60}.")
    checked(SamplingSettings, seed=seed, curriculum_target_accuracy=curriculum_target_accuracy)
    check_is_new(Path(path))
    with Tasks(**settings, complexity_mode="curriculum") as tasks:
        kept = tasks.settings.model_dump(mode="json", exclude_unset=True, exclude={"complexity_mode"})
        made = StoreSettings(rows, group_size, curriculum_target_accuracy, kept, seed)
        source = _RowSource(tasks, made)
        levels = {task: len(ladder) for task, ladder in source.ladders.items()}
    return LevelStore.create(path, made, levels)


class CurriculumRows:
    """The rows of a store, as a sequence. A row may be read again, at any time and in any process: its item stays.

    The first read starts the workers, which end with the process. The object can be pickled if the tokenizer can.
    """

    def __init__(self, path: str | Path, limit: PromptLimit | None = None) -> None:
        """Raises EnvironmentSetupError if there is no such store."""
        self.path = Path(path).absolute()
        self._limit = limit
        self._length = store_at(self.path).settings.rows
        self._source = PerProcess[_RowSource]()

    def __reduce__(self) -> tuple[Any, ...]:
        return CurriculumRows, (self.path, self._limit)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number: int) -> CurriculumRow:
        """Read a row. Raises IndexError for a number outside the rows."""
        return self.read([number])[0]

    def read(self, numbers: Sequence[int]) -> list[CurriculumRow]:
        """Read rows, in order. The workers make their items in parallel.

        Raises EnvironmentSetupError if the store cannot be used or hundreds of draws give no item, and GenerationError
        if this process cannot make the item of another process again.
        """
        for number in numbers:
            if not 0 <= number < self._length:
                raise IndexError(f"row {number}: the store {self.path} has the rows 0 to {self._length - 1}.")
        return self._source.get("", self._start).read(self.store, numbers)

    def _start(self) -> _RowSource:
        store = store_at(self.path)
        settings = {**store.settings.tasks, "num_scoring_workers": 1, "complexity_mode": "curriculum"}
        source = _RowSource(Tasks(**settings), store.settings, self._limit)
        levels = {task: len(ladder) for task, ladder in source.ladders.items()}
        if levels != store.levels():
            raise EnvironmentSetupError(
                f"{self.path}: another release of reasoning-gym or of this package made this store, with other tasks "
                "or levels. Use that release, or make a new store."
            )
        return source

    @property
    def store(self) -> LevelStore:
        return store_at(self.path)


def report(row: Mapping[str, Any], *rewards: float | None) -> None:
    """Tell the store of a row the rewards of some of its completions, in [0, 1], or None without a score.

    A row that does not come from a store is ignored. Raises EnvironmentSetupError if the store cannot be written.
    """
    path = row.get(LEVEL_STORE)
    if path:
        store_at(path).add(int(row[ROW]), *rewards)


_stores = PerProcess[LevelStore]()
"""The open stores of this process, by their path."""


def store_at(path: str | Path) -> LevelStore:
    """The store of this path, which this process opens once. Raises EnvironmentSetupError."""
    return _stores.get(str(Path(path).absolute()), lambda: LevelStore(path))


# --- the items of rows


class _RowSource:
    """Makes the items of rows in this process."""

    def __init__(
        self,
        tasks: Tasks,
        settings: StoreSettings,
        limit: PromptLimit | None = None,
    ) -> None:
        self._tasks = tasks
        self._settings = settings
        system = system_message(tasks.settings)

        def too_long(question: str) -> str:
            return limit.excess(as_dicts(build_messages(question, system))) if limit else ""

        sampling = checked(
            SamplingSettings,
            **tasks.settings.model_dump(),
            seed=settings.seed,
            curriculum_target_accuracy=settings.target_accuracy,
        )
        source = tasks._runtime.item_source(sampling, too_long=too_long)
        self._maker = source.stream.maker
        self._weights = {task.name: task.weight for task in self._maker.catalog.tasks}
        self.ladders = {task: tasks._runtime.ladders[task] for task in self._weights}
        """The ladder of each task of the rows."""
        self._instance = source.stream.instance
        self._logged: set[tuple[str, str]] = set()

    def read(self, store: LevelStore, numbers: Sequence[int]) -> list[CurriculumRow]:
        """Read rows of the store, in order."""
        return self._tasks._thread.run(self._read_all(store, numbers))

    async def _read_all(self, store: LevelStore, numbers: Sequence[int]) -> list[CurriculumRow]:
        turns = asyncio.Semaphore(AT_ONCE)

        async def read(number: int) -> CurriculumRow:
            async with turns:
                return await self._read(store, number)

        return await asyncio.gather(*map(read, numbers))

    async def _read(self, store: LevelStore, number: int) -> CurriculumRow:
        kept = await asyncio.to_thread(store.recipe, number)
        made: Problem | None = None
        if kept is None:
            made = await self._make(store, number)
            own = json.dumps(Recipe.of(made).as_row())
            kept = await asyncio.to_thread(store.keep, number, made.task, made.level, own)
            if kept != own:
                # Another process has read this row in the meantime.
                made = None
        recipe = Recipe.from_row(json.loads(kept))
        problem = await recipe.make(self._tasks) if made is None else prompted(made, self._tasks.settings)
        return CurriculumRow(number, recipe, problem, store.path)

    async def _make(self, store: LevelStore, number: int) -> Problem:
        """Make an item for a row. A draw that gives no item is skipped, and the draw that many rows later is next."""
        for attempt in range(TRIES):
            index = number + attempt * self._settings.rows
            task = choose_task(self._weights, self._settings.seed, self._instance, index)
            level = await asyncio.to_thread(store.level_of, task)
            address = ItemAddress(task, index, "train", self._settings.seed, self._instance)
            result = await self._maker.make_at_first_of(self.ladders[task].down_from(level), address)
            skipped = "" if result.problem else f"{task}: {result.reason}"
            unmade = [level for level, *_ in result.exceeded]
            made = result.problem.level if result.problem else None
            await asyncio.to_thread(store.note_item, task, unmade=unmade, made=made, skipped=skipped)
            if result.problem is not None:
                return result.problem
            self._log_skip(number, task, result)
        raise EnvironmentSetupError(
            f"Row {number}: {TRIES} draws in a row gave no usable item. Include more tasks, or allow longer prompts."
        )

    def _log_skip(self, number: int, task: str, result: ItemResult) -> None:
        """Log the first skip of a task for a reason in this process. The store counts all of them."""
        if (task, result.reason) not in self._logged:
            self._logged.add((task, result.reason))
            logger.warning(
                "Row %d: skipped an item of %s (%s): %s. Further skips are only counted.",
                number,
                task,
                result.reason,
                result.detail,
            )
