"""The grader over HTTP of the command `grade-server` (docs/datasets.md).

    POST /grade    [{completions, recipe | task, seed, config | task, item}, ...]
                   ──> [[{reward, outcome, answer, reason}, ...], ...]
    POST /verify   the request of NeMo Gym to its reasoning_gym server ──> the same fields, and `reward`
    POST /seed_session   NeMo Gym's agent calls it before each rollout; it does nothing
    GET  /health, /metrics

JSON changes the metadata of most items. If the metadata of a request to /verify has a `recipe`, as in rows of
`export items --format nemo-gym`, the server makes the item again and ignores the rest of the metadata. The prompts of
NeMo Gym's own rows ask for no form of the answer, so these rows are read as NeMo Gym reads them: the answer is in the
last pair of answer tags, or it is the whole text. In both, only the last message of the assistant counts.

A completion that could not be scored has the reward `null` and a reason. Its reward is never 0, except in the reply to
NeMo Gym, which ends a collection of rollouts at `null`: there it is 0, with `mask_sample` and `failure_reason`, and the
trainer leaves the completion out of the loss. A request takes at most
`--deadline-s` from its arrival. Requests for more than `--queue` completions at the same time are refused (503).
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue

from ..api import (
    AnswerFormat,
    EnvironmentSetupError,
    GenerationError,
    Grade,
    Problem,
    Recipe,
    Tasks,
    problem_of,
)
from .item_formats import RECIPE

MOST_MISTAKES = 10
"""A refusal names this many mistakes of a request."""


def _without_surrogates(text: Any) -> Any:
    return text.encode(errors="replace").decode() if isinstance(text, str) else text


Text = Annotated[str, BeforeValidator(_without_surrogates)]
"""JSON may hold half a character (`\\ud83d`), which would make the whole request or reply invalid."""


class RequestPart(BaseModel):
    """Part of a request. Python also reads NaN and Infinity, which are not JSON; no verifier can compare them.

    pydantic refuses them here, and values that are nested deeply.
    """

    model_config = ConfigDict(allow_inf_nan=False)


class TaskItem(RequestPart, extra="allow"):
    """An item as reasoning-gym made it."""

    __pydantic_extra__: dict[str, JsonValue]
    question: str
    answer: JsonValue = None
    metadata: dict[str, JsonValue] = Field(default_factory=dict)


class GroupToGrade(RequestPart, extra="forbid"):
    """Completions of a problem: the recipe of an item, or a task with a seed, or a task with an item.

    A recipe has the task too. A task may have a level, or a config (see ServedConfigs). `answer_format` is the form of
    the answers for a problem without a recipe.
    """

    completions: list[Text] = Field(min_length=1)
    recipe: JsonValue = None
    task: str = ""
    item: TaskItem | None = None
    seed: int = 0
    level: int | None = None
    config: dict[str, JsonValue] = Field(default_factory=dict)
    answer_format: AnswerFormat | None = None
    thinking_opened: bool = False


class Graded(BaseModel):
    """A graded completion. Without a score, the reward is None and `reason` explains why."""

    reward: float | None = None
    outcome: str = "unscored"
    answer: Text | None = None
    reason: Text = ""

    @classmethod
    def of(cls, grade: Grade) -> Graded:
        """The grade in the form of a reply."""
        score = grade.score
        return cls(
            reward=grade.reward,
            outcome=score.outcome.value,
            answer=score.answer,
            reason=score.why,
        )


class NemoRequest(TaskItem):
    """The fields of NeMo Gym's reasoning_gym server. The reply contains all other fields of the request too."""

    response: dict[str, JsonValue]


GROUPS_AT_ONCE = 8
"""Groups of a request that are graded at the same time. Further groups wait, so that other requests need not."""


class GradingService:
    """Grades groups, within the limits of a queue and a deadline."""

    def __init__(self, tasks: Tasks, queue: int, deadline_s: float, *, allow_configs: bool) -> None:
        self._tasks = tasks
        self._queue = queue
        self._deadline_s = deadline_s
        self._config = partial(tasks.served_configs.config, allows_any=allow_configs)
        self.counts = Counter({"in_flight": 0, "refused": 0, "unscored": 0})
        """Completions."""

    async def grade(self, groups: Sequence[GroupToGrade]) -> list[list[Graded]]:
        """Raises HTTPException for a task or config that is not served, and when the queue is full."""
        completions = sum(len(group.completions) for group in groups)
        self._check_queue(completions)
        for number, group in enumerate(groups):
            self._check(number, group)
        self.counts["in_flight"] += completions
        turns = asyncio.Semaphore(GROUPS_AT_ONCE)
        try:
            graded = await asyncio.gather(*[self._grade_in_time(group, turns) for group in groups])
        finally:
            self.counts["in_flight"] -= completions
        for group_grades in graded:
            self.counts["unscored"] += sum(grade.reward is None for grade in group_grades)
        return graded

    def _check(self, number: int, group: GroupToGrade) -> None:
        if group.recipe is not None:
            # A recipe that does not fit leaves its completions unscored. It does not refuse the request.
            return
        if not group.task:
            raise HTTPException(400, f"group {number}: expected a recipe alone, or a task; got neither.")
        try:
            self._config(group.task, group.config, level=group.level)
        except EnvironmentSetupError as error:
            raise HTTPException(400, f"group {number}: {error!s:.1000}") from error

    def _check_queue(self, completions: int) -> None:
        in_flight = self.counts["in_flight"]
        if completions > self._queue:
            raise HTTPException(413, f"A request has at most --queue={self._queue} completions, got {completions}.")
        if in_flight + completions > self._queue:
            self.counts["refused"] += completions
            detail = f"{in_flight} completions are being graded, and --queue is {self._queue}: try again."
            raise HTTPException(503, detail, headers={"Retry-After": "1"})

    async def _grade_in_time(self, group: GroupToGrade, turns: asyncio.Semaphore) -> list[Graded]:
        try:
            async with asyncio.timeout(self._deadline_s), turns:
                return await self._grade(group)
        except (EnvironmentSetupError, GenerationError, TimeoutError) as error:
            reason = str(error) or f"not graded within {self._deadline_s:g} s"
            return [Graded(reason=reason)] * len(group.completions)

    async def _grade(self, group: GroupToGrade) -> list[Graded]:
        """Raises GenerationError if the item cannot be made, and EnvironmentSetupError for a wrong recipe."""
        problem = await self._problem(group)
        grades = await self._tasks.grade_async(problem, group.completions, thinking_opened=group.thinking_opened)
        return [Graded.of(grade) for grade in grades]

    async def _problem(self, group: GroupToGrade) -> Problem:
        if group.recipe is not None:
            recipe = _recipe_of(group)
            self._config(recipe.task, json.loads(recipe.config))
            problem = await self._tasks.problem_async(recipe)
            # A clarified question begins with the question of reasoning-gym.
            if group.item and not group.item.question.startswith(problem.library_question.rstrip()):
                raise EnvironmentSetupError(
                    f"Expected the recipe of the item, got the recipe of another item of {problem.task}. Export the "
                    "row again."
                )
            return problem
        config = self._config(group.task, group.config, level=group.level)
        answer_format = group.answer_format or self._tasks.settings.answer_format
        if group.item is None:
            recipe = Recipe.of_seed(group.task, group.seed, config, answer_format)
            return await self._tasks.problem_async(recipe)
        is_given = group.config or group.level is not None
        chosen = config if is_given else self._tasks.catalog[group.task].overrides
        return problem_of(group.task, dict(group.item), chosen, answer_format=answer_format)


def build_app(
    tasks: Tasks,
    *,
    queue: int = 4096,
    deadline_s: float = 60.0,
    allow_configs: bool = False,
) -> FastAPI:
    """The web application over started tasks. Serve it behind the Gate of boundary.py."""
    service = GradingService(tasks, queue, deadline_s, allow_configs=allow_configs)
    app = FastAPI(title="reasoning-gym grader")

    @app.exception_handler(RequestValidationError)
    async def refuse(_: Request, error: RequestValidationError) -> Response:
        # The values are left out, because they may be of any size. The place may be nested deeply.
        mistakes = [f"{mistake['loc']!r:.100}: {mistake['msg']}" for mistake in error.errors()[:MOST_MISTAKES]]
        return JSONResponse({"detail": mistakes}, 422)

    @app.post("/grade")
    async def grade(groups: list[GroupToGrade]) -> list[list[Graded]]:
        return await service.grade(groups)

    @app.post("/verify")
    async def verify(request: NemoRequest) -> Response:
        recipe = request.metadata.get(RECIPE)
        task = recipe.get("task", "") if isinstance(recipe, dict) else request.metadata.get("source_dataset")
        if not isinstance(task, str):
            kind = type(task).__name__
            raise HTTPException(422, f"metadata: expected the name of a task in source_dataset, got a {kind}.")
        try:
            text = last_message(request.response)
        except ValueError as error:
            graded = Graded(reason=str(error))
        else:
            item = TaskItem(question=request.question, answer=request.answer, metadata=request.metadata)
            if recipe is None:
                # The metadata need not name an item that this process can make again.
                own = {"item": item, "answer_format": AnswerFormat.TEXT, "completions": [answer_in(text)]}
            else:
                own = {"item": item, "recipe": recipe, "completions": [text]}
            [[graded]] = await service.grade([GroupToGrade(task=task, **own)])
        fields = {"score": graded.reward, "extracted_answer": graded.answer, "task_name": task}
        # Other fields of the request may have half a character, which FastAPI cannot write.
        reply = json.dumps({**dict(request), **graded.model_dump(), **fields, **_for_nemo(graded)})
        return Response(reply, media_type="application/json")

    @app.post("/seed_session")
    async def seed_session() -> dict[str, Any]:
        return {}

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {
            "status": "ok",
            "tasks": len(tasks.names),
            "reasoning_gym": tasks.version,
        }

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> str:
        values = {**tasks.metrics(), **service.counts}
        lines = [f"reasoning_gym_{name.replace('/', '_')} {value}\n" for name, value in values.items()]
        return "".join(lines)

    return app


def _for_nemo(graded: Graded) -> dict[str, Any]:
    """The fields with which NeMo Gym's trainers exclude a completion."""
    if graded.reward is not None:
        return {"mask_sample": False, "failure_reason": None}
    return {"reward": 0.0, "mask_sample": True, "failure_reason": graded.reason or graded.outcome}


def _recipe_of(group: GroupToGrade) -> Recipe:
    """The recipe of a group. Raises EnvironmentSetupError if it is malformed or belongs to another task."""
    row: Any = group.recipe
    recipe = Recipe.of(row)
    if group.task and recipe.task != group.task:
        raise EnvironmentSetupError(
            f"Expected the recipe of an item of {group.task}, got the recipe of an item of {recipe.task}. Export the "
            "row again."
        )
    return recipe


# --- responses of OpenAI's Responses API, as the agents of NeMo Gym send them


def last_message(response: dict[str, Any]) -> str:
    """The text of the assistant's last message; "" if there is none, because the model was still thinking.

    Agents also send the user's messages, calls of tools and their results. Of the parts of a message, those of the type
    `output_text` count. Raises ValueError if the response has another shape.
    """
    expected = "response: expected an output with messages, each with a content of texts, as in the Responses API"
    outputs = response.get("output")
    if not isinstance(outputs, list) or not all(isinstance(output, dict) for output in outputs):
        raise ValueError(expected)
    messages = [output for output in outputs if output.get("type") == "message"]
    replies = [message for message in messages if message.get("role", "assistant") == "assistant"]
    if not replies:
        return ""
    content = replies[-1].get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise ValueError(expected)
    texts = [part.get("text") for part in content if part.get("type") == "output_text"]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(expected)
    return _without_surrogates("".join(texts))


def answer_in(text: str) -> str:
    """The answer in a text as NeMo Gym reads it: in the last pair of answer tags, or else the whole text."""
    end = text.rfind("</answer>")
    begin = text.rfind("<answer>", 0, max(end, 0))
    if begin < 0:
        return text
    answer = text[begin:].removeprefix("<answer>")
    return answer.partition("</answer>")[0].strip()
