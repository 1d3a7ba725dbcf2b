"""The tasks of a run, with the workers that make and grade their items.

    TasksSettings ───────> Runtime: reasoning-gym, catalog, ladders, generator, grader, scorer
    SamplingSettings ────> runtime.sampler(): chooses the next item
    EvaluationSettings ──> runtime.held_out(): the questions that training excludes

The environment for Atropos, the Python interface (api.py), `regrade` and `audit` use this module.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol, TypeVar

from .errors import EnvironmentSetupError, GenerationError
from .evaluation.question_cache import QuestionCache
from .evaluation.questions import (
    AT_ONCE,
    EvalSet,
    build_eval_set,
    choose_tasks,
)
from .records import Problem
from .sampling.item_maker import ExcludedQuestions, ItemAddress, ItemMaker
from .sampling.item_stream import Sampler, build_sampler
from .scoring.scorer import Scorer
from .settings import (
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
from .utils.resilience import cancel_and_wait
from .verification import eval_guards
from .workers.generator import ITEM_TIMEOUT_S, ProcessGenerator
from .workers.grader import SandboxGrader

T = TypeVar("T")

logger = logging.getLogger(__name__)

CLOSED = (
    "The reasoning-gym workers are closed. Use Tasks within its `with` block. After fork(), create a new Tasks (a data "
    "loader that draws from it needs num_workers=0)."
)


class Runtime:
    """Tasks, and the worker processes that make and grade their items.

    Call `start` and `close`, or use `async with`. Without `makes_items` there are no generation workers. Without
    `serves_tasks` there are neither `catalog` nor `ladders`, which take a second or two to build. Then every task of
    reasoning-gym can be made and graded. `item_timeout_s` is the processor time that an item may take.
    """

    library: library.Library
    catalog: Catalog
    ladders: Mapping[str, Ladder]
    """The ladder of each task, or nothing if the settings use no levels. `start` sets this once."""

    def __init__(
        self,
        settings: TasksSettings,
        *,
        makes_items: bool = True,
        serves_tasks: bool = True,
        item_timeout_s: float = ITEM_TIMEOUT_S,
    ) -> None:
        self.settings = settings
        self._previewed: dict[str, Ladder] = {}
        self._makes_items = makes_items
        self._serves_tasks = serves_tasks
        imports: dict[str, Any] = {
            "library_path": str(library.find().location),
            "task_modules": settings.task_modules,
        }
        self.generator = ProcessGenerator(
            num_workers=settings.num_generation_workers or workers_for_cores(2, at_most=4),
            timeout_s=item_timeout_s,
            **imports,
        )
        self.grader = SandboxGrader(
            num_workers=settings.num_scoring_workers or workers_for_cores(4, at_most=8),
            sandbox=settings.sandbox,
            allow_unguarded=settings.allow_unguarded_tasks,
            strict=settings.verification == "strict",
            **imports,
        )
        self.scorer = Scorer(self.grader)

    async def start(self) -> None:
        """Start the workers and find the tasks, concurrently. Raises EnvironmentSetupError if either fails."""
        starts = [self.grader.start()]
        if self._makes_items:
            starts.insert(0, self.generator.start())
        # Each worker imports reasoning-gym, as this process does, which takes a second or more.
        starting = asyncio.gather(*starts, return_exceptions=True)
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
        held_out: ExcludedQuestions | None = None,
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
        if excluded:
            logger.info(
                "Excluded from training, because a constant answer earns too much at each level: %s. To train on such "
                "a task, name it in include_tasks.",
                ", ".join(excluded),
            )
        catalog = self.catalog.without(excluded)
        ladders = {task: ladder for task, ladder in self.ladders.items() if task not in excluded}
        held_out = ExcludedQuestions() if held_out is None else held_out
        maker = self._maker(catalog, too_long=too_long, held_out=held_out)
        return build_sampler(settings, maker, ladders, may_overtake=may_overtake)

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
        maker = self._maker(held_out=ExcludedQuestions())
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
        """The ladder of a task. A ladder that is built here must not change what `sampler` excludes."""
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
        show_progress: bool = False,
        at_once: int = AT_ONCE,
    ) -> EvalSet:
        """The questions of an evaluation, the same in every process for the same settings.

        The workers make `at_once` questions at the same time. Raises EnvironmentSetupError if there are none.
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

    async def hold_out(self, settings: EvaluationSettings) -> ExcludedQuestions:
        """The questions that training excludes.

        The rule for held-out questions does not cover the questions of the published results (`eval_complexity` easy
        or hard), so they are made and excluded one by one.
        """
        excluded = ExcludedQuestions()
        if isinstance(settings.eval_complexity, str):
            for problem in await self.held_out(settings):
                excluded.add(problem.question)
        return excluded

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
        *,
        is_published: bool = False,
        **options: Any,
    ) -> ItemMaker:
        # The published results include items without a right answer.
        strict = self.settings.verification == "strict" and not is_published
        catalog = self.catalog if catalog is None else catalog
        return ItemMaker(catalog, self.generator, strict=strict, **options)


class Stateful(Protocol):
    """A component that a restart resumes."""

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON data."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`. Raises EnvironmentSetupError if it is malformed."""


def state_of(components: Mapping[str, Stateful]) -> dict[str, Any]:
    """The state of each component, by its name."""
    return {name: component.state_dict() for name, component in components.items()}


def load_into(components: Mapping[str, Stateful], state: Mapping[str, Any]) -> None:
    """Give each component its state.

    Raises EnvironmentSetupError if a state is missing or malformed. Then every component keeps its own state, although
    an item stream that had loaded a new one repeats its own pending items.
    """
    saved = dict(state) if isinstance(state, Mapping) else {}
    missing = sorted(components.keys() - saved.keys())
    if missing:
        raise EnvironmentSetupError(f"it holds no state of {', '.join(missing)}")
    before = state_of(components)
    for name, component in components.items():
        try:
            component.load_state_dict(saved[name])
        except (
            AttributeError,
            KeyError,
            OverflowError,
            RecursionError,
            TypeError,
            ValueError,
            EnvironmentSetupError,
        ) as error:
            _keep(components, before)
            if isinstance(error, EnvironmentSetupError):
                raise
            raise EnvironmentSetupError(f"its state of {name} is malformed ({error!r})") from error


def _keep(components: Mapping[str, Stateful], states: Mapping[str, Any]) -> None:
    for name, component in components.items():
        if component.state_dict() != states[name]:
            component.load_state_dict(states[name])


class LoopThread:
    """An event loop in a separate thread, which runs a Runtime until `close` or the end of the program."""

    def __init__(self, runtime: Runtime) -> None:
        """Start the thread and the Runtime. Raises EnvironmentSetupError, and ends the thread, if the start fails."""
        self._runtime = runtime
        self._pid = os.getpid()
        self._is_closed = False
        self._running: set[asyncio.Future[Any]] = set()
        self._not_begun: set[Coroutine[Any, Any, Any]] = set()
        self._closing = asyncio.Event()
        # Here and not in the thread, so that the caller gets the error if there are too many open files.
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, daemon=True)
        self._thread.start()
        atexit.register(self.close)
        try:
            self.run(runtime.start())
        except BaseException:
            self.close()
            raise

    def _run_loop(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._live())

    async def _live(self) -> None:
        await self._closing.wait()
        # Only the submitted tasks are cancelled here. asyncio has further tasks while it starts a process, and waits
        # forever if they are cancelled.
        await cancel_and_wait(self._running)
        # Other tasks fail without their workers, and end with the loop.
        await self._runtime.close()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine in the thread. Raises EnvironmentSetupError after `close`, and in a forked process."""
        if self._is_gone:
            work.close()
            raise EnvironmentSetupError(CLOSED)
        self._not_begun.add(work)
        running = asyncio.run_coroutine_threadsafe(self._until_closed(work), self._loop)
        running.add_done_callback(partial(self._close_if_cancelled, work))
        return running

    def _close_if_cancelled(self, work: Coroutine[Any, Any, Any], running: Future[Any]) -> None:
        if running.cancelled():
            self._loop.call_soon_threadsafe(self._close_unless_begun, work)

    def _close_unless_begun(self, work: Coroutine[Any, Any, Any]) -> None:
        """Python warns about a coroutine that was cancelled before its first step, unless it is closed."""
        if work in self._not_begun:
            self._not_begun.remove(work)
            work.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine, and wait for its result."""
        running = self.submit(work)
        try:
            return running.result()
        except BaseException:
            # After Ctrl-C no caller waits for the result.
            running.cancel()
            raise

    async def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine, and await its result in another event loop. Cancelling the wait cancels the coroutine."""
        return await asyncio.wrap_future(self.submit(work))

    def close(self) -> None:
        """Cancel all coroutines, and wait for the end of the thread. Safe to call twice, and in a forked process."""
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
        if work not in self._not_begun:
            # The caller cancelled the work before this first step, and it was closed.
            raise asyncio.CancelledError
        self._not_begun.remove(work)
        task = asyncio.ensure_future(work)
        self._running.add(task)
        caller = asyncio.current_task()
        assert caller is not None, "asyncio runs this coroutine as a task"
        try:
            return await task
        except asyncio.CancelledError:
            # A caller that has cancelled its work does not take an error, and asyncio would log it.
            if self._is_closed and not caller.cancelling():
                raise EnvironmentSetupError(CLOSED) from None
            raise
        finally:
            self._running.discard(task)
