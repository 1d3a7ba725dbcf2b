"""Over HTTP: groups and evaluations with a stock vLLM server and with a chat server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from atroposlib.envs.base import APIServerConfig

from reasoning_gym_environment import ReasoningGymEnv, ReasoningGymEnvConfig

from ..mock_dialects import ThreadedMockServer
from ..support import AddingStudent


@pytest.mark.parametrize("server_type", ["vllm", "openai"])
async def test_groups_have_token_ids_and_logprobs_and_evaluation_is_scored(
    server_type: str, tokenizer_dir: Path, byte_tokenizer: Any, in_process_workers: None
) -> None:
    sizes = {"num_eval_samples_per_task": 1, "group_size": 4, "max_token_length": 2048}
    named = {"tokenizer_name": str(tokenizer_dir), "include_tasks": ["chain_sum"], "use_wandb": False}
    config = ReasoningGymEnvConfig(**named, **sizes)
    with ThreadedMockServer(AddingStudent(), byte_tokenizer, is_stock=True) as server:
        options = {"server_type": server_type, "base_url": server.base_url, "model_name": "mock"}
        env = ReasoningGymEnv(config, [APIServerConfig(api_key="x", health_check=False, **options)])
        await env.setup()
        try:
            assert (await env.evaluate())["eval/percent_correct"] == 1.0
            group, _ = await env.collect_trajectories(await env.get_next_item())
        finally:
            await env.close()
        assert [(r.server_type, r.n) for r in server.requests] == [(server_type, 1), (server_type, 4)]
    assert group is not None and sorted(group["scores"]) == [0.0, 0.0, 1.0, 1.0]
    assert ("inference_logprobs" in group) == (server_type == "vllm")
    all_logprobs = group.get("inference_logprobs", [None] * 4)
    for tokens, mask, logprobs in zip(group["tokens"], group["masks"], all_logprobs, strict=True):
        assert len(tokens) == len(mask)
        completion = [token for token, value in zip(tokens, mask, strict=True) if value != -100]
        assert byte_tokenizer.decode(completion).endswith("</answer><|im_end|>")
        assert logprobs is None or [one < 0 for one in logprobs] == [value != -100 for value in mask]
