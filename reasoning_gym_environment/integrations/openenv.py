"""The tasks as an OpenEnv environment: `reasoning-gym-env openenv` serves it (docs/servers.md).

    reset(split, task, level, seed, index) ── ItemStream, Tasks.draw or HeldOut ──> messages to ask a model
    step(completion) ──────────────────────── sandbox ──> reward, outcome; the episode is over

Each session has an environment of its own; all of them share the workers and the stream of training questions.
"""

from __future__ import annotations

import asyncio
import uuid
from functools import partial
from random import Random
from typing import Any

from fastapi import FastAPI
from openenv.core.env_server import Action, Environment, Observation, State, create_app
from pydantic import Field

from ..api import HeldOut, ItemStream, PromptedProblem, Tasks
from ..errors import EnvironmentSetupError

__all__ = ["Completion", "Question", "ReasoningGymOpenEnv", "build_app"]


class Completion(Action):
    completion: str = Field(description="What the model said, thinking included; its answer is in <answer></answer>.")


class Question(Observation):
    """A question, and after `step` what the completion was worth. A reward of None: it could not be scored."""

    messages: list[dict[str, str]]
    task: str
    category: str
    split: str
    level: int | None
    seed: int
    outcome: str | None = None
    reason: str = ""


class ReasoningGymOpenEnv(Environment[Completion, Question, State]):
    """One session: a question, its answer, the next question."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, tasks: Tasks, stream: ItemStream, held_out: HeldOut) -> None:
        super().__init__()
        self._tasks, self._stream, self._held_out = tasks, stream, held_out
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
        """The next training question of the stream; or that of a seed, of a task and at a level if they are given;
        or, with split eval, the held-out question of this index. Raises EnvironmentSetupError for anything else."""
        await asyncio.to_thread(self.close)
        if split == "eval":
            questions = await self._held_out.problems_async()
            if index is None or not 0 <= index < len(questions):
                raise EnvironmentSetupError(f"index: with split eval expected 0 to {len(questions) - 1}, got {index}.")
            problem = questions[index]
        elif unknown or split != "train" or ((task or level) is not None and seed is None):
            raise EnvironmentSetupError("expected nothing; seed, perhaps task and level; or split eval and index.")
        elif seed is None:
            problem = await self._stream.next_async()
        else:
            problem = await self._tasks.draw_async(task or Random(seed).choice(self._tasks.names), seed, level)
        self._problem, self._state = problem, State(episode_id=episode_id or uuid.uuid4().hex)
        return _question(problem)

    async def step_async(self, action: Completion, timeout_s: float | None = None, **_: Any) -> Question:
        """Grade the answer. Raises EnvironmentSetupError if no question is open."""
        if (problem := self._problem) is None:
            raise EnvironmentSetupError("no question is open: call reset first.")
        [grade] = await self._tasks.grade_async(problem, [action.completion])
        await asyncio.to_thread(self._stream.observe, problem, [grade.reward])
        self._problem, self._state.step_count = None, 1
        outcome, reason = grade.score.outcome.value, grade.score.why
        return _question(problem, done=True, reward=grade.reward, outcome=outcome, reason=reason)

    def close(self) -> None:
        """A question that was not answered is settled, and nothing is learned from it."""
        if self._problem is not None:
            self._stream.observe(self._problem, [])
        self._problem = None

    @property
    def state(self) -> State:
        return self._state

    def reset(self, *arguments: Any, **given: Any) -> Question:
        return asyncio.run(self.reset_async(*arguments, **given))

    def step(self, action: Completion, timeout_s: float | None = None, **given: Any) -> Question:
        return asyncio.run(self.step_async(action, timeout_s, **given))


def _question(problem: PromptedProblem, **result: Any) -> Question:
    return Question.model_validate(problem, from_attributes=True).model_copy(update=result)


def build_app(tasks: Tasks) -> FastAPI:
    """OpenEnv's web application over started tasks."""
    session = partial(ReasoningGymOpenEnv, tasks, ItemStream(tasks), HeldOut(tasks))
    # It refuses more sessions at once.
    return create_app(session, Completion, Question, "reasoning_gym", max_concurrent_envs=1024)
