"""An inference server that answers late and cheaply: python -m run_parts.slow_server PORT LATENCY TOKENS FILE

The server answers each request after LATENCY seconds, plus or minus a quarter, with completions of TOKENS tokens. It
makes the replies once, so that thousands of requests may wait at the same time. It answers the first request
immediately, because `serve` uses this request to test the server. FILE gets a line for each request: its time on the
monotonic clock, and the seconds until its answer.
"""

from __future__ import annotations

import asyncio
import functools
import json
import random
import sys
import time
from pathlib import Path
from typing import IO, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from aiohttp import web

from run_parts.instant_server import GUESSES
from testing.byte_tokenizer import build_byte_tokenizer
from testing.inference_server import GenerationRequest, GivenPrompt, reply_vllm
from testing.mock_dialects import MockServer, make_generation

REPLIES = 32
"""Different replies for each number of completions."""

SPREAD = 0.25
"""Share of the latency by which it varies, so that requests that came together are not answered together."""


class SlowServer(MockServer):
    def __init__(self, log: IO[str], latency_s: float, tokens: int, **options: Any) -> None:
        super().__init__(str, build_byte_tokenizer(), **options)
        self._log = log
        self._latency_s = latency_s
        self._tokens = tokens
        self._is_first = True
        self._random = random.Random(1918)
        self._reply = functools.cache(self._made)

    async def complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        latency_s = 0.0 if self._is_first else self._latency_s * self._random.uniform(1 - SPREAD, 1 + SPREAD)
        self._is_first = False
        self._log.write(f"{time.monotonic():.3f} {latency_s:.3f}\n")
        await asyncio.sleep(latency_s)
        reply = self._reply(body["n"], self._random.randrange(REPLIES))
        return web.Response(body=reply, content_type="application/json")

    def _made(self, n: int, number: int) -> bytes:
        """The body of a reply with `n` completions; `number` tells several apart."""
        guesses = random.Random(number).choices(GUESSES, k=n)
        generations = [make_generation(self._tokenizer, self._text(guess), None) for guess in guesses]
        asked = GenerationRequest(GivenPrompt("", []), n, None, with_logprobs=True)
        return json.dumps(reply_vllm(asked, generations)).encode()

    def _text(self, guess: str) -> str:
        answer = f"</think>\n<answer>{guess}</answer>"
        # A token is a byte.
        thought = "I look at it for a while. " * (1 + self._tokens // 26)
        return f"<think>{thought[: max(1, self._tokens - len(answer) - 8)]}{answer}"


async def serve(port: int, latency_s: float, tokens: int, path: Path) -> None:
    """Answer requests until the process is ended."""
    with path.open("w", buffering=1) as log:
        async with SlowServer(log, latency_s, tokens, port=port):
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])))
