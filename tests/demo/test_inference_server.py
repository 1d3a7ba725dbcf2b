"""The mock servers answer atroposlib's own clients, refuse what the real ones refuse, and fail as they are told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from atroposlib.envs.server_handling.server_baseline import APIServerConfig
from atroposlib.envs.server_handling.server_manager import ServerManager

from reasoning_gym_environment.demo.learner import InferenceServer

from ..byte_tokenizer import build_byte_tokenizer
from ..mock_dialects import Faults, MockServer, Respond, ServedRequest, ThreadedMockServer
from ..process_table import eventually, until

TOKENIZER = build_byte_tokenizer()
EOS = TOKENIZER.eos_token_id
MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "2+2?"}]
PROMPT = TOKENIZER.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
CHAT = {"model": "any", "messages": MESSAGES}
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
async def manager(request: Any, server: MockServer, tokenizer_dir: Path) -> AsyncIterator[ServerManager]:
    """atroposlib's own client. Only vLLM's health check asks /health; the others' ask for completions."""
    server_type = request.param
    config = APIServerConfig(
        base_url=server.url if server_type == "trl" else server.base_url,
        server_type=server_type,
        model_name=str(tokenizer_dir),
        api_key="x",
        timeout=60,
        health_check=server_type == "vllm",
    )
    running = ServerManager([config])
    yield running
    (client,) = running.servers
    if client.check_task is not None:
        client.check_task.cancel()
    if server_type != "trl":
        await client.openai.close()


async def post(server: InferenceServer, path: str, body: Any) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.post(f"{server.url}{path}", json=body) as reply:
        return reply.status, await reply.json()


async def get(server: InferenceServer, path: str) -> int:
    async with aiohttp.ClientSession() as session, session.get(f"{server.url}{path}") as reply:
        return reply.status


# --- what they answer


@pytest.mark.parametrize("manager", ["vllm", "sglang"], indirect=True)
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
    server_type = manager.servers[0].config.server_type
    assert list(server.requests) == [ServedRequest(server_type, 4, 99)]


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


async def test_async_respond_runs_for_all_completions_at_once() -> None:
    started: list[str] = []
    all_started = asyncio.Event()

    async def respond(prompt: str) -> str:
        started.append(prompt)
        if len(started) == 3:
            all_started.set()
        await asyncio.wait_for(all_started.wait(), 60)
        return prompt

    async with Plain(respond, TOKENIZER) as server:
        status, reply = await post(server, "/generate", {**VLLM, "n": 3})
    assert (status, reply["text"]) == (200, ["hi"] * 3)


async def test_completion_ends_at_eos_or_limit() -> None:
    texts = ["abc", "abc", "", "ab<|im_end|>cd", "\u00e9"]
    limits = [4, 3, 1, 99, 1]
    expected = [("abc", "stop"), ("abc", "length"), ("", "stop"), ("ab", "stop"), ("\ufffd", "length")]
    waiting = iter(texts)
    async with MockServer(lambda prompt: next(waiting), TOKENIZER) as server:
        replies = [
            (await post(server, "/v1/chat/completions", {**CHAT, "max_completion_tokens": limit}))[1]["choices"][0]
            for limit in limits
        ]
    assert [(choice["message"]["content"], choice["finish_reason"]) for choice in replies] == expected


# --- what they refuse


async def test_malformed_request_gets_400_with_one_line(server: MockServer) -> None:
    for path, body, reason in (
        ("/generate", VLLM | {"max_completion_tokens": 5}, "'max_completion_tokens' does not exist"),
        ("/generate", VLLM | {"stop": ["x"]}, "'stop' does not exist or is not simulated"),
        ("/generate", VLLM | {"n": True}, "n must be an integer of at least 1, got True"),
        ("/generate", VLLM | {"max_tokens": 0}, "max_tokens must be an integer of at least 1, got 0"),
        ("/generate", VLLM | {"temperature": 0, "n": 2}, "n must be 1 when sampling greedily"),
        ("/generate", {"prompt": [259]}, "prompt must hold token ids from 0 to 258 only"),
        ("/generate", [], "the body must be a JSON object"),
        ("/generate", {"input_ids": [1], "sampling_params": {"max_tokens": 5}}, "'max_tokens' does not"),
        ("/generate/", {"prompts": "a"}, "prompts must be a non-empty list of texts"),
        ("/v1/completions", {"model": "m"}, "prompt must be non-empty text or token ids"),
        ("/v1/chat/completions", {"messages": [{"role": "user"}]}, "messages must be a list of objects"),
    ):
        status, reply = await post(server, path, body)
        assert status == 400
        assert reason in reply["error"]["message"] and "\n" not in reply["error"]["message"]
    async with aiohttp.ClientSession() as session:
        for raw in (b"", b"{", b"\xff", b"[" * 100_000):
            async with session.post(f"{server.url}/generate", data=raw) as answer:
                assert answer.status == 400 and "the body is not JSON" in await answer.text()
    assert list(server.requests) == []


async def test_respond_that_raises_gives_500_and_a_tokenizer_without_eos_no_server() -> None:
    def respond(prompt: str) -> str:
        return str(1 // len(prompt.removeprefix("boom")))

    async with Plain(respond, TOKENIZER) as server, aiohttp.ClientSession() as session:
        for prompt, expected in (("boom", 500), ("fine", 200)):
            async with session.post(f"{server.url}/generate", json={"prompt": prompt}) as reply:
                assert reply.status == expected
    tokenizer = build_byte_tokenizer()
    tokenizer.eos_token = None
    with pytest.raises(ValueError, match="no eos token"):
        InferenceServer(tokenizer)


# --- how they fail


async def test_requests_fail_as_many_as_are_told_to_or_all_of_them_with_the_health(server: MockServer) -> None:
    server.faults.fail_next = 2
    assert [(await post(server, "/generate", VLLM))[0] for _ in range(3)] == [500, 500, 200]
    for failing, expected in ((True, 500), (False, 200)):
        server.faults.failing = failing
        for path in ("/health", "/health/", "/v1/models"):
            assert await get(server, path) == expected
        assert [(await post(server, "/generate", VLLM))[0] for _ in range(2)] == [expected] * 2


async def test_a_reply_is_dropped_or_cut_in_half(server: MockServer, respond: Numbered) -> None:
    server.faults.drop_next = 1
    with pytest.raises(aiohttp.ServerDisconnectedError):
        await post(server, "/v1/chat/completions", CHAT)
    assert respond.prompts == []
    server.faults.cut_next = 1
    async with aiohttp.ClientSession() as session, session.post(f"{server.url}/generate", json=VLLM) as reply:
        assert reply.status == 200
        received = await reply.content.readexactly(int(reply.headers["Content-Length"]) // 2)
        with pytest.raises(aiohttp.ClientPayloadError):
            await reply.read()
    assert received.startswith(b'{"text": [')
    assert (await post(server, "/generate", VLLM))[0] == 200


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


def test_threaded_server_serves_callers_without_an_event_loop_on_a_port_of_its_own() -> None:
    with ThreadedMockServer(str.upper, TOKENIZER, faults=Faults(fail_next=1)) as threaded:
        assert asyncio.run(post(threaded, "/generate", VLLM))[0] == 500
        assert threaded.faults.fail_next == 0
        assert asyncio.run(post(threaded, "/generate", VLLM))[1]["text"] == ["HI"]
        assert asyncio.run(post(threaded, "/v1/completions", {"prompt": "a"}))[1]["choices"][0]["text"] == "A"
        assert [request.server_type for request in threaded.requests] == ["vllm", "vllm", "openai"]
        port = int(threaded.url.rsplit(":", 1)[1])
        with pytest.raises(OSError, match="in use"), ThreadedMockServer(str, TOKENIZER, port=port):
            pytest.fail("two servers on one port")


def test_threaded_server_leaves_no_thread_even_when_requests_hang() -> None:
    before = set(threading.enumerate())
    with ThreadPoolExecutor(1) as pool:
        with ThreadedMockServer(str, TOKENIZER, faults=Faults(hang=True)) as running:
            asked = pool.submit(asyncio.run, post(running, "/generate", VLLM))
            eventually(lambda: len(running.requests) == 1)
        assert isinstance(asked.exception(60), aiohttp.ClientError)
    # Others may come and go meanwhile: a progress bar's, a server's of the test before.
    assert not {thread for thread in threading.enumerate() if thread.name == "mock-server"} - before
