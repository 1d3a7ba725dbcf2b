"""A cheap student behind the mock inference server, as a process: python -m soak_parts.student PORT LATENCY TIMES

It writes the time of each request to the file TIMES, in seconds of the monotonic clock. It solves what a regular
expression and a line of arithmetic solve, RIGHT of the time, and guesses at the rest. What it costs is in this process,
and so is what the mock server costs.
"""

from __future__ import annotations

import asyncio
import functools
import math
import random
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from reasoning_gym_environment.demo.learner import Generation, GenerationRequest
from tests.byte_tokenizer import build_byte_tokenizer
from tests.mock_dialects import Faults, MockServer, make_generation

SEED = 1918
RIGHT = 0.75
"""Above the accuracy that the curriculum aims at, so that levels rise along the run."""
GUESSES = ("0", "1", "42", "yes", "A", "[1, 2, 3]", "6*4*1*1", "x**2 + 1", "1 0\n0 1", "I cannot tell")


def _sum(found: re.Match[str]) -> str:
    return str(sum(int(term.replace(" ", "")) for term in re.findall(r"(?:^|[+-] )-?\d+", found[1])))


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


SOLVERS: dict[str, Callable[[re.Match[str]], str]] = {
    r"problem: (-?\d+(?: [+-] \d+)+) =$": _sum,
    r"multiplication: ([\d *]+)\.": lambda found: str(math.prod(_numbers(found[1]))),
    r"\(GCD\) of these numbers: ([\d, ]+)": lambda found: str(math.gcd(*_numbers(found[1]))),
    r"\(LCM\) of these numbers: ([\d, ]+)": lambda found: str(math.lcm(*_numbers(found[1]))),
    r"Spell this word backward .*: (\S+)$": lambda found: found[1][::-1],
    r"representation of the number (\d+)\?": lambda found: str(int(found[1]).bit_count()),
    r'does the letter "(.)" appear in the text: "(.*)"': lambda found: str(found[2].lower().count(found[1])),
}
"""By a pattern for the question: chain_sum, products, gcd, lcm, spell_backward, count_bits, letter_counting."""


class Student:
    """Replies to prompts; `respond` is what a MockServer calls, once for each completion."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def respond(self, prompt: str) -> str:
        question = prompt.rsplit("user\n", 1)[-1].split("<|im_end|>", 1)[0].strip()
        found = (solve(match) for pattern, solve in SOLVERS.items() if (match := re.search(pattern, question)))
        answer = next(found, None) if self._random.random() < RIGHT else None
        return f"<think>I look at it for a while.</think>\n<answer>{answer or self._random.choice(GUESSES)}</answer>"


class InstantServer(MockServer):
    """Tokenizes a reply once, however often it is given, and notes in `times` when it was asked."""

    def __init__(self, times: IO[str], *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._times = times
        self._made = functools.lru_cache(maxsize=1000)(functools.partial(make_generation, self._tokenizer))

    async def generate(self, asked: GenerationRequest) -> list[Generation]:
        self._times.write(f"{time.monotonic():.3f}\n")
        texts = [self._respond(prompt.text) for prompt in asked.prompts for _ in range(asked.n)]
        return [self._made(str(text), asked.max_tokens and min(asked.max_tokens, 1000)) for text in texts]


async def serve(port: int, latency_s: float, times: Path) -> None:
    """Answer each request after `latency_s`, until the process is ended."""
    faults = Faults(latency_s=latency_s)
    with times.open("w", buffering=1) as file:
        async with InstantServer(file, Student(SEED).respond, build_byte_tokenizer(), port=port, faults=faults):
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3])))
