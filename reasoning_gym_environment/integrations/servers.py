"""The commands `grade-server` and `openenv`, and the grader over HTTP (docs/servers.md).

    POST /grade    [{task, completions, seed + config | item}, ...] ──> [[{reward, outcome, answer, reason}, ...], ...]
    POST /verify   what NeMo Gym sends its reasoning_gym server ──────> the same fields, and `reward`
    GET  /health, /metrics

A completion that could not be scored has the reward `null` and a reason, never 0. A request waits for at most
`--deadline-s` from its arrival, and requests for more than `--queue` completions at once are refused (503).
"""

from __future__ import annotations

import argparse
import asyncio
import hmac
import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any

import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import PlainTextResponse, Response
from pydantic import BaseModel, BeforeValidator, Field

from ..api import Tasks
from ..errors import EnvironmentSetupError, GenerationError
from ..settings import TasksSettings
from ..tasks.catalog import config_from_json


def _without_surrogates(text: Any) -> Any:
    return text.encode(errors="replace").decode() if isinstance(text, str) else text


Text = Annotated[str, BeforeValidator(_without_surrogates)]
"""JSON may hold half a character (`\\ud83d`), for which a whole request would be refused."""


class Item(BaseModel, extra="allow"):
    """An item as reasoning-gym made it."""

    question: str
    answer: Any = None
    metadata: dict[str, Any] = Field(default_factory=dict)


class Group(BaseModel, extra="forbid"):
    """Completions of one problem: an item as reasoning-gym made it, or the seed and config from which to make it."""

    task: str
    completions: list[Text]
    item: Item | None = None
    seed: int = 0
    config: dict[str, Any] = Field(default_factory=dict)
    thinking_opened: bool = False


class Graded(BaseModel):
    """One completion. The reward is None if there is no score; then `reason` says why."""

    reward: float | None = None
    outcome: str = "unscored"
    answer: str | None = None
    reason: str = ""


class NemoRequest(Item):
    """The fields of NeMo Gym's reasoning_gym server; what else comes is sent back."""

    response: dict[str, Any]


def build_app(tasks: Tasks, *, queue: int = 4096, deadline_s: float = 60.0, token: str = "") -> FastAPI:
    """The web application over started tasks. With a `token`, requests need `Authorization: Bearer TOKEN`."""
    counts = Counter({"in_flight": 0, "refused": 0, "unscored": 0})

    def authorised(request: Request) -> None:
        given = request.headers.get("authorization", "")
        if token and not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            raise HTTPException(401, "A token is needed: Authorization: Bearer TOKEN.")

    app = FastAPI(title="reasoning-gym grader", dependencies=[Depends(authorised)])

    @app.post("/grade")
    async def grade(groups: list[Group]) -> list[list[Graded]]:
        for number, group in enumerate(groups):
            try:
                config_from_json(tasks.catalog[group.task].name, group.config)
            except EnvironmentSetupError as error:
                raise HTTPException(400, f"group {number}: {error}") from error
        asked = sum(len(group.completions) for group in groups)
        if counts["in_flight"] and counts["in_flight"] + asked > queue:
            counts["refused"] += asked
            detail = f"{counts['in_flight']} completions are being graded, and --queue is {queue}: try again."
            raise HTTPException(503, detail, headers={"Retry-After": "1"})
        counts["in_flight"] += asked
        try:
            graded = await asyncio.gather(*map(in_time, groups))
        finally:
            counts["in_flight"] -= asked
        counts["unscored"] += sum(one.reward is None for group in graded for one in group)
        return graded

    async def in_time(group: Group) -> list[Graded]:
        try:
            return await asyncio.wait_for(_graded(tasks, group), deadline_s)
        except (TimeoutError, GenerationError, RecursionError) as error:
            return [Graded(reason=str(error) or f"not graded within {deadline_s:g} s")] * len(group.completions)

    @app.post("/verify")
    async def verify(body: NemoRequest) -> Response:
        task = str(body.metadata.get("source_dataset"))
        item = Item(question=body.question, answer=body.answer, metadata=body.metadata)
        [[one]] = await grade([Group(task=task, item=item, completions=[_text_of(body.response)])])
        told = {"score": one.reward, "extracted_answer": one.answer, "task_name": task}
        # A thread's stack is empty: what could be read, however deep, can be written there.
        text = await asyncio.to_thread(json.dumps, {**dict(body), **one.model_dump(), **told})
        return Response(text, media_type="application/json")

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"status": "ok", "tasks": len(tasks.names), "reasoning_gym": tasks.version}

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> str:
        values = {**tasks.metrics(), **counts}
        return "".join(f"reasoning_gym_{name.replace('/', '_')} {value}\n" for name, value in values.items())

    return app


async def _graded(tasks: Tasks, group: Group) -> list[Graded]:
    """Raises GenerationError if the item cannot be made."""
    if group.item is None:
        problem = await tasks.make_async(group.task, group.seed, group.config)
    else:
        problem = tasks.problem(group.task, dict(group.item), group.config or None)
    return [
        Graded(reward=one.reward, outcome=one.score.outcome.value, answer=one.score.answer, reason=one.score.why)
        for one in await tasks.grade_async(problem, group.completions, thinking_opened=group.thinking_opened)
    ]


def _text_of(response: dict[str, Any]) -> str:
    """The text of an answer of OpenAI's Responses API: of a message's content, which is a text or a list of parts."""
    try:
        parts = [part for one in response["output"] if one["type"] == "message" for part in one["content"]]
        return "".join(part if isinstance(part, str) else part.get("text", "") for part in parts)
    except (AttributeError, KeyError, TypeError) as error:
        raise HTTPException(422, "response: expected output[].content[].text, as in the Responses API.") from error


def grade_server(arguments: Sequence[str]) -> int:
    """The command `grade-server`."""
    parser = _parser("grade-server", "Grade completions over HTTP.", port=8100)
    parser.add_argument("--queue", type=int, default=4096, help="completions that may wait at once (%(default)s)")
    parser.add_argument("--deadline-s", type=float, default=60.0, help="seconds a request may take (%(default)s)")
    parser.add_argument("--token-env", metavar="NAME", help="variable that holds a token which requests must carry")
    given = parser.parse_args(arguments)
    token = os.environ.get(given.token_env, "") if given.token_env else ""
    if given.token_env and not token:
        parser.error(f"--token-env: the variable {given.token_env} is not set.")
    return _serve(given, partial(build_app, queue=given.queue, deadline_s=given.deadline_s, token=token))


def openenv(arguments: Sequence[str]) -> int:
    """The command `openenv`; integrations/openenv.py has the environment."""
    given = _parser("openenv", "Serve the tasks as an OpenEnv environment.", port=8000).parse_args(arguments)
    # Here, for `grade-server` does without it.
    from .openenv import build_app

    return _serve(given, build_app, complexity_mode="curriculum")


TASKS = {name.removeprefix("task_").removesuffix("_tasks"): field for name, field in TasksSettings.model_fields.items()}
"""The arguments of `Tasks`, which the commands that serve tasks take as options."""


def _parser(command: str, description: str, *, port: int) -> argparse.ArgumentParser:
    """The options that the commands which serve tasks have in common."""
    parser = argparse.ArgumentParser(f"reasoning-gym-env {command}", "%(prog)s [options]", description)
    for name, field in TASKS.items():
        text = (field.description or "").replace("%", "%%")
        parser.add_argument(f"--{name.replace('_', '-')}", default=argparse.SUPPRESS, help=text)
    parser.add_argument("--host", default="127.0.0.1", help="(%(default)s: this machine only)")
    parser.add_argument("--port", type=int, default=port, help="(%(default)s)")
    return parser


def _serve(given: argparse.Namespace, app: Callable[[Tasks], FastAPI], **settings: Any) -> int:
    """Start the workers, and serve until Ctrl-C. Raises EnvironmentSetupError."""
    chosen = {name: getattr(given, name) for name in TASKS if name in given}
    with Tasks(**{**settings, **chosen}) as tasks:
        config = uvicorn.Config(app(tasks), host=given.host, port=given.port, log_level="warning")
        socket = config.bind_socket()
        socket.listen()
        host, port = socket.getsockname()[:2]
        print(f"{len(tasks.names)} tasks at http://{host}:{port}. Ctrl-C ends it.", flush=True)
        uvicorn.Server(config).run(sockets=[socket])
    return 0
