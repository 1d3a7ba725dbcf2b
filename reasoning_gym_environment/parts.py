"""The one place where the parts are made: settings in, tasks with the workers that make and grade their items out.

    TasksSettings ───────> Parts: reasoning-gym, catalog, ladders, generator, grader, scorer
    SamplingSettings ────> parts.sampler(): which item comes next
    EvaluationSettings ──> parts.held_out(): the questions that no training asks

The environment for Atropos, the Python interface (api.py), `regrade` and `audit` all sit on this.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from .errors import EnvironmentSetupError, GenerationError
from .evaluation.question_cache import QuestionCache
from .evaluation.questions import AT_ONCE, PRESETS, EvalSet, build_eval_set, choose_tasks
from .records import Problem
from .sampling.item_maker import HoldOut, ItemAddress, ItemMaker
from .sampling.item_stream import Sampler, build_sampler
from .scoring.scorer import Scorer
from .settings import EvaluationSettings, SamplingSettings, TasksSettings, workers_for_cores
from .tasks import reasoning_gym_source as library
from .tasks.catalog import Catalog, served_tasks
from .tasks.difficulty_ladder import Ladder, Level, build_ladder, build_ladders, describe
from .utils.resilience import ended
from .verification import eval_guards
from .workers.generator import ProcessGenerator
from .workers.grader import SandboxGrader

T = TypeVar("T")

logger = logging.getLogger(__name__)

CLOSED = (
    "The reasoning-gym workers are closed: use them within the `with` block. After a fork make others (a data loader "
    "that draws from them needs num_workers=0)."
)

OLD_NAMES = {"funnel": "group_outcomes"}
"""Names of parts in the state of an older version."""


class Parts:
    """Tasks, and the worker processes that make and grade their items: `start` it, then `close` it, or `async with` it.

    Without `makes_items` there is no process that generates; without `serves_tasks` neither `catalog` nor `ladders`
    are found, which takes a second or two: then any task of reasoning-gym can be made and graded.
    """

    library: library.Library
    catalog: Catalog
    ladders: Mapping[str, Ladder]
    """The ladder of each task, or nothing if the settings ask for no levels. `start` sets this once."""

    def __init__(self, settings: TasksSettings, *, makes_items: bool = True, serves_tasks: bool = True) -> None:
        self.settings = settings
        self._previewed: dict[str, Ladder] = {}
        self._makes_items, self._serves_tasks = makes_items, serves_tasks
        imports: dict[str, Any] = {"library_path": str(library.find().location), "task_modules": settings.task_modules}
        self.generator = ProcessGenerator(
            num_workers=settings.num_generation_workers or workers_for_cores(2, at_most=4),
            timeout_s=settings.generation_timeout_s,
            **imports,
        )
        self.grader = SandboxGrader(
            num_workers=settings.num_scoring_workers or workers_for_cores(4, at_most=8),
            timeout_s=settings.scoring_timeout_s,
            sandbox=settings.sandbox,
            allow_unguarded=settings.allow_unguarded_tasks,
            strict=settings.verification == "strict",
            **imports,
        )
        self.scorer = Scorer(self.grader)

    async def start(self) -> None:
        """Start the workers, and find the tasks meanwhile. Raises EnvironmentSetupError; then nothing runs."""
        workers = (self.generator, self.grader) if self._makes_items else (self.grader,)
        # Each of them imports reasoning-gym, as this process does: that takes a second or more.
        starting = asyncio.gather(*(worker.start() for worker in workers), return_exceptions=True)
        try:
            self.library = await asyncio.to_thread(library.load)
            if self._serves_tasks:
                self.catalog = served_tasks(self.settings, eval_guards.unguarded_tasks)
                self.ladders = await self._build_ladders()
            else:
                library.import_modules(self.settings.task_modules)
            for error in await starting:
                if error is not None:
                    raise error
        except BaseException:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            await self.close()
            raise

    def sampler(
        self,
        settings: SamplingSettings,
        *,
        too_long: Callable[[str], str] = lambda question: "",
        held_out: HoldOut | None = None,
        may_overtake: bool = False,
    ) -> Sampler:
        """A new sampler. `too_long(question)` explains why a question does not fit; it returns "" if the question fits.

        The sampler excludes a task if a constant answer earns too much at each of its levels, unless the settings
        include the task by its name.
        """
        excluded = {}
        for task, ladder in self.ladders.items():
            if ladder.constant_answer and task not in self.settings.include_tasks:
                excluded[task] = ladder.constant_answer
                logger.info(
                    "%s is excluded from training: at each level %s. To train on it, add it to include_tasks.",
                    task,
                    ladder.constant_answer,
                )
        catalog = self.catalog.without(excluded)
        ladders = {task: ladder for task, ladder in self.ladders.items() if task not in excluded}
        held_out = HoldOut() if held_out is None else held_out
        maker = self._maker(catalog, too_long=too_long, held_out=held_out)
        return build_sampler(settings, maker, ladders, may_overtake=may_overtake)

    async def training_item(self, task: str, seed: int, level: int | None) -> Problem:
        """The training item of a seed, at a level or (None) as the task is served; never a held-out question.

        Raises EnvironmentSetupError for a task or level that is none, GenerationError if it cannot be made.
        """
        overrides = self.catalog[task].overrides
        at: Level | None = None
        if level is not None:
            levels = (await self._ladder(task, overrides)).levels
            if not 0 <= level < len(levels):
                raise EnvironmentSetupError(f"level: {task} has the levels 0 to {len(levels) - 1}, got {level}.")
            at = levels[level]
        result = await self._maker(held_out=HoldOut()).make_at_first_of([at], ItemAddress(task, -1, "own", seed))
        if result.problem is None:
            raise GenerationError(f"{task}, seed {seed}: {result.reason}, {result.detail}")
        return result.problem

    async def _build_ladders(self) -> dict[str, Ladder]:
        mode = self.settings.complexity_mode
        if mode is None:
            return {}
        # In a thread: the datasets of the user's own tasks may take long, and the event loop must handle signals.
        ranges = self.settings.difficulty_range
        ladders = await asyncio.to_thread(build_ladders, self.catalog, difficulty_range=ranges)
        logger.info("Difficulty %s: %s.", mode, describe(ladders))
        return ladders

    async def _ladder(self, task: str, overrides: Mapping[str, Any]) -> Ladder:
        """The ladder of a task. A ladder that is built here must not change what `sampler` excludes."""
        if task in self.ladders:
            return self.ladders[task]
        if task not in self._previewed:
            ranges = self.settings.difficulty_range
            self._previewed[task] = await asyncio.to_thread(
                build_ladder, task, difficulty_range=ranges, overrides=overrides
            )
        return self._previewed[task]

    def check_held_out(self, settings: EvaluationSettings) -> None:
        """What can be said before any question is made. Raises UnknownNameError."""
        if settings.num_eval_samples_per_task:
            choose_tasks(self.catalog, settings.eval_tasks, settings.eval_seed)

    async def held_out(
        self, settings: EvaluationSettings, *, show_progress: bool = False, at_once: int = AT_ONCE
    ) -> EvalSet:
        """The questions to evaluate, made `at_once` at the same time. Raises EnvironmentSetupError if there are none.

        The same settings give the same questions in every process.
        """
        maker = self._maker(is_published=isinstance(settings.eval_complexity, str))
        # The code of a checkout or of a task module may change without a change of its version.
        is_released = self.library.source == "package" and not settings.task_modules
        return await build_eval_set(
            maker,
            settings,
            self.library.version,
            show_progress=show_progress,
            at_once=at_once,
            cache=QuestionCache.of_this_user() if is_released else None,
        )

    async def hold_out(self, settings: EvaluationSettings) -> HoldOut:
        """What training leaves out: with `hold_out: published` also what published results would be compared on."""
        held_out = HoldOut()
        for preset in PRESETS if settings.hold_out == "published" else ():
            for problem in await self.held_out(settings.model_copy(update={"eval_complexity": preset})):
                held_out.add(problem.question)
        return held_out

    def metrics(self) -> dict[str, float]:
        """What the workers did since the start: items, answers by status, restarts."""
        return {**self.generator.metrics(), **self.grader.metrics()}

    async def close(self) -> None:
        """End the worker processes. Safe to call twice."""
        await asyncio.gather(self.generator.close(), self.grader.close())

    async def __aenter__(self) -> Parts:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _maker(self, catalog: Catalog | None = None, *, is_published: bool = False, **options: Any) -> ItemMaker:
        # The published results were of all items, also of those to which no answer is right.
        strict = self.settings.verification == "strict" and not is_published
        catalog = self.catalog if catalog is None else catalog
        return ItemMaker(catalog, self.generator, strict=strict, **options)


class Stateful(Protocol):
    """A part that a restart resumes."""

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON data."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`. Raises EnvironmentSetupError if it is malformed."""


def state_of(parts: Mapping[str, Stateful]) -> dict[str, Any]:
    """Each part's state, by the part's name."""
    return {name: part.state_dict() for name, part in parts.items()}


def load_into(parts: Mapping[str, Stateful], state: Mapping[str, Any]) -> None:
    """Hand each part its state. Raises EnvironmentSetupError if one is missing, or a part refuses its state."""
    given = state.items() if isinstance(state, Mapping) else ()
    state = {OLD_NAMES.get(name, name): value for name, value in given}
    if missing := sorted(parts.keys() - state.keys()):
        raise EnvironmentSetupError(f"it holds no state of {', '.join(missing)}")
    for name, part in parts.items():
        try:
            part.load_state_dict(state[name])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise EnvironmentSetupError(f"its state of {name} is malformed ({error!r})") from error


class LoopThread:
    """An event loop in a thread of its own, in which the parts run until `close`, or the end of the program."""

    def __init__(self, parts: Parts) -> None:
        """Starts the parts. Raises EnvironmentSetupError if they do not start; then nothing runs."""
        self._parts, self._pid = parts, os.getpid()
        self._is_closed = False
        self._asked: set[asyncio.Future[Any]] = set()
        loop: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=asyncio.run, args=[self._live(loop)], daemon=True)
        self._thread.start()
        self._loop = loop.result()
        atexit.register(self.close)
        try:
            self.run(parts.start())
        except BaseException:
            self.close()
            raise

    async def _live(self, loop: Future[asyncio.AbstractEventLoop]) -> None:
        self._closing = asyncio.Event()
        loop.set_result(asyncio.get_running_loop())
        await self._closing.wait()
        # First what was asked for, and only that: of a process that is being started asyncio has tasks of its own, and
        # waits for ever if one of them is cancelled.
        await ended(self._asked)
        # What was begun beside it finds its workers gone, and is cancelled with the loop.
        await self._parts.close()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Have it run. Raises EnvironmentSetupError once this is closed, and in a forked process."""
        if self._is_gone:
            work.close()
            raise EnvironmentSetupError(CLOSED)
        return asyncio.run_coroutine_threadsafe(self._until_closed(work), self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Its result, for a thread that waits."""
        running = self.submit(work)
        try:
            return running.result()
        except BaseException:
            # Ctrl-C: what nobody waits for must not go on.
            running.cancel()
            raise

    async def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Its result, for another event loop, which goes on meanwhile. Cancelling this cancels it."""
        return await asyncio.wrap_future(self.submit(work))

    def close(self) -> None:
        """Cancel what runs, await the end. Safe to call twice, and of no effect in a forked process."""
        if self._is_gone:
            return
        self._is_closed = True
        atexit.unregister(self.close)
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()

    @property
    def _is_gone(self) -> bool:
        return self._is_closed or os.getpid() != self._pid

    async def _until_closed(self, work: Coroutine[Any, Any, T]) -> T:
        self._asked.add(task := asyncio.ensure_future(work))
        try:
            return await task
        except asyncio.CancelledError:
            if self._is_closed:
                raise EnvironmentSetupError(CLOSED) from None
            raise
        finally:
            self._asked.discard(task)
