"""Requests to each type of server, its replies, and the meaning of its errors."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from atroposlib.envs.server_handling.server_baseline import AsyncSemWithAdaptiveWeight
from atroposlib.envs.server_handling.vllm_server import VLLMServer

from reasoning_gym_environment.errors import (
    EnvironmentSetupError,
    InferenceError,
    RequestRefusedError,
    UnreadableReplyError,
)
from reasoning_gym_environment.inference.chat_tokenizer import Prompt
from reasoning_gym_environment.inference.prompts import RequestParameters
from reasoning_gym_environment.inference.server_types import (
    ADAPTERS,
    ChatAdapter,
    SglangAdapter,
    VllmAdapter,
    adapters_of,
)
from reasoning_gym_environment.inference.servers import (
    LONGEST_PAUSE_S,
    RawCompletion,
    Reply,
    ServerAdapter,
    pause_in,
)
from reasoning_gym_environment.utils.http import HttpReply
from testing.inference_server import free_port

PROMPT = Prompt([{"role": "user", "content": "q"}], "<s>q", [1, 2])
GROUP = RequestParameters(2, 50, 0.7, 0.95)


class AtroposServer(SimpleNamespace):
    """What is read of one of Atropos' servers."""

    def _inject_reasoning_kwargs(self, request: dict[str, Any]) -> dict[str, Any]:
        return {**request, "extra_body": {"reasoning": {"enabled": True}}}


def adapter(kind: type[ServerAdapter], *answers: Any, models: Any = None) -> Any:
    """The adapter of a server that gives these answers in turn. The last answer is repeated. `sent` has the requests.

    An answer is JSON, a status with JSON, or a function from the request to such an answer.
    """
    config = SimpleNamespace(base_url="http://h:1/v1/", model_name="m", api_key="x", timeout=9, server_type="T")
    config.tokenizer_name = "my/tokenizer"
    slots = {name: AsyncSemWithAdaptiveWeight(1000) for name in ("sem", "eval_sem")}
    tokenizer = SimpleNamespace(bos_token="<s>", eos_token_id=8, encode=lambda text, **_: list(text.encode()))
    made: Any = kind(AtroposServer(config=config, **slots), tokenizer)
    made.sent = []
    left = list(answers)

    async def exchange(method: str, url: str, timeout_s: float, body: Any = None) -> HttpReply:
        if method == "GET":
            return HttpReply(200, json.dumps({"data": models}).encode(), {})
        made.sent.append((url, body))
        answer = left.pop(0) if len(left) > 1 else left[0]
        if callable(answer):
            answer = answer(body)
        if not isinstance(answer, tuple):
            answer = (200, answer)
        status, content, *headers = answer
        text = content if isinstance(content, str) else json.dumps(content)
        return HttpReply(status, text.encode(), headers[0] if headers else {})

    made._exchange = exchange
    return made


EXCHANGES = json.loads(Path(__file__).with_name("exchanges.json").read_text())
"""By server: the request for PROMPT and GROUP, the reply, and the completions in it."""

NOT_FOUND = (404, {"detail": "Not Found"})


@pytest.mark.parametrize("name", EXCHANGES)
async def test_token_servers_are_asked_and_read(name: str) -> None:
    known = EXCHANGES[name]
    in_vain = [NOT_FOUND] * (known["path"] == "/v1/completions")
    server = adapter(ADAPTERS[known["kind"]], *in_vain, known["reply"])
    completions = [RawCompletion(*completion) for completion in known["completions"]]
    expected = Reply(completions)
    for _ in range(2):
        assert await server.sample(PROMPT, GROUP) == expected
        assert server.sent[-1] == (f"http://h:1{known['path']}", known["request"])
    assert len(server.sent) == 2 + len(in_vain), "the kind of a vLLM server is known after its first answer"


@pytest.mark.parametrize("name", EXCHANGES)
async def test_a_parameter_that_is_none_is_left_out_and_top_p_then_means_the_whole_distribution(name: str) -> None:
    known = EXCHANGES[name]
    in_vain = [NOT_FOUND] * (known["path"] == "/v1/completions")
    server = adapter(ADAPTERS[known["kind"]], *in_vain, known["reply"])
    nothing_set: dict[str, Any] = {"temperature": None, "top_p": None}
    await server.sample(PROMPT, RequestParameters(2, 50, **nothing_set))
    body = server.sent[-1][1]
    sampling = body.get("sampling_params", body)
    assert "temperature" not in sampling and sampling["top_p"] == 1.0
    chat = adapter(ChatAdapter, {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]})
    await chat.sample(PROMPT, RequestParameters(2, 50, **nothing_set))
    [(_, body)] = chat.sent
    assert not {"temperature", "top_p"} & body.keys()


async def test_a_stock_server_that_is_too_old_or_lacks_the_model_is_named() -> None:
    no_model = (404, {"error": {"message": "The model `m` does not exist."}})
    for answer, error in (({"choices": [{"text": "hi"}]}, r"vLLM gives from 0\.10\.2 on"), (no_model, "The model `m`")):
        with pytest.raises(InferenceError, match=error):
            await adapter(VllmAdapter, NOT_FOUND, answer).sample(PROMPT, GROUP)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (VllmAdapter, '{"logprobs": [[[{}]]], "finish_reasons": ["stop"]}'),
        (VllmAdapter, '{"choices": [{"token_ids": 5}]}'),
        (VllmAdapter, '{"choices": [{"token_ids": [5], "logprobs": {"token_logprobs": 1}}]}'),
        (VllmAdapter, "[" * 100_000),
        (SglangAdapter, '{"meta_info": {"output_token_logprobs": 5}}'),
        (ChatAdapter, '{"choices": [{"message": {"content": ["x"]}}]}'),
    ],
)
async def test_a_malformed_reply_is_an_error_of_its_server(kind: type[ServerAdapter], text: str) -> None:
    with pytest.raises(UnreadableReplyError, match="does not have the format"):
        await adapter(kind, (200, text)).sample(PROMPT, GROUP)


@pytest.mark.parametrize(
    ("message", "opened", "text"),
    [
        ({"content": "x"}, "", "x"),
        ({"content": "x", "reasoning_content": "why "}, "", "<think>\nwhy\n</think>\nx"),
        ({"content": "x", "reasoning": "why"}, "<think>\n", "why\n</think>\nx"),
        ({"content": "<think>a</think>x", "reasoning_content": "a"}, "", "<think>a</think>x"),
        # Cut off: it stays open.
        ({"content": None, "reasoning_content": "see <answer>4"}, "", "<think>\nsee <answer>4"),
        ({"content": "half a character: \ud83d"}, "", "half a character: ?"),
    ],
)
async def test_chat_gives_text_with_the_reasoning_in_front(message: Any, opened: str, text: str) -> None:
    reply = {"choices": [{"message": message, "finish_reason": "length"}], "usage": {"completion_tokens": 5}}
    server = adapter(ChatAdapter, reply)
    expected = Reply([RawCompletion("length", list(text.encode()), text=text)], used=5)
    assert await server.sample(Prompt(PROMPT.messages, opened, [1]), GROUP) == expected
    [(url, body)] = server.sent
    assert url == "http://h:1/v1/chat/completions" and body["messages"] == PROMPT.messages
    assert body["reasoning"] == {"enabled": True} and body["max_tokens"] == 50


# --- addresses and headers


@asynccontextmanager
async def web_server() -> AsyncIterator[tuple[str, list[web.Request]]]:
    """The host of a server that answers every request, and the requests."""
    requests: list[web.Request] = []

    async def answer(request: web.Request) -> web.Response:
        requests.append(request)
        return web.json_response(CHAT)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app) as site:
        yield f"127.0.0.1:{site.port}", requests


def adapter_at(url: str, kind: type[ServerAdapter] = ChatAdapter, **settings: Any) -> Any:
    """The adapter of a server that it reaches over the network."""
    known = {"base_url": url, "model_name": "m", "api_key": "sk", "timeout": 2, "server_type": "T"}
    tokenizer = SimpleNamespace(eos_token_id=8, encode=lambda text, **_: list(text.encode()))
    return kind(AtroposServer(config=SimpleNamespace(**known, **settings)), tokenizer)


@pytest.mark.parametrize(
    ("url", "settings", "asked", "authorization"),
    [
        ("http://HOST/v1", {}, "/v1/chat/completions", "Bearer sk"),
        ("http://HOST/v1/?api-version=2024", {}, "/v1/chat/completions?api-version=2024", "Bearer sk"),
        ("http://HOST/a", {"default_query": {"b": "1 2"}}, "/a/chat/completions?b=1+2", "Bearer sk"),
        ("http://me:se%40cret@HOST/v1", {}, "/v1/chat/completions", "Basic bWU6c2VAY3JldA=="),
        ("http://HOST/v1", {"default_headers": {"authorization": "Own"}}, "/v1/chat/completions", "Own"),
    ],
)
async def test_the_query_the_headers_and_the_password_of_an_address_are_sent_once_and_not_shown(
    url: str, settings: dict[str, Any], asked: str, authorization: str
) -> None:
    headers = {"x-team": "t", **settings.get("default_headers", {})}
    async with web_server() as (host, requests):
        server = adapter_at(url.replace("HOST", host), **{**settings, "default_headers": headers})
        await server.sample(PROMPT, GROUP)
        assert await server.why_unreachable(2.0) is None
    sampled, probed = requests
    assert sampled.path_qs == asked and "/models" in probed.path_qs
    for request in requests:
        assert (request.headers.getall("Authorization"), request.headers["x-team"]) == ([authorization], "t")
    assert not {"?", "@"} & set(server.address + server.root + server.health_url)


# --- proxies


@pytest.mark.parametrize(
    ("kind", "url", "is_proxied"),
    [
        # Only a provider is requested through the proxy of the environment, by the probe and by the requests.
        (ChatAdapter, "http://api.provider.example/v1", True),
        (VllmAdapter, "http://vllm.invalid/v1", False),
        (ChatAdapter, "http://localhost:1/v1", False),
        (ChatAdapter, "http://127.0.0.2:1/v1", False),
        (ChatAdapter, "http://[::1]:1/v1", False),
    ],
)
async def test_the_probe_and_the_requests_use_the_same_proxy_and_local_addresses_use_none(
    kind: type[ServerAdapter], url: str, is_proxied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with web_server() as (host, requests):
        for name in ("http_proxy", "HTTP_PROXY"):
            monkeypatch.setenv(name, f"http://{host}")
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        server = adapter_at(url, kind)
        assert (await server.why_unreachable(2.0) is None) is is_proxied
        with nullcontext() if is_proxied else pytest.raises(InferenceError):
            await server.sample(PROMPT, GROUP)
    paths = ["/models", "/chat/completions"] if is_proxied else []
    assert [str(request.url) for request in requests] == [f"{url}{path}" for path in paths]


async def test_a_proxy_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    monkeypatch.delenv("no_proxy", raising=False)
    why = await adapter_at("http://api.provider.example/v1").why_unreachable(2.0)
    assert "the proxy of the environment (HTTPS_PROXY or HTTP_PROXY) does not answer" in why


# --- what errors mean


def says(message: str, **beside: Any) -> dict[str, Any]:
    return {"error": {"message": message, **beside}}


ERRORS = Path(__file__).with_name("errors.jsonl").read_text().splitlines()


@pytest.mark.parametrize("line", ERRORS)
async def test_an_error_is_named_for_what_can_be_done_about_it(line: str) -> None:
    known = json.loads(line)
    with pytest.raises(InferenceError) as caught:
        await adapter(VllmAdapter, tuple(known["answer"])).sample(PROMPT, GROUP)
    assert type(caught.value).__name__ == known["error"]
    found = f"{caught.value} {getattr(caught.value, 'advice', '')}"
    assert not [part for part in known["says"] if part not in found], found


def test_a_pause_is_as_long_as_the_server_asks_for() -> None:
    for given, pause_s in {"7": 7.0, "-3": 0.0, "Wed, 21 Oct": 0.0, "1e9": LONGEST_PAUSE_S}.items():
        assert pause_in({"Retry-After": given}) == pause_s
    assert pause_in({}) == 0.0
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=60))
    assert 50.0 < pause_in({"Retry-After": date}) <= 60.0


# --- what the first request finds out


CHAT = {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}] * 4}


@pytest.mark.parametrize("refuses_n", [True, False])
@pytest.mark.parametrize("refuses_name", [True, False])
async def test_a_refused_first_request_is_repeated_in_other_forms(refuses_n: bool, refuses_name: bool) -> None:
    def answer(body: Any) -> Any:
        is_refused = (refuses_n and body["n"] > 1) or (refuses_name and "max_tokens" in body)
        return (400, says("refused")) if is_refused else CHAT

    server = adapter(ChatAdapter, answer)
    await server.probe(PROMPT, RequestParameters(4, 6000, 1.0))
    assert server.completions_per_request == (1 if refuses_n else 8)
    sent = len(server.sent)
    await server.sample(PROMPT, RequestParameters(1, 50, 1.0))
    [(_, body)] = server.sent[sent:]
    assert body["max_completion_tokens" if refuses_name else "max_tokens"] == 50
    assert ("max_tokens" in body) is not refuses_name


@pytest.mark.parametrize(("status", "requests"), [(400, 4), (401, 1)])
async def test_a_server_that_refuses_every_form_is_quoted_with_its_first_refusal(status: int, requests: int) -> None:
    refusals = [(status, says(f"refusal {number}")) for number in range(4)]
    server = adapter(ChatAdapter, *refusals)
    with pytest.raises(RequestRefusedError, match="refusal 0"):
        await server.probe(PROMPT, RequestParameters(4, 6000, 1.0))
    assert len(server.sent) == requests


async def test_the_number_of_choices_and_the_context_length_are_found_too() -> None:
    server = adapter(ChatAdapter, {"choices": CHAT["choices"][:1]})
    await server.probe(PROMPT, RequestParameters(4, 60, 1.0))
    assert server.completions_per_request == 1
    server = adapter(
        VllmAdapter, NOT_FOUND, EXCHANGES["vllm"]["reply"], models=[{"id": "other"}, {"id": "m", "max_model_len": 2048}]
    )
    await server.probe(PROMPT, RequestParameters(2, 6000, 1.0))
    assert server.context_length == 2047
    assert server.sent[-1][1]["max_tokens"] == 2047 - len(PROMPT.tokens)


def test_a_server_class_derived_from_one_of_atropos_has_its_adapter_and_another_class_is_an_error() -> None:
    class MyServer(VLLMServer):
        """A server of a user, which counts its requests in another way, for example."""

        def __init__(self) -> None:
            self.config = SimpleNamespace(base_url="http://127.0.0.1:9/v1")

    [adapter] = adapters_of([MyServer()], None)
    assert type(adapter) is ADAPTERS["VLLMServer"]
    with pytest.raises(EnvironmentSetupError, match=r"derived from VLLMServer, .* of Atropos; found object"):
        adapters_of([object()], None)
