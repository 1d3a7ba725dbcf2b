"""The tasks as a taskset of verifiers, the library behind prime-rl and the Environments Hub (docs/trainers.md).

    Rows ──> ReasoningGymTask: a prompt and its recipe ── one request ──> reply ── grade, report ──> reward and metrics

A row travels between processes as JSON, and the grading process makes its item again from the recipe. The library finds
these classes by the package's name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice
from typing import Any, Literal, NoReturn, Self

import verifiers.v1 as vf
from openai import AsyncOpenAI
from pydantic import Field, model_validator

from ..api import DEFAULT_ROWS, Recipe, Rows, UnscoredError, grade, report

__all__ = ["ReasoningGymTaskset", "ReasoningGymVerifiersEnv", "SingleReplyHarness", "load_environment"]


class GradingConfig(vf.TaskConfig):
    """Settings of `Tasks` that concern grading. Set `thinking_opened` if the chat template opens `<think>`."""

    verification: str = "strict"
    partial_credit: str = "exact"
    task_modules: str = ""
    allow_unguarded_tasks: str = ""
    sandbox: str = "auto"
    num_generation_workers: int = 1
    num_scoring_workers: int = 1
    thinking_opened: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of `grade`."""
        return self.model_dump(mode="json", exclude=set(vf.TaskConfig.model_fields))


class ReasoningGymConfig(vf.TasksetConfig):
    """Training questions (split train: of a `level_store`, or `train_items` of a seed), or held-out questions (eval).

    Without `train_items` the training questions do not end. The other settings are those of `Tasks` and `HeldOut`.
    """

    split: Literal["train", "eval"] = "eval"
    level_store: str = ""
    train_items: int | None = Field(None, ge=1)
    seed: int = 42
    include_tasks: str = ""
    exclude_tasks: str = ""
    task_weights: dict[str, float] = Field(default_factory=dict)
    task_overrides: dict[str, dict[str, Any]] = Field(default_factory=dict)
    complexity_mode: Literal["random"] | float | None = None
    answer_format: str = "tags"
    eval_tasks: str = "all"
    num_eval_samples_per_task: int = 5
    eval_seed: int = 123
    eval_complexity: float | None = None
    task: GradingConfig = GradingConfig()

    @model_validator(mode="after")
    def _has_rows_to_train_on(self) -> Self:
        for name in ("train_items", "level_store"):
            if self.split == "eval" and getattr(self, name):
                raise ValueError(
                    f'{name}={getattr(self, name)}: expected split="train", got split="eval". Set the split.'
                )
        return self

    @property
    def is_endless(self) -> bool:
        return self.split == "train" and self.train_items is None

    def rows(self) -> Rows:
        """The rows. Raises EnvironmentSetupError, with the change to make."""
        if self.split == "train" and self.level_store:
            return Rows(self.level_store)
        own = self.model_dump(exclude={*vf.TasksetConfig.model_fields, "split", "level_store", "train_items"})
        grading = {name: value for name, value in self.task.options.items() if name != "thinking_opened"}
        of_eval = {name: own.pop(name) for name in list(own) if "eval_" in name}
        seed = own.pop("seed")
        if self.split == "eval":
            return Rows.held_out(**own, **grading, **of_eval)
        return Rows.fixed(self.train_items or DEFAULT_ROWS, seed=seed, **own, **grading)


class ReasoningGymData(vf.TaskData):
    recipe: Recipe


class ReasoningGymTask(vf.Task[ReasoningGymData, vf.State, GradingConfig]):
    @vf.reward
    async def credit(self, trace: vf.Trace) -> float:
        """The reward, in [0, 1]. Without a score, the rollout becomes an error with the reason."""
        recipe = self.data.recipe
        [made] = await asyncio.to_thread(grade, recipe, [trace.last_reply], **self.config.options)
        await asyncio.to_thread(report, recipe, [made.reward])
        trace.record_metrics(made.metrics)
        if made.reward is None:
            raise UnscoredError(f"{recipe.task}: {made.score.outcome.kind} {made.score.explanation}")
        return made.reward


class ReasoningGymTaskset(vf.Taskset[ReasoningGymTask, ReasoningGymConfig]):
    def __init__(self, config: ReasoningGymConfig) -> None:
        super().__init__(config)
        if config.is_endless:
            # prime-rl reads INFINITE from the class of the taskset, and not from the taskset.
            self.__class__ = EndlessTaskset

    def load(self) -> Iterator[ReasoningGymTask]:
        """Make the rows as they are requested. A resumed run begins with the rows that it had not finished."""
        rows = self.config.rows()
        for number in islice(rows.unfinished, self.config.train_items):
            row = rows[number]
            *system, question = row.prompt
            data = ReasoningGymData(
                name=f"{row.recipe.task}/{row.split}/{number}/{row.recipe.seed}",
                prompt=question["content"],
                system_prompt=system[0]["content"] if system else None,
                recipe=row.recipe,
            )
            yield ReasoningGymTask(data, self.config.task)


class EndlessTaskset(ReasoningGymTaskset):
    INFINITE = True


class SingleReplyHarness(vf.Harness[vf.HarnessConfig]):
    """Makes a single request, from this process. It needs no tools and no program for each rollout."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: Any, data: vf.TaskData
    ) -> vf.ProgramResult:
        system, user = self.resolve_text_prompt(data)
        messages: list[Any] = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": user})
        # The agent's timeout limits the time of a reply.
        async with AsyncOpenAI(base_url=endpoint, api_key=secret, timeout=None) as client:
            await client.chat.completions.create(model=ctx.model, messages=messages)
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


class ReasoningGymVerifiersConfig(vf.EnvConfig):
    # The library's own default is a rented sandbox, which a single reply does not need.
    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())


class ReasoningGymVerifiersEnv(vf.Env[ReasoningGymVerifiersConfig]):
    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        await agents.agent.run(task)


def load_environment(**_: Any) -> NoReturn:
    """The older interface of verifiers. Raises NotImplementedError with the way to load the taskset."""
    raise NotImplementedError(
        "This package has a taskset of verifiers v1, and no environment of the older interface. Use `vf-eval "
        'reasoning-gym-environment`, or verifiers.v1.load_taskset(ReasoningGymConfig(id="reasoning-gym-environment")).'
    )
