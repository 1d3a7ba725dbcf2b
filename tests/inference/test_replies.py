"""Replies that are neither a completion nor an error, and what becomes of them: one row for each.

Each test has the adapter of a server whose replies are given, and most have the client above it.
"""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest

from reasoning_gym_environment.errors import (
    BrokenOffError,
    EnvironmentSetupError,
    InferenceError,
    RequestRefusedError,
)
from reasoning_gym_environment.inference.chat_tokenizer import ChatTokenizer, Prompt
from reasoning_gym_environment.inference.client import InferenceClient
from reasoning_gym_environment.inference.prompts import RequestParameters
from reasoning_gym_environment.inference.server_pool import UNAVAILABLE_AFTER, ServerPool
from reasoning_gym_environment.inference.server_types import ChatAdapter, SglangAdapter, VllmAdapter
from reasoning_gym_environment.inference.servers import CUT_OFF, RawCompletion, ServerAdapter
from reasoning_gym_environment.records import Completion
from testing.fake_server import QUICK, FakeServer
from tests.inference.test_servers import EXCHANGES, NOT_FOUND, adapter, says

PROMPT = Prompt([{"role": "user", "content": "q"}], "q", [113])
QUESTION = RequestParameters(1, 50, 0.7, split="eval", patience_s=300.0)
USAGE = {"completion_tokens": 900}


def client_over(server: Any, tokenizer: Any) -> InferenceClient:
    server._tokenizer = tokenizer
    return InferenceClient([server], ChatTokenizer(tokenizer, "my/tokenizer"), policy=QUICK, jitter=Random(0))


async def answered(server: Any, tokenizer: Any, parameters: RequestParameters = QUESTION) -> list[Completion]:
    return await client_over(server, tokenizer).complete(PROMPT, parameters)


# --- chat: completions without text, and text in another form


@pytest.mark.parametrize("split", ["eval", "train"])
@pytest.mark.parametrize(
    "choices",
    [
        [],
        [{"finish_reason": "stop"}],
        [{"finish_reason": "stop", "message": None}],
        [{"message": None}],
        [{"finish_reason": "length", "message": {"content": None}}],
        [{"finish_reason": "max_tokens", "message": {}}],
    ],
)
async def test_a_budget_that_was_spent_on_thinking_gives_an_empty_completion_that_is_cut_off_and_paid(
    byte_tokenizer: Any, choices: Any, split: str
) -> None:
    client = client_over(adapter(ChatAdapter, {"choices": choices, "usage": USAGE}), byte_tokenizer)
    [completion] = await client.complete(PROMPT, RequestParameters(1, 50, 0.7, split=split))
    assert (completion.text, completion.finish_reason, completion.invalid_reason) == ("", CUT_OFF, None)
    assert completion.num_completion_tokens == 1, "trainers divide by the number of tokens"
    assert (client.spending.requests, client.spending.completion_tokens) == (1, 900)
    assert client.servers.metrics() == {"inference/servers_unavailable": 0.0}


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (
            {"content": [{"type": "text", "text": "<answer>"}, {"type": "text", "text": "4</answer>"}]},
            "<answer>4</answer>",
        ),
        ({"content": [{"type": "image_url", "image_url": {}}, {"type": "output_text", "text": "x"}]}, "x"),
        ({"content": [{"type": "refusal", "refusal": "No."}]}, "No."),
        ({"content": None, "refusal": "No."}, "No."),
        ({"content": [], "reasoning_content": "why"}, "<think>\nwhy"),
    ],
)
async def test_the_parts_of_a_message_are_joined(byte_tokenizer: Any, message: Any, text: str) -> None:
    reply = {"choices": [{"message": message, "finish_reason": "stop"}]}
    [completion] = await answered(adapter(ChatAdapter, reply), byte_tokenizer)
    assert completion.text == text


@pytest.mark.parametrize("reason", [None, "stop", "", "odd"])
@pytest.mark.parametrize("usage", [None, {}, {"completion_tokens": 0}, "none", [1]])
@pytest.mark.parametrize("choices", ["null", "[]", "without a message"])
async def test_a_reply_without_a_message_and_without_a_spent_token_is_no_completion(
    byte_tokenizer: Any, choices: str, usage: Any, reason: str | None
) -> None:
    """It would be a wrong answer of the model, although the model has written nothing."""
    given: Any = {"null": None, "[]": [], "without a message": [{"finish_reason": reason}]}[choices]
    client = client_over(adapter(ChatAdapter, {"choices": given, "usage": usage}), byte_tokenizer)
    with pytest.raises(InferenceError, match="no token was spent"):
        await client.complete(PROMPT, QUESTION)
    assert client.spending.completions == 0


@pytest.mark.parametrize("usage", [None, "none", [1], 7, {"completion_tokens": "many"}, {"total_tokens": None}])
async def test_a_usage_of_any_shape_costs_no_completion(byte_tokenizer: Any, usage: Any) -> None:
    whole = {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}], "usage": usage}
    [completion] = await answered(adapter(ChatAdapter, whole), byte_tokenizer)
    assert completion.text == "x"


async def test_thoughts_that_only_the_total_counts_are_spent(byte_tokenizer: Any) -> None:
    usage = {"prompt_tokens": 8, "completion_tokens": 0, "total_tokens": 1031}
    client = client_over(adapter(ChatAdapter, {"choices": [], "usage": usage}), byte_tokenizer)
    [completion] = await client.complete(PROMPT, QUESTION)
    assert (completion.finish_reason, client.spending.completion_tokens) == (CUT_OFF, 1023)


# --- finish reasons


FILTERED = ["content_filter", "SAFETY", "RECITATION", "PROHIBITED_CONTENT", "sensitive", "guardrail_intervened"]


@pytest.mark.parametrize("message", [None, {"content": ""}, {"content": "<answer>4"}])
@pytest.mark.parametrize("reason", [*FILTERED, "network_error"])
async def test_every_name_of_a_broken_off_completion_means_the_same(
    byte_tokenizer: Any, reason: str, message: Any
) -> None:
    server = adapter(ChatAdapter, {"choices": [{"message": message, "finish_reason": reason}]})
    known = "content_filter" if reason in FILTERED else "error"
    with pytest.raises(BrokenOffError, match=f"its finish reason is {known}"):
        await answered(server, byte_tokenizer)


@pytest.mark.parametrize("message", [None, {"content": ""}, {"content": "<answer>4"}])
@pytest.mark.parametrize("reason", [None, "error", "stop", "length"])
@pytest.mark.parametrize("error", [{"code": 502, "message": "Upstream is down"}, "Upstream is down"])
async def test_an_error_in_a_choice_is_no_completion_and_its_words_are_shown(
    byte_tokenizer: Any, error: Any, reason: str | None, message: Any
) -> None:
    server = adapter(ChatAdapter, {"choices": [{"error": error, "finish_reason": reason, "message": message}]})
    with pytest.raises(BrokenOffError, match=r"its finish reason is error \(Upstream is down\)"):
        await answered(server, byte_tokenizer)


@pytest.mark.parametrize("reason", ["error", "abort", "content_filter", "insufficient_system_resource", "ERROR"])
async def test_a_completion_that_a_provider_broke_off_is_repeated_then_unscored_and_no_outage(
    byte_tokenizer: Any, caplog: pytest.LogCaptureFixture, reason: str
) -> None:
    broken = {"choices": [{"message": {"content": "<answer>4"}, "finish_reason": reason}]}
    server = adapter(ChatAdapter, broken)
    client = client_over(server, byte_tokenizer)
    with pytest.raises(BrokenOffError, match=f"its finish reason is {reason.lower()}"):
        await client.complete(PROMPT, QUESTION)
    assert len(server.sent) == QUICK.tries == client.spending.requests
    name = "aborted" if reason == "abort" else reason.lower()
    assert client.metrics()[f"inference/completions_with_{name}"] == QUICK.tries
    assert f"Completions with {name}, not scored: " in caplog.text
    assert client.metrics()["inference/servers_unavailable"] == 0.0
    # One of several attempts is enough.
    whole = {"choices": [{"message": {"content": "<answer>4</answer>"}, "finish_reason": "stop"}]}
    [completion] = await answered(adapter(ChatAdapter, broken, broken, whole), byte_tokenizer)
    assert completion.text == "<answer>4</answer>"


async def test_a_group_keeps_its_whole_completions_and_the_broken_ones_have_no_score(byte_tokenizer: Any) -> None:
    choices = [{"message": {"content": "x"}, "finish_reason": reason} for reason in ("stop", "content_filter")]
    group = RequestParameters(2, 50, 0.7)
    whole, broken = await answered(adapter(ChatAdapter, {"choices": choices}), byte_tokenizer, group)
    assert (whole.invalid_reason, broken.invalid_reason) == (None, "content_filter")


@pytest.mark.parametrize("reason", ["length", "model_length", "max_tokens", "MAX_TOKENS", {"type": "length"}])
@pytest.mark.parametrize("kind", [VllmAdapter, SglangAdapter, ChatAdapter])
async def test_every_name_of_a_cut_off_completion_means_the_same(
    byte_tokenizer: Any, kind: type[ServerAdapter], reason: Any
) -> None:
    replies: dict[Any, Any] = {
        VllmAdapter: {"logprobs": [[[{"104": -0.5}]]], "finish_reasons": [reason]},
        SglangAdapter: {"meta_info": {"output_token_logprobs": [[-0.5, 104, None]], "finish_reason": reason}},
        ChatAdapter: {"choices": [{"message": {"content": "h"}, "finish_reason": reason}]},
    }
    [completion] = await answered(adapter(kind, replies[kind]), byte_tokenizer)
    assert (completion.text, completion.finish_reason) == ("h", CUT_OFF)


async def test_the_server_says_whether_a_completion_ended_and_not_the_end_token_of_the_tokenizer(
    byte_tokenizer: Any,
) -> None:
    # Gemma 3 ends its turns with <end_of_turn>, which is not the eos token of its tokenizer.
    reply = {"logprobs": [[[{"104": -0.5}], [{"105": -0.5}]]], "finish_reasons": ["stop"]}
    [completion] = await answered(adapter(VllmAdapter, reply), byte_tokenizer, RequestParameters(1, 50, 1.0))
    assert byte_tokenizer.eos_token_id not in completion.tokens
    assert completion.finish_reason == "stop"


# --- log probabilities


@pytest.mark.parametrize(("logprob", "reason"), [(-9999.0, "bad_logprobs"), (-1e5, "bad_logprobs"), (-9998.0, None)])
async def test_the_stand_in_for_minus_infinity_is_a_bad_log_probability(
    byte_tokenizer: Any, logprob: float, reason: str | None
) -> None:
    rows = [[[{"104": logprob}]], [[{"104": -0.5}]]]
    server = adapter(VllmAdapter, {"logprobs": rows, "finish_reasons": ["stop", "stop"]})
    client = client_over(server, byte_tokenizer)
    first, _ = await client.complete(PROMPT, RequestParameters(2, 50, 1.0))
    assert first.invalid_reason == reason
    assert client.metrics().get("inference/completions_with_bad_logprobs", 0.0) == float(reason is not None)


# --- the context of an adapter, refusals of one kind, and /generate


@pytest.mark.parametrize(
    ("models", "length"),
    [
        ([{"id": "base", "max_model_len": 4096}, {"id": "m", "max_model_len": None, "parent": "base"}], 4096),
        ([{"id": "m", "max_model_len": None, "parent": "elsewhere"}], None),
        ([{"id": "m", "max_model_len": None, "parent": None}, {"id": "x", "max_model_len": 7}], None),
        ([{"id": "other", "context_length": 99}], 99),
        ([{"id": "m", "max_model_len": math.inf}], None),
    ],
)
async def test_a_lora_adapter_has_the_context_of_its_parent(models: Any, length: int | None) -> None:
    server = adapter(VllmAdapter, {}, models=models)
    await server.find_context()
    assert server.context_length == (None if length is None else length - server.margin)


async def test_a_server_that_refuses_requests_rests_until_it_answers_one() -> None:
    clock = 100.0
    pool = ServerPool([FakeServer(None)], QUICK, jitter=Random(0), clock=lambda: clock)
    for _ in range(UNAVAILABLE_AFTER):
        with pytest.raises(RequestRefusedError):
            async with pool.turn("eval"):
                clock += 0.001
                raise RequestRefusedError("400")
    [state] = pool.states
    assert not state.is_free and pool.unavailable_since() is not None
    clock += 1.0
    async with pool.turn("train"):
        clock += 1.0
    assert state.is_free and pool.unavailable_since() is None


PAGE = (200, "<html><h1>Welcome to the gateway</h1></html>")
STOCK = EXCHANGES["vllm"]["reply"]
ATROPOS = EXCHANGES["vllm of Atropos"]["reply"]
GROUP = RequestParameters(2, 50, 0.7, 0.95)


@pytest.mark.parametrize(
    "gateway",
    [
        NOT_FOUND,
        PAGE,
        *((status, "no") for status in (400, 401, 403, 405, 422, 501, 502, 503)),
        (503, "", {"Retry-After": "1"}),
    ],
)
async def test_a_gateway_that_routes_only_v1_is_a_stock_server(gateway: Any) -> None:
    server = adapter(VllmAdapter, gateway, STOCK)
    for _ in range(2):
        assert len((await server.sample(PROMPT, GROUP)).completions) == 2
    paths = [url.removeprefix("http://h:1") for url, _ in server.sent]
    assert paths == ["/generate", "/v1/completions", "/v1/completions"]
    # Once /generate has worked, its errors are errors of the server.
    server = adapter(VllmAdapter, ATROPOS, gateway)
    await server.sample(PROMPT, GROUP)
    with pytest.raises(InferenceError):
        await server.sample(PROMPT, GROUP)
    assert [url.removeprefix("http://h:1") for url, _ in server.sent] == ["/generate", "/generate"]


MISSING_PROMPTS = [{"type": "missing", "loc": ["body", "prompts"], "msg": "Field required", "input": {}}]


@pytest.mark.parametrize(
    ("answer", "remedy"),
    [
        ((400, says("Either text, input_ids or input_embeds should be provided.")), "set openai.server_type to sglang"),
        ((422, {"detail": MISSING_PROMPTS}), "TRL before 1.11, which is not supported: update TRL"),
        (
            (
                422,
                "Failed to deserialize the JSON body into the target type: missing field `inputs` at line 1 column 9",
            ),
            "text-generation-inference server, .* set openai.server_type to openai",
        ),
    ],
)
async def test_a_server_of_another_type_is_recognised(answer: Any, remedy: str) -> None:
    server = adapter(VllmAdapter, answer)
    with pytest.raises(RequestRefusedError) as caught:
        await server.probe(PROMPT, GROUP)
    assert "context_length" not in caught.value.advice
    with pytest.raises(RequestRefusedError, match=remedy):
        raise RequestRefusedError(caught.value.advice)


# --- the tokenizer of the server

TEXT = "<think>I add 2 and 3, which gives 5, and look again.</think><answer>5</answer> äöü"


def shifted(ids: list[int]) -> list[int]:
    """The ids of another tokenizer with the same number of tokens."""
    return [(3 * token + 7) % 256 for token in ids]


def compared(tokenizer: Any, ids: list[Any], reported: str) -> bool:
    """Whether the comparison of the tokenizers is over. Raises EnvironmentSetupError if they differ."""
    server = adapter(VllmAdapter)
    server._tokenizer = tokenizer
    server._compare_tokenizers(RawCompletion("stop", ids, reported_text=reported))
    return server._has_our_tokenizer


def test_the_text_of_the_same_tokenizer_may_differ_in_special_tokens_blanks_and_ends(byte_tokenizer: Any) -> None:
    end = [byte_tokenizer.eos_token_id]
    start = byte_tokenizer.encode("<|im_start|>")
    ids = list(TEXT.encode())
    for given, reported in [
        (ids, TEXT),
        (ids + end, TEXT),
        (ids + end, f"{TEXT}<|im_end|>"),
        (start + ids + end, TEXT),
        (ids, f"  {TEXT}\n\n"),
        (ids, f"The prompt comes first. {TEXT}"),
        (ids, TEXT.removesuffix("</answer> äöü")),
        (ids[:-1], TEXT[:-1] + "\ufffd"),
        (ids[:-1], TEXT[:-1]),
    ]:
        assert compared(byte_tokenizer, given, reported), reported


def test_a_short_completion_of_tags_decides_nothing(byte_tokenizer: Any) -> None:
    tags = "<think></think><answer>42</answer>"
    for given, reported in [
        ([], TEXT),
        ([104], TEXT),
        (list(tags.encode()), tags),
        (shifted([104, 105]), "hi"),
        (shifted(list(tags.encode())) * 9, tags * 9),
    ]:
        assert not compared(byte_tokenizer, given, reported)


@pytest.mark.parametrize("kind", ["/generate", "/v1/completions", "SGLang"])
async def test_a_wrong_tokenizer_is_an_error_of_the_settings(byte_tokenizer: Any, kind: str) -> None:
    def server(ids: list[int]) -> Any:
        logprobs = [-0.5] * len(ids)
        if kind == "/generate":
            rows = [[{str(token): -0.5}] for token in ids]
            made = adapter(VllmAdapter, {"logprobs": [rows], "finish_reasons": ["stop"], "text": [TEXT]})
        elif kind == "SGLang":
            tokens = [[-0.5, token, None] for token in ids]
            made = adapter(
                SglangAdapter,
                {"text": TEXT, "meta_info": {"output_token_logprobs": tokens, "finish_reason": {"type": "stop"}}},
            )
        else:
            choice = {"token_ids": ids, "logprobs": {"token_logprobs": logprobs}, "finish_reason": "stop", "text": TEXT}
            made = adapter(VllmAdapter, NOT_FOUND, {"choices": [choice]})
        made._tokenizer = byte_tokenizer
        return made

    ids = list(TEXT.encode())
    [right] = (await server(ids).sample(PROMPT, GROUP)).completions
    assert right == RawCompletion("stop", ids, [-0.5] * len(ids), reported_text=TEXT)
    with pytest.raises(
        EnvironmentSetupError, match=r"'my/tokenizer' is not the tokenizer of the model 'm' .* env.tokenizer_name"
    ):
        await server(shifted(ids)).sample(PROMPT, GROUP)
