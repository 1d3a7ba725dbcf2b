"""Over HTTP: training works with both kinds of vLLM server, evaluation with a chat server too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from atroposlib.envs.base import APIServerConfig

from reasoning_gym_environment import ReasoningGymEnv, ReasoningGymEnvConfig

from ..mock_dialects import ThreadedMockServer
from ..support import AddingStudent


@pytest.mark.parametrize(
    ("server_type", "is_stock"),
    [("vllm", False), ("vllm", True), ("openai", False)],
)
async def test_groups_have_token_ids_and_logprobs_and_evaluation_is_scored(
    server_type: str,
    is_stock: bool,
    tokenizer_dir: Path,
    byte_tokenizer: Any,
    in_process_grading: None,
    in_process_generation: None,
) -> None:
    config = ReasoningGymEnvConfig(
        tokenizer_name=str(tokenizer_dir),
        include_tasks=["chain_sum"],
        num_eval_samples_per_task=1,
        group_size=4,
        use_wandb=False,
        max_token_length=2048,
    )
    with ThreadedMockServer(AddingStudent(), byte_tokenizer, is_stock=is_stock) as server:
        options = {"server_type": server_type, "base_url": server.base_url, "model_name": "mock"}
        env = ReasoningGymEnv(config, [APIServerConfig(api_key="x", health_check=False, **options)])
        await env.setup()
        try:
            assert (await env.evaluate())["eval/percent_correct"] == 1.0
            group, backlog = await env.collect_trajectories(await env.get_next_item())
        finally:
            await env.close()
        assert [(r.server_type, r.n) for r in server.requests] == [(server_type, 1), (server_type, 4)]
    assert group is not None and backlog == []
    assert sorted(group["scores"]) == [0.0, 0.0, 1.0, 1.0]
    for tokens, mask in zip(group["tokens"], group["masks"], strict=True):
        assert len(tokens) == len(mask)
        completion = [token for token, value in zip(tokens, mask, strict=True) if value != -100]
        assert byte_tokenizer.decode(completion).endswith("</answer><|im_end|>")
    if server_type == "openai":
        assert "inference_logprobs" not in group
    else:
        for mask, logprobs in zip(group["masks"], group["inference_logprobs"], strict=True):
            assert len(logprobs) == len(mask)
            assert all(value < 0 for value, m in zip(logprobs, mask, strict=True) if m != -100)
