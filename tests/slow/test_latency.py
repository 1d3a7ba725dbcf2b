"""`serve` behind a slow network: the real run-api, and a proxy that delays each of its answers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from testing.delaying_proxy import DelayingProxy
from testing.mock_dialects import ThreadedMockServer
from testing.support import flags, next_batch, register_trainer, running, trajectory_api

pytestmark = pytest.mark.slow

GROUP_SIZE = 4
GROUPS_PER_BATCH = 2
BATCHES = 12
"""Batches to receive under each delay: more than the queue and the groups in flight hold from the delay before."""


def receive(api: str) -> list[str]:
    """What identifies each group of the next batches: all of its tokens."""
    groups: list[dict[str, Any]] = []
    for _ in range(BATCHES):
        groups += next_batch(api)
    return [json.dumps(group["tokens"]) for group in groups]


async def test_serve_sends_groups_whatever_the_latency_of_run_api(
    tmp_path: Path, tokenizer_dir: Path, adding_server: ThreadedMockServer
) -> None:
    with trajectory_api(tmp_path) as api:
        register_trainer(api, batch_size=GROUP_SIZE * GROUPS_PER_BATCH, max_token_len=2048)
        async with DelayingProxy(int(api.rpartition(":")[2]), delay_s=0.2) as proxy:
            settings = {
                "env__rollout_server_url": proxy.url,
                "env__group_size": GROUP_SIZE,
                "env__max_num_workers_per_node": 8,
                "env__num_eval_samples_per_task": 0,
                "env__total_steps": 10_000,
                "env__data_dumps_dir": "dumps",
            }
            arguments = ["-m", "reasoning_gym_environment", "serve"]
            arguments += flags(tokenizer_dir, adding_server.base_url, **settings)
            received: list[str] = []
            with running(arguments, tmp_path / "serve.log", tmp_path):
                for delay_s in (0.2, 1.0, 0.0):
                    proxy.delay_s = delay_s
                    groups = await asyncio.to_thread(receive, api)
                    assert len(groups) == BATCHES * GROUPS_PER_BATCH
                    received += groups
    assert len(set(received)) == len(received), "a group was sent twice"
