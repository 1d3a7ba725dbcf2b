"""The tasks as an OpenEnv environment: `reasoning-gym-env openenv` serves it (docs/trainers.md).

    reset(row=7)                  a training question, the same for all sessions that name the row; its level follows
    reset(seed=7, task, level)    the training question of a seed
    reset(split="eval", index=0)  a held-out question
    step(completion)              reward and outcome; the episode is over, and the curriculum learns the reward of a row
    state                         OpenEnv's count of steps

Each session has a separate environment, which keeps its question and nothing else. All sessions share the workers.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from functools import partial
from random import Random
from typing import Any

from fastapi import FastAPI
from openenv.core.env_server import Action, Environment, Observation, State, create_app
from pydantic import Field

from ..api import EnvironmentSetupError, HeldOut, PromptedProblem, Recipe, Rows, Tasks, report

__all__ = ["OpenEnvCompletion", "OpenEnvQuestion", "ReasoningGymOpenEnv", "build_app"]

EXPECTED = "reset: expected nothing; row; seed, with or without task and level; or split eval and index"


class OpenEnvCompletion(Action):
    completion: str = Field(description="The model's text, thinking included; its answer in the form of answer_format.")


class OpenEnvQuestion(Observation):
    """A question, and after `step` the grade of its completion. The reward is None if there is no score."""

    messages: list[dict[str, str]]
    task: str
    split: str
    level: int | None
    seed: int
    row: int | None = None
    outcome: str | None = None
    reason: str = ""


class ReasoningGymOpenEnv(Environment[OpenEnvCompletion, OpenEnvQuestion, State]):
    """A session: a question, its answer, the next question."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, tasks: Tasks, rows: Rows, group_size: int, held_out: HeldOut, numbers: itertools.count[int]):
        super().__init__()
        self._tasks = tasks
        self._rows = rows
        self._group_size = group_size
        self._held_out = held_out
        self._numbers = numbers
        self._question: tuple[PromptedProblem, Recipe | None] | None = None
        self._state = State()

    async def reset_async(
        self, seed: int | None = None, episode_id: str | None = None, **choice: Any
    ) -> OpenEnvQuestion:
        """Open a question. Without arguments it is the next training row, for this session alone.

        Raises EnvironmentSetupError for another combination of arguments.
        """
        given = {name: value for name, value in {"seed": seed, **choice}.items() if value not in (None, "")}
        self._question = await asyncio.to_thread(self._chosen, given)
        self._state = State(episode_id=episode_id or uuid.uuid4().hex)
        return self._observation()

    def _chosen(self, given: dict[str, Any]) -> tuple[PromptedProblem, Recipe | None]:
        """The problem of these arguments, and of a training row also its recipe."""
        for name in given.keys() & {"seed", "level", "index", "row", "group_size"}:
            if type(given[name]) is not int:
                raise EnvironmentSetupError(f"{name}: expected a whole number, got {given[name]!r:.100}.")
        if given.pop("group_size", self._group_size) != self._group_size:
            raise EnvironmentSetupError(f"group_size: the server was started with --group-size {self._group_size}.")
        split = given.pop("split", "train")
        names = set(given)
        if split == "eval" and names == {"index"}:
            return _at(self._held_out.problems, given["index"], "index"), None
        if split == "train" and "seed" in names and names <= {"seed", "task", "level"}:
            task = given.get("task") or Random(given["seed"]).choice(self._tasks.names)
            return self._tasks.draw(str(task), given["seed"], given.get("level")), None
        if split == "train" and names <= {"row"}:
            number = given["row"] if names else next(self._numbers)
            row = _at(self._rows, number, "row")
            return row.problem, row.recipe
        raise EnvironmentSetupError(f"{EXPECTED}, got split {split} with {', '.join(sorted(names)) or 'nothing'}.")

    async def step_async(self, action: OpenEnvCompletion, timeout_s: float | None = None, **_: Any) -> OpenEnvQuestion:
        """Grade the answer. Raises EnvironmentSetupError if no question is open."""
        if self._question is None:
            raise EnvironmentSetupError("no question is open: call reset first.")
        problem, recipe = self._question
        [made] = await asyncio.to_thread(self._tasks.grade, problem, [action.completion])
        if recipe is not None:
            await asyncio.to_thread(report, recipe, [made.reward])
        self._state.step_count = 1
        observation = self._observation(
            done=True, reward=made.reward, outcome=made.score.outcome.kind, reason=made.score.why
        )
        self._question = None
        return observation

    def _observation(self, **result: Any) -> OpenEnvQuestion:
        assert self._question is not None, "a question is open"
        problem, recipe = self._question
        question = OpenEnvQuestion.model_validate(problem, from_attributes=True)
        return question.model_copy(update={**result, "row": recipe.row if recipe else None})

    @property
    def state(self) -> State:
        return self._state

    def reset(self, *arguments: Any, **options: Any) -> OpenEnvQuestion:
        return asyncio.run(self.reset_async(*arguments, **options))

    def step(self, action: OpenEnvCompletion, timeout_s: float | None = None, **options: Any) -> OpenEnvQuestion:
        return asyncio.run(self.step_async(action, timeout_s, **options))


def _at(rows: Any, number: int, name: str) -> Any:
    if not 0 <= number < len(rows):
        raise EnvironmentSetupError(f"{name}: expected 0 to {len(rows) - 1}, got {number}.")
    return rows[number]


def build_app(tasks: Tasks, level_store: str, group_size: int) -> FastAPI:
    """OpenEnv's web application over started tasks, and the rows of a store of levels."""
    session = partial(ReasoningGymOpenEnv, tasks, Rows(level_store), group_size, HeldOut(tasks), itertools.count())
    # OpenEnv refuses sessions beyond this number.
    return create_app(session, OpenEnvCompletion, OpenEnvQuestion, "reasoning_gym", max_concurrent_envs=1024)
