"""Rows: a sequence of prompts with their recipes. One row is one item, which is made when it is first read.

    Rows("levels.sqlite")     rows of a store of levels, which follow the curriculum (docs/trainers.md)
    Rows.fixed(1000, ...)     training items at the levels of `complexity_mode`
    Rows.held_out(...)        questions that no training row ever has

    a row is read ── its task, the level of the task now ──> item ── LevelStore.keep ──> Row: prompt and recipe
    its completions are graded ── report(recipe, rewards) ──> the store ──> the levels of later rows

Any process may read any row, in any order and again: a row stays what it was when it was first read. Trainers that read
rows in one process and grade completions in another need nothing but the recipe, which names the store.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, overload

from .errors import EnvironmentSetupError
from .inference.prompts import as_dicts, build_messages, system_message
from .recipes import PromptedProblem, Recipe, check_datasets, prompted
from .records import Problem
from .runtime import Runtime
from .sampling.item_maker import ItemAddress, Unmade
from .sampling.item_stream import level_chooser
from .sampling.level_store import LevelStore, StoreSettings, check_is_new
from .settings.components import EvaluationSettings, SamplingSettings, checked
from .tasks.difficulty_ladder import Level
from .utils.loop_thread import LoopThread, PerProcess
from .verification.entries import right_answer

logger = logging.getLogger(__name__)

DEFAULT_ROWS = 1_000_000

AT_ONCE = 32
"""Items that `Rows.read` makes at the same time."""

TRIES = 100
"""Reading a row fails after this many draws without an item."""

Split = Literal["train", "eval"]


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
class Row:
    """A prompt and the recipe of its item."""

    number: int
    problem: PromptedProblem
    recipe: Recipe
    split: Split = "train"

    @property
    def prompt(self) -> list[dict[str, str]]:
        """The messages, as in chat APIs."""
        return as_dicts(self.problem.messages)

    @property
    def answer(self) -> str | None:
        """A right answer, or None if none is known."""
        return right_answer(self.problem.task, self.problem.entry)


class Rows(Sequence[Row]):
    """Rows of a store of levels: reading a row makes its item, at the level that its task has now.

    The object can be pickled if the tokenizer of the limit can. The first read starts a worker that makes items, which
    ends with the process. Reading a row grades nothing. A training that resumes reads on where it stopped, or begins
    with `unfinished`.
    """

    def __init__(self, level_store: str | Path, limit: PromptLimit | None = None) -> None:
        """Raises EnvironmentSetupError if there is no such store."""
        store = LevelStore(level_store)
        stored = store.settings
        settings = _curriculum(stored.tasks, seed=stored.seed, curriculum_target_accuracy=stored.target_accuracy)
        self._set(_Choice(settings, stored.rows, limit, store))

    @classmethod
    def fixed(cls, count: int, *, seed: int = 42, limit: PromptLimit | None = None, **settings: Any) -> Rows:
        """The first `count` training items of a seed. `settings` are settings of `Tasks`.

        Their levels do not follow the rewards. Raises EnvironmentSetupError for an invalid setting.
        """
        if settings.get("complexity_mode") == "curriculum":
            raise EnvironmentSetupError(
                'complexity_mode: expected None, "random" or a number for fixed rows, got "curriculum". Rows that '
                "follow the rewards need a store of levels: Rows(PATH), which `reasoning-gym-env levels` makes."
            )
        rows = cls.__new__(cls)
        rows._set(_Choice(checked(SamplingSettings, **settings, seed=seed), count, limit))
        return rows

    @classmethod
    def held_out(cls, **settings: Any) -> Rows:
        """The questions of `HeldOut`, by the settings of `HeldOut` and `Tasks`. The first read makes all questions.

        Raises EnvironmentSetupError for an invalid setting.
        """
        rows = cls.__new__(cls)
        rows._set(_Choice(checked(EvaluationSettings, **{"eval_tasks": "all", **settings})))
        return rows

    def _set(self, choice: _Choice) -> None:
        self._choice = choice
        self._source = PerProcess[_Source]()

    def __getstate__(self) -> _Choice:
        return self._choice

    def __setstate__(self, choice: _Choice) -> None:
        self._set(choice)

    def __len__(self) -> int:
        return len(self._started.held_out) if self._choice.is_held_out else self._choice.count

    @overload
    def __getitem__(self, number: int) -> Row: ...
    @overload
    def __getitem__(self, number: slice) -> list[Row]: ...
    def __getitem__(self, number: int | slice) -> Row | list[Row]:
        """Read a row, or several. A number may be negative, as in a list."""
        if isinstance(number, slice):
            return self.read(range(len(self))[number])
        return self.read([number])[0]

    def read(self, numbers: Sequence[int]) -> list[Row]:
        """Read rows, in order. The workers make their items in parallel.

        Raises IndexError for a number outside the rows, EnvironmentSetupError if the store cannot be used or many draws
        give no item, and GenerationError if this process cannot make the item of another process again.
        """
        every = range(len(self))
        try:
            found = [every[number] for number in numbers]
        except IndexError:
            raise IndexError(f"rows {numbers!r:.100}: there are the rows 0 to {len(every) - 1}.") from None
        return self._started.read(found)

    @property
    def unfinished(self) -> Iterator[int]:
        """The numbers of the rows whose groups the curriculum has not counted; all rows without a store.

        The rows that were read before come first.
        """
        store = self._choice.store
        return iter(range(len(self))) if store is None else store.incomplete_rows()

    @property
    def _started(self) -> _Source:
        return self._source.get("", lambda: _Source(self._choice))


def report(source: Recipe | Mapping[str, Any], rewards: Sequence[float | None]) -> None:
    """Tell the curriculum the rewards of completions of a row, in [0, 1], or None without a score.

    `source` is the recipe, or a mapping that has its fields. The completions of a row may come in several calls. The
    curriculum counts the group once. The call does nothing for a row without a store. Raises EnvironmentSetupError if
    the store has not given the row out, or cannot be written: then none of the rewards counts, and the call may be
    repeated.
    """
    recipe = Recipe.of(source)
    if recipe.level_store:
        _store_at(recipe.level_store).add(recipe.row, *rewards)


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
    chosen = _curriculum(settings, seed=seed, curriculum_target_accuracy=curriculum_target_accuracy)
    check_is_new(Path(path))
    source = _Source(_Choice(chosen, rows))
    source.thread.close()
    kept = chosen.model_dump(mode="json", include=set(settings))
    stored = StoreSettings(rows, group_size, curriculum_target_accuracy, kept, seed)
    return LevelStore.create(path, stored, source.levels)


def _curriculum(settings: Mapping[str, Any], **sampling: Any) -> SamplingSettings:
    """These settings of `Tasks`, with levels that follow the rewards. Raises EnvironmentSetupError."""
    return checked(SamplingSettings, **{**settings, **sampling, "complexity_mode": "curriculum"})


_store_at = functools.cache(LevelStore)
"""The stores that have learned rewards in this process, by their path."""


# --- the items of rows


@dataclass(frozen=True)
class _Choice:
    """The choice of the rows. It can be pickled."""

    settings: SamplingSettings | EvaluationSettings
    count: int = 0
    """The number of training rows."""
    limit: PromptLimit | None = None
    store: LevelStore | None = None

    @property
    def is_held_out(self) -> bool:
        return isinstance(self.settings, EvaluationSettings)

    def excess(self, question: str) -> str:
        """Why the prompt of a question is too long; "" if it fits."""
        if self.limit is None:
            return ""
        return self.limit.excess(as_dicts(build_messages(question, system_message(self.settings))))


class _Source:
    """Makes the items of rows in this process."""

    def __init__(self, choice: _Choice) -> None:
        self._choice = choice
        workers = choice.settings.num_generation_workers or 1
        self._runtime = Runtime(choice.settings.model_copy(update={"num_generation_workers": workers}), grades=False)
        self.thread = LoopThread(self._runtime)
        self.held_out: Sequence[Problem] = ()
        self.levels: Mapping[str, int] = {}
        """The number of levels of each task."""
        self._logged: set[tuple[str, Unmade | None]] = set()
        try:
            check_datasets(self._runtime)
            self._prepare(choice.settings)
        except BaseException:
            self.thread.close()
            raise

    def _prepare(self, settings: SamplingSettings | EvaluationSettings) -> None:
        """Make the held-out questions, or what chooses the training items. Raises EnvironmentSetupError."""
        if isinstance(settings, EvaluationSettings):
            self.held_out = self.thread.run(self._runtime.held_out(settings)).problems
            return
        store = self._choice.store
        self._seed = settings.seed
        self._stream = self._runtime.item_source(settings, too_long=self._choice.excess).stream
        self._level = level_chooser(settings, self._runtime.ladders, store.level_of if store else lambda task: 0)
        names = self._stream.maker.catalog.names
        self.levels = {task: len(self._runtime.ladders.get(task, ())) for task in names}
        if store is not None and self.levels != store.levels():
            raise EnvironmentSetupError(
                f"{store.path}: another release of reasoning-gym or of this package made this store, with other tasks "
                "or levels. Use that release, or make a new store."
            )

    def read(self, numbers: Sequence[int]) -> list[Row]:
        """Read rows, in order."""
        return self.thread.run(self._read_all(numbers))

    async def _read_all(self, numbers: Sequence[int]) -> list[Row]:
        turns = asyncio.Semaphore(AT_ONCE)

        async def read(number: int) -> Row:
            async with turns:
                return self._row(number, await self._problem(number))

        return await asyncio.gather(*map(read, numbers))

    def _row(self, number: int, problem: Problem) -> Row:
        recipe = Recipe.of(problem)
        if self._choice.store is not None:
            recipe = replace(recipe, level_store=str(self._choice.store.path), row=number)
        split: Split = "eval" if self._choice.is_held_out else "train"
        return Row(number, prompted(problem, self._choice.settings), recipe, split)

    async def _problem(self, number: int) -> Problem:
        """The problem of a row: a held-out question, what the first reader of the row has made, or a new item."""
        store = self._choice.store
        if self._choice.is_held_out:
            return self.held_out[number]
        if store is None:
            return await self._make(number)
        kept = await asyncio.to_thread(store.recipe, number)
        if kept is None:
            made = await self._make(number)
            own = Recipe.of(made).as_row()
            kept = await asyncio.to_thread(store.keep, number, own)
            if kept == own:
                return made
            # Another process has read this row in the meantime.
        return await Recipe.of(kept).make(self._runtime)

    async def _make(self, number: int) -> Problem:
        """Make an item for a row. A draw that gives no item is skipped, and the draw that many rows later is next."""
        for attempt in range(TRIES):
            index = number + attempt * self._choice.count
            task = self._stream.choose_task(index)
            levels: Sequence[Level | None] = [None]
            if self._level is not None:
                # The store may have to wait for its lock.
                level = await asyncio.to_thread(self._level, task, index)
                levels = self._runtime.ladders[task].down_from(level.index)
            address = ItemAddress(task, index, "train", self._seed, self._stream.instance)
            result = await self._stream.maker.make_at_first_of(levels, address)
            if self._choice.store is not None and result.exceeded:
                exceeded = [level for level, *_ in result.exceeded]
                await asyncio.to_thread(self._choice.store.note_unmade, task, exceeded)
            if result.problem is not None:
                return result.problem
            if (task, result.reason) not in self._logged:
                self._logged.add((task, result.reason))
                logger.warning(
                    "Row %d: skipped an item of %s (%s): %s. Further skips of this kind are not logged.",
                    number,
                    task,
                    result.reason,
                    result.detail,
                )
        raise EnvironmentSetupError(
            f"Row {number}: {TRIES} draws in a row gave no usable item. Include more tasks, or allow longer prompts."
        )
