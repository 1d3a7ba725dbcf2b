"""Completions with one token, mask and logprob for each position, from token servers and from others."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from atroposlib.envs.base import APIServerConfig
from atroposlib.envs.server_handling.server_manager import ServerManager
from tenacity import RetryError, retry, stop_after_attempt

from reasoning_gym_environment.errors import InferenceError
from reasoning_gym_environment.inference.client import InferenceClient, Sampling
from reasoning_gym_environment.inference.prompts import Prompt, build_messages
from reasoning_gym_environment.records import FormatFailure
from reasoning_gym_environment.scoring.scorer import extract_answer

from ..mock_dialects import MockServer

REPLY = "<think>two and two</think><answer>4</answer>"
SAMPLING = Sampling(n=3, max_tokens=200, temperature=1.0, top_p=0.95)


@pytest.fixture
def make_client(tokenizer_dir: Path, byte_tokenizer: Any) -> Any:
    def make(server: MockServer, kind: str = "vllm") -> InferenceClient:
        settings = APIServerConfig(
            server_type=kind,
            base_url=server.base_url,
            model_name=str(tokenizer_dir),
            tokenizer_name=str(tokenizer_dir),
            api_key="x",
            health_check=False,
        )
        return InferenceClient(ServerManager([settings]), byte_tokenizer, str(tokenizer_dir))

    return make


@pytest.fixture
async def mock(byte_tokenizer: Any) -> AsyncIterator[MockServer]:
    async with MockServer(lambda prompt: REPLY, byte_tokenizer) as server:
        yield server


def offline_client(tokenizer: Any, server: Any = None) -> InferenceClient:
    return InferenceClient(server or SimpleNamespace(servers=[object()]), tokenizer, "my/tokenizer")


# --- token servers


async def test_completions_have_one_token_mask_and_logprob_per_position(make_client: Any, mock: MockServer) -> None:
    client = make_client(mock)
    assert client.has_tokens
    prompt = client.render(build_messages("What is 2 + 2?"))
    completions = await client.complete(prompt, Sampling(19, 200, 1.0))
    assert len(completions) == 19
    for completion in completions:
        size = len(prompt.tokens)
        assert completion.text == REPLY
        assert completion.finish_reason == "stop"
        assert completion.tokens[:size] == prompt.tokens
        assert completion.masks == [-100] * size + completion.tokens[size:]
        assert completion.logprobs is not None
        assert completion.logprobs[:size] == [1.0] * size
        assert all(logprob <= 0 for logprob in completion.logprobs[size:])
        assert len(completion.tokens) == len(completion.masks) == len(completion.logprobs)
        assert completion.num_completion_tokens == len(REPLY) + 1


@pytest.mark.parametrize("kind", ["vllm", "openai"])
async def test_truncated_completion_says_length_keeps_to_the_budget_and_has_no_end_token(
    make_client: Any, mock: MockServer, kind: str
) -> None:
    client = make_client(mock, kind)
    prompt = client.render(build_messages("q"))
    [completion] = await client.complete(prompt, Sampling(n=1, max_tokens=12, temperature=1.0))
    assert completion.finish_reason == "length"
    assert completion.tokens == prompt.tokens + list(REPLY.encode()[:12])
    assert completion.num_completion_tokens == 12


async def test_evaluation_uses_the_evaluation_queue_of_the_server(make_client: Any, mock: MockServer) -> None:
    client = make_client(mock)
    await client.complete(client.render(build_messages("q")), Sampling(1, 100, 0.1, split="eval"))
    [server] = client._server.servers
    assert (len(server.eval_attempts_list), len(server.attempts_list)) == (1, 0)


def fake_manager(response: Any, nodes: list[Any], server: Any = None) -> Any:
    """A ServerManager whose managed server answers `response`, or raises it."""
    managed = SimpleNamespace(get_state=lambda: {"nodes": nodes}, server=server or object())

    async def completion(**request: Any) -> Any:
        if isinstance(response, BaseException):
            raise response
        return response

    @contextlib.asynccontextmanager
    async def managed_server(tokenizer: Any) -> AsyncIterator[Any]:
        yield managed

    managed.completion = completion
    return SimpleNamespace(servers=[object()], managed_server=managed_server)


def choices(*texts: str) -> Any:
    return SimpleNamespace(choices=[SimpleNamespace(text=text, finish_reason="stop") for text in texts])


NODE = SimpleNamespace(tokens=[1, 2], masked_tokens=[-100, 2], logprobs=[1.0, -0.5])
PROMPT = Prompt([], "p", [1])


async def test_a_group_that_is_not_whole_is_an_error_not_a_shorter_group(byte_tokenizer: Any) -> None:
    for texts, message in (("ab", "asked for 3 completions, got 2"), ("abc", "shorter")):
        client = offline_client(byte_tokenizer, fake_manager(choices(*texts), [NODE, NODE]))
        with pytest.raises(InferenceError, match=message):
            await client.complete(PROMPT, SAMPLING)


async def test_logprobs_that_the_server_does_not_report_are_none(byte_tokenizer: Any) -> None:
    silent = SimpleNamespace(reports_logprobs=False)
    client = offline_client(byte_tokenizer, fake_manager(choices("a"), [NODE], silent))
    [completion] = await client.complete(PROMPT, Sampling(1, 10, 1.0))
    assert completion.logprobs is None


async def test_the_cause_below_the_retries_is_what_the_error_says(byte_tokenizer: Any) -> None:
    @retry(stop=stop_after_attempt(2))
    def fail() -> None:
        raise ConnectionError("refused\nsecond line")

    with pytest.raises(RetryError) as caught:
        fail()
    client = offline_client(byte_tokenizer, fake_manager(caught.value, []))
    with pytest.raises(InferenceError, match=r"^ConnectionError: refused$"):
        await client.complete(PROMPT, SAMPLING)


def test_top_p_is_sent_only_when_given() -> None:
    common = {"n": 3, "max_tokens": 200, "temperature": 1.0, "split": "train"}
    assert SAMPLING.as_request() == {**common, "top_p": 0.95}
    assert Sampling(3, 200, 1.0).as_request() == common


# --- openai servers


async def test_openai_completions_are_tokenized_as_they_came(make_client: Any, mock: MockServer) -> None:
    client = make_client(mock, "openai")
    assert not client.has_tokens
    prompt = client.render(build_messages("q"))
    completions = await client.complete(prompt, SAMPLING)
    assert len(completions) == 3
    for completion in completions:
        reply = [*REPLY.encode(), client._tokenizer.eos_token_id]
        assert completion.text == REPLY
        assert completion.tokens == prompt.tokens + reply
        assert completion.masks == [-100] * len(prompt.tokens) + reply
        assert completion.logprobs is None


@pytest.mark.filterwarnings("ignore:n kwarg is ignored")
async def test_servers_that_ignore_n_still_fill_the_group(make_client: Any, mock: MockServer) -> None:
    mock.faults.ignore_n = True
    client = make_client(mock, "openai")
    for _ in range(2):
        assert len(await client.complete(client.render(build_messages("q")), SAMPLING)) == 3


def message(content: str | None, **extra: Any) -> Any:
    return SimpleNamespace(content=content, model_extra=extra)


def test_reasoning_split_off_by_the_server_is_put_back(byte_tokenizer: Any) -> None:
    client = offline_client(byte_tokenizer)
    for reply, text in (
        (message("<answer>4</answer>"), "<answer>4</answer>"),
        (message(None), ""),
        (message("x", reasoning_content="why "), "<think>\nwhy\n</think>\nx"),
        (message("<think>a</think>x", reasoning_content="a"), "<think>a</think>x"),
        (message("x", reasoning_content=""), "x"),
        (message("x", reasoning_content=None), "x"),
        (message("x", reasoning={"summary": "why"}), "x"),
        (SimpleNamespace(content="x"), "x"),
    ):
        completion = client._tokenized(PROMPT, SimpleNamespace(message=reply, finish_reason="length"))
        assert completion.text == text
        assert completion.tokens == [1, *text.encode()]


def test_reasoning_that_was_cut_off_stays_open_and_is_not_opened_twice(byte_tokenizer: Any) -> None:
    client = offline_client(byte_tokenizer)
    for field, opened in itertools.product(("reasoning_content", "reasoning"), (False, True)):
        prompt = Prompt([], "assistant\n<think>\n" if opened else "", [1])
        choice = SimpleNamespace(message=message(None, **{field: "see <answer>4</answer>"}), finish_reason="length")
        text = client._tokenized(prompt, choice).text
        assert extract_answer(text, thinking_opened=opened).failure is FormatFailure.UNFINISHED_THINKING
        choice = SimpleNamespace(message=message("x", **{field: "why"}), finish_reason="length")
        assert client._tokenized(prompt, choice).text == ("" if opened else "<think>\n") + "why\n</think>\nx"
