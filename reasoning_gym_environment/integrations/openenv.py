"""The tasks as an OpenEnv environment: `reasoning-gym-env openenv` serves it (docs/servers.md).

    reset(split, task, level, seed, index) ── ItemStream, Tasks.draw or HeldOut ──> the messages of a prompt
    step(completion) ──────────────────────── sandbox ──> reward, outcome; the episode is over

Each session has a separate environment. All sessions share the workers and the stream of training questions.
"""

from __future__ import annotations

import asyncio
import uuid
from functools import partial
from random import Random
from typing import Any

from fastapi import FastAPI
from openenv.core.env_server import (
    Action,
    Environment,
    Observation,
    State,
    create_app,
)
from pydantic import Field

from ..api import HeldOut, ItemStream, PromptedProblem, Tasks
from ..errors import EnvironmentSetupError

__all__ = ["Completion", "Question", "ReasoningGymOpenEnv", "build_app"]


EXPECTED = "reset: expected no arguments; a seed with or without task and level; or split eval and index."


class Completion(Action):
    completion: str = Field(description="The model's text, thinking included; its answer is in <answer></answer>.")


class Question(Observation):
    """A question, and after `step` the grade of its completion. The reward is None if there is no score."""

    messages: list[dict[str, str]]
    task: str
    category: str
    split: str
    level: int | None
    seed: int
    outcome: str | None = None
    reason: str = ""


class ReasoningGymOpenEnv(Environment[Completion, Question, State]):
    """A session: a question, its answer, the next question."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, tasks: Tasks, stream: ItemStream, held_out: HeldOut) -> None:
        super().__init__()
        self._tasks = tasks
        self._stream = stream
        self._held_out = held_out
        self._problem: PromptedProblem | None = None
        self._state = State()

    async def reset_async(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        split: str = "train",
        task: str | None = None,
        level: int | None = None,
        index: int | None = None,
        **unknown: Any,
    ) -> Question:
        """Open a question, and drop a question that is open.

        Without arguments this is the next training question of the stream. With a seed it is the training question of
        that seed, at the given task and level. With split eval it is the held-out question of that index. Raises
        EnvironmentSetupError for any other combination.
        """
        await asyncio.to_thread(self.close)
        if split == "eval":
            problem = await self._held_out_question(index)
        elif unknown or split != "train":
            raise EnvironmentSetupError(EXPECTED)
        elif seed is not None:
            task = task or Random(seed).choice(self._tasks.names)
            problem = await self._tasks.draw_async(task, seed, level)
        elif task or level is not None:
            raise EnvironmentSetupError(EXPECTED)
        else:
            problem = await self._stream.next_async()
        self._problem = problem
        self._state = State(episode_id=episode_id or uuid.uuid4().hex)
        return _question(problem)

    async def _held_out_question(self, index: int | None) -> PromptedProblem:
        questions = await self._held_out.problems_async()
        if index is None or not 0 <= index < len(questions):
            raise EnvironmentSetupError(f"index: with split eval expected 0 to {len(questions) - 1}, got {index}.")
        return questions[index]

    async def step_async(self, action: Completion, timeout_s: float | None = None, **_: Any) -> Question:
        """Grade the answer. Raises EnvironmentSetupError if no question is open."""
        problem = self._problem
        if problem is None:
            raise EnvironmentSetupError("no question is open: call reset first.")
        [grade] = await self._tasks.grade_async(problem, [action.completion])
        await asyncio.to_thread(self._stream.observe, problem, [grade.reward])
        self._problem = None
        self._state.step_count = 1
        score = grade.score
        return _question(
            problem,
            done=True,
            reward=grade.reward,
            outcome=score.outcome.value,
            reason=score.why,
        )

    def close(self) -> None:
        """Finish an open question without an observation."""
        if self._problem is not None:
            self._stream.observe(self._problem, [])
        self._problem = None

    @property
    def state(self) -> State:
        return self._state

    def reset(self, *arguments: Any, **options: Any) -> Question:
        return asyncio.run(self.reset_async(*arguments, **options))

    def step(self, action: Completion, timeout_s: float | None = None, **options: Any) -> Question:
        return asyncio.run(self.step_async(action, timeout_s, **options))


def _question(problem: PromptedProblem, **result: Any) -> Question:
    return Question.model_validate(problem, from_attributes=True).model_copy(update=result)


def build_app(tasks: Tasks) -> FastAPI:
    """OpenEnv's web application over started tasks."""
    session = partial(ReasoningGymOpenEnv, tasks, ItemStream(tasks), HeldOut(tasks))
    # OpenEnv refuses sessions beyond this number.
    return create_app(session, Completion, Question, "reasoning_gym", max_concurrent_envs=1024)
