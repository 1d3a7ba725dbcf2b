"""Training works with every kind of token server; the others are kept out of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from atroposlib.envs.base import APIServerConfig

from reasoning_gym_environment import ReasoningGymEnv, ReasoningGymEnvConfig

from ..mock_dialects import ThreadedMockServer
from ..support import AddingStudent


@pytest.fixture
def server(byte_tokenizer: Any) -> Iterator[ThreadedMockServer]:
    with ThreadedMockServer(AddingStudent(), byte_tokenizer) as server:
        yield server


def environment(server_type: str, base_url: str, tokenizer_dir: Path) -> ReasoningGymEnv:
    config = ReasoningGymEnvConfig(
        tokenizer_name=str(tokenizer_dir),
        include_tasks=["chain_sum"],
        num_eval_samples_per_task=1,
        group_size=4,
        use_wandb=False,
        max_token_length=2048,
    )
    options = {"server_type": server_type, "base_url": base_url, "model_name": "mock", "health_check": False}
    return ReasoningGymEnv(config, [APIServerConfig(api_key="x", **options)])


@pytest.mark.parametrize("server_type", ["vllm", "sglang", "trl"])
async def test_a_group_from_a_token_server_has_its_token_ids_and_logprobs(
    server_type: str, server: ThreadedMockServer, tokenizer_dir: Path, byte_tokenizer: Any
) -> None:
    env = environment(server_type, server.base_url, tokenizer_dir)
    await env.setup()
    group, backlog = await env.collect_trajectories(await env.get_next_item())
    await env.close()
    assert group is not None and backlog == []
    assert sorted(group["scores"]) == [0.0, 0.0, 1.0, 1.0]
    for tokens, mask, logprobs in zip(group["tokens"], group["masks"], group["inference_logprobs"], strict=True):
        assert len(tokens) == len(mask) == len(logprobs)
        completion = [token for token, value in zip(tokens, mask, strict=True) if value != -100]
        assert byte_tokenizer.decode(completion).endswith("</answer><|im_end|>")
        assert all(value < 0 for value, m in zip(logprobs, mask, strict=True) if m != -100)
    assert {(r.server_type, r.n) for r in server.requests} == {(server_type, 4)}


@pytest.mark.parametrize("server_type", ["vllm", "sglang", "trl", "openai"])
async def test_evaluation_works_with_every_server(
    server_type: str, server: ThreadedMockServer, tokenizer_dir: Path
) -> None:
    env = environment(server_type, server.base_url, tokenizer_dir)
    await env.setup()
    metrics = await env.evaluate()
    await env.close()
    assert metrics["eval/percent_correct"] == 1.0
    [request] = server.requests
    assert request.n == 1
