"""A real HTTP inference server around one function, `respond(prompt) -> text`: no model, no network.

    POST /generate             vLLM (body has `prompt`) and SGLang (body has `input_ids`)
    POST /generate/            TRL's vllm-serve
    POST /v1/completions, /v1/chat/completions, GET /v1/models        OpenAI
    GET  /health, /health/

It answers as those servers answer atroposlib's clients: token ids, logprobs, n completions, truncation at
the token limit. `Faults` makes it slow, silent or broken while it runs. `mock_payloads` has the formats.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from aiohttp import web

from .mock_payloads import (
    CHAT,
    COMPLETION,
    SGLANG,
    TRL,
    VLLM,
    Dialect,
    Generation,
    GenerationRequest,
    MalformedRequest,
    make_generation,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Respond = Callable[[str], str | Awaitable[str]]
"""Called once per completion asked for, with the prompt's whole text (chat markup included)."""

MAX_BODY_BYTES = 64 * 2**20
MAX_REQUESTS_KEPT = 10_000
HANG_POLL_S = 0.02
CLOSE_S = 0.05
"""How long `close` waits for requests in flight before it drops them (aiohttp reads 0 as "for ever")."""

_DIALECTS = {"/generate/": TRL, "/v1/completions": COMPLETION, "/v1/chat/completions": CHAT}


@dataclass
class Faults:
    """What goes wrong. Fields may be set at any moment, from any thread.

    A request for completions passes them in this order: wait `latency_s`; wait while `hang`; then the
    first of these that applies: `failing` (status 500), `fail_next` (status 500), `drop_next` (close the
    connection without an answer), `cut_next` (send half of the body, then close). The `*_next` fields
    count down, one per request. `ignore_n` makes the OpenAI endpoints return one choice whatever n is.
    Of all this the other endpoints (/health, /v1/models) know `failing` only.
    """

    latency_s: float = 0.0
    failing: bool = False
    hang: bool = False
    fail_next: int = 0
    drop_next: int = 0
    cut_next: int = 0
    ignore_n: bool = False

    def take(self) -> str:
        """The fault of one request, "fail", "drop" or "cut", counted down; "" for none."""
        if self.failing:
            return "fail"
        for fault in ("fail", "drop", "cut"):
            left = getattr(self, f"{fault}_next")
            if left > 0:
                setattr(self, f"{fault}_next", left - 1)
                return fault
        return ""


@dataclass(frozen=True)
class ServedRequest:
    """A well-formed request for completions, whatever fault it met then. `n` is what was asked for."""

    endpoint: str
    server_type: str
    n: int
    max_tokens: int | None


class MockServer:
    """The server, on the event loop that awaits `start`.

    `tokenizer` needs an eos token, and a chat template for /v1/chat/completions. `respond` runs on the same
    loop: a slow one must be async. When it raises, the client gets status 500 and the traceback is logged.
    A malformed request gets status 400 with one line that says why. atroposlib's health checks for server
    types sglang and openai are requests like any other: one token for the chat message or prompt "hi".
    """

    def __init__(
        self,
        respond: Respond,
        tokenizer: PreTrainedTokenizerBase,
        *,
        model_name: str = "mock",
        host: str = "127.0.0.1",
        port: int = 0,
        faults: Faults | None = None,
    ) -> None:
        """`port` 0 takes a free one. Raises ValueError for a tokenizer without an eos token."""
        if tokenizer.eos_token_id is None:
            raise ValueError("the tokenizer has no eos token; a completion could not end by itself")
        self.faults = faults or Faults()
        self.requests: deque[ServedRequest] = deque(maxlen=MAX_REQUESTS_KEPT)
        self._respond = respond
        self._tokenizer = tokenizer
        self._model_name = model_name
        self._host = host
        self._port = port
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """`http://HOST:PORT`; the port is known once the server has started."""
        return f"http://{self._host}:{self._port}"

    @property
    def base_url(self) -> str:
        """atroposlib's `base_url` for this server. Server type trl alone wants `url` there."""
        return f"{self.url}/v1"

    async def start(self) -> None:
        """Listen. After `close` this binds the same port again. Raises OSError when the port is taken."""
        if self._runner is not None:
            return
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.add_routes(
            [web.post(path, self._complete) for path in ("/generate", *_DIALECTS)]
            + [web.get(path, self._health) for path in ("/health", "/health/")]
            + [web.get("/v1/models", self._models)]
        )
        # A client that goes away cancels its request, as it does on the real servers.
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=CLOSE_S)
        await runner.setup()
        try:
            await web.TCPSite(runner, self._host, self._port).start()
        except OSError:
            await runner.cleanup()
            raise
        self._port = runner.addresses[0][1]
        self._runner = runner

    async def close(self) -> None:
        """Stop listening and drop the requests in flight, as a killed server would. Safe to call twice."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def __aenter__(self) -> MockServer:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def _health(self, request: web.Request) -> web.Response:
        return _failure() if self.faults.failing else web.json_response({"status": "ok"})

    async def _models(self, request: web.Request) -> web.Response:
        model = {"id": self._model_name, "object": "model", "owned_by": "mock"}
        return _failure() if self.faults.failing else web.json_response({"object": "list", "data": [model]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        try:
            body = _read(await request.read())
            dialect = _DIALECTS.get(request.path) or (SGLANG if "input_ids" in body else VLLM)
            asked = dialect.parse(body, self._tokenizer)
        except MalformedRequest as error:
            return _error(400, str(error))
        self.requests.append(ServedRequest(request.path, dialect.server_type, asked.n, asked.max_tokens))
        await asyncio.sleep(self.faults.latency_s)
        # Polled, because the flag may be set from another thread, where an asyncio.Event may not.
        while self.faults.hang:  # noqa: ASYNC110
            await asyncio.sleep(HANG_POLL_S)
        fault = self.faults.take()
        if fault == "fail":
            return _failure()
        if fault == "drop":
            return await _send_part(request, b"")
        if self.faults.ignore_n and dialect.server_type == "openai":
            asked = replace(asked, n=1)
        payload = await self._payload(dialect, asked)
        if fault == "cut":
            return await _send_part(request, payload)
        return web.Response(body=payload, content_type="application/json")

    async def _payload(self, dialect: Dialect, asked: GenerationRequest) -> bytes:
        prompts = [prompt.text for prompt in asked.prompts for _ in range(asked.n)]
        generations = await asyncio.gather(*(self._generate(text, asked.max_tokens) for text in prompts))
        return json.dumps(dialect.reply(asked, generations, self._model_name)).encode()

    async def _generate(self, prompt: str, max_tokens: int | None) -> Generation:
        answer = self._respond(prompt)
        text = await answer if inspect.isawaitable(answer) else answer
        return make_generation(self._tokenizer, text, max_tokens)


class ThreadedMockServer:
    """A MockServer on an event loop of its own, in a daemon thread, for callers that have no event loop.

    A context manager that takes MockServer's arguments. `respond` runs in that thread.
    """

    def __init__(self, respond: Respond, tokenizer: PreTrainedTokenizerBase, **options: Any) -> None:
        self._server = MockServer(respond, tokenizer, **options)

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def base_url(self) -> str:
        return self._server.base_url

    @property
    def faults(self) -> Faults:
        return self._server.faults

    @property
    def requests(self) -> deque[ServedRequest]:
        return self._server.requests

    def __enter__(self) -> ThreadedMockServer:
        """Return when the server listens. Raises OSError when the port is taken."""
        started: Future[Callable[[], object]] = Future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="mock-server", daemon=True)
        self._thread.start()
        self._stop = started.result()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Return when the server has stopped and its thread has ended."""
        self._stop()
        self._thread.join()

    def _run(self, started: Future[Callable[[], object]]) -> None:
        asyncio.run(self._serve(started))

    async def _serve(self, started: Future[Callable[[], object]]) -> None:
        loop, stopping = asyncio.get_running_loop(), asyncio.Event()
        try:
            await self._server.start()
        # Whatever keeps the server from starting is raised in the thread that waits for it.
        except Exception as error:  # noqa: BLE001
            started.set_exception(error)
            return
        started.set_result(lambda: loop.call_soon_threadsafe(stopping.set))
        await stopping.wait()
        await self._server.close()


def _read(raw: bytes) -> dict[str, Any]:
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise MalformedRequest(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise MalformedRequest("the body must be a JSON object")
    return body


def _error(status: int, reason: str) -> web.Response:
    kind = "invalid_request_error" if status == 400 else "server_error"
    return web.json_response({"error": {"message": reason, "type": kind, "code": status}}, status=status)


def _failure() -> web.Response:
    return _error(500, "the mock server was told to fail")


async def _send_part(request: web.Request, payload: bytes) -> web.StreamResponse:
    """Send the headers and half of `payload`, or nothing at all if it is empty, and close the connection."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    response.content_length = len(payload)
    if payload:
        await response.prepare(request)
        await response.write(payload[: len(payload) // 2])
    if request.transport is not None:
        request.transport.close()
    return response
