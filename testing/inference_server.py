"""An inference server for tests, benchmarks and the demo. A subclass generates the completions.

    POST /generate              Atropos' vLLM server
    POST /v1/completions        a stock vLLM server
    POST /v1/chat/completions   OpenAI
    GET  /health

    request ── a dialect reads it ──> GenerationRequest ── generate ──> Generations ── the dialect writes them ──> reply

Replies have token ids, log probabilities, n completions, and truncation at the token limit. The server accepts any
context length and model name. The demo's `Learner` serves the tiny model this way. `MockServer` calls a function.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from aiohttp import web

MAX_REQUESTS_KEPT = 10_000

Body = Mapping[str, Any]


def free_port() -> int:
    """A port of the loopback interface on which no process listens right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class GivenPrompt:
    """A prompt as text, chat markup included, and as token ids."""

    text: str
    token_ids: list[int]


@dataclass(frozen=True)
class GenerationRequest:
    """A request for `n` completions; `max_tokens` None means no limit."""

    prompt: GivenPrompt
    n: int
    max_tokens: int | None
    with_logprobs: bool = False
    temperature: float = 1.0
    top_p: float = 1.0


@dataclass(frozen=True)
class Generation:
    """One completion: `text` without special tokens, and one negative logprob per token id."""

    text: str
    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str


class ServedRequest(NamedTuple):
    """A well-formed request for completions. `n` is the number of requested completions."""

    n: int
    max_tokens: int | None
    authorization: str


@dataclass
class Faults:
    """How requests for completions fail. The fields may change at any moment, from any thread."""

    kind: Literal["", "fail", "hang", "drop", "cut"] = ""
    """`fail` replies with status 500, also to /health. While `hang` is set, requests wait. `drop` closes the connection
    without a reply, and `cut` closes it after half of the reply."""


class InferenceServer:
    """The server, on the event loop that awaits `start`. The port is known then, and stays the same after `close`.

    A subclass implements `generate`. When it raises, the client gets status 500 and aiohttp logs the traceback.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        is_stock: bool = False,
        faults: Faults | None = None,
    ) -> None:
        """With `port` 0 the system chooses a free port. With `is_stock` there is no /generate, as in `vllm serve`."""
        self._tokenizer = tokenizer
        self._host = host
        self._port = port
        self._is_stock = is_stock
        self._faults = faults or Faults()
        self._runner: web.AppRunner | None = None
        self.requests: deque[ServedRequest] = deque(maxlen=MAX_REQUESTS_KEPT)

    @property
    def base_url(self) -> str:
        """atroposlib's `base_url` for this server."""
        return f"http://{self._host}:{self._port}/v1"

    async def start(self) -> None:
        """Listen. Raises OSError if the port is in use."""
        if self._runner is not None:
            return
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_get("/health", self._health)
        for path in DIALECTS:
            if path != GENERATE or not self._is_stock:
                app.router.add_post(path, self._complete)
        # A client that disconnects cancels its request, as on the real servers. A timeout of 0 seconds would be none.
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.05)
        await runner.setup()
        await web.TCPSite(runner, self._host, self._port).start()
        self._port = runner.addresses[0][1]
        self._runner = runner

    async def close(self) -> None:
        """Stop listening and drop the requests in flight, as a killed server would. Safe to call twice."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def __aenter__(self) -> InferenceServer:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def _health(self, request: web.Request) -> web.Response:
        return _failure() if self._faults.kind == "fail" else web.json_response({"status": "ok"})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        faults = self._faults
        # Polled, because another thread may set the field, and an asyncio.Event belongs to one thread.
        while faults.kind == "hang":  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        fault = faults.kind
        if fault == "fail":
            return _failure()
        if fault == "drop":
            return await _send_half(request, b"")
        reply = await self._reply_to(request)
        return await _send_half(request, reply) if fault == "cut" else _json(reply)

    async def _reply_to(self, request: web.Request) -> bytes:
        parse, reply_as = DIALECTS[request.path]
        asked = parse(await request.json(), self._tokenizer)
        key = request.headers.get("Authorization", "")
        self.requests.append(ServedRequest(asked.n, asked.max_tokens, key))
        return json.dumps(reply_as(asked, await self.generate(asked))).encode()

    async def generate(self, request: GenerationRequest) -> list[Generation]:
        """n generations."""
        raise NotImplementedError


class MockServer(InferenceServer):
    """Calls `respond` once for each completion, with the whole text of the prompt. Sampling parameters have no effect.

    `respond` runs on the server's event loop, so a slow `respond` must be async.
    """

    def __init__(self, respond: Callable[[str], str | Awaitable[str]], tokenizer: Any, **options: Any) -> None:
        super().__init__(tokenizer, **options)
        self._respond = respond
        self.spoil: Callable[[list[Generation]], list[Generation]] = lambda made: made
        """May change the generations of a request."""

    async def generate(self, request: GenerationRequest) -> list[Generation]:
        async def make() -> Generation:
            answer = self._respond(request.prompt.text)
            text = answer if isinstance(answer, str) else await answer
            return make_generation(self._tokenizer, text, request.max_tokens)

        return self.spoil(list(await asyncio.gather(*(make() for _ in range(request.n)))))


class ThreadedMockServer(MockServer):
    """A MockServer that runs its own event loop in a daemon thread, for callers without an event loop.

    `respond` runs in this thread.
    """

    def __enter__(self) -> ThreadedMockServer:
        """Return when the server listens. Raises OSError if the port is in use."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="mock-server", daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.start(), self._loop).result()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Return when the server has stopped."""
        asyncio.run_coroutine_threadsafe(self.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _json(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json")


def _failure() -> web.Response:
    return _json(b'{"error": {"message": "the mock server was told to fail", "type": "server_error"}}', status=500)


async def _send_half(request: web.Request, body: bytes) -> web.StreamResponse:
    """Send the headers and half of `body`, or nothing at all if it is empty, and close the connection."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    response.content_length = len(body)
    if body:
        await response.prepare(request)
        await response.write(body[: len(body) // 2])
    if request.transport is not None:
        request.transport.close()
    return response


def make_generation(tokenizer: Any, text: str, max_tokens: int | None) -> Generation:
    """Tokenise `text` as if a model had sampled it.

    The completion ends with eos and "stop". If the text and eos do not fit in `max_tokens`, it is cut off and ends with
    "length". An eos inside the text ends the completion, as with a real model.
    """
    eos = tokenizer.eos_token_id
    sampled: list[int] = [*tokenizer.encode(text, add_special_tokens=False), eos]
    sampled = sampled[: sampled.index(eos) + 1]
    token_ids = sampled[:max_tokens]
    finish_reason = "stop" if len(token_ids) == len(sampled) else "length"
    logprobs = [_logprob(position, token_id) for position, token_id in enumerate(token_ids)]
    visible = tokenizer.decode(token_ids, skip_special_tokens=True)
    return Generation(visible, token_ids, logprobs, finish_reason)


def _logprob(position: int, token_id: int) -> float:
    # A fixed hash, spread over (-4.1, 0) with most values near 0, like the log probabilities of a confident model.
    fraction = ((token_id * 2654435761 + position * 40503) % 9973) / 9973
    return -round(0.001 + 4.0 * fraction**4, 6)


# --- the dialects


def _parse_vllm(body: Body, tokenizer: Any) -> GenerationRequest:
    given = body["prompt"]
    ids = given["prompt_token_ids"] if isinstance(given, dict) else given
    return GenerationRequest(
        GivenPrompt(tokenizer.decode(ids), ids),
        body.get("n", 1),
        body.get("max_tokens", 16),
        with_logprobs=body.get("logprobs") is not None,
        temperature=body.get("temperature", 1.0),
        top_p=body.get("top_p", 1.0),
    )


def _parse_chat(body: Body, tokenizer: Any) -> GenerationRequest:
    text = tokenizer.apply_chat_template(body["messages"], tokenize=False, add_generation_prompt=True)
    limit = body.get("max_completion_tokens", body.get("max_tokens"))
    return GenerationRequest(GivenPrompt(text, tokenizer.encode(text)), body.get("n", 1), limit)


def _reply_vllm(request: GenerationRequest, generations: list[Generation]) -> Body:
    reply: dict[str, Any] = {
        "text": [g.text for g in generations],
        "prompt": request.prompt.text,
        "finish_reasons": [g.finish_reason for g in generations],
    }
    if request.with_logprobs:
        sampled = [zip(g.token_ids, g.logprobs, strict=True) for g in generations]
        reply["logprobs"] = [[[{token: logprob}] for token, logprob in pairs] for pairs in sampled]
        reply["prompt_token_ids"] = request.prompt.token_ids
        reply["token_ids"] = [g.token_ids for g in generations]
    return reply


def _reply_stock(request: GenerationRequest, generations: list[Generation]) -> Body:
    """The reply of vLLM, without `tokens` and `text_offset` beside the log probabilities."""
    prompt = request.prompt.token_ids
    choices: list[Any] = [{"text": g.text, "token_ids": g.token_ids, "prompt_token_ids": prompt} for g in generations]
    if request.with_logprobs:
        for choice, generation in zip(choices, generations, strict=True):
            choice["logprobs"] = {"token_logprobs": generation.logprobs, "top_logprobs": []}
    return _openai_reply("text_completion", choices, generations)


def _reply_chat(request: GenerationRequest, generations: list[Generation]) -> Body:
    choices = [{"message": {"role": "assistant", "content": g.text}} for g in generations]
    return _openai_reply("chat.completion", choices, generations)


def _openai_reply(kind: str, choices: list[dict[str, Any]], generations: list[Generation]) -> Body:
    for index, (choice, generation) in enumerate(zip(choices, generations, strict=True)):
        choice |= {"index": index, "finish_reason": generation.finish_reason}
    written = sum(len(g.token_ids) for g in generations)
    usage = {"prompt_tokens": 1, "completion_tokens": written, "total_tokens": written + 1}
    return {"id": "1", "created": 1, "object": kind, "model": "mock", "choices": choices, "usage": usage}


Dialect = tuple[Callable[[Body, Any], GenerationRequest], Callable[[GenerationRequest, list[Generation]], Body]]
"""The function that reads a request, and the function that writes the reply."""

GENERATE = "/generate"
DIALECTS: dict[str, Dialect] = {
    GENERATE: (_parse_vllm, _reply_vllm),
    "/v1/completions": (_parse_vllm, _reply_stock),
    "/v1/chat/completions": (_parse_chat, _reply_chat),
}
"""The dialect of each path."""
