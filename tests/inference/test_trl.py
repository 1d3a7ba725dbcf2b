"""TRL's vLLM server as a source of token ids, in its older and newer replies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from atroposlib.envs.base import APIServerConfig

from reasoning_gym_environment.inference.dialects import TrlTokenServer

from ..mock_dialects import MockServer


@pytest.fixture
def make_client(tokenizer_dir: Path) -> Callable[..., TrlTokenServer]:
    def make(url: str = "http://127.0.0.1:9", reply: dict[str, Any] | None = None) -> TrlTokenServer:
        client = TrlTokenServer(
            APIServerConfig(server_type="trl", base_url=url, model_name=str(tokenizer_dir), api_key="x")
        )
        if reply is not None:
            client.requests = []  # type: ignore[attr-defined]

            async def post(url: str, request: dict[str, Any]) -> dict[str, Any]:
                client.requests.append((url, request))  # type: ignore[attr-defined]
                return reply

            client._post = post  # type: ignore[method-assign]
        return client

    return make


ASK = {"prompt": "hi", "input_ids": [1, 2], "n": 2, "max_tokens": 5, "temperature": 0.5, "top_p": 0.9}


async def test_request_is_one_prompt_at_the_generate_address(make_client: Any) -> None:
    client = make_client("http://h:1/", {"completion_ids": [[7]]})
    await client._tokens_and_logprobs_completion_wrapper(**ASK)
    request = {"prompts": ["hi"], "n": 2, "temperature": 0.5, "top_p": 0.9, "max_tokens": 5}
    assert client.requests == [("http://h:1/generate/", request)]


async def test_older_reply_has_our_prompt_ids_and_no_logprobs_said_once(
    make_client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    client = make_client(reply={"completion_ids": [[7, 8], [9]]})
    assert client.reports_logprobs
    for _ in range(2):
        prompt, ids, logprobs, _ = await client._tokens_and_logprobs_completion_wrapper(**ASK)
    assert (prompt, ids, logprobs) == ([1, 2], [[7, 8], [9]], [[], []])
    assert not client.reports_logprobs
    assert len(caplog.messages) == 1
    assert "no logprobs" in caplog.text
    assert make_client().reports_logprobs, "one server says nothing about another"


@pytest.mark.parametrize("logprobs", [[[-0.1, -0.2], [-0.3]], [[[-0.1], [-0.2]], [[-0.3, -9.0]]]])
async def test_newer_reply_has_prompt_ids_and_logprobs_flat_or_of_the_top_k(make_client: Any, logprobs: Any) -> None:
    client = make_client(reply={"prompt_ids": [[4, 5]], "completion_ids": [[7, 8], [9]], "logprobs": logprobs})
    prompt, ids, flat, _ = await client._tokens_and_logprobs_completion_wrapper(**ASK)
    assert (prompt, ids, flat) == ([4, 5], [[7, 8], [9]], [[-0.1, -0.2], [-0.3]])
    assert client.reports_logprobs


async def test_a_completion_that_ends_with_eos_stopped_and_any_other_was_cut(make_client: Any) -> None:
    client = make_client(reply={"completion_ids": []})
    eos = client.tokenizer.eos_token_id
    client = make_client(reply={"completion_ids": [[7, eos], [eos, 7], [7], []]})
    *_, reasons = await client._tokens_and_logprobs_completion_wrapper(**ASK)
    assert reasons == ["stop", "length", "length", "length"]


async def test_a_beginning_of_sequence_token_is_left_to_the_server(make_client: Any) -> None:
    client = make_client(reply={"completion_ids": [[7]]})
    client.tokenizer.bos_token = "<|im_start|>"
    await client._tokens_and_logprobs_completion_wrapper(**{**ASK, "prompt": "<|im_start|>user <|im_start|>"})
    assert client.requests[0][1]["prompts"] == ["user <|im_start|>"]


async def test_over_http_completions_carry_tokens_whatever_the_end_of_the_address(
    make_client: Any, byte_tokenizer: Any
) -> None:
    async with MockServer(lambda prompt: "four", byte_tokenizer) as server:
        for end in ("", "/", "/v1", "/v1/"):
            client = make_client(server.url + end)
            prompt, ids, _, reasons = await client._tokens_and_logprobs_completion_wrapper(**ASK)
            assert byte_tokenizer.decode(ids[0], skip_special_tokens=True) == "four"
            assert prompt and (len(ids), reasons) == (2, ["stop", "stop"])
        server.faults.fail_next = 1
        with pytest.raises(aiohttp.ClientResponseError):
            await client._tokens_and_logprobs_completion_wrapper(**ASK)
