"""Checked completions, their cost, and servers that fail."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from reasoning_gym_environment.errors import (
    EnvironmentSetupError,
    InferenceError,
    RequestRefusedError,
    ServerBusyError,
    UnavailableError,
)
from reasoning_gym_environment.inference.chat_tokenizer import ChatTokenizer, Prompt
from reasoning_gym_environment.inference.client import InferenceClient
from reasoning_gym_environment.inference.prompts import RequestParameters
from reasoning_gym_environment.inference.server_pool import UNAVAILABLE_AFTER, RetryPolicy, ServerPool
from reasoning_gym_environment.inference.servers import RawCompletion, Reply
from reasoning_gym_environment.inference.spending import Spending
from reasoning_gym_environment.records import Completion
from testing.fake_server import QUICK, FakeServer, tokens
from testing.virtual_time import run_virtually

PROMPT = Prompt([], "p", [1])
ONE = RequestParameters(1, 10, 1.0)
GOOD = ([104, 105], [-0.5, -0.25])
"""Ids and logprobs of a completion, "hi"."""


def reply(*sampled: tuple[list[Any], list[Any] | None], reason: Any = "stop") -> Reply:
    return Reply([RawCompletion(reason, ids, logprobs) for ids, logprobs in sampled])


def client_of(tokenizer: Any, *answers: Any, **options: Any) -> InferenceClient:
    """A client of a server that gives these replies, or raises them, in turn. The last reply is repeated."""
    left = list(answers)

    async def answer(prompt: Prompt, sampling: RequestParameters) -> Reply:
        given = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(given, BaseException):
            raise given
        return given

    return InferenceClient(
        [FakeServer(answer)], ChatTokenizer(tokenizer, "my/tokenizer"), policy=QUICK, jitter=Random(0), **options
    )


async def complete(tokenizer: Any, answer: Reply, split: str = "train") -> list[Completion]:
    client = client_of(tokenizer, answer)
    return await client.complete(PROMPT, RequestParameters(len(answer.completions), 10, 1.0, split=split))


async def test_completions_have_one_token_mask_and_logprob_per_position(byte_tokenizer: Any) -> None:
    [completion] = await complete(byte_tokenizer, reply(GOOD, reason="length"))
    assert completion == Completion("hi", [1, 104, 105], [-100, 104, 105], [1.0, -0.5, -0.25], "length")
    [rounded] = await complete(byte_tokenizer, reply(([104], [0.0005])))
    assert (rounded.logprobs, rounded.invalid_reason) == ([1.0, 0.0005], None)


async def test_missing_completions_are_requested_and_surplus_completions_dropped(byte_tokenizer: Any) -> None:
    client = client_of(byte_tokenizer, tokens("a", "b"), InferenceError("cut off"), tokens("c", "d"))
    completions = await client.complete(PROMPT, RequestParameters(3, 10, 1.0))
    assert [completion.text for completion in completions] == ["a", "b", "c"]


INVALID: dict[str, list[tuple[list[Any], list[Any]]]] = {
    "bad_logprobs": [
        ([104], [math.nan]),
        ([104], [-math.inf]),
        ([104], [None]),
        ([104], ["-1"]),
        ([104], [-1e39]),
        ([104], [0.5]),
        ([104, 105], [-1.0]),
        ([104, 105], [-1.0, -1.0, -1.0]),
    ],
    "unknown_tokens": [([104, 300], [-1.0] * 2), ([104, 10**20, -1], [-1.0] * 3), ([None, 104.0], [-1.0] * 2)],
    "no_tokens": [([], [])],
}
"""By `invalid_reason`: token ids and log probabilities that a server returns."""

CASES = [(reason, ids, logprobs) for reason, replies in INVALID.items() for ids, logprobs in replies]


@pytest.mark.parametrize(("reason", "ids", "logprobs"), CASES)
async def test_a_completion_that_a_trainer_cannot_use_is_invalid_and_costs_no_other_completion(
    byte_tokenizer: Any, caplog: pytest.LogCaptureFixture, reason: str, ids: list[Any], logprobs: list[Any]
) -> None:
    first, other = await complete(byte_tokenizer, reply((ids, logprobs), GOOD))
    assert (other.text, other.invalid_reason, first.invalid_reason) == ("hi", None, reason)
    assert f"{reason}, sent without advantage: http://fake/v1: " in caplog.text
    end = byte_tokenizer.eos_token_id
    assert (first.tokens, first.masks, first.logprobs) == ([1, end], [-100, end], [1.0, 0.0])
    with pytest.raises(InferenceError, match=r"fake/v1: none of its 1 completions can be used: "):
        await complete(byte_tokenizer, reply((ids, logprobs)))
    [read] = await complete(byte_tokenizer, reply((ids, logprobs)), split="eval")
    assert (read.text, read.invalid_reason) == (first.text, None), "an evaluation reads the text"


REFUSAL = RequestRefusedError("400", advice="tool_choice is required")
Event = tuple[float, str | None]
"""Seconds to wait, then the question that is refused. None stands for a question that is answered."""


def ended_at(tokenizer: Any, events: Sequence[Event]) -> int | None:
    """The number of the event at which the run ends, if it does. Each event has one request."""

    async def go() -> int | None:
        client = client_of(tokenizer, *[REFUSAL if question else tokens("a") for _, question in events])
        for number, (pause_s, question) in enumerate(events):
            await asyncio.sleep(pause_s)
            try:
                await client.complete(Prompt([], question or "p", [1]), ONE)
            except EnvironmentSetupError as error:
                assert str(error) == "tool_choice is required"
                return number
            except RequestRefusedError:
                assert question
        return None

    return run_virtually(go(), limit_s=1e9)


def test_servers_that_refuse_every_prompt_end_the_run_with_their_sentence(byte_tokenizer: Any) -> None:
    refused: list[Event] = [(1.0, question) for question in "aabc"]
    assert ended_at(byte_tokenizer, refused) == 3, "three prompts, of servers that never answered"
    # A model that is loaded again behind a proxy is waited for.
    throughout: list[Event] = [(60.0, question) for question in "abc" * 15]
    assert ended_at(byte_tokenizer, [(0.0, None), *throughout]) == 31, "the first refusal is half an hour old"


# --- spending, and a limit that ends the requests


def test_a_limit_of_tokens_counts_requests_in_flight_at_the_mean_length() -> None:
    for limit, is_over in ((None, False), (901, False), (900, True)):
        spending = Spending(limit_tokens=limit)
        spending.note(100, 2, 800)
        assert spending.is_over is is_over
    spending = Spending(limit_tokens=2500)
    spending.note(100, 2, 800)
    for completions, is_over in ((2, False), (3, True)):
        with spending.in_flight(400, completions):
            assert spending.is_over is is_over
    assert spending.total() == "1 requests, 100 prompt tokens, 800 completion tokens"


# --- servers that fail: requests are repeated, and servers rest


@pytest.mark.parametrize(("error", "tries"), [(InferenceError("cut off"), QUICK.tries), (RequestRefusedError("no"), 1)])
async def test_a_failed_request_is_repeated_and_a_refused_request_is_not(
    byte_tokenizer: Any, error: InferenceError, tries: int
) -> None:
    client = client_of(byte_tokenizer, error)
    patient = replace(ONE, patience_s=60.0)
    with pytest.raises(type(error), match=str(error)):
        await client.complete(PROMPT, patient)
    assert client.metrics()["inference/requests_failed"] == tries


async def test_a_request_that_waits_for_ever_is_not_repeated_in_an_outage_because_it_may_be_the_cause(
    byte_tokenizer: Any,
) -> None:
    client = client_of(byte_tokenizer, InferenceError("cut off"))
    with pytest.raises(InferenceError, match="cut off"):
        await client.complete(PROMPT, ONE)
    assert client.metrics()["inference/requests_failed"] == UNAVAILABLE_AFTER


def test_a_request_that_no_server_accepts_waits_for_the_end_of_the_outage(byte_tokenizer: Any) -> None:
    def refused() -> InferenceError:
        error = InferenceError("connection refused")
        error.was_sent = False
        return error

    async def go() -> None:
        client = client_of(byte_tokenizer, *[refused() for _ in range(50)], tokens("a"))
        [completion] = await client.complete(PROMPT, ONE)
        assert completion.text == "a"
        impatient = client_of(byte_tokenizer, refused())
        with pytest.raises(UnavailableError, match="no inference server has answered for 60 s"):
            await impatient.complete(PROMPT, replace(ONE, patience_s=60.0))
        crashing = client_of(byte_tokenizer, InferenceError("server disconnected"), refused())
        with pytest.raises(InferenceError, match="connection refused") as caught:
            await crashing.complete(PROMPT, ONE)
        assert caught.value.was_sent, "the request may have crashed the server"

    run_virtually(go())


class Servers:
    """A pool of servers with the given room each. `ask` takes a turn without a request."""

    def __init__(self, *rooms: int) -> None:
        self.now = 100.0
        self.adapters = [FakeServer(None, room=room, address=f"http://{n}/v1") for n, room in enumerate(rooms)]
        self.pool = ServerPool(self.adapters, RetryPolicy(), jitter=Random(0), clock=lambda: self.now)

    async def ask(self, error: InferenceError | None = None) -> int:
        """The number of the server whose turn it was."""
        with contextlib.suppress(InferenceError):
            async with self.pool.turn("train") as chosen:
                if error:
                    raise error
        return self.adapters.index(chosen)

    async def fail(self, times: int = UNAVAILABLE_AFTER) -> None:
        for _ in range(times):
            await self.ask(InferenceError("no route"))


async def test_a_server_that_keeps_failing_rests_ever_longer_and_is_tried_by_a_single_request() -> None:
    servers = Servers(50, 40)
    for _ in range(2):
        await servers.fail(UNAVAILABLE_AFTER - 1)
        assert await servers.ask() == 0, "it has the most room, and failures before an answer do not count"
    await servers.fail(UNAVAILABLE_AFTER)
    for rest_s in (1.0, 2.0, 4.0):
        servers.now += 0.99 * rest_s
        assert await servers.ask() == 1
        servers.now += 0.11 * rest_s
        assert await servers.ask(InferenceError("still")) == 0
    assert servers.pool.metrics()["inference/servers_unavailable"] == 1.0
    assert servers.pool.unavailable_since() is None, "server 1 works"
    servers.now += 10.0
    async with servers.pool.turn("train") as tried:
        assert tried is servers.adapters[0]
        assert await servers.ask() == 1
    async with servers.pool.turn("train"):
        assert await servers.ask() == 0, "it works again, with all its room"
    assert servers.pool.metrics()["inference/servers_unavailable"] == 0.0


@pytest.mark.parametrize("is_answered", [True, False])
async def test_requests_that_failed_while_others_were_answered_are_no_outage(is_answered: bool) -> None:
    servers = Servers(50)
    async with contextlib.AsyncExitStack() as hanging:
        for _ in range(UNAVAILABLE_AFTER):
            hanging.enter_context(contextlib.suppress(InferenceError))
            await hanging.enter_async_context(servers.pool.turn("train"))
            hanging.callback(_no_answer)
        servers.now += 5.0
        if is_answered:
            await servers.ask()
    assert (servers.pool.unavailable_since() is None) is is_answered


def _no_answer() -> None:
    raise InferenceError("no answer in time")


def test_a_server_that_stops_answering_is_reported_until_it_answers(caplog: pytest.LogCaptureFixture) -> None:
    async def requests() -> None:
        pool = ServerPool([FakeServer(None, room=2)], RetryPolicy(), jitter=Random(0))

        async def request(duration_s: float) -> None:
            async with pool.turn("eval"):
                await asyncio.sleep(duration_s)

        # The third request waits for a slot. The second request keeps the server silent from 30 to 1000 s.
        await asyncio.gather(*map(request, (30.0, 1000.0, 970.0)))
        # Later requests are answered in time.
        for _ in range(10):
            await request(50.0)

    run_virtually(requests())
    silences = re.findall(r"No answer from http://fake/v1 for (\d+) s; (\d) requests wait", caplog.text)
    assert silences == [(str(seconds), "2") for seconds in range(90, 970, 60)]


async def test_a_busy_server_rests_as_long_as_it_asks() -> None:
    servers = Servers(64)
    await servers.ask(ServerBusyError("429", 30.0))
    [state] = servers.pool.states
    servers.now += 29.9
    assert not state.is_free
    servers.now += 3.2
    assert state.is_free
    assert servers.pool.metrics()["inference/servers_unavailable"] == 0.0
