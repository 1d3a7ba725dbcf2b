"""Completions with one token, mask and logprob for each position, from token servers and from others."""

from __future__ import annotations

import itertools
import math
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from atroposlib.envs.base import APIServerConfig
from atroposlib.envs.server_handling.server_manager import ServerManager
from tenacity import RetryError, retry, stop_after_attempt

from reasoning_gym_environment import ReasoningGymEnvConfig
from reasoning_gym_environment.errors import InferenceError
from reasoning_gym_environment.inference.client import InferenceClient, Spending, Vocabulary
from reasoning_gym_environment.inference.prompts import Prompt, Sampling, build_messages
from reasoning_gym_environment.records import Completion, FormatFailure
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


def fake_manager(reply: Any, **server: Any) -> Any:
    """A ServerManager of one token server that replies `(prompt ids, ids, logprobs, reasons)`, or raises it."""

    async def completion(**request: Any) -> Any:
        if isinstance(reply, BaseException):
            raise reply
        return reply

    return SimpleNamespace(servers=[SimpleNamespace(tokens_and_logprobs_completion=completion, **server)])


PROMPT = Prompt([], "p", [1])
GOOD = ([104, 105], [-0.5, -0.25])
"""Ids and logprobs of a completion, "hi"."""


def reply(*sampled: tuple[list[Any], list[Any]], reason: Any = "stop") -> Any:
    return [1], [ids for ids, _ in sampled], [logprobs for _, logprobs in sampled], [reason] * len(sampled)


async def complete(tokenizer: Any, answer: Any, split: str = "train", **server: Any) -> list[Completion]:
    client = offline_client(tokenizer, fake_manager(answer, **server))
    return await client.complete(PROMPT, Sampling(len(answer[1]), 10, 1.0, split=split))


async def test_a_group_that_is_not_whole_is_an_error_not_a_shorter_group(byte_tokenizer: Any) -> None:
    client = offline_client(byte_tokenizer, fake_manager(reply(GOOD, GOOD)))
    with pytest.raises(InferenceError, match=r"^the inference server: asked for 3 completions, got 2$"):
        await client.complete(PROMPT, SAMPLING)
    with pytest.raises(InferenceError, match="got 2 completions with 1 rows"):
        await complete(byte_tokenizer, ([1], [[104], [105]], [[-0.5]], ["stop"] * 2))


async def test_logprobs_that_the_server_does_not_report_are_none(byte_tokenizer: Any) -> None:
    [completion] = await complete(byte_tokenizer, reply(([104], [])), reports_logprobs=False)
    assert (completion.logprobs, completion.flaw) == (None, None)


@pytest.mark.parametrize(
    ("ids", "logprobs", "flaw", "sent_ids", "sent_logprobs"),
    [
        ([104], [0.0005], None, [104], [0.0005]),
        ([104], [0], None, [104], [0]),
        ([104, 105], [math.nan, -1.0], "bad_logprobs", [104, 105], [0.0, -1.0]),
        ([104, 105], [-math.inf, math.inf], "bad_logprobs", [104, 105], [0.0, 0.0]),
        ([104], [None], "bad_logprobs", [104], [0.0]),
        ([104], ["-1"], "bad_logprobs", [104], [0.0]),
        ([104], [-1e39], "bad_logprobs", [104], [0.0]),
        ([104], [0.5], "bad_logprobs", [104], [0.0]),
        ([104, 105], [-1.0], "bad_logprobs", [104, 105], [-1.0, 0.0]),
        ([104], [-1.0, -1.0], "bad_logprobs", [104], [-1.0]),
        ([104, 300], [-1.0, -2.0], "unknown_tokens", [104, 300], [-1.0, -2.0]),
        ([104, 10**20, -1], [-1.0] * 3, "unknown_tokens", [104, 257, 257], [-1.0] * 3),
        ([None, 104], [-1.0] * 2, "unknown_tokens", [257, 104], [-1.0] * 2),
        ([], [], "no_tokens", [257], [0.0]),
    ],
)
async def test_what_a_trainer_cannot_use_is_mended_has_a_flaw_and_costs_no_other_completion(
    byte_tokenizer: Any, ids: Any, logprobs: Any, flaw: str | None, sent_ids: Any, sent_logprobs: Any
) -> None:
    first, other = await complete(byte_tokenizer, reply((ids, logprobs), GOOD))
    assert (other.text, other.flaw) == ("hi", None)
    assert first.flaw == flaw
    assert (first.tokens, first.masks, first.logprobs) == ([1, *sent_ids], [-100, *sent_ids], [1.0, *sent_logprobs])
    if flaw:
        with pytest.raises(InferenceError, match=r"none of its 1 completions can be used: "):
            await complete(byte_tokenizer, reply((ids, logprobs)))
        [read] = await complete(byte_tokenizer, reply((ids, logprobs)), split="eval")
        assert (read.text, read.flaw) == (first.text, None), "an evaluation reads the text"


def test_gaps_among_the_tokens_that_were_added_are_unknown() -> None:
    added = {"<a>": 300, "<b>": 305, "<c>": 2}
    tokenizer = SimpleNamespace(vocab_size=300, get_added_vocab=lambda: added, eos_token_id=305)
    vocabulary = Vocabulary(tokenizer)
    assert [one for one in (0, 2, 299, 300, 301, 304, 305, 306, -1) if vocabulary.knows(one)] == [0, 2, 299, 300, 305]
    assert vocabulary.knows_all([0, 300, 305]) and not vocabulary.knows_all([0, 304])


async def test_a_completion_that_was_broken_off_has_a_flaw_and_sglang_says_why_in_an_object(
    byte_tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for reason, split in (("abort", "train"), ({"type": "abort"}, "train"), (None, "train"), ("abort", "eval")):
        with pytest.raises(InferenceError, match="finish reason"):
            await complete(byte_tokenizer, reply(GOOD, reason=reason), split=split)
    [completion] = await complete(byte_tokenizer, reply(GOOD, reason={"type": "length", "length": 2}))
    assert (completion.finish_reason, completion.flaw) == ("length", None)
    answer = reply(*[GOOD] * 2, ([], []))
    await complete(byte_tokenizer, answer, config=SimpleNamespace(base_url="http://gpu7/v1"))
    assert "from http://gpu7/v1 sent without advantage, no_tokens: it has no tokens" in caplog.messages[-1]


async def test_the_cause_below_the_retries_is_what_the_error_says(byte_tokenizer: Any) -> None:
    @retry(stop=stop_after_attempt(2))
    def fail() -> None:
        raise ConnectionError("refused\nsecond line")

    with pytest.raises(RetryError) as caught:
        fail()
    client = offline_client(byte_tokenizer, fake_manager(caught.value))
    with pytest.raises(InferenceError, match=r"^the inference server: ConnectionError: refused$"):
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


async def test_tokens_that_only_the_server_counts_are_spent_too(make_client: Any, mock: MockServer) -> None:
    client = make_client(mock, "openai")
    prompt = client.render(build_messages("q"))
    choice = {"index": 0, "message": {"role": "assistant", "content": REPLY}, "finish_reason": "stop"}
    ours = len(REPLY.encode()) + 1
    for used, counted in ((3 * ours + 5000, 3 * ours + 5000), (1, 3 * ours), (None, 3 * ours), ("9", 3 * ours)):
        client.spending = Spending()

        def answer(body: Any, prompt_tokens: int, used: Any = used) -> Any:
            usage = {"prompt_tokens": 1, "completion_tokens": used, "total_tokens": 1}
            return 200, {"id": "x", "choices": [choice] * 3, "usage": usage}, {}

        mock.manners = answer
        await client.complete(prompt, SAMPLING)
        assert client.spending.completion_tokens == counted


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


# --- what will be asked is said before, what was spent after, and a limit ends the asking


TWO = [Completion("a", [0] * (100 + size), [-100] * 100 + [0] * size, None, "stop") for size in (300, 500)]


def test_a_plan_an_expectation_and_a_total_in_tokens_and_money() -> None:
    spending = Spending((0.5, 2.0))
    assert spending.plan(1000, 2_000_000, 8_000_000) == (
        "To ask: 1,000 requests, 2,000,000 prompt tokens, at most 8,000,000 completion tokens (at most 17.00)."
    )
    assert spending.expected(100) == ""
    spending.note(100, TWO)
    assert spending.expected(2000) == "800 of ~800.0k tokens, 0.0016 of ~1.65"
    assert spending.total() == "Spent: 1 requests, 100 prompt and 800 completion tokens (0.0016)."


def test_without_a_price_there_is_no_money_and_without_a_limit_no_end() -> None:
    spending = Spending()
    spending.note(100, TWO)
    assert spending.plan(1, 2, 3) == "To ask: 1 requests, 2 prompt tokens, at most 3 completion tokens."
    assert spending.expected(2) == "800 of ~800 tokens"
    assert not spending.is_over


def test_a_limit_counts_prompts_and_completions() -> None:
    for limit, is_over in ((901, False), (900, True)):
        spending = Spending(limit_tokens=limit)
        spending.note(100, TWO)
        assert spending.is_over is is_over


def test_what_is_under_way_counts_with_its_prompt_and_completions_of_the_mean_length() -> None:
    spending = Spending(limit_tokens=2500)
    with spending.under_way(1300, 9), spending.under_way(1199, 9):
        assert not spending.is_over
        with spending.under_way(1, 1):
            assert spending.is_over
    spending.note(100, TWO)
    with spending.under_way(399, 3):
        assert not spending.is_over
        with pytest.raises(ValueError), spending.under_way(1, 0):
            assert spending.is_over
            raise ValueError
    assert not spending.is_over


def test_a_price_is_two_numbers() -> None:
    assert ReasoningGymEnvConfig(price_per_million="0.3,1.2").price_per_million == (0.3, 1.2)
    for given in ("0.3", "a,b", "-1,2", "1,2,3", "inf,1", 5):
        with pytest.raises(ValueError, match=r"price_per_million[\s\S]*expected the prices of a million prompt"):
            ReasoningGymEnvConfig(price_per_million=given)
