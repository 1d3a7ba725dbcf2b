"""One item: a place in a stream -> a Problem, at a level at which it can be made and fits.

    Place: seed, split, instance, task, index ── derive_seed ──> the item's seed ── generator ──> Problem

`make` tries once. `make_at_first_of` is what training asks for: for each level, the highest first, up to SEEDS_TRIED
seeds; an item that is late, cannot be made, or is too long for the prompt budget is made at the next lower level.
Evaluation and preview need a maker alone, the item stream draws with one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..errors import GenerationCrashedError, GenerationError, GenerationTimeoutError
from ..records import Problem
from ..tasks.catalog import Catalog, config_of
from ..tasks.difficulty_ladder import Level
from ..utils.seeding import derive_seed
from .level_limits import FAILED, TIMED_OUT, TOO_LONG

SEEDS_TRIED = 5
"""How many seeds a level may have: countdown, for one, finds no item for one seed in three."""

SHARED = "shared"
"""The instance of streams that are the same in all instances of a run."""


class ItemGenerator(Protocol):
    """Generates one item; see workers.generator.ProcessGenerator."""

    async def generate(self, task: str, seed: int, config: Mapping[str, Any]) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Place:
    """Where an item stands: the `index`-th draw, of this task, in the stream that split, seed and instance name."""

    task: str
    index: int
    split: str
    seed: int
    instance: str = SHARED

    def item_seed(self, retry: int) -> int:
        """The seed of its item; a further `retry` has another one."""
        # The first has no number: its seed is what it was before there were further ones.
        further = (retry,) if retry else ()
        return derive_seed(self.seed, "item", self.split, self.instance, self.task, self.index, *further)


@dataclass
class Drawn:
    """What became of a place: a problem or a reason to skip it, and what was learned about levels on the way."""

    problem: Problem | None = None
    skipped: tuple[str, str] = ("", "")
    """Reason (TOO_LONG, TIMED_OUT or FAILED) and detail."""
    exceeded: list[tuple[int, str, str]] = field(default_factory=list)
    """Level, reason and detail of every level at which it could not be had."""


class ItemMaker:
    """Makes items of the tasks of a catalog."""

    def __init__(
        self, catalog: Catalog, generator: ItemGenerator, *, too_long: Callable[[str], str] = lambda question: ""
    ) -> None:
        """`too_long` says what is wrong with a question that does not fit the prompt budget, "" if it fits."""
        self.catalog = catalog
        self._generator = generator
        self._too_long = too_long
        self._configs = {task.name: config_of(task.name, task.overrides) for task in catalog.tasks}

    async def make(
        self, place: Place, *, level: Level | None = None, config: Mapping[str, Any] | None = None, retry: int = 0
    ) -> Problem:
        """The item at `place`, of a level, of a whole config, or as the task is served. Its length is not looked at.

        Raises GenerationError if reasoning-gym cannot make it (in time).
        """
        config = dict(level.config) if level else dict(config) if config is not None else self._configs[place.task]
        seed = place.item_seed(retry)
        entry = await self._generator.generate(place.task, seed, config)
        return Problem(
            task=place.task,
            category=self.catalog[place.task].category,
            split=place.split,
            index=place.index,
            seed=seed,
            config=config,
            entry=entry,
            level=level.index if level else None,
            complexity=level.complexity if level else None,
        )

    async def make_at_first_of(self, levels: Sequence[Level | None], place: Place) -> Drawn:
        """The item at the first of these levels at which it is made, in time, and fits; None is the task's default."""
        drawn = Drawn()
        for level in levels:
            try:
                problem = await self._make_with_some_seed(place, level)
                reason, detail = TOO_LONG, self._too_long(problem.question)
            except GenerationTimeoutError as error:
                reason, detail = TIMED_OUT, str(error)
            except GenerationError as error:
                reason, detail = FAILED, str(error)
            if not detail:
                return Drawn(problem, exceeded=drawn.exceeded)
            drawn.skipped = (reason, detail)
            if level is not None:
                drawn.exceeded.append((level.index, reason, detail))
        return drawn

    async def _make_with_some_seed(self, place: Place, level: Level | None) -> Problem:
        for retry in range(SEEDS_TRIED - 1):
            try:
                return await self.make(place, level=level, retry=retry)
            except (GenerationTimeoutError, GenerationCrashedError):
                # Either took its time, and will again.
                raise
            except GenerationError:
                continue
        return await self.make(place, level=level, retry=SEEDS_TRIED - 1)
