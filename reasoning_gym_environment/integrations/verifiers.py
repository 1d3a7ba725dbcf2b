"""The tasks as an environment of verifiers, the library behind prime-rl and the Environments Hub (docs/prime_rl.md).

    ReasoningGymTaskset ── ItemStream (split train) or HeldOut (split eval) ──> rows: a prompt and its item's recipe
    SingleReplyHarness ─── one request ──> reply
    ReasoningGymTask ───── recipe ──> the item, made again ── sandbox ──> reward and metrics

A row travels between processes as JSON, which changes the metadata of most items. So it has the recipe (task, seed,
config), and the process that grades makes the item again and compares the questions. The library finds these classes
by the package's name.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import verifiers.v1 as vf
from async_lru import alru_cache
from openai import AsyncOpenAI
from pydantic import Field

from ..api import HeldOut, ItemStream, PromptedProblem, Tasks
from ..records import Outcome, plain
from ..scoring.scorer import PartialCredit
from ..tasks.difficulty_ladder import Ranges

__all__ = ["ReasoningGymTaskset", "ReasoningGymVerifiersEnv", "SingleReplyHarness", "load_environment"]

Share = Annotated[float, Field(ge=0, le=1)]


class UnscoredError(Exception):
    """There is no score, which does not mean that the answer was wrong; the library marks the rollout as failed."""


class GradingConfig(vf.TaskConfig):
    """How completions are graded, in each process by workers of its own. The settings are those of `Tasks`.

    `thinking_opened`: the chat template has already opened `<think>` in the prompt.
    """

    verification: Literal["strict", "native"] = "strict"
    partial_credit: PartialCredit = "exact"
    modules: str = ""
    allow_unguarded: str = ""
    sandbox: Literal["auto", "require", "off"] = "auto"
    num_generation_workers: int = Field(1, ge=1)
    num_scoring_workers: int = Field(1, ge=1)
    generation_timeout_s: float = Field(5.0, gt=0)
    scoring_timeout_s: float = Field(2.0, gt=0)
    thinking_opened: bool = False

    def tasks(self, **choice: Any) -> Tasks:
        """Started workers. Raises EnvironmentSetupError, saying what to change."""
        settings = self.model_dump(exclude={*vf.TaskConfig.model_fields, "thinking_opened"})
        return Tasks(**{**settings, **choice})


class ReasoningGymConfig(vf.TasksetConfig):
    """Which questions. `split` train: endless, none of them held out; eval: a fixed set, none of them ever trained on.

    The settings of `Tasks`, of `ItemStream` (for train) and, with `eval_`, of `HeldOut` (for eval). There is no
    curriculum: it needs the rewards, which verifiers reports to no taskset.
    """

    split: Literal["train", "eval"] = "eval"
    include: str = ""
    exclude: str = ""
    weights: dict[str, float] = Field(default_factory=dict)
    overrides: dict[str, dict[str, Any]] = Field(default_factory=dict)
    complexity_mode: Literal["random"] | Share | None = None
    difficulty_range: Ranges = "level"
    seed: int = 42
    eval_tasks: str = "all"
    eval_per_task: int = Field(5, ge=1)
    eval_seed: int = 123
    eval_complexity: Share | None = None
    task: GradingConfig = GradingConfig()

    def tasks(self) -> Tasks:
        """To make the rows, which hardly needs the workers that grade."""
        chosen = {"include", "exclude", "weights", "overrides", "complexity_mode", "difficulty_range"}
        return self.task.tasks(**self.model_dump(include=chosen), num_scoring_workers=1)


class ReasoningGymData(vf.TaskData):
    """A row: the question, and the recipe of its item."""

    rg_task: str
    seed: int
    config: dict[str, Any]
    level: int | None = None
    complexity: float | None = None


@alru_cache(maxsize=None)
async def _tasks_for(config: str) -> Tasks:
    """The workers that grade for a GradingConfig as JSON. They start when they are needed, and end with the process."""
    return await asyncio.to_thread(GradingConfig.model_validate_json(config).tasks)


@alru_cache(maxsize=1024)
async def _item(grading: str, task: str, seed: int, config: str) -> PromptedProblem:
    """The item of a recipe. All rollouts of a row wait for one, and a failure is not kept."""
    return await (await _tasks_for(grading)).make_async(task, seed, json.loads(config))


class ReasoningGymTask(vf.Task[ReasoningGymData, vf.State, GradingConfig]):
    @vf.reward
    async def credit(self, trace: vf.Trace) -> float:
        """In [0, 1]; recorded beside it: the verifier's `score`, `correct`, and `format_failure`.

        Raises where there is no score; by that the rollout becomes an error with the reason.
        """
        data, grading = self.data, self.config.model_dump_json()
        trace.record_metric("unscored", 1.0)
        problem = await _item(grading, data.rg_task, data.seed, json.dumps(data.config))
        if problem.question != data.prompt:
            raise UnscoredError(f"the item {data.name} asks another question here: is this another reasoning-gym?")
        tasks, opened = await _tasks_for(grading), self.config.thinking_opened
        [grade] = await tasks.grade_async(problem, [trace.last_reply], thinking_opened=opened)
        if grade.reward is None:
            raise UnscoredError(f"{data.rg_task}: {grade.score.outcome.value} {grade.score.explanation}")
        failed = grade.score.outcome is Outcome.FORMAT_FAILURE
        values = {"unscored": False, "score": grade.score.value, "format_failure": failed}
        trace.record_metrics({**values, "correct": grade.score.outcome is Outcome.CORRECT})
        return grade.reward


class ReasoningGymTaskset(vf.Taskset[ReasoningGymTask, ReasoningGymConfig]):
    INFINITE = True

    def __init__(self, config: ReasoningGymConfig) -> None:
        super().__init__(config)
        # Trainers ask the class, and take any number of an endless one; the instance knows better.
        self.INFINITE = config.split == "train"

    def load(self) -> Iterator[ReasoningGymTask]:
        """Made one by one as they are asked for, in the order in which `ItemStream` and `HeldOut` give them."""
        with self.config.tasks() as tasks:
            for problem in self._problems(tasks):
                system, question = (message["content"] for message in problem.messages)
                data = ReasoningGymData(
                    name=f"{problem.task}/{problem.split}/{problem.index}/{problem.seed}",
                    prompt=question,
                    system_prompt=system,
                    rg_task=problem.task,
                    seed=problem.seed,
                    config=plain(dict(problem.config)),
                    level=problem.level,
                    complexity=problem.complexity,
                )
                yield ReasoningGymTask(data, self.config.task)

    def _problems(self, tasks: Tasks) -> Iterator[PromptedProblem]:
        given = self.config
        if given.split == "train":
            stream = ItemStream(tasks, seed=given.seed, task_sampling="weighted")
            for problem in stream:
                # This library does not report the rewards.
                stream.observe(problem, [])
                yield problem
        choice = {"eval_tasks": given.eval_tasks, "per_task": given.eval_per_task, "seed": given.eval_seed}
        yield from HeldOut(tasks, **choice, complexity=given.eval_complexity)


class SingleReplyHarness(vf.Harness[vf.HarnessConfig]):
    """Asks once, from this process: no tools, and no program to install and to start for each rollout."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: Any, data: vf.TaskData
    ) -> vf.ProgramResult:
        texts = zip(("system", "user"), self.resolve_text_prompt(data), strict=True)
        messages: Any = [{"role": role, "content": text} for role, text in texts if text]
        # The agent's timeout bounds how long a reply may take.
        async with AsyncOpenAI(base_url=endpoint, api_key=secret, timeout=None) as client:
            await client.chat.completions.create(model=ctx.model, messages=messages)
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


class ReasoningGymEnvConfig(vf.EnvConfig):
    # The library's own default is a rented sandbox, which a single reply does not need.
    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())


class ReasoningGymVerifiersEnv(vf.Env[ReasoningGymEnvConfig]):
    """One reply to each row. The workers that grade start with it."""

    async def start(self) -> None:
        await _tasks_for(self.taskset.config.task.model_dump_json())

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        await agents.agent.run(task)


def load_environment(**settings: Any) -> ReasoningGymVerifiersEnv:
    """The environment with these settings of the taskset; those of grading are a mapping named `task`.

    Raises pydantic's ValidationError with the name of an invalid setting.
    """
    return ReasoningGymVerifiersEnv(ReasoningGymEnvConfig(taskset={"id": "reasoning-gym-environment", **settings}))
