"""Completions with one token, mask and logprob for each position, whatever a server gives; and what they cost."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from reasoning_gym_environment import ReasoningGymEnvConfig
from reasoning_gym_environment.errors import EnvironmentSetupError, InferenceError, RequestRefusedError
from reasoning_gym_environment.inference import client as inference
from reasoning_gym_environment.inference.client import InferenceClient, Spending, Vocabulary
from reasoning_gym_environment.inference.prompts import Prompt, Sampling
from reasoning_gym_environment.inference.servers import Reply, Sampled
from reasoning_gym_environment.records import Completion

from ..fake_server import QUICK, FakeServer, tokens

PROMPT = Prompt([], "p", [1])
GOOD = ([104, 105], [-0.5, -0.25])
"""Ids and logprobs of a completion, "hi"."""


def reply(*sampled: tuple[list[Any], list[Any] | None], reason: Any = "stop") -> Reply:
    return Reply([Sampled(reason, ids, logprobs) for ids, logprobs in sampled])


def asks(tokenizer: Any, *answers: Any, **options: Any) -> InferenceClient:
    """A client of a server that gives these replies one after the other, or raises them; the last again and again."""
    left = list(answers)

    async def answer(prompt: Prompt, sampling: Sampling) -> Reply:
        given = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(given, BaseException):
            raise given
        return given

    return InferenceClient([FakeServer(answer)], tokenizer, "my/tokenizer", policy=QUICK, **options)


async def complete(tokenizer: Any, answer: Reply, split: str = "train") -> list[Completion]:
    client = asks(tokenizer, answer)
    return await client.complete(PROMPT, Sampling(len(answer.completions), 10, 1.0, split=split))


async def test_completions_have_one_token_mask_and_logprob_per_position(byte_tokenizer: Any) -> None:
    [completion] = await complete(byte_tokenizer, reply(GOOD, reason="length"))
    assert completion == Completion("hi", [1, 104, 105], [-100, 104, 105], [1.0, -0.5, -0.25], "length")
    [without] = await complete(byte_tokenizer, reply(([104], None)))
    assert (without.logprobs, without.flaw) == (None, None)
    [other_prompt] = await complete(byte_tokenizer, Reply([Sampled("stop", *GOOD)], prompt_ids=[7, 8]))
    assert other_prompt.tokens == [7, 8, 104, 105]


async def test_text_is_tokenized_as_it_came(byte_tokenizer: Any) -> None:
    class Texts(FakeServer):
        has_tokens = False

    async def answer(prompt: Prompt, sampling: Sampling) -> Reply:
        return Reply([Sampled("stop", text="<think>a"), Sampled("length", text="b")], used=5000)

    client = InferenceClient([Texts(answer)], byte_tokenizer, "t")
    stopped, cut = await client.complete(PROMPT, Sampling(2, 10, 1.0))
    assert not client.has_tokens
    assert stopped.tokens == [1, *b"<think>a", byte_tokenizer.eos_token_id] and stopped.logprobs is None
    assert (cut.tokens, cut.masks, cut.finish_reason) == ([1, *b"b"], [-100, *b"b"], "length")
    assert client.spending.completion_tokens == 5000, "tokens that only the server counts are spent too"


async def test_what_is_missing_of_a_group_is_asked_for_and_what_is_too_much_dropped(byte_tokenizer: Any) -> None:
    client = asks(byte_tokenizer, tokens("a", "b"), InferenceError("cut off"), tokens("c", "d"))
    completions = await client.complete(PROMPT, Sampling(3, 10, 1.0))
    assert [one.text for one in completions] == ["a", "b", "c"]
    assert client.metrics()["inference/replies_with_another_number_of_completions"] == 2.0


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
        with pytest.raises(InferenceError, match=r"fake/v1: none of its 1 completions can be used: "):
            await complete(byte_tokenizer, reply((ids, logprobs)))
        [read] = await complete(byte_tokenizer, reply((ids, logprobs)), split="eval")
        assert (read.text, read.flaw) == (first.text, None), "an evaluation reads the text"


def test_gaps_among_the_tokens_that_were_added_are_unknown() -> None:
    added = {"<a>": 300, "<b>": 305, "<c>": 2}
    tokenizer = SimpleNamespace(vocab_size=300, get_added_vocab=lambda: added, eos_token_id=305)
    vocabulary = Vocabulary(tokenizer)
    assert [one for one in (0, 2, 299, 300, 301, 304, 305, 306, -1) if vocabulary.knows(one)] == [0, 2, 299, 300, 305]


async def test_a_completion_that_was_broken_off_has_a_flaw_and_its_server_is_named(
    byte_tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for reason, split in (("abort", "train"), (None, "train"), ("abort", "eval")):
        with pytest.raises(InferenceError, match="finish reason"):
            await complete(byte_tokenizer, reply(GOOD, reason=reason), split=split)
    caplog.clear()
    await complete(byte_tokenizer, reply(GOOD, ([], []), GOOD))
    assert "from http://fake/v1 sent without advantage, no_tokens: it has no tokens" in caplog.text


async def test_servers_that_refuse_every_prompt_end_the_run_with_their_sentence(
    byte_tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(inference, "time", SimpleNamespace(monotonic=lambda: now))
    refusal = RequestRefusedError("400", advice="tool_choice is required")
    client = asks(byte_tokenizer, tokens("a"), *[refusal] * 5, tokens("a"), refusal)

    async def ask(text: str) -> None:
        await client.complete(Prompt([], text, [1]), Sampling(1, 10, 1.0))

    await ask("is answered")
    # A model that is loaded again behind a proxy is waited for.
    for question in "aabcd":
        with pytest.raises(RequestRefusedError):
            await ask(question)
    await ask("is answered again")
    for question in "aab":
        with pytest.raises(RequestRefusedError):
            await ask(question)
    now = inference.REFUSED_FOR_S
    with pytest.raises(EnvironmentSetupError, match="tool_choice is required"):
        await ask("c")


# --- what will be asked is said before, what was spent after, and a limit ends the asking


TWO = [Completion("a", [0] * (100 + size), [-100] * 100 + [0] * size, None, "stop") for size in (300, 500)]


def test_a_plan_an_expectation_and_a_total_in_tokens_and_money() -> None:
    spending = Spending((0.5, 2.0))
    assert spending.plan(1000, 2_000_000, 8_000_000) == (
        "To ask: 1,000 requests, 2,000,000 prompt tokens, at most 8,000,000 completion tokens (at most 17.00)."
    )
    assert spending.expected(100) == ""
    spending.note(100, TWO)
    assert spending.expected(2000) == "800 of ~800,000 tokens, 0.0016 of ~1.65"
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
