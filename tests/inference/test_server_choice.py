"""With several inference servers, one that fails its requests gets few of them, and comes back when it works again."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from atroposlib.envs.base import APIServerConfig
from atroposlib.envs.server_handling.server_baseline import APIServer
from atroposlib.envs.server_handling.server_manager import ServerManager
from tenacity import wait_none

from reasoning_gym_environment.errors import InferenceError
from reasoning_gym_environment.inference import availability
from reasoning_gym_environment.inference.availability import ENOUGH, MAX_DELAY_S, HangLimits, Latencies, ServerChoice
from reasoning_gym_environment.inference.client import InferenceClient
from reasoning_gym_environment.inference.prompts import Sampling, build_messages

from ..mock_dialects import MockServer
from ..process_table import until


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Servers:
    """Servers named by number, with so much room each."""

    def __init__(self, *rooms: int) -> None:
        self.clock = Clock()
        self.servers = [self._server(room) for room in rooms]
        self.choice = ServerChoice(SimpleNamespace(servers=self.servers), clock=self.clock)

    @staticmethod
    def _server(room: int) -> Any:
        sem = SimpleNamespace(_value=room)
        return SimpleNamespace(server_healthy=True, sem=sem, eval_sem=SimpleNamespace(_value=-room))

    def ask(self, split: str = "train", *, fails: bool = False) -> int:
        """The number of the server that was asked."""
        with contextlib.suppress(ConnectionError), self.choice.one(split) as chosen:
            [server] = chosen.manager.servers
            if fails:
                raise ConnectionError("refused")
        return self.servers.index(server)


def test_the_one_with_the_most_room_is_asked_among_those_that_pass_their_check() -> None:
    servers = Servers(3, 5, 4)
    assert (servers.ask(), servers.ask("eval")) == (1, 0)
    servers.servers[1].server_healthy = False
    assert servers.ask() == 2


def test_one_that_failed_rests_ever_longer_and_then_gets_one_request(caplog: pytest.LogCaptureFixture) -> None:
    servers = Servers(5, 1)
    assert servers.ask(fails=True) == 0
    for rest_s in (1.0, 2.0, 4.0):
        servers.clock.now += rest_s - 0.01
        assert servers.ask() == 1
        servers.clock.now += 0.01
        assert servers.ask(fails=True) == 0
        assert servers.ask() == 1
    assert servers.choice.metrics() == {"inference/servers_away": 1.0, "inference/server_outages": 1.0}
    servers.clock.now += MAX_DELAY_S
    assert [servers.ask(), servers.ask()] == [0, 0], "it works again"
    assert servers.choice.metrics()["inference/servers_away"] == 0.0
    assert len(caplog.messages) == 2 and "requests go to the others" in caplog.messages[0]


def test_while_one_request_tries_it_the_others_go_elsewhere() -> None:
    servers = Servers(5, 1)
    servers.ask(fails=True)
    servers.clock.now += 1.0
    with servers.choice.one("train") as chosen:
        assert chosen.manager.servers == [servers.servers[0]]
        assert servers.ask() == 1
    assert servers.ask() == 0


def test_requests_that_were_under_way_when_it_failed_do_not_count_again() -> None:
    servers = Servers(5, 1)
    with pytest.raises(ConnectionError), servers.choice.one("train"):
        servers.clock.now += 1.0
        servers.ask(fails=True)
        raise ConnectionError("the same moment")
    servers.clock.now += 1.0
    assert servers.ask() == 0, "one failure, one second of rest"


def test_if_all_rest_the_first_to_be_over_is_asked_and_a_single_one_never_rests() -> None:
    servers = Servers(5, 1)
    assert [servers.ask(fails=True), servers.ask(fails=True), servers.ask()] == [0, 1, 0]
    single = Servers(5)
    assert [single.ask(fails=True), single.ask(fails=True)] == [0, 0]
    assert single.choice.metrics() == {}


# --- servers that hang


def test_a_request_hangs_when_it_is_slow_among_its_like_and_is_given_up_when_no_completion_takes_so_long() -> None:
    latencies = Latencies(HangLimits(factor=2.0, floor_s=30.0))
    for _ in range(ENOUGH):
        assert latencies.limits(8000, under_way=1) == (math.inf, math.inf), "too few have been seen"
        latencies.note(2.0, 100)
    assert latencies.limits(8000, under_way=ENOUGH) == (math.inf, math.inf), "of those that are under way"
    assert latencies.limits(100, under_way=1) == (30.0, 60.0)
    assert latencies.limits(8000, under_way=1) == (30.0, pytest.approx(2 * 8000 * 2.0 / 100)), "it may write all of it"
    for _ in range(2 * ENOUGH):
        latencies.note(40.0, 4000)
    assert latencies.limits(4000, 1) == (80.0, 160.0)
    for given_up, times in ((7, 1), (1, 2), (100, 8)):
        for _ in range(given_up):
            latencies.note_given_up()
        assert latencies.limits(4000, 1)[0] == 80.0 * times, "all may have become slow"
    latencies.note(40.0, 4000)
    assert latencies.limits(4000, 1)[0] == 80.0
    assert latencies.metrics() == {f"inference/latency_{name}": 40.0 for name in ("p50", "p95", "max")}


def test_a_server_with_requests_that_hang_is_asked_when_the_others_have_no_room() -> None:
    servers = Servers(5, 1)
    with servers.choice.one("train") as chosen:
        chosen.hanging.add(availability._Request("train", 10, 0.0, SimpleNamespace()))
    assert servers.ask() == 1
    servers.servers[1].sem._value = 0
    assert servers.ask() == 0
    assert [servers.choice.hanging(split) for split in ("train", "eval", None)] == [1, 0, 1]


@pytest.fixture
async def two_servers(byte_tokenizer: Any) -> AsyncIterator[list[MockServer]]:
    async with MockServer(lambda _: "hi", byte_tokenizer) as one, MockServer(lambda _: "hi", byte_tokenizer) as other:
        yield [one, other]


@pytest.fixture
def make_ask(two_servers: list[MockServer], tokenizer_dir: Any, byte_tokenizer: Any) -> Callable[..., Any]:
    """`make_ask(factor=10.0, floor_s=0.3)`: a client of both servers, and a function that asks it."""

    def make(**limits: float) -> tuple[InferenceClient, Callable[[], Any]]:
        common = {"server_type": "vllm", "model_name": "mock", "api_key": "x", "health_check": False}
        common["tokenizer_name"] = str(tokenizer_dir)
        configs = [APIServerConfig(base_url=server.base_url, **common) for server in two_servers]
        client = InferenceClient(ServerManager(configs), byte_tokenizer, str(tokenizer_dir), HangLimits(**limits))
        prompt = client.render(build_messages("What is 2 + 2?"))
        return client, lambda: client.complete(prompt, Sampling(n=2, max_tokens=3, temperature=1.0))

    return make


async def test_requests_that_hang_are_told_of_once_for_each_server_and_are_given_up(
    two_servers: list[MockServer], make_ask: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(availability, "GATHER_S", 0.02)
    client, ask = make_ask(factor=10.0, floor_s=0.3)
    for _ in range(ENOUGH):
        await ask()
    for server in two_servers:
        server.faults.hang_next = 10**6
    lost = [asyncio.create_task(ask()) for _ in range(6)]
    await until(lambda: client.hanging == 6)
    assert client.metrics()["inference/hanging"] == 6.0
    results = await asyncio.gather(*lost, return_exceptions=True)
    assert all("given up" in str(one) for one in results), results
    assert client.metrics()["inference/given_up"] == 6.0 and client.hanging == 0
    for server in two_servers:
        # How long, a busy machine may decide.
        told = rf"3 requests have no answer from {re.escape(server.base_url)}, the longest for \d+ s: it hangs"
        assert len(re.findall(told, caplog.text)) == 1


async def test_the_first_requests_are_told_of_and_waited_for_and_off_is_off(
    two_servers: list[MockServer], make_ask: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(availability, "GATHER_S", 0.02)
    for server in two_servers:
        server.faults.hang = True
    (off, ask), (client, ask_again) = make_ask(factor=-1, floor_s=0.02), make_ask(factor=2.0, floor_s=0.02)
    waiting = [asyncio.create_task(ask()), asyncio.create_task(ask_again())]
    await until(lambda: "1 request has no answer from" in caplog.text)
    assert client.hanging == off.hanging == 0
    for server in two_servers:
        server.faults.hang = False
    assert [len(reply) for reply in await asyncio.gather(*waiting)] == [2, 2]
    assert caplog.text.count("no answer from") == caplog.text.count("too few have been answered") == 1


# The client of openai has retries of its own, with pauses.
@pytest.mark.parametrize("kind", ["vllm", pytest.param("openai", marks=pytest.mark.slow)])
async def test_a_server_that_fails_every_request_costs_a_few_of_them(
    kind: str,
    tokenizer_dir: Any,
    byte_tokenizer: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for method in (APIServer._tokens_and_logprobs_comp, APIServer._chat_comp):
        monkeypatch.setattr(method.retry, "wait", wait_none())

    async def slowly(prompt: str) -> str:
        await asyncio.sleep(0.02)
        return "<think>two and two</think><answer>4</answer>"

    async with MockServer(slowly, byte_tokenizer) as broken, MockServer(slowly, byte_tokenizer) as good:
        broken.faults.fail_next = 10**6
        common = {"server_type": kind, "model_name": "mock", "api_key": "x", "health_check": False}
        common["tokenizer_name"] = str(tokenizer_dir)
        configs = [APIServerConfig(base_url=server.base_url, **common) for server in (broken, good)]
        client = InferenceClient(ServerManager(configs), byte_tokenizer, str(tokenizer_dir))
        prompt = client.render(build_messages("What is 2 + 2?"))
        done: list[bool] = []

        async def ask() -> None:
            while done.count(True) < 60:
                try:
                    await client.complete(prompt, Sampling(n=2, max_tokens=100, temperature=1.0))
                    done.append(True)
                except InferenceError:
                    done.append(False)

        await asyncio.gather(*(ask() for _ in range(4)))
    assert 0 < done.count(False) <= 8
    assert "500" in caplog.text and "RetryError" not in caplog.text
    assert client.metrics()["inference/server_outages"] == 1.0
