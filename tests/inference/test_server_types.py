"""Over HTTP: a group and an evaluation with a stock vLLM server. tests/test_cli.py has chat servers."""

from __future__ import annotations

from typing import Any

from testing.env_support import ReadyEnv
from testing.mock_dialects import ThreadedMockServer
from testing.support import AddingStudent


async def test_groups_have_token_ids_and_logprobs_and_evaluation_is_scored(
    ready_env: ReadyEnv, byte_tokenizer: Any
) -> None:
    with ThreadedMockServer(AddingStudent(), byte_tokenizer, is_stock=True) as server:
        env = await ready_env(server.base_url, include_tasks="chain_sum", num_eval_samples_per_task=1)
        assert (await env.evaluate())["eval/percent_correct"] == 1.0
        group, _ = await env.collect_trajectories(await env.get_next_item())
        assert [(request.server_type, request.n) for request in server.requests] == [("vllm", 1), ("vllm", 4)]
    assert group is not None and sorted(group["scores"]) == [0.0, 0.0, 1.0, 1.0]
    for mask, logprobs in zip(group["masks"], group["inference_logprobs"] or (), strict=True):
        completion = [value for value in mask if value != -100]
        assert byte_tokenizer.decode(completion).endswith("</answer><|im_end|>")
        assert [logprob < 0 for logprob in logprobs] == [value != -100 for value in mask]
