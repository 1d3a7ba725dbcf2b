"""With several inference servers, one that fails its requests gets few of them, and comes back when it works again."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
from atroposlib.envs.base import APIServerConfig
from atroposlib.envs.server_handling.server_baseline import APIServer
from atroposlib.envs.server_handling.server_manager import ServerManager
from tenacity import wait_none

from reasoning_gym_environment.errors import InferenceError
from reasoning_gym_environment.inference.availability import MAX_DELAY_S, ServerChoice
from reasoning_gym_environment.inference.client import InferenceClient, Sampling
from reasoning_gym_environment.inference.prompts import build_messages

from ..mock_dialects import MockServer


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
        with contextlib.suppress(ConnectionError), self.choice.one(split) as manager:
            [server] = manager.servers
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
    with servers.choice.one("train") as manager:
        assert manager.servers == [servers.servers[0]]
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
