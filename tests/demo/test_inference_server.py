"""The mock servers answer atroposlib's own clients, refuse what the real ones refuse, and fail as they are told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from atroposlib.envs.server_handling.server_baseline import APIServerConfig
from atroposlib.envs.server_handling.server_manager import ServerManager

from reasoning_gym_environment.demo.learner import InferenceServer

from ..byte_tokenizer import build_byte_tokenizer
from ..mock_dialects import MockServer, Respond, ServedRequest
from ..process_table import until

TOKENIZER = build_byte_tokenizer()
EOS = TOKENIZER.eos_token_id
MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "2+2?"}]
PROMPT = TOKENIZER.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
VLLM: dict[str, Any] = {"prompt": {"prompt_token_ids": [104, 105]}, "logprobs": 0}


class Numbered:
    """Answers with the number of the call, and keeps the prompts and the answers."""

    def __init__(self) -> None:
        self.prompts: list[str] = []
        self.texts: list[str] = []

    def __call__(self, prompt: str) -> str:
        self.prompts.append(prompt)
        self.texts.append(f"<think>h\u00e9</think> <answer>{len(self.prompts)}</answer>")
        return self.texts[-1]


class Plain(InferenceServer):
    """The demo's server, with the mock's completions."""

    def __init__(self, respond: Respond, tokenizer: Any) -> None:
        super().__init__(tokenizer)
        self._respond = respond

    generate, _generate = MockServer.generate, MockServer._generate


@pytest.fixture
def respond() -> Numbered:
    return Numbered()


@pytest.fixture
async def server(respond: Numbered) -> AsyncIterator[MockServer]:
    async with MockServer(respond, TOKENIZER) as running:
        yield running


@pytest.fixture
async def manager(server: MockServer, tokenizer_dir: Path) -> AsyncIterator[ServerManager]:
    """atroposlib's own client."""
    config = APIServerConfig(
        base_url=server.base_url,
        server_type="vllm",
        model_name=str(tokenizer_dir),
        api_key="x",
        timeout=60,
    )
    running = ServerManager([config])
    yield running
    (client,) = running.servers
    if client.check_task is not None:
        client.check_task.cancel()
    await client.openai.close()


async def post(server: InferenceServer, path: str, body: Any) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.post(f"{server.url}{path}", json=body) as reply:
        return reply.status, await reply.json()


async def get(server: InferenceServer, path: str) -> int:
    async with aiohttp.ClientSession() as session, session.get(f"{server.url}{path}") as reply:
        return reply.status


# --- what they answer


async def test_managed_server_gets_one_aligned_node_per_completion(
    manager: ServerManager, server: MockServer, respond: Numbered
) -> None:
    async with manager.managed_server() as managed:
        reply = await managed.chat_completion(messages=MESSAGES, n=4, max_tokens=99, temperature=1.0)
        nodes = managed.get_state()["nodes"]
    assert respond.prompts == [PROMPT] * 4
    assert [choice.message.content for choice in reply.choices] == respond.texts
    prompt_ids = TOKENIZER.encode(PROMPT)
    for node, text in zip(nodes, respond.texts, strict=True):
        completion = [*text.encode(), EOS]
        assert node.tokens == prompt_ids + completion
        assert node.masked_tokens == [-100] * len(prompt_ids) + completion
        assert node.logprobs[: len(prompt_ids)] == [1.0] * len(prompt_ids)
        assert len(node.logprobs) == len(node.tokens)
        assert all(-5.0 < logprob < 0.0 for logprob in node.logprobs[len(prompt_ids) :])
    assert list(server.requests) == [ServedRequest("vllm", 4, 99)]


async def test_vllm_reply_has_the_fields_of_the_real_one_also_in_the_demo(respond: Numbered) -> None:
    for kind in (Plain, MockServer):
        async with kind(respond, TOKENIZER) as server:
            assert await get(server, "/health") == 200
            _, reply = await post(server, "/generate", {**VLLM, "n": 2, "max_tokens": 3})
            _, bare = await post(server, "/generate", {"prompt": "hi"})
            await post(server, "/generate", {"prompt": {"prompt_token_ids": [97] * 500_000}})
        logprobs = reply.pop("logprobs")
        assert reply == {
            "prompt": "hi",
            "prompt_token_ids": [104, 105],
            "text": ["<th", "<th"],
            "token_ids": [list(b"<th")] * 2,
            "finish_reasons": ["length", "length"],
        }
        assert [[list(entry) for [entry] in row] for row in logprobs] == [[["60"], ["116"], ["104"]]] * 2
        assert logprobs[0] == logprobs[1]
        # 16 tokens by default, two of them for one letter; no ids where no logprobs are asked for.
        assert bare == {"prompt": "hi", "text": [respond.texts[-2][:15]], "finish_reasons": ["length"]}
        assert respond.prompts[-1] == "a" * 500_000


# --- what they refuse


# --- how they fail


async def test_close_drops_hanging_requests_and_start_takes_the_same_port(server: MockServer) -> None:
    server.faults.hang = True
    url = server.url
    waiting = asyncio.create_task(post(server, "/generate", VLLM))
    await until(lambda: len(server.requests) == 1)
    await server.close()
    await server.close()
    with pytest.raises(aiohttp.ClientError):
        await asyncio.wait_for(waiting, 60)
    with pytest.raises(aiohttp.ClientConnectorError):
        await get(server, "/health")
    server.faults.hang = False
    await server.start()
    assert server.url == url
    assert (await post(server, "/generate", VLLM))[0] == 200


# --- in a thread
