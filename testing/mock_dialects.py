"""The mock inference server of tests and benchmarks. It extends the server of the demo with more dialects and faults.

    POST /generate              Atropos' vLLM server
    POST /v1/completions        a stock vLLM server
    POST /v1/chat/completions   OpenAI
    GET  /health

The server accepts any context length and model name.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from aiohttp import web

from testing.inference_server import (
    Generation,
    GenerationRequest,
    GivenPrompt,
    InferenceServer,
    parse_vllm,
    reply_vllm,
)

Respond = Callable[[str], str | Awaitable[str]]
"""Called once for each requested completion, with the whole text of the prompt, including chat markup."""

Body = Mapping[str, Any]

MAX_REQUESTS_KEPT = 10_000


class ServedRequest(NamedTuple):
    """A well-formed request for completions. `n` is the number of requested completions."""

    server_type: str
    n: int
    max_tokens: int | None
    authorization: str


@dataclass
class Faults:
    """How requests for completions fail. The fields may change at any moment, from any thread."""

    latency_s: float = 0.0
    """Seconds before the server looks at a request."""
    kind: Literal["", "fail", "hang", "drop", "cut"] = ""
    """`fail` replies with status 500, also to /health. While `hang` is set, requests wait. `drop` closes the connection
    without a reply, and `cut` closes it after half of the reply."""


class MockServer(InferenceServer):
    """Speaks every dialect, and records the requests.

    `respond` runs on the server's event loop, so a slow `respond` must be async. Sampling parameters have no effect.
    """

    def __init__(
        self,
        respond: Respond,
        tokenizer: Any,
        *,
        is_stock: bool = False,
        faults: Faults | None = None,
        **options: Any,
    ) -> None:
        """With `is_stock`, the server has no /generate, like a stock `vllm serve`. `spoil` may change the replies."""
        super().__init__(tokenizer, **options)
        self._is_stock = is_stock
        self._respond = respond
        self._faults = faults or Faults()
        self.spoil: Callable[[list[Generation]], list[Generation]] = lambda made: made
        self.requests: deque[ServedRequest] = deque(maxlen=MAX_REQUESTS_KEPT)

    def routes(self) -> list[web.RouteDef]:
        return [*super().routes(), *(web.post(path, self.complete) for path in DIALECTS)]

    async def health(self, request: web.Request) -> web.Response:
        return _failure() if self._faults.kind == "fail" else await super().health(request)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        faults = self._faults
        await asyncio.sleep(faults.latency_s)
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
        if self._is_stock and request.path.startswith("/generate"):
            raise web.HTTPNotFound(text='{"detail": "Not Found"}', content_type="application/json")
        body = await request.json()
        server_type, parse, reply_as = DIALECTS.get(request.path, ATROPOS_VLLM)
        asked = parse(body, self._tokenizer)
        key = request.headers.get("Authorization", "")
        self.requests.append(ServedRequest(server_type, asked.n, asked.max_tokens, key))
        reply = reply_as(asked, self.spoil(await self.generate(asked)))
        return json.dumps(reply).encode()

    async def generate(self, asked: GenerationRequest) -> list[Generation]:
        async def make() -> Generation:
            answer = self._respond(asked.prompt.text)
            text = answer if isinstance(answer, str) else await answer
            return make_generation(self._tokenizer, text, asked.max_tokens)

        return list(await asyncio.gather(*(make() for _ in range(asked.n))))


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


def _parse_stock(body: Body, tokenizer: Any) -> GenerationRequest:
    assert isinstance(body["model"], str)
    return parse_vllm({**body, "prompt": {"prompt_token_ids": body["prompt"]}}, tokenizer)


def _parse_chat(body: Body, tokenizer: Any) -> GenerationRequest:
    text = tokenizer.apply_chat_template(body["messages"], tokenize=False, add_generation_prompt=True)
    limit = body.get("max_completion_tokens", body.get("max_tokens"))
    return GenerationRequest(GivenPrompt(text, tokenizer.encode(text)), body.get("n", 1), limit)


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


Dialect = tuple[str, Callable[[Body, Any], GenerationRequest], Callable[[GenerationRequest, list[Generation]], Body]]
"""atroposlib's name for the type of server, the function that reads a request, and the function that replies."""

ATROPOS_VLLM: Dialect = ("vllm", parse_vllm, reply_vllm)
DIALECTS: dict[str, Dialect] = {
    "/v1/completions": ("vllm", _parse_stock, _reply_stock),
    "/v1/chat/completions": ("openai", _parse_chat, _reply_chat),
}
"""The dialect of each path. All other paths belong to Atropos' server."""
