"""The tasks as an OpenEnv environment: `reasoning-gym-env openenv` serves it (docs/servers.md).

    reset(group, group_size)         ── Groups, ItemStream ──> the messages of a prompt
    reset(split, task, seed, ...)    ── Tasks.draw, HeldOut ──> the messages of a prompt
    step(completion)                 ── sandbox ──> reward, outcome; the episode is over
    all sessions of a group have finished, or MOST_WAIT_S is over ── ItemStream.observe ──> later questions

Each session has a separate environment. All sessions share the workers and the stream of training questions.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from dataclasses import dataclass, field
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

__all__ = ["OpenEnvCompletion", "OpenEnvQuestion", "ReasoningGymOpenEnv", "build_app"]


EXPECTED = (
    "reset: expected no arguments; group and group_size; seed, with or without task and level; or split eval and index."
)


class OpenEnvCompletion(Action):
    completion: str = Field(description="The model's text, thinking included; its answer in the form of answer_format.")


class OpenEnvQuestion(Observation):
    """A question, and after `step` the grade of its completion. The reward is None if there is no score."""

    messages: list[dict[str, str]]
    task: str
    category: str
    split: str
    level: int | None
    seed: int
    outcome: str | None = None
    reason: str = ""


MOST_WAIT_S = 600.0
"""A group that lacks sessions for this time gets no more, and is complete when those that have joined have finished."""
MOST_INCOMPLETE = 1024
"""With more groups that lack sessions, the oldest gets no more."""


@dataclass
class SharedQuestion:
    """A question, and the rewards of the sessions that have finished it."""

    problem: PromptedProblem
    size: int = 1
    """The number of sessions that answer the question."""
    group: str | None = None
    """The name of the group, if the sessions have named one."""
    joined: int = 0
    drawn_s: float = field(default_factory=time.monotonic)
    rewards: list[float | None] = field(default_factory=list)


class SharedQuestions:
    """Training questions, each for one session or for several sessions that name the same group.

    The stream observes a question when its last session has finished. Any thread may call the methods, which wait for
    the stream.
    """

    def __init__(self, stream: ItemStream) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._incomplete: dict[str, SharedQuestion] = {}
        """By the name of the group, the questions that further sessions will join."""

    def join(self, name: str, size: int) -> SharedQuestion:
        """The question of this group. Its first session draws the question. After its last session the name is free.

        Raises EnvironmentSetupError for a size below 1, or a size that differs from the first session's.
        """
        with self._lock:
            self._end_abandoned()
            question = self._incomplete.get(name)
            expected = max(size, 1) if question is None else question.size
            if size != expected:
                raise EnvironmentSetupError(f"group_size of group {name}: expected {expected}, got {size}.")
            if question is None:
                question = SharedQuestion(self._stream.next(), size, name)
                self._incomplete[name] = question
            question.joined += 1
            if question.joined == question.size:
                del self._incomplete[name]
        return question

    def finish(self, question: SharedQuestion, reward: float | None) -> None:
        """Count a session as finished. The reward is None if there is no score."""
        with self._lock:
            question.rewards.append(reward)
            self._observe_if_complete(question)

    def _end_abandoned(self) -> None:
        """End the groups that lack sessions for too long."""
        oldest_s = time.monotonic() - MOST_WAIT_S
        for name, question in list(self._incomplete.items()):
            if question.drawn_s > oldest_s and len(self._incomplete) < MOST_INCOMPLETE:
                return
            del self._incomplete[name]
            question.size = question.joined
            self._observe_if_complete(question)

    def _observe_if_complete(self, question: SharedQuestion) -> None:
        # The stream has drawn neither held-out questions nor questions with a seed.
        if len(question.rewards) == question.size and question.problem.is_of_stream:
            self._stream.observe(question.problem, question.rewards)


class ReasoningGymOpenEnv(Environment[OpenEnvCompletion, OpenEnvQuestion, State]):
    """A session: a question, its answer, the next question."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, tasks: Tasks, stream: ItemStream, shared: SharedQuestions, held_out: HeldOut) -> None:
        super().__init__()
        self._tasks = tasks
        self._stream = stream
        self._shared = shared
        self._held_out = held_out
        self._open: SharedQuestion | None = None
        self._state = State()

    async def reset_async(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        split: str = "train",
        task: str | None = None,
        level: int | None = None,
        index: int | None = None,
        group: str | int | None = None,
        group_size: int | None = None,
        **unknown: Any,
    ) -> OpenEnvQuestion:
        """Open a question, and drop a question that is open.

        Without arguments this is the next training question of the stream. The first `group_size` sessions that name
        the same group get the same next question. A session that resets again with the group of its open question
        keeps the question, because it counts once. With a seed it is the training question of that seed, at the given
        task and level, from which the stream learns nothing. With split eval it is the held-out question of that index.
        Raises EnvironmentSetupError for any other combination.
        """
        kept = self._open
        if kept is None or kept.group is None or (kept.group, kept.size) != (str(group), group_size):
            kept = None
            await asyncio.to_thread(self.close)
        choice = {"seed": seed, "task": task, "level": level, "index": index, "group": group, "group_size": group_size}
        given = {name for name, value in {**choice, **unknown}.items() if value not in (None, "")}
        if split == "eval" and given <= {"index"}:
            opened = SharedQuestion(await self._held_out_question(index))
        elif split != "train":
            raise EnvironmentSetupError(EXPECTED)
        elif not given:
            opened = SharedQuestion(await asyncio.to_thread(self._stream.next))
        elif seed is not None and given <= {"seed", "task", "level"}:
            task = task or Random(seed).choice(self._tasks.names)
            opened = SharedQuestion(await asyncio.to_thread(self._tasks.draw, task, seed, level))
        elif kept is not None and given == {"group", "group_size"}:
            opened = kept
        elif group_size is not None and given == {"group", "group_size"}:
            opened = await asyncio.to_thread(self._shared.join, str(group), group_size)
        else:
            raise EnvironmentSetupError(EXPECTED)
        self._open = opened
        self._state = State(episode_id=episode_id or uuid.uuid4().hex)
        return _question(opened.problem)

    async def _held_out_question(self, index: int | None) -> PromptedProblem:
        questions = await asyncio.to_thread(list, self._held_out)
        if index is None or not 0 <= index < len(questions):
            raise EnvironmentSetupError(f"index: with split eval expected 0 to {len(questions) - 1}, got {index}.")
        return questions[index]

    async def step_async(self, action: OpenEnvCompletion, timeout_s: float | None = None, **_: Any) -> OpenEnvQuestion:
        """Grade the answer. Raises EnvironmentSetupError if no question is open."""
        question = self._open
        if question is None:
            raise EnvironmentSetupError("no question is open: call reset first.")
        [grade] = await asyncio.to_thread(self._tasks.grade, question.problem, [action.completion])
        self._open = None
        await asyncio.to_thread(self._shared.finish, question, grade.reward)
        self._state.step_count = 1
        score = grade.score
        result = {"done": True, "reward": grade.reward, "outcome": score.outcome.value, "reason": score.why}
        return _question(question.problem, **result)

    def close(self) -> None:
        """Finish an open question without a reward."""
        if self._open is not None:
            self._shared.finish(self._open, None)
        self._open = None

    @property
    def state(self) -> State:
        return self._state

    def reset(self, *arguments: Any, **options: Any) -> OpenEnvQuestion:
        return asyncio.run(self.reset_async(*arguments, **options))

    def step(self, action: OpenEnvCompletion, timeout_s: float | None = None, **options: Any) -> OpenEnvQuestion:
        return asyncio.run(self.step_async(action, timeout_s, **options))


def _question(problem: PromptedProblem, **result: Any) -> OpenEnvQuestion:
    return OpenEnvQuestion.model_validate(problem, from_attributes=True).model_copy(update=result)


def build_app(tasks: Tasks) -> FastAPI:
    """OpenEnv's web application over started tasks."""
    stream = ItemStream(tasks)
    session = partial(ReasoningGymOpenEnv, tasks, stream, SharedQuestions(stream), HeldOut(tasks))
    # OpenEnv refuses sessions beyond this number.
    return create_app(session, OpenEnvCompletion, OpenEnvQuestion, "reasoning_gym", max_concurrent_envs=1024)
