"""The components of this package for Python programs: items, the sandbox, the item source, held-out questions.

    Tasks ── which tasks, at which levels; their workers ──┬──> ItemStream: problems to train on  <── observe(rewards)
                                                           ├──> grade: completions ──> Grade
                                                           └──> HeldOut: questions excluded from training ──> results

Trainers that read prompts from a dataset, and compute rewards in a function, need three things, which share no object:

    Rows                           a sequence of prompts with their recipes
    grade(recipe, completions)     a Grade for each completion
    report(recipe, rewards)        the curriculum learns from the group

None of this needs Atropos or an event loop of the caller. The workers run in a separate thread, and any thread may call
any method. A program with an event loop calls methods that wait as `await asyncio.to_thread(stream.next)`.

The workers are processes. They end with the `with` block, with `close()`, or with the program.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from .errors import EnvironmentSetupError, GenerationError, UnscoredError
from .evaluation.questions import EvalSet
from .evaluation.results import EvalResults, EvalSample, summarise
from .evaluation.runner import graded_sample
from .recipes import OWN, PromptedProblem, Recipe, RecipeItems, check_datasets, make_item, prompted
from .records import AnswerFormat, Completion, Outcome, Problem, Score, to_json
from .rows import DEFAULT_ROWS, PromptLimit, Row, Rows, new_store, report
from .runtime import Runtime
from .sampling.item_maker import REDRAWS, SEEDS_TRIED, ItemAddress
from .scoring.rewards import base_reward
from .scoring.scorer import Scorer
from .settings.components import EvaluationSettings, SamplingSettings, TasksSettings, checked
from .tasks.catalog import COMPOSITE, config_from_json, config_of
from .tasks.served_configs import ServedConfigs
from .utils.loop_thread import LoopThread, PerProcess
from .utils.saved_state import load_into, state_of
from .workers.generator import ITEM_TIMEOUT_S

__all__ = [
    "DEFAULT_ROWS",
    "AnswerFormat",
    "EnvironmentSetupError",
    "GenerationError",
    "Grade",
    "HeldOut",
    "ItemStream",
    "Problem",
    "PromptLimit",
    "PromptedProblem",
    "Recipe",
    "Row",
    "Rows",
    "Tasks",
    "UnscoredError",
    "config_from_json",
    "grade",
    "new_store",
    "problem_of",
    "report",
    "to_json",
]

logger = logging.getLogger(__name__)

Entry: TypeAlias = Mapping[str, Any]
"""An item as reasoning-gym returns it: `question`, `answer`, `metadata`."""

TaskConfig: TypeAlias = Mapping[str, Any]
"""The config of a reasoning-gym dataset, without `seed` and `size`."""

Texts: TypeAlias = Sequence[str]
Names: TypeAlias = str | Sequence[str]
"""Task names, patterns (`*_arithmetic`), `category:logic` or `all`, comma-separated or as a list."""

Source: TypeAlias = Problem | Recipe | Mapping[str, Any]
"""A problem, its recipe, or a row that has the fields of the recipe."""

Answers: TypeAlias = Texts | Sequence[Texts]
"""For each question, in order, a completion or several completions."""


@dataclass(frozen=True)
class Grade:
    """The grade of a completion.

    `reward` is the score, in [0, 1], according to `partial_credit`. It is None for a completion that could not be
    scored, for example after a timeout or a crash of the worker. That does not mean that the answer is wrong, so do not
    train on it. `score` has the verifier's value, the extracted answer, and the outcome.
    """

    reward: float | None
    score: Score

    @property
    def metrics(self) -> dict[str, float]:
        """`unscored`, and of a scored completion also the verifier's `score`, `correct` and `format_failure`."""
        if self.reward is None:
            return {"unscored": 1.0}
        return {
            "unscored": 0.0,
            "score": self.score.value,
            "correct": float(self.score.outcome is Outcome.CORRECT),
            "format_failure": float(self.score.outcome.is_unreadable),
        }


class Tasks:
    """The tasks of a run, and the worker processes that make and grade their items.

    Use it as a context manager, or call `close`.

    The arguments are settings of docs/reference.md, with the defaults of the commands. `include_tasks` (the first
    argument), `exclude_tasks`, `task_weights` (relative to 1), `task_overrides` ({task: {config field: value}}) and
    `task_modules` (dotted names or .py files that register your own datasets) choose the tasks. `complexity_mode`
    chooses their levels: None (reasoning-gym's defaults), "curriculum" (the level of each task follows the rewards),
    "random" (uniform over the levels), or a number from 0 (easiest level) to 1 (hardest). `answer_format` ("tags",
    "boxed" or "text") is the form of answers, and `system_prompt` the system message. Others are
    `allow_unguarded_tasks`, `verification`, `sandbox`, `partial_credit` ("exact" by default), `num_generation_workers`
    and `num_scoring_workers` (both 1 by default). `item_timeout_s` is the processor time that an item may take.

    Raises EnvironmentSetupError, with the change to make, if a name is unknown, a value is invalid, the workers do not
    start, or the workers do not know a dataset because no task module registers it.
    """

    def __init__(
        self,
        include_tasks: Names | None = None,
        *,
        item_timeout_s: float = ITEM_TIMEOUT_S,
        **settings: Any,
    ) -> None:
        is_time = isinstance(item_timeout_s, (int, float)) and item_timeout_s > 0
        _expect("item_timeout_s", item_timeout_s, "a number of seconds above 0", is_time)
        if include_tasks is not None:
            settings["include_tasks"] = include_tasks
        defaults = {"partial_credit": "exact", "num_generation_workers": 1, "num_scoring_workers": 1}
        self.settings = checked(TasksSettings, **{**defaults, **settings})
        self._runtime = Runtime(self.settings, item_timeout_s=item_timeout_s)
        self._thread = LoopThread(self._runtime)
        self._items = RecipeItems(self._runtime)
        self.version = self._runtime.library.version
        """The release of reasoning-gym."""
        self.catalog = self._runtime.catalog
        """The tasks by name, and the excluded tasks with the reason."""
        self.served_configs = ServedConfigs(self.catalog)
        """The configs that a client of a server may name."""
        try:
            check_datasets(self._runtime)
        except EnvironmentSetupError:
            self.close()
            raise

    @property
    def names(self) -> list[str]:
        """The served tasks."""
        return self.catalog.names

    def make(self, task: str, seed: int, config: TaskConfig) -> PromptedProblem:
        """Make the item of a seed and a config again. Problems have both; the config may have been stored as JSON.

        Raises UnknownNameError for an unknown task, and GenerationError for an item that cannot be made in time.
        """
        return self._thread.run(self._make(task, seed, config))

    async def _make(self, task: str, seed: int, config: TaskConfig) -> PromptedProblem:
        return await make_item(self._runtime, task, seed, config)

    def draw(self, task: str, seed: int, level: int | None = None) -> PromptedProblem:
        """Make the training item of a seed, at a level or (None) as the task is served. It is no held-out question.

        Raises EnvironmentSetupError for an unknown task or level, and GenerationError for an item that cannot be made.
        """
        problem = self._thread.run(self._runtime.training_item(task, seed, level))
        return prompted(problem, self.settings)

    def grade(self, source: Source, completions: Texts, *, thinking_opened: bool = False) -> list[Grade]:
        """Grade completions of a problem, in order. A completion is the model's whole text, thinking included.

        `source` is the problem, its recipe, or a row that has the fields of the recipe. Pass all completions of a
        problem together, because that is faster. Set `thinking_opened` if the chat template has already opened
        `<think>` in the prompt. If this process cannot make the item of a recipe, the rewards are None, and the
        explanation of each score says why.

        Raises EnvironmentSetupError for a row without a recipe, and UnknownNameError for a task that is not served.
        """
        return self._thread.run(self._grade(source, completions, thinking_opened))

    async def grade_async(self, source: Source, completions: Texts, *, thinking_opened: bool = False) -> list[Grade]:
        """`grade` for a caller in an event loop. The work ends if the caller is cancelled."""
        return await self._thread.run_for(self._grade(source, completions, thinking_opened))

    async def _grade(self, source: Source, completions: Texts, thinking_opened: bool) -> list[Grade]:
        _check_texts(completions)
        try:
            problem = await self._problem(source)
        except GenerationError as error:
            logger.warning("%d completions are unscored: %s", len(completions), error)
            score = Score(0.0, Outcome.CRASHED, explanation=str(error))
            return [Grade(None, score)] * len(completions)
        unscored = [_completion(text) for text in completions]
        scorer = Scorer(self._runtime.grader, thinking_opened=thinking_opened)
        scores = await scorer.score(problem, unscored)
        self._runtime.watch.observe(problem, unscored, scores)
        grades = []
        for score in scores:
            reward = base_reward(score, self.settings.partial_credit) if score.outcome.is_scored else None
            grades.append(Grade(reward, score))
        return grades

    def problem(self, source: Source) -> Problem:
        """The problem of a recipe, or of a row that has its fields. All calls for a recipe share the problem.

        Raises EnvironmentSetupError for a row without a recipe, UnknownNameError for a task that is not served, and
        GenerationError if this process cannot make the item.
        """
        return self._thread.run(self._problem(source))

    async def problem_async(self, source: Source) -> Problem:
        """`problem` for a caller in an event loop. The work ends if the caller is cancelled."""
        return await self._thread.run_for(self._problem(source))

    async def _problem(self, source: Source) -> Problem:
        return source if isinstance(source, Problem) else await self._items.problem(Recipe.of(source))

    def metrics(self) -> dict[str, float]:
        """Counts of the workers since the start: items, answers by status, restarts."""
        return self._runtime.metrics()

    def close(self) -> None:
        """End the worker processes. Safe to call twice."""
        self._thread.close()

    def __enter__(self) -> Tasks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ItemStream:
    """The problems to train on. The same seed and the same rewards give the same problems.

    The stream draws tasks in proportion to their weights. Streams of the same seed with different names (`instance_id`)
    have no item in common. The stream makes some items ahead of time. `too_long(question)` explains why a question
    does not fit and returns "" if it fits; the stream replaces a question that does not fit by an easier item. A tenth
    of all questions never appears, because these questions belong to HeldOut.

    Report the rewards of each problem with `observe`. Until then the problem is pending, and a stream that continues
    from a `state_dict` repeats it.
    """

    def __init__(
        self,
        tasks: Tasks,
        *,
        seed: int = 42,
        curriculum_target_accuracy: float = 0.7,
        instance_id: str = "0",
        too_long: Callable[[str], str] = lambda question: "",
    ) -> None:
        _expect("tasks", tasks, "a Tasks", isinstance(tasks, Tasks))
        _expect("too_long", too_long, "a function of a question", callable(too_long))
        settings = checked(
            SamplingSettings,
            **tasks.settings.model_dump(),
            seed=seed,
            instance_id=instance_id,
            curriculum_target_accuracy=curriculum_target_accuracy,
        )
        self._item_source = tasks._runtime.item_source(settings, too_long=too_long)
        self._settings = settings
        self._seed = settings.seed
        self._thread = tasks._thread
        self._turn = threading.Lock()

    def next(self) -> PromptedProblem:
        """The next problem. Raises EnvironmentSetupError if hundreds of draws in a row give no item."""
        # Concurrent callers get the problems in the order of their index.
        with self._turn:
            problem = self._thread.run(self._next())
        return prompted(problem, self._settings)

    async def _next(self) -> Problem:
        stream = self._item_source.stream
        problem = await stream.next()
        # However many problems the caller draws, each is pending until its rewards are reported.
        stream.pending.begin(problem)
        return problem

    def __iter__(self) -> Iterator[PromptedProblem]:
        """An endless iteration over the problems."""
        while True:
            yield self.next()

    def observe(self, problem: Problem, rewards: Sequence[float | None]) -> None:
        """Report the rewards of a problem's completions, in [0, 1], and None for completions that were not scored.

        The curriculum learns from them. Without rewards the problem is finished, and the curriculum learns nothing. A
        second report for the same problem has no effect. Raises ValueError for other rewards and
        for a problem that is not of this stream, and TypeError for an argument that is no problem.
        """
        if not isinstance(problem, Problem):
            raise TypeError(f"problem: expected a problem of the stream, got {problem!r:.60}.")
        try:
            scored = [float(reward) for reward in rewards if reward is not None]
        except (TypeError, ValueError, OverflowError):
            scored = [math.nan]
        if not all(0.0 <= reward <= 1.0 for reward in scored):
            raise ValueError(f"rewards: expected numbers from 0 to 1, or None, got {rewards!r:.200}.")
        self._thread.call(self._observe, problem, scored)

    def _observe(self, problem: Problem, rewards: Sequence[float]) -> None:
        stream = self._item_source.stream
        address = ItemAddress(problem.task, problem.index, "train", self._seed, stream.instance)
        seeds = [address.item_seed(retry) for retry in range(SEEDS_TRIED + REDRAWS)]
        if not problem.is_of_stream or problem.seed not in seeds:
            raise ValueError(
                f"problem: expected a problem of this stream (seed {self._seed}, instance {stream.instance}), got "
                f"{problem.task} with index {problem.index} and split {problem.split}, which comes from elsewhere. "
                "Report it to the stream that drew it."
            )
        self._item_source.observe(problem, rewards)
        stream.pending.finish(problem)

    def metrics(self) -> dict[str, float]:
        """Skipped, redrawn and replaced items, and the state of the curriculum."""
        return self._thread.call(self._item_source.metrics)

    def state_dict(self) -> dict[str, Any]:
        """The state of the stream, as JSON. Pending problems are part of it."""
        return {"seed": self._seed, **self._thread.call(state_of, self._item_source.stateful)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`.

        Raises EnvironmentSetupError if it is malformed or has another seed. Do not use the stream then.
        """
        # `load_into` reports a malformed state.
        if isinstance(state, Mapping) and state.get("seed", self._seed) != self._seed:
            raise EnvironmentSetupError(
                f"Expected a state of a stream with seed={self._seed}, got a state of seed={state['seed']}, which has "
                f"other problems. Make the stream with seed={state['seed']}."
            )
        self._thread.call(load_into, self._item_source.stateful, state)


def training_items(tasks: Tasks, seed: int) -> Iterator[PromptedProblem]:
    """An endless iterator of items as a training run draws them, for callers that have no rewards of them."""
    stream = ItemStream(tasks, seed=seed)
    for problem in stream:
        # The stream learns nothing from the item and counts it as finished.
        stream.observe(problem, [])
        yield problem


class HeldOut:
    """Questions that no training stream ever draws, and a model's results on them.

    The arguments are settings of docs/reference.md. `eval_tasks` is "all", a number of tasks (chosen by
    `eval_seed`), or task names. The set has `num_eval_samples_per_task` questions of each task, at `eval_complexity`:
    None (reasoning-gym's defaults) or a number from 0 (easiest level) to 1 (hardest). The same arguments give the same
    questions everywhere; `manifest` identifies them. The first access makes the questions, and shows its
    progress on a terminal.

    Raises EnvironmentSetupError for a choice without tasks, and UnknownNameError with the nearest names.
    """

    def __init__(
        self,
        tasks: Tasks,
        *,
        eval_tasks: Names | int = "all",
        num_eval_samples_per_task: int = 5,
        eval_seed: int = 123,
        eval_complexity: float | None = None,
    ) -> None:
        _expect("tasks", tasks, "a Tasks", isinstance(tasks, Tasks))
        self._settings = checked(
            EvaluationSettings,
            **tasks.settings.model_dump(),
            eval_tasks=eval_tasks,
            num_eval_samples_per_task=num_eval_samples_per_task,
            eval_seed=eval_seed,
            eval_complexity=eval_complexity,
        )
        tasks._runtime.check_held_out(self._settings)
        self._runtime = tasks._runtime
        self._thread = tasks._thread
        self._made: EvalSet | None = None
        self._turn = threading.Lock()

    @property
    def problems(self) -> list[PromptedProblem]:
        """The questions, in order."""
        return [prompted(problem, self._settings) for problem in self._questions.problems]

    def __iter__(self) -> Iterator[PromptedProblem]:
        return iter(self.problems)

    def __len__(self) -> int:
        return len(self._questions)

    @property
    def manifest(self) -> str:
        """16 hex digits. Two sets have equal manifests if and only if they have the same questions and library."""
        return self._questions.manifest

    def results(self, completions: Answers, *, thinking_opened: bool = False) -> EvalResults:
        """The results of a completion for each question, in order, or of several each (which adds pass@k).

        The mean score follows `partial_credit`; accuracy and exact rate do not. Shares have 95% intervals, clustered by
        question. Raises ValueError unless each question has an entry, and TypeError for completions that are not text.
        """
        problems = self.problems
        if isinstance(completions, str) or len(completions) != len(problems):
            raise ValueError(f"Expected an entry for each of {len(problems)} questions, got {len(completions)}.")
        answers: list[tuple[PromptedProblem, int, str]] = []
        for problem, entry in zip(problems, completions, strict=True):
            texts = [entry] if isinstance(entry, str) else entry
            _check_texts(texts)
            answers += [(problem, attempt, text) for attempt, text in enumerate(texts)]
        scorer = Scorer(self._runtime.grader, thinking_opened=thinking_opened)

        async def sample(problem: PromptedProblem, attempt: int, text: str) -> EvalSample:
            graded = await graded_sample(
                scorer,
                self._runtime.watch,
                problem,
                problem.messages,
                _completion(text),
                attempt,
                partial_credit=self._settings.partial_credit,
            )
            # A text shows neither its finish reason nor its tokens.
            return {**graded, "finish_reason": None, "num_completion_tokens": None}

        async def samples() -> list[EvalSample]:
            return await asyncio.gather(*[sample(*answer) for answer in answers])

        return summarise(self._thread.run(samples()))

    @property
    def _questions(self) -> EvalSet:
        with self._turn:
            if self._made is None:
                self._made = self._thread.run(self._runtime.held_out(self._settings))
        return self._made


# --- for functions that get a recipe, or an item of the caller, and no Tasks


def grade(source: Source, completions: Texts, *, thinking_opened: bool = False, **settings: Any) -> list[Grade]:
    """`Tasks.grade` with the workers of this process, which start with the first call and end with the process.

    `settings` are settings of `Tasks` that concern grading (`task_modules`, `verification`, `num_scoring_workers`), as
    JSON data. Calls with the same settings share their workers. Any thread may call this function. Raises
    EnvironmentSetupError if the workers do not start.
    """
    try:
        key = json.dumps(settings, sort_keys=True)
    except TypeError as error:
        raise EnvironmentSetupError(
            f"Expected settings that are texts and numbers, got {settings!r:.200}. Separate names by commas."
        ) from error
    return _tasks.get(key, lambda: Tasks(**settings)).grade(source, completions, thinking_opened=thinking_opened)


_tasks = PerProcess[Tasks]()
"""The tasks behind `grade`, by their settings as JSON."""


def problem_of(
    task: str,
    item: Entry,
    config: TaskConfig | None = None,
    *,
    answer_format: str = AnswerFormat.TAGS,
) -> Problem:
    """A problem, ready to be graded, from an item that you made with reasoning-gym from `config`, without its prompt.

    `item` is as reasoning-gym made it (`question`, `answer`, `metadata`). Its metadata must be intact, so it must not
    have been stored as JSON. The default of `config` is the task's own config. The answer has the form of
    `answer_format`: "tags", "boxed" or "text".

    Raises UnknownNameError for an unknown task or parameter, and EnvironmentSetupError for an item that is not one of
    this task.
    """
    whole_config = config_of(task, config)
    _check_item(task, item)
    return Problem(
        task,
        category="",
        split=OWN,
        index=-1,
        seed=0,
        config=whole_config,
        entry=dict(item),
        answer_format=checked(TasksSettings, answer_format=answer_format).answer_format,
    )


# --- the implementation


def _expect(name: str, value: object, expected: str, is_right: bool) -> None:
    if not is_right:
        raise EnvironmentSetupError(f"{name}: expected {expected}, got {value!r:.100}.")


def _check_item(task: str, item: Any) -> None:
    """Raise EnvironmentSetupError unless this is an item of the task: a right answer to another item would be wrong."""
    is_item = isinstance(item, Mapping) and {"question", "answer"} <= item.keys()
    if not is_item or not isinstance(item.get("metadata"), Mapping):
        raise EnvironmentSetupError(
            f"item: expected question, answer and metadata as reasoning-gym has them, got {item!r:.200}."
        )
    # The items of `composite` have the name of the task that made them.
    maker = item["metadata"].get("source_dataset", task)
    if maker != task and task != COMPOSITE:
        raise EnvironmentSetupError(f"item: expected an item of {task}, got an item of {maker}. Name the task {maker}.")


def _completion(text: str) -> Completion:
    return Completion(text, tokens=[], masks=[], logprobs=None, finish_reason="")


def _check_texts(texts: Any) -> None:
    is_list = isinstance(texts, Collection) and not isinstance(texts, str)
    if not is_list or not all(isinstance(text, str) for text in texts):
        raise TypeError(f'completions: expected a list of texts (an empty reply is ""), got {texts!r:.200}.')
