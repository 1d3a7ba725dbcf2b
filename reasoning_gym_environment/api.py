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
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeVar, get_args

from .errors import EnvironmentSetupError
from .evaluation.questions import AT_ONCE, EvalSet, build_eval_set, check_choice
from .evaluation.results import EvalResults, Sample, summarise
from .evaluation.runner import judged, sample_record
from .inference.prompts import as_dicts, build_messages
from .records import Completion, Problem, Score
from .sampling import SamplingSettings
from .sampling.item_maker import ItemMaker
from .sampling.item_stream import build_sampler, ladders_of
from .sampling.seeds import HoldOut
from .scoring.rewards import CreditRule, PartialCredit
from .scoring.scorer import Scorer
from .tasks import reasoning_gym_source as library
from .tasks.catalog import TaskSettings, config_from_json, config_of, served_tasks
from .tasks.difficulty_ladder import Ranges
from .tasks.measured_data import load_floors
from .tasks.selectors import parse_names, parse_weights
from .utils.aio import LoopThread
from .verification import eval_guards
from .workers import GenerationSettings, GradingSettings, Sandbox
from .workers.generator import ProcessGenerator
from .workers.grader import SandboxGrader

__all__ = ["Grade", "HeldOut", "ItemStream", "PromptedProblem", "Tasks", "grade", "grade_async"]

T = TypeVar("T")
Names = str | Sequence[str]
"""Task names, globs (`*_arithmetic`) or `category:logic`, comma-separated or a list."""


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
    The others are the settings of the same names (docs/configuration.md), with the defaults of the commands.

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
        complexity_mode: Literal["curriculum", "random"] | float | None = None,
        difficulty_range: Ranges = "level",
        verification: Literal["strict", "native"] = "strict",
        answer_normalization: Literal["none", "lossless"] = "none",
        partial_credit: PartialCredit = "baseline",
        binary_threshold: float = 0.5,
        quarantine: bool = True,
        allow_unguarded: Names = "",
        sandbox: Sandbox = "auto",
        num_generation_workers: int = 1,
        num_scoring_workers: int = 1,
        generation_timeout_s: float = 5.0,
        scoring_timeout_s: float = 2.0,
    ) -> None:
        if complexity_mode not in (None, "curriculum", "random") and not _is_share(complexity_mode):
            raise EnvironmentSetupError(
                f"complexity_mode: expected None, curriculum, random, or a number from 0 to 1, got {complexity_mode!r}."
            )
        _check("difficulty_range", difficulty_range, get_args(Ranges))
        _check("verification", verification, ("strict", "native"))
        _check("answer_normalization", answer_normalization, ("none", "lossless"))
        _check("partial_credit", partial_credit, get_args(PartialCredit))
        _check("sandbox", sandbox, get_args(Sandbox))
        if not _is_share(binary_threshold) or not binary_threshold:
            raise EnvironmentSetupError(
                f"binary_threshold: expected a number above 0 and up to 1, got {binary_threshold!r}."
            )
        self._modules = parse_names(modules)
        unguarded = parse_names(allow_unguarded)
        chosen = TaskSettings(
            include=parse_names(include),
            exclude=parse_names(exclude),
            weights=parse_weights(weights or {}),
            overrides=overrides or {},
            modules=self._modules,
            allow_unguarded=unguarded,
            quarantine=quarantine,
            strict=verification == "strict",
            with_levels=complexity_mode is not None,
        )
        self._strict = verification == "strict"
        generation = GenerationSettings(num_generation_workers, generation_timeout_s, self._modules)
        grading = GradingSettings(
            *(num_scoring_workers, scoring_timeout_s, sandbox, self._modules, unguarded, verification),
            answer_normalization,
        )
        self._complexity_mode = complexity_mode
        self._difficulty_range = difficulty_range
        found = library.find()
        self._generator, self._grader = ProcessGenerator.of(generation, found), SandboxGrader.of(grading, found)
        credit = CreditRule(partial_credit, load_floors(), binary_threshold)
        self._judge = _Judge(Scorer(self._grader, with_baselines=partial_credit == "baseline"), credit)
        self._eval_scorer = Scorer(self._grader)
        self._thread = LoopThread("reasoning-gym workers", self._close_workers)
        # They import reasoning-gym while it is imported and looked through here.
        starting = self._thread.submit(self._start_workers())
        try:
            self.version = library.load().version
            """The release of reasoning-gym."""
            self.catalog = served_tasks(chosen, eval_guards.unguarded_tasks)
            """The tasks by name, and those left out with the reason."""
            self._ladders = self._thread.run(ladders_of(self.catalog, complexity_mode, difficulty_range))
            starting.result()
        except BaseException:
            self.close()
            raise

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

    async def _make(self, task: str, seed: int, config: Mapping[str, Any]) -> PromptedProblem:
        config = config_from_json(task, config)
        entry = await self._generator.generate(task, seed, config)
        return replace(_of_item(task, entry, config), seed=seed)

    def grade(self, problem: Problem, completions: Sequence[str], *, thinking_opened: bool = False) -> list[Grade]:
        """The grades of a group of completions (texts, thinking included) for one problem, in order.

        Completions of one problem are graded together: it is cheaper, and the item's baseline is found once.
        `thinking_opened`: the chat template has already opened `<think>` in the prompt.
        """
        return self._thread.run(self._judge.grade(problem, completions, thinking_opened))

    async def grade_async(
        self, problem: Problem, completions: Sequence[str], *, thinking_opened: bool = False
    ) -> list[Grade]:
        """The same, for a caller with an event loop."""
        return await self._thread.wait(self._judge.grade(problem, completions, thinking_opened))

    def metrics(self) -> dict[str, float]:
        """What the workers did since the start: items, answers by status, restarts."""
        return {**self._generator.metrics(), **self._grader.metrics(), **self._judge.scorer.metrics()}

    def close(self) -> None:
        """End the worker processes. Safe to call twice."""
        self._thread.close()

    def __enter__(self) -> Tasks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _start_workers(self) -> None:
        await asyncio.gather(self._generator.start(), self._grader.start())

    async def _close_workers(self) -> None:
        await asyncio.gather(self._generator.close(), self._grader.close())


class ItemStream:
    """The problems to train on, one after another: the same seed, and the same rewards, give the same problems.

    `task_sampling`: "learnability" (less often those at which the model stands still; `task_floor` of the draws are
    spread evenly), "weighted" or "uniform". `instance` names one of several streams of one seed, which share no item.
    `prefetch` items are made ahead of the one asked for. `too_long(question)` says why a question does not fit, "" if
    it does: then the item is drawn from an easier level. One question in ten is never asked: those are HeldOut's.

    Every problem must be settled by `observe`: until then it counts as not done, and a stream that goes on from a
    `state_dict` gives it again.
    """

    def __init__(
        self,
        tasks: Tasks,
        *,
        seed: int = 42,
        task_sampling: Literal["uniform", "weighted", "learnability"] = "learnability",
        task_floor: float = 0.12,
        curriculum_target_accuracy: float = 0.7,
        instance: str = "0",
        prefetch: int = 4,
        too_long: Callable[[str], str] = lambda question: "",
    ) -> None:
        _check("task_sampling", task_sampling, ("uniform", "weighted", "learnability"))
        if not _is_share(curriculum_target_accuracy) or curriculum_target_accuracy in (0, 1):
            raise EnvironmentSetupError(
                f"curriculum_target_accuracy: expected a number between 0 and 1, got {curriculum_target_accuracy!r}."
            )
        if prefetch < 0:
            raise EnvironmentSetupError(f"prefetch: expected at least 0, got {prefetch}.")
        if not _is_share(task_floor):
            raise EnvironmentSetupError(f"task_floor: expected a number from 0 to 1, got {task_floor!r}.")
        settings = SamplingSettings(
            seed=seed,
            instance_id=instance,
            complexity_mode=tasks._complexity_mode,
            difficulty_range=tasks._difficulty_range,
            curriculum_target_accuracy=curriculum_target_accuracy,
            task_sampling=task_sampling,
            task_floor=task_floor,
            prefetch_items=prefetch,
        )
        maker = ItemMaker(tasks.catalog, tasks._generator, too_long=too_long, held_out=HoldOut(), strict=tasks._strict)
        self._sampler = build_sampler(settings, maker, tasks._ladders)
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
            are_shares = all(0.0 <= reward <= 1.0 for reward in earned)
        except (TypeError, ValueError):
            are_shares = False
        if not are_shares:
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
        self._sampler.stream.ledger.done(problem)

    def _state(self) -> dict[str, Any]:
        return {"seed": self._seed, **{name: part.state_dict() for name, part in self._sampler.stateful.items()}}

    def _load(self, state: Mapping[str, Any]) -> None:
        parts = self._sampler.stateful
        if not isinstance(state, Mapping) or not parts.keys() <= state.keys():
            raise EnvironmentSetupError(f"A stream's state has {', '.join(parts)}: got {state!r:.200}.")
        if unlike := [name for name in parts if not isinstance(state[name], Mapping)]:
            raise EnvironmentSetupError(
                f"A stream's state has a mapping as {unlike[0]}: got {state[unlike[0]]!r:.200}."
            )
        # That of an earlier version does not tell.
        if (seed := state.get("seed", self._seed)) != self._seed:
            raise EnvironmentSetupError(
                f"This state is of a stream with the seed {seed}, and with {self._seed} its problems would be others: "
                f"make the stream with seed={seed}."
            )
        for name, part in parts.items():
            part.load_state_dict(state[name])


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
        if per_task < 1:
            raise EnvironmentSetupError(f"per_task: expected at least 1, got {per_task}.")
        if complexity is not None and not _is_share(complexity):
            raise EnvironmentSetupError(f"complexity: expected None or a number from 0 to 1, got {complexity!r}.")
        self._tasks = tasks
        wanted = [str(eval_tasks)] if isinstance(eval_tasks, int) else parse_names(eval_tasks)
        check_choice(tasks.catalog, wanted, seed, complexity)
        self._make = partial(
            build_eval_set,
            ItemMaker(tasks.catalog, tasks._generator, strict=tasks._strict),
            tasks=wanted,
            per_task=per_task,
            seed=seed,
            complexity=complexity,
            difficulty_range=tasks._difficulty_range,
            version=tasks.version,
        )
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

    def samples(
        self, completions: Mapping[int, Sequence[str]], *, thinking_opened: bool = False
    ) -> dict[int, list[Sample]]:
        """Some answers only, by the number of their question: graded, as lines of samples.jsonl.

        `evaluation.results.summarise` makes results of them once all are there.
        """
        return self._tasks._thread.run(self._samples(completions, thinking_opened))

    def results(
        self, completions: Sequence[str] | Sequence[Sequence[str]], *, thinking_opened: bool = False
    ) -> EvalResults:
        """What the answers are worth: a completion for each question, in order, or several (then with pass@k).

        Scores are the verifiers', whatever `partial_credit` is. Shares come with 95% intervals, clustered by question.
        Raises ValueError unless there are as many entries as questions, TypeError for what are no texts.
        """
        return self._tasks._thread.run(self._results(completions, thinking_opened))

    async def results_async(
        self, completions: Sequence[str] | Sequence[Sequence[str]], *, thinking_opened: bool = False
    ) -> EvalResults:
        """The same, for a caller with an event loop."""
        return await self._tasks._thread.wait(self._results(completions, thinking_opened))

    async def _questions(self) -> EvalSet:
        async with self._turn:
            if self._made is None:
                self._made = await self._make()
        return self._made

    async def _problems(self) -> list[PromptedProblem]:
        return [_prompted(problem) for problem in await self._questions()]

    async def _results(
        self, completions: Sequence[str] | Sequence[Sequence[str]], thinking_opened: bool
    ) -> EvalResults:
        _check_list(completions, "texts, or of lists of texts")
        made = await self._questions()
        if len(completions) != len(made):
            raise ValueError(f"Expected an entry for each of {len(made)} questions, got {len(completions)}.")
        texts = [[given] if isinstance(given, str) else given for given in completions]
        samples = await self._samples(dict(enumerate(texts)), thinking_opened)
        return summarise([sample for several in samples.values() for sample in several])

    async def _samples(
        self, completions: Mapping[int, Sequence[str]], thinking_opened: bool
    ) -> dict[int, list[Sample]]:
        for several in completions.values():
            _check_texts(several)
        made = await self._questions()
        slots = asyncio.Semaphore(AT_ONCE)

        async def sample(number: int, attempt: int, text: str) -> Sample:
            async with slots:
                scorer, problem = self._tasks._eval_scorer, made.problems[number]
                result = await judged(scorer, problem, _completion(text), attempt, thinking_opened=thinking_opened)
            # Of a text alone neither is known.
            return {**sample_record(result, made.manifest), "finish_reason": None, "num_completion_tokens": None}

        numbered = [(one, *pair) for one, several in completions.items() for pair in enumerate(several)]
        graded = iter(await asyncio.gather(*(sample(*one) for one in numbered)))
        return {one: [next(graded) for _ in several] for one, several in completions.items()}


# --- one item, without choosing tasks


def grade(
    task: str,
    item: Mapping[str, Any],
    completion: str,
    *,
    config: Mapping[str, Any] | None = None,
    thinking_opened: bool = False,
) -> Grade:
    """Grade one completion for an item of reasoning-gym, in a sandbox that this process keeps until it ends.

    `item` is as reasoning-gym made it (`question`, `answer`, `metadata`), from `config` (default: the task's own); its
    metadata must be intact, which JSON does not leave it. With the strict checks, and partial credit above the item's
    baseline. For several completions of an item, tasks of your own (`modules`), and other settings: `Tasks.grade`.

    Raises UnknownNameError for a task that is none.
    """
    problem = _of_item(task, item, config_of(task) if config is None else config)
    thread, judge = _shared_sandbox()
    return thread.run(judge.grade(problem, [completion], thinking_opened))[0]


async def grade_async(
    task: str,
    item: Mapping[str, Any],
    completion: str,
    *,
    config: Mapping[str, Any] | None = None,
    thinking_opened: bool = False,
) -> Grade:
    """`grade`, for a caller with an event loop."""
    return await asyncio.to_thread(grade, task, item, completion, config=config, thinking_opened=thinking_opened)


# --- behind them


class _Judge:
    """Completions -> grades."""

    def __init__(self, scorer: Scorer, credit: CreditRule) -> None:
        self.scorer = scorer
        self._credit = credit

    async def grade(self, problem: Problem, completions: Sequence[str], thinking_opened: bool) -> list[Grade]:
        _check_texts(completions)
        answered = [_completion(text) for text in completions]
        scores = await self.scorer.score(problem, answered, thinking_opened=thinking_opened)
        return [Grade(self._reward(problem.task, score), score) for score in scores]

    def _reward(self, task: str, score: Score) -> float | None:
        return self._credit.credit(task, score.value, score.baseline) if score.outcome.is_scored else None


_shared: tuple[LoopThread, _Judge] | None = None
_shared_lock = threading.Lock()


def _forget_shared() -> None:
    """A forked process starts its own; the lock may be held by a thread that is not there."""
    global _shared, _shared_lock
    _shared, _shared_lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_shared)


def _shared_sandbox() -> tuple[LoopThread, _Judge]:
    """The sandbox behind `grade`, started when it is first needed."""
    global _shared
    with _shared_lock:
        if _shared is None:
            grading = GradingSettings(1, 2.0, "auto", (), (), "strict", "none")
            grader = SandboxGrader.of(grading, library.find())
            thread = LoopThread("reasoning-gym workers", grader.close)
            try:
                thread.run(grader.start())
            except BaseException:
                thread.close()
                raise
            _shared = thread, _Judge(Scorer(grader, with_baselines=True), CreditRule("baseline", load_floors()))
        return _shared


def _of_item(task: str, item: Mapping[str, Any], config: Mapping[str, Any], category: str = "") -> PromptedProblem:
    if not isinstance(item, Mapping) or "question" not in item:
        raise EnvironmentSetupError(
            f"item: expected question, answer and metadata as reasoning-gym has them, got {item!r:.200}."
        )
    return _prompted(Problem(task, category, "own", -1, 0, config, dict(item)))


def _prompted(problem: Problem) -> PromptedProblem:
    return PromptedProblem(**vars(problem), messages=tuple(as_dicts(build_messages(problem.question))))


def _completion(text: str) -> Completion:
    return Completion(text, tokens=[], masks=[], logprobs=None, finish_reason="")


async def _called(function: Callable[..., T], *arguments: Any) -> T:
    return function(*arguments)


def _check(name: str, value: Any, known: Sequence[Any]) -> None:
    if value not in known:
        raise EnvironmentSetupError(f"{name}: expected {' or '.join(map(str, known))}, got {value!r}.")


def _check_list(given: Any, of: str) -> None:
    if isinstance(given, str) or not isinstance(given, Collection):
        raise TypeError(f"completions: expected a list of {of}, got {given!r:.60}.")


def _check_texts(given: Any) -> None:
    _check_list(given, "texts")
    if unlike := [f"{text!r:.60} as number {n}" for n, text in enumerate(given) if not isinstance(text, str)]:
        raise TypeError(f'completions: expected texts, got {unlike[0]} (an empty reply is "").')


def _is_share(given: Any) -> bool:
    return isinstance(given, (int, float)) and not isinstance(given, bool) and 0.0 <= given <= 1.0
