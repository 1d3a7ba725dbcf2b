"""Makes an item: its address in a stream gives a seed, and the seed gives a Problem at a level that works.

    ItemAddress: seed, split, instance, task, index ── derive_seed ──> the item's seed ── generator ──> Problem

`ItemMaker.make` tries once. Evaluation and previews use it. `ItemMaker.make_at_first_of` is for training. At each
level, the highest first, it tries further seeds while the question is held out for evaluation, has no right answer, or
cannot be made. It goes to the next lower level if an item is late, if its question is too long for the prompt budget,
or if no seed works.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from ..errors import (
    GenerationCrashedError,
    GenerationError,
    GenerationTimeoutError,
    NoRightAnswerError,
)
from ..records import AnswerFormat, Problem
from ..tasks.catalog import Catalog, config_of
from ..tasks.difficulty_ladder import Level
from ..workers.generator import ProcessGenerator
from .seeds import derive_seed

SEEDS_TRIED = 5
"""A level fails after this many failing seeds. The task countdown, for example, fails for one seed in three."""

REDRAWS = 20
"""A level may have this many further seeds while its questions are held out. Few levels ever need so many."""


class Unmade(StrEnum):
    """Why a draw gives no problem, or why another seed or an easier level replaces it."""

    PROMPT_TOO_LONG = "prompt_too_long"
    TIMED_OUT = "generation_timed_out"
    FAILED = "generation_failed"
    CRASHED = "generation_crashed"

    HELD_OUT = "held_out"
    """The question belongs to the evaluation."""

    WRONG_ANSWER = "wrong_answer"
    """The key of the item is wrong, and no right one is known."""

    ERROR = "error"
    """Making the item raised an error that no code expects."""


@dataclass(frozen=True)
class ItemAddress:
    """Identifies an item: the `index`-th draw, of this task, in the stream that split, seed and instance name.

    The instance "shared" names a stream that is the same in all instances of a run.
    """

    task: str
    index: int
    split: str
    seed: int
    instance: str = "shared"

    def item_seed(self, retry: int) -> int:
        """The seed of the item. Each further `retry` has another seed."""
        further = (retry,) if retry else ()
        return derive_seed(
            self.seed,
            "item",
            self.split,
            self.instance,
            self.task,
            self.index,
            *further,
        )


@dataclass
class ItemResult:
    """The outcome of making the item of an address: a problem, or the reason why there is none."""

    problem: Problem | None = None
    reason: Unmade | None = None
    """Why there is no problem."""
    detail: str = ""
    """The reason in words."""
    redrawn: Counter[Unmade] = field(default_factory=Counter)
    """Replaced items by reason: HELD_OUT, WRONG_ANSWER or CRASHED."""
    exceeded: list[tuple[int, Unmade]] = field(default_factory=list)
    """Level and reason of every level at which the item could not be made, except after a crash."""


class ItemMaker:
    """Makes items of the tasks of a catalog.

    `too_long(question)` explains why a question does not fit the prompt budget; it returns "" if the question fits.
    `make_at_first_of` gives no question for which `is_held_out` is true, given the text of reasoning-gym. A `strict`
    maker makes no item without a right answer.
    """

    def __init__(
        self,
        catalog: Catalog,
        generator: ProcessGenerator,
        *,
        too_long: Callable[[str], str] = lambda question: "",
        is_held_out: Callable[[str], bool] = lambda question: False,
        strict: bool = False,
        answer_format: AnswerFormat = AnswerFormat.TAGS,
    ) -> None:
        self.catalog = catalog
        self._generator = generator
        self._too_long = too_long
        self._is_held_out = is_held_out
        self._strict = strict
        self._answer_format = answer_format
        self._served = {task.name: (task.category, config_of(task.name, task.overrides)) for task in catalog.tasks}

    async def make(
        self,
        address: ItemAddress,
        *,
        level: Level | None = None,
        retry: int = 0,
    ) -> Problem:
        """Make the item at `address`: at a level, or (with None) as the task is served without levels.

        This checks neither the length of the question nor whether it is held out. Raises GenerationError if
        reasoning-gym cannot make the item in time, and NoRightAnswerError if a `strict` maker refuses it.
        """
        category, default = self._served[address.task]
        config = dict(level.config if level else default)
        seed = address.item_seed(retry)
        entry = await self._generator.generate(
            address.task,
            seed,
            config,
            mends=self._strict,
            refuses=self._strict,
        )
        return Problem(
            task=address.task,
            category=category,
            split=address.split,
            index=address.index,
            seed=seed,
            config=config,
            entry=entry,
            level=level.index if level else None,
            complexity=level.complexity if level else None,
            answer_format=self._answer_format,
        )

    async def make_at_first_of(self, levels: Sequence[Level | None], address: ItemAddress) -> ItemResult:
        """Make the item at the first of these levels that gives it in time, with a question that fits.

        The level None is the task's default config.
        """
        result = ItemResult()
        for level in levels:
            try:
                problem = await self._make_with_some_seed(address, level, result.redrawn)
            except GenerationError as error:
                reason = REASONS.get(type(error), Unmade.FAILED)
                detail = str(error)
            else:
                reason = Unmade.PROMPT_TOO_LONG
                detail = self._too_long(problem.question)
                if not detail:
                    result.problem = problem
                    return result
            result.reason = reason
            result.detail = detail
            if reason is Unmade.CRASHED:
                # The machine may be short of memory, so a crash says nothing about the level.
                result.redrawn[reason] += 1
            elif level is not None:
                result.exceeded.append((level.index, reason))
        return result

    async def _make_with_some_seed(
        self,
        address: ItemAddress,
        level: Level | None,
        redrawn: Counter[Unmade],
    ) -> Problem:
        failures = 0
        for retry in range(SEEDS_TRIED + REDRAWS):
            try:
                problem = await self.make(address, level=level, retry=retry)
            except (GenerationTimeoutError, GenerationCrashedError):
                # The next seed would probably take as long.
                raise
            except NoRightAnswerError:
                redrawn[Unmade.WRONG_ANSWER] += 1
            except GenerationError:
                failures += 1
                if failures == SEEDS_TRIED:
                    raise
            else:
                if not self._is_held_out(problem.library_question):
                    return problem
                redrawn[Unmade.HELD_OUT] += 1
        raise _NoneLeftError(
            f"none of {retry + 1 - failures} questions is for training: each is held out for evaluation, or has no "
            "right answer"
        )


class _NoneLeftError(GenerationError):
    """A level has hardly any question that training may ask."""


REASONS: Mapping[type[GenerationError], Unmade] = {
    _NoneLeftError: Unmade.HELD_OUT,
    GenerationTimeoutError: Unmade.TIMED_OUT,
    GenerationCrashedError: Unmade.CRASHED,
}
