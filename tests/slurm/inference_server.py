"""Stands in for `vllm serve` on a node of the test's cluster: python -m tests.slurm.inference_server HOST PORT MODEL

It speaks vLLM's protocol of `/v1/completions` with token ids, and solves every other chain_sum item. MODEL is the
folder of its tokenizer. It listens on HOST alone, because all nodes of the test's cluster are one machine.
"""

from __future__ import annotations

import asyncio
import sys

from transformers import AutoTokenizer

from testing.inference_server import MockServer
from testing.support import AddingStudent


async def serve(host: str, port: int, model: str) -> None:
    """Answer until the process is ended."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    async with MockServer(AddingStudent(), tokenizer, is_stock=True, host=host, port=port):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
