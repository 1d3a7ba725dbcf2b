"""An inference server that answers as vLLM answers atroposlib's client. A subclass generates the completions.

    GET  /health
    POST /generate ── parse_vllm ──> GenerationRequest ── generate ──> Generations ── reply_vllm ──>

Replies have token ids, log probabilities, n completions, and truncation at the token limit. The demo's `Learner` serves
the tiny model this way. The mock server of the tests adds other dialects (testing/mock_dialects.py).
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web


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


class InferenceServer:
    """The server, on the event loop that awaits `start`. The port is known then, and stays the same after `close`.

    A subclass implements `generate`. When it raises, the client gets status 500 and aiohttp logs the traceback.
    """

    def __init__(self, tokenizer: Any, *, host: str = "127.0.0.1", port: int = 0) -> None:
        """With `port` 0 the system chooses a free port."""
        self._tokenizer = tokenizer
        self._host = host
        self._port = port
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self._port}"

    @property
    def base_url(self) -> str:
        """atroposlib's `base_url` for this server. Only the server type trl takes `url` instead."""
        return f"{self.url}/v1"

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/health", self.health), web.post("/generate", self.complete)]

    async def start(self) -> None:
        """Listen. Raises OSError if the port is in use."""
        if self._runner is not None:
            return
        app = web.Application(client_max_size=64 * 2**20)
        app.add_routes(self.routes())
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

    async def health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        wanted = parse_vllm(await request.json(), self._tokenizer)
        return web.json_response(reply_vllm(wanted, await self.generate(wanted)))

    async def generate(self, request: GenerationRequest) -> list[Generation]:
        """n generations."""
        raise NotImplementedError


def parse_vllm(body: Mapping[str, Any], tokenizer: Any) -> GenerationRequest:
    given = body["prompt"]
    ids = given["prompt_token_ids"] if isinstance(given, dict) else tokenizer.encode(given)
    prompt = GivenPrompt(tokenizer.decode(ids), ids)
    return GenerationRequest(
        prompt,
        body.get("n", 1),
        body.get("max_tokens", 16),
        with_logprobs=body.get("logprobs") is not None,
        temperature=body.get("temperature", 1.0),
        top_p=body.get("top_p", 1.0),
    )


def reply_vllm(request: GenerationRequest, generations: list[Generation]) -> dict[str, Any]:
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
