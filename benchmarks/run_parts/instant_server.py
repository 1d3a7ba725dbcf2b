"""The mock inference server with guesses for answers: python -m benchmarks.run_parts.instant_server PORT FILE

It writes the time of each request to FILE, in seconds of the monotonic clock. Its memory and its work are in
this process, and so are no part of what is measured.
"""

from __future__ import annotations

import asyncio
import functools
import random
import sys
import time
from pathlib import Path
from typing import IO, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from testing.byte_tokenizer import build_byte_tokenizer
from testing.inference_server import Generation, GenerationRequest, MockServer, make_generation

GUESSES = ("0", "1", "42", "True", "yes", "A", "[1, 2, 3]", "6*4*1*1", "x**2 + 1", "1 0\n0 1", "I cannot tell")
_random = random.Random(1918)


def respond(prompt: str) -> str:
    return f"<think>I look at it for a while.</think>\n<answer>{_random.choice(GUESSES)}</answer>"


class InstantServer(MockServer):
    """Tokenizes each different reply only once, and writes the time of each request to `times`."""

    def __init__(self, times: IO[str], *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._times = times
        self._made = functools.lru_cache(maxsize=1000)(functools.partial(make_generation, self._tokenizer))

    async def generate(self, asked: GenerationRequest) -> list[Generation]:
        self._times.write(f"{time.monotonic():.3f}\n")
        texts = [self._respond(asked.prompt.text) for _ in range(asked.n)]
        return [self._made(str(text), asked.max_tokens and min(asked.max_tokens, 1000)) for text in texts]


async def serve(port: int, times: Path) -> None:
    """Answer each request immediately, until the process is ended."""
    with times.open("w", buffering=1) as file:
        async with InstantServer(file, respond, build_byte_tokenizer(), port=port):
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), Path(sys.argv[2])))
