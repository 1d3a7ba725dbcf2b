"""With several inference servers, one that fails its requests gets few of them, and comes back when it works again."""

from __future__ import annotations

import asyncio
import contextlib
import math
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
from reasoning_gym_environment.inference.client import InferenceClient, Sampling
from reasoning_gym_environment.inference.prompts import build_messages

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
    latencies = Latencies(HangLimits(factor=3.0, floor_s=30.0))
    for _ in range(ENOUGH):
        assert latencies.limits(8000) == (120.0, math.inf), "too few have been seen"
        latencies.note(2.0, 100)
    assert latencies.limits(100) == (30.0, 60.0)
    assert latencies.limits(8000) == (30.0, pytest.approx(3 * 8000 * 2.0 / 100)), "one that writes all it may"
    for _ in range(2 * ENOUGH):
        latencies.note(40.0, 4000)
    assert latencies.limits(4000) == (120.0, 240.0)
    for given_up, times in ((7, 1), (1, 2), (100, 8)):
        for _ in range(given_up):
            latencies.note_given_up()
        assert latencies.limits(4000)[0] == 120.0 * times, "all may have become slow"
    latencies.note(40.0, 4000)
    assert latencies.limits(4000)[0] == 120.0
    assert latencies.metrics() == {f"inference/latency_{name}": 40.0 for name in ("p50", "p95", "max")}
    assert Latencies(HangLimits(factor=-1)).limits(10) == (math.inf, math.inf)


def test_a_server_with_requests_that_hang_is_asked_when_the_others_have_no_room() -> None:
    servers = Servers(5, 1)
    with servers.choice.one("train") as chosen:
        chosen.hanging.append(SimpleNamespace(split="train"))
    assert servers.ask() == 1
    servers.servers[1].sem._value = 0
    assert servers.ask() == 0
    assert [servers.choice.hanging(split) for split in ("train", "eval", None)] == [1, 0, 1]


async def test_requests_that_hang_are_told_of_once_for_each_server_and_are_given_up(
    tokenizer_dir: Any, byte_tokenizer: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(availability, "GATHER_S", 0.02)
    async with MockServer(lambda _: "hi", byte_tokenizer) as one, MockServer(lambda _: "hi", byte_tokenizer) as other:
        common = {"server_type": "vllm", "model_name": "mock", "api_key": "x", "health_check": False}
        common["tokenizer_name"] = str(tokenizer_dir)
        configs = [APIServerConfig(base_url=server.base_url, **common) for server in (one, other)]
        limits = HangLimits(factor=10.0, floor_s=0.3)
        client = InferenceClient(ServerManager(configs), byte_tokenizer, str(tokenizer_dir), limits)
        prompt = client.render(build_messages("What is 2 + 2?"))

        async def ask() -> list[Any]:
            return await client.complete(prompt, Sampling(n=2, max_tokens=3, temperature=1.0))

        for _ in range(ENOUGH):
            await ask()
        for server in (one, other):
            server.faults.hang_next = 10**6
        lost = [asyncio.create_task(ask()) for _ in range(6)]
        await until(lambda: client.hanging == 6)
        assert client.metrics()["inference/hanging"] == 6.0
        results = await asyncio.gather(*lost, return_exceptions=True)
    assert all("given up" in str(one) for one in results), results
    assert client.metrics()["inference/given_up"] == 6.0 and client.hanging == 0
    for server in (one, other):
        assert caplog.text.count(f"3 requests hang at {server.base_url}, the longest for 0 s") == 1


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
