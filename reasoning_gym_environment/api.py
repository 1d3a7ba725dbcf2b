"""What this package is made of, from five lines of Python: items, the sandbox, the sampler, held-out questions.

    Tasks ── which tasks, at which levels; their workers ──┬──> ItemStream: problems to train on  <── observe(rewards)
                                                           ├──> grade: completions ──> Grade
                                                           └──> HeldOut: questions that no training asks ──> results

Nothing here needs Atropos, or an event loop of the caller's: the workers are driven from a thread of their own, and
every method may be called from any thread. What waits has an asynchronous twin, `..._async`, for callers with a loop.

The workers are processes. They end with the `with` block, with `close()`, or with the program.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeVar

from .errors import EnvironmentSetupError
from .evaluation.questions import AT_ONCE, EvalSet
from .evaluation.results import EvalResults, Sample, summarise
from .evaluation.runner import graded_sample
from .inference.prompts import as_dicts, build_messages
from .parts import LoopThread, Parts, load_into, state_of
from .records import Completion, Problem, Score
from .scoring.scorer import base_reward
from .settings import EvaluationSettings, SamplingSettings, TasksSettings, checked
from .tasks.catalog import config_from_json, config_of

__all__ = ["Grade", "HeldOut", "ItemStream", "PromptedProblem", "Tasks", "grade", "grade_async"]

T = TypeVar("T")
Item = Mapping[str, Any]
"""An item of reasoning-gym, or the config that it was made from."""

Texts = Sequence[str]
Names = str | Sequence[str]
"""Task names, globs (`*_arithmetic`) or `category:logic`, comma-separated or a list."""


Answers = Texts | Sequence[Texts]
"""A completion for each question, in order, or several."""


@dataclass(frozen=True)
class PromptedProblem(Problem):
    """A problem as a model is asked it: `messages` are the system and the user message, as chat APIs take them.

    `entry` is the item as reasoning-gym made it (`question`, `answer`, `metadata`); it must not be changed.
    """

    messages: tuple[Mapping[str, str], ...] = ()


@dataclass(frozen=True)
class Grade:
    """What one completion earned.

    `reward` is in [0, 1]: the score, read as `partial_credit` says. It is None for a completion that could not be
    scored (`score.outcome` says why: a timeout, a crash of the worker), which is not the same as wrong: leave it out of
    what is learned from. `score` has the verifier's value, the answer that was found, and what became of it.
    """

    reward: float | None
    score: Score


class Tasks:
    """Tasks to draw from and to grade, and the worker processes that do it. Use it as a context manager, or `close` it.

    `include`, `exclude`, `weights` (how often, relative to 1), `overrides` ({task: {config field: value}}) and
    `modules` (dotted names or .py files that register datasets of your own) choose the tasks.
    `complexity_mode` chooses their levels: None (reasoning-gym's defaults), "curriculum" (each task's level follows the
    rewards), "random" (uniform over the levels), or a number from 0 (easiest level) to 1 (hardest).
    `settings` are those of the same names (docs/configuration.md), with the defaults of the commands: partial_credit,
    difficulty_range, verification, sandbox, generation_timeout_s, scoring_timeout_s, and num_generation_workers and
    num_scoring_workers, of which there is 1.

    Raises EnvironmentSetupError, with what to change, for a name or value that is none, or workers that do not start.
    """

    def __init__(
        self,
        include: Names = "",
        *,
        exclude: Names = "",
        weights: Mapping[str, float] | str = "",
        overrides: Mapping[str, Mapping[str, Any]] | None = None,
        modules: Names = "",
        allow_unguarded: Names = "",
        complexity_mode: Literal["curriculum", "random"] | float | None = None,
        **settings: Any,
    ) -> None:
        defaults = {"partial_credit": "exact", "num_generation_workers": 1, "num_scoring_workers": 1}
        self.settings = checked(
            TasksSettings,
            include_tasks=include,
            exclude_tasks=exclude,
            task_weights=weights,
            task_overrides=overrides,
            task_modules=modules,
            allow_unguarded_tasks=allow_unguarded,
            complexity_mode=complexity_mode,
            **{**defaults, **settings},
        )
        self._parts = Parts(self.settings)
        self._thread = LoopThread(self._parts)
        self.version = self._parts.library.version
        """The release of reasoning-gym."""
        self.catalog = self._parts.catalog
        """The tasks by name, and those left out with the reason."""

    @property
    def names(self) -> list[str]:
        """The tasks that are served."""
        return self.catalog.names

    def problem(self, task: str, item: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> PromptedProblem:
        """An item of your own, as reasoning-gym made it from `config` (default: as the task is served), to be graded.

        Raises UnknownNameError for a task that is not served.
        """
        served = self.catalog[task]
        return _of_item(task, item, config_of(task, served.overrides) if config is None else config, served.category)

    def make(self, task: str, seed: int, config: Mapping[str, Any]) -> PromptedProblem:
        """The item of a seed and a config, as a problem has them, made again; the config may have been JSON in between.

        Raises UnknownNameError for a task that is none, GenerationError if it cannot be made (in time).
        """
        return self._thread.run(self._make(task, seed, config))

    async def make_async(self, task: str, seed: int, config: Mapping[str, Any]) -> PromptedProblem:
        """The same, for a caller with an event loop."""
        return await self._thread.wait(self._make(task, seed, config))

    def draw(self, task: str, seed: int, level: int | None = None) -> PromptedProblem:
        """The training item of a seed, at a level (default: as the task is served); it is never a held-out question.

        Raises EnvironmentSetupError for a task or level that is none, GenerationError if it cannot be made.
        """
        return _prompted(self._thread.run(self._parts.training_item(task, seed, level)))

    async def draw_async(self, task: str, seed: int, level: int | None = None) -> PromptedProblem:
        """The same, for a caller with an event loop."""
        return _prompted(await self._thread.wait(self._parts.training_item(task, seed, level)))

    async def _make(self, task: str, seed: int, config: Mapping[str, Any]) -> PromptedProblem:
        config = config_from_json(task, config)
        entry = await self._parts.generator.generate(task, seed, config)
        return replace(_of_item(task, entry, config), seed=seed)

    def grade(self, problem: Problem, completions: Texts, *, thinking_opened: bool = False) -> list[Grade]:
        """The grades of a group of completions (texts, thinking included) for one problem, in order.

        Completions of one problem are graded together: it is cheaper.
        `thinking_opened`: the chat template has already opened `<think>` in the prompt.
        """
        return self._thread.run(_grade(self._parts, problem, completions, thinking_opened))

    async def grade_async(self, problem: Problem, completions: Texts, *, thinking_opened: bool = False) -> list[Grade]:
        """The same, for a caller with an event loop."""
        return await self._thread.wait(_grade(self._parts, problem, completions, thinking_opened))

    def metrics(self) -> dict[str, float]:
        """What the workers did since the start: items, answers by status, restarts."""
        return self._parts.metrics()

    def close(self) -> None:
        """End the worker processes. Safe to call twice."""
        self._thread.close()

    def __enter__(self) -> Tasks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ItemStream:
    """The problems to train on, one after another: the same seed, and the same rewards, give the same problems.

    `task_sampling`: "learnability" (tasks at which the model makes no progress less often), "weighted" or "uniform".
    `instance` names one of several streams of one seed, which share no item. `prefetch` items are made ahead of the one
    asked for. `too_long(question)` says why a question does not fit, "" if it does: then the item is drawn from an
    easier level. One question in ten is never asked: those are HeldOut's.

    Every problem must be settled by `observe`: until then it counts as not done, and a stream that goes on from a
    `state_dict` gives it again.
    """

    def __init__(
        self,
        tasks: Tasks,
        *,
        seed: int = 42,
        task_sampling: Literal["uniform", "weighted", "learnability"] = "learnability",
        curriculum_target_accuracy: float = 0.7,
        instance: str = "0",
        prefetch: int = 4,
        too_long: Callable[[str], str] = lambda question: "",
    ) -> None:
        settings = checked(
            SamplingSettings,
            **tasks.settings.model_dump(),
            seed=seed,
            instance_id=instance,
            task_sampling=task_sampling,
            curriculum_target_accuracy=curriculum_target_accuracy,
            prefetch_items=prefetch,
        )
        self._sampler = tasks._parts.sampler(settings, too_long=too_long)
        self._seed = seed
        self._thread = tasks._thread
        self._turn = asyncio.Lock()

    def next(self) -> PromptedProblem:
        """The next problem. Raises EnvironmentSetupError if hundreds of draws in a row yield none."""
        return self._thread.run(self._next())

    async def next_async(self) -> PromptedProblem:
        """The same, for a caller with an event loop."""
        return await self._thread.wait(self._next())

    def __iter__(self) -> Iterator[PromptedProblem]:
        """Without end."""
        while True:
            yield self.next()

    def observe(self, problem: Problem, rewards: Sequence[float | None]) -> None:
        """Take back what the completions of a problem earned, in [0, 1]; None are those that could not be scored.

        The curriculum and the choice of tasks follow it. Without rewards the problem is settled, and nothing learned. A
        second time for the same problem is counted, and changes nothing. Raises ValueError for other rewards, and
        TypeError for what is no problem.
        """
        if not isinstance(problem, Problem):
            raise TypeError(f"problem: expected one that the stream gave, got {problem!r:.60}.")
        try:
            earned = [float(reward) for reward in rewards if reward is not None]
        except (TypeError, ValueError):
            earned = [math.nan]
        if not all(0.0 <= reward <= 1.0 for reward in earned):
            raise ValueError(f"rewards: expected numbers from 0 to 1, None where there is none, got {rewards!r:.200}.")
        self._thread.run(self._observe(problem, earned))

    def metrics(self) -> dict[str, float]:
        """Skipped and redrawn items, closed levels, where curriculum and task choice stand."""
        return self._thread.run(_called(self._sampler.metrics))

    def state_dict(self) -> dict[str, Any]:
        """Where the stream stands, as JSON: problems that are not settled yet are drawn again."""
        return self._thread.run(_called(self._state))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`. Raises EnvironmentSetupError if it is none, or of another seed."""
        self._thread.run(_called(self._load, state))

    async def _next(self) -> PromptedProblem:
        # In the order of their index, whoever asks.
        async with self._turn:
            return _prompted(await self._sampler.stream.next())

    async def _observe(self, problem: Problem, earned: Sequence[float]) -> None:
        self._sampler.observe(problem, earned, has_signal=len(set(earned)) > 1)
        self._sampler.stream.ledger.finish(problem)

    def _state(self) -> dict[str, Any]:
        return {"seed": self._seed, **state_of(self._sampler.stateful)}

    def _load(self, state: Mapping[str, Any]) -> None:
        # The state of an earlier version does not name its seed.
        seed = state.get("seed", self._seed) if isinstance(state, Mapping) else self._seed
        if seed != self._seed:
            raise EnvironmentSetupError(
                f"This state is of a stream with the seed {seed}, and with {self._seed} its problems would be others: "
                f"make the stream with seed={seed}."
            )
        load_into(self._sampler.stateful, state)


class HeldOut:
    """Questions that no training stream asks, whatever its seed and levels, and what a model makes of them.

    `eval_tasks`: "all" of the tasks, a number of them (chosen by `seed`), or names. `per_task` questions of each, at
    `complexity`: None (reasoning-gym's defaults) or a number from 0 (easiest level) to 1 (hardest). The same arguments
    give the same questions everywhere; `manifest` names them. They are made when they are first asked for.

    Raises EnvironmentSetupError for a choice that names no task, UnknownNameError with the nearest ones.
    """

    def __init__(
        self,
        tasks: Tasks,
        *,
        eval_tasks: Names | int = "all",
        per_task: int = 5,
        seed: int = 123,
        complexity: float | None = None,
    ) -> None:
        if isinstance(complexity, str):
            raise EnvironmentSetupError(f"complexity: expected None or a number from 0 to 1, got {complexity!r}.")
        self._settings = checked(
            EvaluationSettings,
            **tasks.settings.model_dump(),
            eval_tasks=eval_tasks,
            num_eval_samples_per_task=per_task,
            eval_seed=seed,
            eval_complexity=complexity,
        )
        tasks._parts.check_held_out(self._settings)
        self._tasks = tasks
        self._made: EvalSet | None = None
        self._turn = asyncio.Lock()

    @property
    def problems(self) -> list[PromptedProblem]:
        """The questions, in order."""
        return self._tasks._thread.run(self._problems())

    async def problems_async(self) -> list[PromptedProblem]:
        """The same, for a caller with an event loop."""
        return await self._tasks._thread.wait(self._problems())

    def __iter__(self) -> Iterator[PromptedProblem]:
        return iter(self.problems)

    def __len__(self) -> int:
        return len(self.problems)

    @property
    def manifest(self) -> str:
        """16 hex digits, equal for two sets exactly if they ask the same questions of the same reasoning-gym."""
        return self._tasks._thread.run(self._questions()).manifest

    def samples(self, completions: Mapping[int, Texts], *, thinking_opened: bool = False) -> dict[int, list[Sample]]:
        """Some answers only, by the number of their question: graded, as lines of samples.jsonl.

        `evaluation.results.summarise` makes results of them once all are there.
        """
        return self._tasks._thread.run(self._samples(completions, thinking_opened))

    def results(self, completions: Answers, *, thinking_opened: bool = False) -> EvalResults:
        """What the answers are worth: a completion for each question, in order, or several (then with pass@k).

        Scores are the verifiers', whatever `partial_credit` is. Shares come with 95% intervals, clustered by question.
        Raises ValueError unless there are as many entries as questions, TypeError for what are no texts.
        """
        return self._tasks._thread.run(self._results(completions, thinking_opened))

    async def results_async(self, completions: Answers, *, thinking_opened: bool = False) -> EvalResults:
        """The same, for a caller with an event loop."""
        return await self._tasks._thread.wait(self._results(completions, thinking_opened))

    async def _questions(self) -> EvalSet:
        async with self._turn:
            if self._made is None:
                self._made = await self._tasks._parts.held_out(self._settings)
        return self._made

    async def _problems(self) -> list[PromptedProblem]:
        return [_prompted(problem) for problem in await self._questions()]

    async def _results(self, completions: Answers, thinking_opened: bool) -> EvalResults:
        made = await self._questions()
        if isinstance(completions, str) or len(completions) != len(made):
            raise ValueError(f"Expected an entry for each of {len(made)} questions, got {len(completions)}.")
        texts = [[given] if isinstance(given, str) else given for given in completions]
        samples = await self._samples(dict(enumerate(texts)), thinking_opened)
        return summarise([sample for several in samples.values() for sample in several])

    async def _samples(self, completions: Mapping[int, Texts], thinking_opened: bool) -> dict[int, list[Sample]]:
        for several in completions.values():
            _check_texts(several)
        made = await self._questions()
        slots = asyncio.Semaphore(AT_ONCE)

        async def sample(number: int, attempt: int, text: str) -> Sample:
            async with slots:
                scorer, problem = self._tasks._parts.scorer, made.problems[number]
                completion, opened = _completion(text), thinking_opened
                graded = await graded_sample(scorer, problem, completion, attempt, thinking_opened=opened)
            # Of a text alone neither is known.
            return {**graded, "manifest": made.manifest, "finish_reason": None, "num_completion_tokens": None}

        numbered = [(one, *pair) for one, several in completions.items() for pair in enumerate(several)]
        graded = iter(await asyncio.gather(*(sample(*one) for one in numbered)))
        return {one: [next(graded) for _ in several] for one, several in completions.items()}


# --- one item, without choosing tasks


def grade(
    task: str, item: Item, completion: str, *, config: Item | None = None, thinking_opened: bool = False
) -> Grade:
    """Grade one completion for an item of reasoning-gym, in a sandbox that this process keeps until it ends.

    `item` is as reasoning-gym made it (`question`, `answer`, `metadata`), from `config` (default: the task's own); its
    metadata must be intact, which JSON does not leave it. A right answer is worth 1, a wrong one nothing. For several
    completions of an item, tasks of your own (`modules`), and other settings: `Tasks.grade`.

    Raises UnknownNameError for a task that is none.
    """
    problem = _of_item(task, item, config_of(task) if config is None else config)
    thread, parts = _shared_sandbox.get()
    return thread.run(_grade(parts, problem, [completion], thinking_opened))[0]


async def grade_async(
    task: str, item: Item, completion: str, *, config: Item | None = None, thinking_opened: bool = False
) -> Grade:
    """`grade`, for a caller with an event loop."""
    return await asyncio.to_thread(grade, task, item, completion, config=config, thinking_opened=thinking_opened)


# --- behind them


async def _grade(parts: Parts, problem: Problem, completions: Texts, thinking_opened: bool) -> list[Grade]:
    _check_texts(completions)
    scores = await parts.scorer.score(problem, list(map(_completion, completions)), thinking_opened=thinking_opened)
    credit = parts.settings.partial_credit
    return [Grade(base_reward(score, credit) if score.outcome.is_scored else None, score) for score in scores]


Sandbox = tuple[LoopThread, Parts]


class _SharedSandbox:
    """The sandbox behind `grade`. The first call of `get` starts it.

    Concurrent calls wait for that start and share its result, an exception included. A failed start is forgotten, so
    the next call tries again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started: Future[Sandbox] | None = None

    def get(self) -> Sandbox:
        """Return the running sandbox. Raises EnvironmentSetupError if it does not start."""
        with self._lock:
            is_first = self._started is None
            if self._started is None:
                self._started = Future()
            started = self._started
        if is_first:
            self._start(started)
        return started.result()

    def _start(self, started: Future[Sandbox]) -> None:
        settings = TasksSettings(partial_credit="exact", num_scoring_workers=1)
        try:
            parts = Parts(settings, makes_items=False, serves_tasks=False)
            sandbox = (LoopThread(parts), parts)
        # Whatever ended the start, the callers that wait for it must hear of it.
        except BaseException as error:  # noqa: BLE001
            with self._lock:
                self._started = None
            started.set_exception(error)
        else:
            started.set_result(sandbox)


_shared_sandbox = _SharedSandbox()


def _forget_the_parents_sandbox() -> None:
    global _shared_sandbox
    _shared_sandbox = _SharedSandbox()


# A forked process has neither the parent's event loop thread nor the thread that may hold the lock at that moment.
os.register_at_fork(after_in_child=_forget_the_parents_sandbox)


def _of_item(task: str, item: Mapping[str, Any], config: Mapping[str, Any], category: str = "") -> PromptedProblem:
    if not isinstance(item, Mapping) or "question" not in item:
        raise EnvironmentSetupError(
            f"item: expected question, answer and metadata as reasoning-gym has them, got {item!r:.200}."
        )
    return _prompted(Problem(task, category, "own", -1, 0, config, dict(item)))


def _prompted(problem: Problem) -> PromptedProblem:
    given = {one.name: getattr(problem, one.name) for one in fields(problem)}
    return PromptedProblem(**{**given, "messages": tuple(as_dicts(build_messages(problem.question)))})


def _completion(text: str) -> Completion:
    return Completion(text, tokens=[], masks=[], logprobs=None, finish_reason="")


async def _called(function: Callable[..., T], *arguments: Any) -> T:
    return function(*arguments)


def _check_texts(given: Any) -> None:
    if isinstance(given, str) or not isinstance(given, Collection) or not all(isinstance(one, str) for one in given):
        raise TypeError(f'completions: expected a list of texts (an empty reply is ""), got {given!r:.200}.')
