"""An inference server with one canned answer: -m benchmarks.run_parts.canned_server PORT DIALECT TOKENS TOKENIZER

The answer has the shape and the size of a real one: DIALECT `stock` answers as `vllm serve` does, with the text of each
token, text offsets and the most probable token of each position; `atropos` answers as Atropos' own server does. The log
probabilities have all digits of single precision. The server makes the answer once, so it costs almost nothing.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import numpy as np
from aiohttp import web
from transformers import AutoTokenizer

THINKING = "I look at the question again and count what it asks for, one thing after the other. "
ANSWERS = ("4", "5", "six", "8")


def completion_ids(tokenizer: Any, number: int, tokens: int) -> list[int]:
    """The token ids of a completion with `tokens` tokens: thinking, one answer, and the end of the turn."""
    answer = ANSWERS[number % len(ANSWERS)]
    end = [*tokenizer.encode(f"</think>\n<answer>{answer}</answer>"), tokenizer.eos_token_id]
    thinking = tokenizer.encode("<think>" + THINKING * (tokens // 8 + 1))
    return [*thinking[: tokens - len(end)], *end]


def log_probabilities(tokens: int) -> list[float]:
    """Negative numbers, mostly near 0, like the log probabilities of a confident model."""
    exponents = np.random.default_rng(1918).uniform(-14.0, 1.5, tokens)
    return [-float(value) for value in np.exp(exponents).astype(np.float32)]


def stock_choice(tokenizer: Any, index: int, ids: list[int], prompt_ids: list[int]) -> dict[str, Any]:
    logprobs = log_probabilities(len(ids))
    pieces = [tokenizer.decode([token]) for token in ids]
    offsets = np.cumsum([0, *map(len, pieces)])[:-1].tolist()
    return {
        "index": index,
        "text": tokenizer.decode(ids, skip_special_tokens=True),
        "logprobs": {
            "text_offset": offsets,
            "token_logprobs": logprobs,
            "tokens": pieces,
            "top_logprobs": [{piece: logprob} for piece, logprob in zip(pieces, logprobs, strict=True)],
        },
        "finish_reason": "stop",
        "stop_reason": None,
        "token_ids": ids,
        "prompt_logprobs": None,
        "prompt_token_ids": prompt_ids,
    }


def stock_reply(tokenizer: Any, completions: list[list[int]], prompt_ids: list[int]) -> dict[str, Any]:
    choices = [stock_choice(tokenizer, index, ids, prompt_ids) for index, ids in enumerate(completions)]
    return {"id": "cmpl-0", "object": "text_completion", "created": 0, "model": "canned", "choices": choices}


def atropos_reply(tokenizer: Any, completions: list[list[int]], prompt_ids: list[int]) -> dict[str, Any]:
    rows = []
    for ids in completions:
        rows.append([[{token: logprob}] for token, logprob in zip(ids, log_probabilities(len(ids)), strict=True)])
    return {
        "text": [tokenizer.decode(ids, skip_special_tokens=True) for ids in completions],
        "prompt": tokenizer.decode(prompt_ids),
        "finish_reasons": ["stop"] * len(completions),
        "logprobs": rows,
        "prompt_token_ids": prompt_ids,
        "token_ids": completions,
    }


DIALECTS = {
    "stock": ("/v1/completions", stock_reply),
    "atropos": ("/generate", atropos_reply),
}


async def serve(port: int, dialect: str, tokens: int, tokenizer: Any) -> None:
    """Answer until the process ends. All answers contain the prompt of the first request."""
    path, make_reply = DIALECTS[dialect]
    answers: dict[int, bytes] = {}

    async def complete(request: web.Request) -> web.Response:
        body = await request.json()
        n = body["n"]
        if n not in answers:
            prompt = body["prompt"]
            prompt_ids = prompt["prompt_token_ids"] if isinstance(prompt, dict) else prompt
            ids = [completion_ids(tokenizer, number, tokens) for number in range(n)]
            answers[n] = json.dumps(make_reply(tokenizer, ids, prompt_ids)).encode()
        return web.Response(body=answers[n], content_type="application/json")

    async def health(_: web.Request) -> web.Response:
        return web.json_response({})

    app = web.Application(client_max_size=64 * 2**20)
    app.add_routes([web.get("/health", health), web.post(path, complete)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    _, port, dialect, tokens, folder = sys.argv
    asyncio.run(serve(int(port), dialect, int(tokens), AutoTokenizer.from_pretrained(folder)))
