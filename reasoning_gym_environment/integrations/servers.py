"""The grader over HTTP of the command `grade-server` (docs/datasets.md).

    POST /grade    [{recipe, completions}, ...] ──> [[{reward, outcome, answer, reason}, ...], ...]
    POST /verify   the request of NeMo Gym to its reasoning_gym server ──> the same fields, and `reward`
    POST /seed_session   NeMo Gym's agent calls it before each rollout; it does nothing
    GET  /health, /metrics

JSON changes the metadata of most items, so the server makes the item again from its recipe. A request to /verify has
the recipe in its metadata, as in rows of `export items --format nemo-gym`. The prompts of NeMo Gym's own rows ask for
no form of the answer, so these rows are read as NeMo Gym reads them: the answer is in the last pair of answer tags, or
it is the whole text. In both, only the last message of the assistant counts.

A completion that could not be scored has the reward `null` and a reason. Its reward is never 0, except in the reply to
NeMo Gym, which ends a collection of rollouts at `null`: there it is 0, with `mask_sample` and `failure_reason`, and the
trainer leaves the completion out of the loss. A request takes at most
`--deadline-s` from its arrival. Requests for more than `--queue` completions at the same time are refused (503).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
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


class GroupToGrade(RequestPart, extra="forbid"):
    """The recipe of an item, and completions of it."""

    recipe: JsonValue
    completions: list[Text] = Field(min_length=1)
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


class NemoRequest(RequestPart, extra="allow"):
    """The fields of NeMo Gym's reasoning_gym server. The reply contains all other fields of the request too."""

    __pydantic_extra__: dict[str, JsonValue]
    question: str
    answer: JsonValue = None
    metadata: dict[str, JsonValue] = Field(default_factory=dict)
    response: dict[str, JsonValue]


GROUPS_AT_ONCE = 8
"""Groups of a request that are graded at the same time. Further groups wait, so that other requests need not."""


class GradingService:
    """Grades groups, within the limits of a queue and a deadline."""

    def __init__(self, tasks: Tasks, queue: int, deadline_s: float, *, allow_configs: bool) -> None:
        self._tasks = tasks
        self._queue = queue
        self._deadline_s = deadline_s
        self._allow_configs = allow_configs
        self.counts = Counter({"in_flight": 0, "refused": 0, "unscored": 0})
        """Completions."""

    async def grade_all(self, groups: Sequence[GroupToGrade]) -> list[list[Graded]]:
        """The grades of several groups. Raises HTTPException when the queue is full."""
        turns = asyncio.Semaphore(GROUPS_AT_ONCE)

        async def grade(group: GroupToGrade) -> list[Graded]:
            async with turns:
                problem = await self._problem(group.recipe)
                return await self._grade(problem, group.completions, thinking_opened=group.thinking_opened)

        with self._counted(sum(len(group.completions) for group in groups)):
            return await asyncio.gather(*[self._in_time(grade(group), len(group.completions)) for group in groups])

    async def verify(self, request: NemoRequest) -> Graded:
        """The grade of a response to NeMo Gym's row, or to our own row. Raises HTTPException."""
        recipe = request.metadata.get(RECIPE)
        task = request.metadata.get("source_dataset")
        if recipe is None and task not in self._tasks.names:
            raise HTTPException(400, f"metadata: expected a served task in source_dataset, got {task!r:.100}.")
        try:
            text = last_message(request.response)
        except ValueError as error:
            return Graded(reason=str(error))

        async def grade() -> list[Graded]:
            if recipe is None:
                return await self._grade(self._item(str(task), request), [answer_in(text)])
            problem = await self._problem(recipe)
            # A clarified question begins with the question of reasoning-gym.
            if not request.question.startswith(problem.library_question.rstrip()):
                raise EnvironmentSetupError(
                    f"Expected the recipe of the item, got the recipe of another item of {problem.task}. Export the "
                    "row again."
                )
            return await self._grade(problem, [text])

        with self._counted(1):
            [graded] = await self._in_time(grade(), 1)
            return graded

    @contextlib.contextmanager
    def _counted(self, completions: int) -> Iterator[None]:
        """Count completions while they are graded. Raises HTTPException when the queue is full."""
        in_flight = self.counts["in_flight"]
        if completions > self._queue:
            raise HTTPException(413, f"A request has at most --queue={self._queue} completions, got {completions}.")
        if in_flight + completions > self._queue:
            self.counts["refused"] += completions
            detail = f"{in_flight} completions are being graded, and --queue is {self._queue}: try again."
            raise HTTPException(503, detail, headers={"Retry-After": "1"})
        self.counts["in_flight"] += completions
        try:
            yield
        finally:
            self.counts["in_flight"] -= completions

    async def _in_time(self, grading: Coroutine[Any, Any, list[Graded]], completions: int) -> list[Graded]:
        """The grades, without a score if they take too long, or if the item cannot be made."""
        try:
            async with asyncio.timeout(self._deadline_s):
                graded = await grading
        except (EnvironmentSetupError, GenerationError, TimeoutError) as error:
            reason = str(error) or f"not graded within {self._deadline_s:g} s"
            graded = [Graded(reason=reason)] * completions
        self.counts["unscored"] += sum(grade.reward is None for grade in graded)
        return graded

    async def _grade(self, problem: Problem, completions: Sequence[str], **options: Any) -> list[Graded]:
        grades = await self._tasks.grade_async(problem, completions, **options)
        return [Graded.of(grade) for grade in grades]

    async def _problem(self, row: Any) -> Problem:
        """Raises GenerationError if the item cannot be made, and EnvironmentSetupError for a wrong recipe."""
        recipe = Recipe.of(row)
        self._tasks.served_configs.check(recipe.task, json.loads(recipe.config), allows_any=self._allow_configs)
        return await self._tasks.problem_async(recipe)

    def _item(self, task: str, request: NemoRequest) -> Problem:
        """The item in NeMo Gym's own row, whose metadata need not name an item that this process can make again."""
        item = {"question": request.question, "answer": request.answer, "metadata": request.metadata}
        return problem_of(task, item, self._tasks.catalog[task].overrides, answer_format=AnswerFormat.TEXT)


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
        return await service.grade_all(groups)

    @app.post("/verify")
    async def verify(request: NemoRequest) -> Response:
        graded = await service.verify(request)
        fields = {
            "score": graded.reward,
            "extracted_answer": graded.answer,
            "task_name": request.metadata.get("source_dataset"),
        }
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
