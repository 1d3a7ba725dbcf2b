"""An HTTP inference server in vLLM's dialect, around whatever makes the completions.

    GET  /health
    POST /generate ── parse_vllm ──> GenerationRequest ── generate ──> Generations ── reply_vllm ──>

It answers as vLLM answers atroposlib's client: token ids, log probabilities, n completions, truncation at the token
limit. `learner` has the one with the tiny model; the tests have one that speaks for other servers too, refuses what
they refuse, and fails when it is told to (tests/mock_dialects.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

MAX_BODY_BYTES = 64 * 2**20
CLOSE_S = 0.05
"""How long `close` waits for requests in flight before it drops them (aiohttp reads 0 as "for ever")."""


@dataclass(frozen=True)
class GivenPrompt:
    """A prompt as text, chat markup included, and as token ids."""

    text: str
    token_ids: list[int]


@dataclass(frozen=True)
class GenerationRequest:
    """`n` completions are wanted for each prompt; `max_tokens` None means that nothing limits them."""

    prompts: tuple[GivenPrompt, ...]
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
    """The server, on the event loop that awaits `start`. The port is known then; after `close` it stays the same.

    A subclass has `generate`. When it raises, the client gets status 500 and the traceback is logged.
    """

    def __init__(self, tokenizer: Any, *, host: str = "127.0.0.1", port: int = 0) -> None:
        """`port` 0 takes a free one. Raises ValueError for a tokenizer without an eos token."""
        if tokenizer.eos_token_id is None:
            raise ValueError("the tokenizer has no eos token; a completion could not end by itself")
        self._tokenizer = tokenizer
        self._host = host
        self._port = port
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self._port}"

    @property
    def base_url(self) -> str:
        """atroposlib's `base_url` for this server. Server type trl alone wants `url` there."""
        return f"{self.url}/v1"

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/health", self.health), web.post("/generate", self.complete)]

    async def start(self) -> None:
        """Listen. Raises OSError when the port is taken."""
        if self._runner is not None:
            return
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.add_routes(self.routes())
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

    async def __aenter__(self) -> InferenceServer:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        asked = parse_vllm(await request.json(), self._tokenizer)
        return web.json_response(reply_vllm(asked, await self.generate(asked)))

    async def generate(self, asked: GenerationRequest) -> list[Generation]:
        """n generations for each prompt, in the order of the prompts."""
        raise NotImplementedError


def parse_vllm(body: Mapping[str, Any], tokenizer: Any) -> GenerationRequest:
    given = body["prompt"]
    ids = given["prompt_token_ids"] if isinstance(given, dict) else tokenizer.encode(given)
    prompt = GivenPrompt(tokenizer.decode(ids), ids)
    return GenerationRequest(
        (prompt,),
        body.get("n", 1),
        body.get("max_tokens", 16),
        with_logprobs=body.get("logprobs") is not None,
        temperature=body.get("temperature", 1.0),
        top_p=body.get("top_p", 1.0),
    )


def reply_vllm(request: GenerationRequest, generations: list[Generation]) -> dict[str, Any]:
    (prompt,) = request.prompts
    reply: dict[str, Any] = {
        "text": [g.text for g in generations],
        "prompt": prompt.text,
        "finish_reasons": [g.finish_reason for g in generations],
    }
    if request.with_logprobs:
        sampled = [zip(g.token_ids, g.logprobs, strict=True) for g in generations]
        reply["logprobs"] = [[[{token: logprob}] for token, logprob in pairs] for pairs in sampled]
        reply["prompt_token_ids"] = prompt.token_ids
        reply["token_ids"] = [g.token_ids for g in generations]
    return reply
