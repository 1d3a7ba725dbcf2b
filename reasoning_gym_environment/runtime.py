"""The tasks of a run, with the workers that make and grade their items.

    TasksSettings ───────> Runtime: reasoning-gym, catalog, ladders, generator, grader
    SamplingSettings ────> runtime.item_source(): chooses the next item
    EvaluationSettings ──> runtime.held_out(): the questions of an evaluation

The environment for Atropos and the Python interface (api.py) use this module.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from .errors import EnvironmentSetupError, GenerationError
from .evaluation.questions import AT_ONCE, EvalSet, build_eval_set, choose_tasks
from .inference.prompts import unnamed_format
from .records import Problem
from .sampling.item_maker import ItemAddress, ItemMaker
from .sampling.item_stream import ItemSource, build_item_source
from .sampling.seeds import is_held_out
from .settings.components import (
    EvaluationSettings,
    SamplingSettings,
    TasksSettings,
    workers_for_cores,
)
from .tasks import reasoning_gym_source as library
from .tasks.catalog import Catalog, served_tasks
from .tasks.difficulty_ladder import (
    Ladder,
    Level,
    build_ladder,
    build_ladders,
    describe,
)
from .telemetry.alarms import CompletionWatch
from .verification import eval_guards
from .workers.generator import ITEM_TIMEOUT_S, ProcessGenerator
from .workers.grader import SandboxGrader

logger = logging.getLogger(__name__)


class Runtime:
    """Tasks, and the worker processes that make and grade their items.

    Call `start` and `close`, or use `async with`. Without `grades`, no grading workers start, because the caller only
    makes items. `item_timeout_s` is the processor time that an item may take.
    """

    library: library.Library
    catalog: Catalog
    ladders: Mapping[str, Ladder]
    """The ladder of each task, or nothing if the settings use no levels. `start` sets this once."""

    def __init__(
        self,
        settings: TasksSettings,
        *,
        grades: bool = True,
        item_timeout_s: float = ITEM_TIMEOUT_S,
    ) -> None:
        self.settings = settings
        self._previewed: dict[str, Ladder] = {}
        self._grades = grades
        self.generator = ProcessGenerator(
            num_workers=settings.num_generation_workers or workers_for_cores(2, at_most=4),
            has_spare=settings.num_generation_workers is None,
            timeout_s=item_timeout_s,
            sandbox=settings.sandbox,
            task_modules=settings.task_modules,
        )
        self.grader = SandboxGrader(
            num_workers=settings.num_scoring_workers or workers_for_cores(4, at_most=8),
            has_spare=settings.num_scoring_workers is None,
            sandbox=settings.sandbox,
            allow_unguarded=settings.allow_unguarded_tasks,
            strict=settings.verification == "strict",
            needs_native=settings.partial_credit == "native" or logger.isEnabledFor(logging.DEBUG),
            task_modules=settings.task_modules,
        )
        self.watch = CompletionWatch()
        """Sees what the Python interface scores."""

    async def start(self) -> None:
        """Start the workers and find the tasks, concurrently. Raises EnvironmentSetupError if either fails."""
        starts = [self.generator.start()]
        if self._grades:
            starts.append(self.grader.start())
        # Each worker imports reasoning-gym, as this process does, which takes a second or more.
        starting = asyncio.gather(*starts, return_exceptions=True)
        try:
            self.library = await asyncio.to_thread(library.load)
            unreadable = unnamed_format(self.settings)
            if unreadable:
                logger.warning("%s", unreadable)
            self.catalog = served_tasks(self.settings, eval_guards.unguarded_tasks)
            self.ladders = await self._build_ladders()
            for error in await starting:
                if error is not None:
                    raise error
        except BaseException:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            await self.close()
            raise

    def item_source(
        self,
        settings: SamplingSettings,
        *,
        too_long: Callable[[str], str] = lambda question: "",
    ) -> ItemSource:
        """A new item source. `too_long(question)` says why a question does not fit, or returns "" if it fits.

        The item source excludes a task if an answer without work earns too much at each of its levels, unless the
        settings include the task by its name.
        """
        excluded = {}
        for task, ladder in self.ladders.items():
            if ladder.constant_answer and task not in self.settings.include_tasks:
                excluded[task] = ladder.constant_answer
        if excluded:
            logger.info(
                "Excluded from training, because an answer without work earns too much at each level: %s. To train on "
                "such a task, name it in include_tasks.",
                ", ".join(excluded),
            )
        catalog = self.catalog.without(excluded)
        ladders = {task: ladder for task, ladder in self.ladders.items() if task not in excluded}
        maker = self._maker(catalog, too_long=too_long, is_held_out=is_held_out)
        return build_item_source(settings, maker, ladders)

    async def training_item(self, task: str, seed: int, level: int | None) -> Problem:
        """The training item of a seed, at a level or (None) as the task is served. It is no held-out question.

        Raises EnvironmentSetupError for an unknown task or level, and GenerationError for an item that cannot be made.
        """
        overrides = self.catalog[task].overrides
        chosen: Level | None = None
        if level is not None:
            ladder = await self._ladder(task, overrides)
            levels = ladder.levels
            if not 0 <= level < len(levels):
                raise EnvironmentSetupError(f"level: {task} has the levels 0 to {len(levels) - 1}, got {level}.")
            chosen = levels[level]
        maker = self._maker(is_held_out=is_held_out)
        result = await maker.make_at_first_of([chosen], ItemAddress(task, -1, "own", seed))
        if result.problem is None:
            raise GenerationError(f"{task}, seed {seed}: {result.reason}, {result.detail}")
        return result.problem

    async def _build_ladders(self) -> dict[str, Ladder]:
        mode = self.settings.complexity_mode
        if mode is None:
            return {}
        # In a thread: the datasets of the user's own tasks may take long, and the event loop must handle signals.
        ladders = await asyncio.to_thread(build_ladders, self.catalog)
        logger.info("Difficulty %s: %s.", mode, describe(ladders))
        return ladders

    async def _ladder(self, task: str, overrides: Mapping[str, Any]) -> Ladder:
        """The ladder of a task. A ladder that is built here must not change what `item_source` excludes."""
        if task in self.ladders:
            return self.ladders[task]
        if task not in self._previewed:
            self._previewed[task] = await asyncio.to_thread(build_ladder, task, overrides=overrides)
        return self._previewed[task]

    def check_held_out(self, settings: EvaluationSettings) -> None:
        """Check the choice of tasks without making a question. Raises UnknownNameError."""
        if settings.num_eval_samples_per_task:
            choose_tasks(self.catalog, settings.eval_tasks, settings.eval_seed)

    async def held_out(
        self,
        settings: EvaluationSettings,
        *,
        at_once: int = AT_ONCE,
    ) -> EvalSet:
        """The questions of an evaluation, the same in every process for the same settings.

        The workers make `at_once` questions at the same time. Raises EnvironmentSetupError if there are none.
        """
        return await build_eval_set(self._maker(), settings, self.library.version, at_once=at_once)

    def metrics(self) -> dict[str, float]:
        """Counts of the workers since the start: items, answers by status, restarts."""
        return {**self.generator.metrics(), **self.grader.metrics()}

    async def close(self) -> None:
        """End the worker processes. Safe to call twice."""
        await asyncio.gather(self.generator.close(), self.grader.close())

    async def __aenter__(self) -> Runtime:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _maker(
        self,
        catalog: Catalog | None = None,
        **options: Any,
    ) -> ItemMaker:
        return ItemMaker(
            self.catalog if catalog is None else catalog,
            self.generator,
            strict=self.settings.verification == "strict",
            answer_format=self.settings.answer_format,
            **options,
        )
