"""The tasks as an environment of verifiers, the library behind prime-rl and the Environments Hub (docs/prime_rl.md).

    ReasoningGymTaskset ── ItemStream (split train) or HeldOut (split eval) ──> rows: a prompt and its item's recipe
    SingleReplyHarness ─── one request ──> reply
    ReasoningGymTask ───── recipe ──> the same item ── sandbox ──> reward and metrics

A row travels between processes as JSON, which changes the metadata of most items. Therefore a row has the recipe of its
item, and the grading process makes the item again. The library finds these classes by the package's name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any, Literal, Self

import verifiers.v1 as vf
from openai import AsyncOpenAI
from pydantic import Field, model_validator

from ..api import HeldOut, PromptedProblem, Tasks, training_items
from ..records import AnswerFormat
from ..settings.components import DEFAULT_PROMPT, PartialCredit
from ..utils.terminal import Progress
from .curriculum_rows import CurriculumRow, CurriculumRows, report
from .recipe import Recipe, RecipeGrader, UnscoredError, grader_for, metrics_of

__all__ = [
    "ReasoningGymTaskset",
    "ReasoningGymVerifiersEnv",
    "SingleReplyHarness",
    "load_environment",
]

Share = Annotated[float, Field(ge=0, le=1)]


class GradingConfig(vf.TaskConfig):
    """How the prompt asks and completions are graded. Each process has separate workers. The settings are settings of
    `Tasks`.

    Set `thinking_opened` if the chat template has already opened `<think>` in the prompt.
    """

    answer_format: AnswerFormat = AnswerFormat.TAGS
    system_prompt: str | None = DEFAULT_PROMPT
    verification: Literal["strict", "native"] = "strict"
    partial_credit: PartialCredit = "exact"
    task_modules: str = ""
    allow_unguarded_tasks: str = ""
    sandbox: Literal["auto", "require", "off"] = "auto"
    num_generation_workers: int = Field(1, ge=1)
    num_scoring_workers: int = Field(1, ge=1)
    thinking_opened: bool = False

    def settings(self) -> dict[str, Any]:
        """The arguments of `Tasks`."""
        return self.model_dump(mode="json", exclude={*vf.TaskConfig.model_fields, "thinking_opened"})

    async def grader(self) -> RecipeGrader:
        """The grader of this process. Raises EnvironmentSetupError, with the change to make."""
        return await asyncio.to_thread(grader_for, self.settings())


class ReasoningGymConfig(vf.TasksetConfig):
    """Which questions to serve: training questions (split train), or a fixed held-out set (split eval).

    The number of training questions is unlimited, or `train_items`. The other settings are settings of `Tasks`, of
    `ItemStream` (for train) and of `HeldOut` (for eval).

    verifiers does not report rewards to tasksets, so a curriculum needs a store of levels (docs/curriculum.md): set
    `level_store` to its path. Then the training questions are the rows of the store, and the store has the settings
    that choose and make questions.
    """

    split: Literal["train", "eval"] = "eval"
    train_items: int | None = Field(None, ge=1)
    level_store: str = ""
    include_tasks: str = ""
    exclude_tasks: str = ""
    task_weights: dict[str, float] = Field(default_factory=dict)
    task_overrides: dict[str, dict[str, Any]] = Field(default_factory=dict)
    complexity_mode: Literal["random"] | Share | None = None
    seed: int = 42
    eval_tasks: str = "all"
    num_eval_samples_per_task: int = Field(5, ge=1)
    eval_seed: int = 123
    eval_complexity: Share | None = None
    task: GradingConfig = GradingConfig()

    @model_validator(mode="after")
    def _has_items_to_train_on(self) -> Self:
        for name in ("train_items", "level_store"):
            value = getattr(self, name)
            if self.split == "eval" and value:
                raise ValueError(f'{name}={value}: expected split="train", got split="eval". Set the split.')
        return self

    def tasks(self) -> Tasks:
        """Workers that make the rows. Grading workers are hardly needed for that.

        Raises EnvironmentSetupError, with the change to make.
        """
        chosen = {
            "include_tasks",
            "exclude_tasks",
            "task_weights",
            "task_overrides",
            "complexity_mode",
        }
        choice = self.model_dump(include=chosen)
        return Tasks(**{**self.task.settings(), **choice, "num_scoring_workers": 1})


class ReasoningGymData(vf.TaskData):
    """A row: the question, the recipe of its item, and its level from 0 (easiest) to 1 (hardest)."""

    recipe: Recipe
    complexity: float | None = None
    curriculum: dict[str, Any] = Field(default_factory=dict)
    """For a row of a store of levels: where the store learns the reward."""


class ReasoningGymTask(vf.Task[ReasoningGymData, vf.State, GradingConfig]):
    @vf.reward
    async def credit(self, trace: vf.Trace) -> float:
        """The reward, in [0, 1]. The metrics are the verifier's `score`, `correct`, `format_failure` and `unscored`.

        Raises UnscoredError if there is no score. Then the rollout becomes an error with the reason.
        """
        trace.record_metric("unscored", 1.0)
        grader = await self.config.grader()
        opened = self.config.thinking_opened
        [grade] = await asyncio.to_thread(grader.grade, self.data.recipe, [trace.last_reply], thinking_opened=opened)
        await asyncio.to_thread(report, self.data.curriculum, grade.reward)
        trace.record_metrics(metrics_of(grade))
        if grade.reward is None:
            raise UnscoredError(f"{self.data.recipe.task}: {grade.score.outcome.value} {grade.score.explanation}")
        return grade.reward


class ReasoningGymTaskset(vf.Taskset[ReasoningGymTask, ReasoningGymConfig]):
    """The questions of a config. An endless taskset becomes an EndlessTaskset."""

    def __init__(self, config: ReasoningGymConfig) -> None:
        super().__init__(config)
        if config.split == "train" and config.train_items is None:
            # prime-rl reads INFINITE from the class of the taskset, and not from the taskset.
            self.__class__ = EndlessTaskset

    def load(self) -> Iterator[ReasoningGymTask]:
        """Make the rows as they are requested, in the order of `ItemStream` or `HeldOut`."""
        if self.config.level_store:
            for row in self._rows(CurriculumRows(self.config.level_store)):
                yield ReasoningGymTask(_row(row.problem, row), self.config.task)
            return
        with self.config.tasks() as tasks:
            for problem in self._problems(tasks):
                yield ReasoningGymTask(_row(problem), self.config.task)

    def _rows(self, rows: CurriculumRows) -> Iterator[CurriculumRow]:
        """The rows whose groups are not complete. A resumed run begins with the rows that it had not finished."""
        for number in islice(rows.store.incomplete_rows(), self.config.train_items):
            yield rows[number]

    def _problems(self, tasks: Tasks) -> Iterator[PromptedProblem]:
        config = self.config
        if config.split == "train":
            # This library does not report the rewards.
            items = islice(training_items(tasks, config.seed), config.train_items)
            is_endless = config.train_items is None
            # A trainer makes all items of a finite split before its first step.
            yield from Progress(items, "training items", config.train_items, unit="item", disable=is_endless)
        else:
            yield from HeldOut(
                tasks,
                eval_tasks=config.eval_tasks,
                num_eval_samples_per_task=config.num_eval_samples_per_task,
                eval_seed=config.eval_seed,
                eval_complexity=config.eval_complexity,
            )


class EndlessTaskset(ReasoningGymTaskset):
    """Training questions without end."""

    INFINITE = True


def _row(problem: PromptedProblem, row: CurriculumRow | None = None) -> ReasoningGymData:
    *system, question = problem.messages
    return ReasoningGymData(
        name=f"{problem.task}/{problem.split}/{problem.index}/{problem.seed}",
        prompt=question["content"],
        system_prompt=system[0]["content"] if system else None,
        recipe=row.recipe if row else Recipe.of(problem),
        complexity=problem.complexity,
        curriculum=row.fields if row else {},
    )


class SingleReplyHarness(vf.Harness[vf.HarnessConfig]):
    """Makes a single request, from this process. It needs no tools and no program for each rollout."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: Any,
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        system, user = self.resolve_text_prompt(data)
        messages: list[Any] = []
        if system:
            messages.append({"role": "system", "content": system})
        if user:
            messages.append({"role": "user", "content": user})
        # The agent's timeout limits the time of a reply.
        async with AsyncOpenAI(base_url=endpoint, api_key=secret, timeout=None) as client:
            await client.chat.completions.create(model=ctx.model, messages=messages)
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


class ReasoningGymVerifiersConfig(vf.EnvConfig):
    # The library's own default is a rented sandbox, which a single reply does not need.
    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())


class ReasoningGymVerifiersEnv(vf.Env[ReasoningGymVerifiersConfig]):
    """Requests a reply for each row. The grading workers start with it."""

    async def start(self) -> None:
        await self.taskset.config.task.grader()

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        await agents.agent.run(task)


def load_environment(**settings: Any) -> ReasoningGymVerifiersEnv:
    """The environment with these settings of the taskset. The settings of grading are a mapping named `task`.

    Raises pydantic's ValidationError with the name of an invalid setting.
    """
    taskset = {"id": "reasoning-gym-environment", **settings}
    return ReasoningGymVerifiersEnv(ReasoningGymVerifiersConfig(taskset=taskset))
