"""Requests are made again, servers rest, and those that wait do not come back all at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from typing import Any
from unittest.mock import AsyncMock

import pytest

from reasoning_gym_environment.errors import InferenceError, RequestRefusedError, ServerBusyError, UnavailableError
from reasoning_gym_environment.inference import client as inference
from reasoning_gym_environment.inference.client import UNAVAILABLE_AFTER, InferenceClient, RetryPolicy, ServerPool
from reasoning_gym_environment.inference.prompts import Prompt, Sampling
from reasoning_gym_environment.inference.servers import Reply

from ..fake_server import QUICK, FakeServer, tokens
from ..process_table import until

PROMPT = Prompt([], "p", [1])
ONE = Sampling(1, 10, 1.0)


class Servers:
    """Servers with so much room each, which are asked without a request."""

    def __init__(self, *rooms: int) -> None:
        self.now = 100.0
        self.adapters = [FakeServer(None, room=room, address=f"http://{n}/v1") for n, room in enumerate(rooms)]
        self.pool = ServerPool(self.adapters, RetryPolicy(), clock=lambda: self.now)

    async def ask(self, error: InferenceError | None = None) -> int:
        """The number of the server that was asked."""
        with contextlib.suppress(InferenceError):
            async with self.pool.turn("train") as chosen:
                if error:
                    raise error
        return self.adapters.index(chosen)

    async def fail(self, times: int = UNAVAILABLE_AFTER) -> None:
        for _ in range(times):
            await self.ask(InferenceError("no route"))


async def test_one_that_fails_again_and_again_rests_ever_longer_and_is_tried_by_one_request() -> None:
    servers = Servers(50, 40)
    await servers.fail(UNAVAILABLE_AFTER - 1)
    assert await servers.ask() == 0, "the one with the most room"
    await servers.fail(UNAVAILABLE_AFTER)
    for rest_s in (1.0, 2.0, 4.0):
        servers.now += 0.99 * rest_s
        assert await servers.ask() == 1
        servers.now += 0.11 * rest_s
        assert await servers.ask(InferenceError("still")) == 0
    assert servers.pool.metrics()["inference/servers_unavailable"] == 1.0
    assert not servers.pool.is_unavailable, "the other one works"
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
    assert servers.pool.is_unavailable is not is_answered


def _no_answer() -> None:
    raise InferenceError("no answer in time")


async def test_a_busy_server_is_left_alone_for_as_long_as_it_says_and_then_gets_one_more_with_each_answer() -> None:
    servers = Servers(64)
    await servers.ask(ServerBusyError("429", 30.0))
    [state] = servers.pool.states
    servers.now += 29.9
    assert not state.is_free
    servers.now += 3.2
    for most in (1, 2, 4):
        async with contextlib.AsyncExitStack() as under_way:
            for _ in range(most):
                assert state.is_free
                await under_way.enter_async_context(servers.pool.turn("train"))
            assert not state.is_free, "as many again as were answered"


# --- one client, and servers that fail


def asks(tokenizer: Any, answer: Any) -> InferenceClient:
    return InferenceClient([FakeServer(answer)], tokenizer, "t", policy=QUICK)


@pytest.mark.parametrize(("error", "tries"), [(InferenceError("cut off"), QUICK.tries), (RequestRefusedError("no"), 1)])
async def test_a_request_is_made_a_few_times_and_a_refused_one_once(
    byte_tokenizer: Any, error: InferenceError, tries: int
) -> None:
    client = asks(byte_tokenizer, AsyncMock(side_effect=error))
    with pytest.raises(type(error), match=str(error)):
        await client.complete(PROMPT, ONE)
    assert client.metrics()["inference/requests_failed"] == tries


async def test_an_outage_that_lasts_too_long_is_not_waited_out(byte_tokenizer: Any) -> None:
    client = asks(byte_tokenizer, AsyncMock(side_effect=InferenceError("no route")))
    client.servers.gives_up_after_s = 0.0
    results = await asyncio.gather(*(client.complete(PROMPT, ONE) for _ in range(20)), return_exceptions=True)
    assert sum(isinstance(one, UnavailableError) for one in results) >= 20 - UNAVAILABLE_AFTER


async def test_a_server_that_answers_nothing_is_reported_while_requests_wait(
    byte_tokenizer: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(inference, "SILENT_S", 0.02)
    caplog.set_level(logging.WARNING)
    is_told = re.compile(r"No answer from http://fake/v1 for .* s; 3 requests wait")

    async def answer(prompt: Prompt, sampling: Sampling) -> Reply:
        await until(lambda: bool(is_told.search(caplog.text)))
        return tokens("x")

    client = asks(byte_tokenizer, answer)
    await asyncio.gather(*(client.complete(PROMPT, ONE) for _ in range(3)))
