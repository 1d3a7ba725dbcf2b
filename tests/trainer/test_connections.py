"""The connections to run-api that carry groups, in simulated time: each has one user at a time, and none stays open."""

from __future__ import annotations

import asyncio
import contextlib
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reasoning_gym_environment.trainer import transport as module
from reasoning_gym_environment.trainer.transport import IDLE_S, ApiError, HttpTransport
from reasoning_gym_environment.utils.clock import now
from reasoning_gym_environment.utils.resilience import cancel_and_wait
from testing.virtual_time import run_virtually

GROUP = {"tokens": [[1, 2]], "scores": [1.0]}


class Connection:
    """A connection whose every step takes a while, and of whose groups some fail."""

    opened: list[Connection]
    random: Random

    def __init__(self, url: str) -> None:
        self.is_kept = True
        self.is_used = False
        self.is_closed = False
        self.used_at = now()
        self.opened.append(self)

    @property
    def idle_s(self) -> float:
        return now() - self.used_at

    async def has_trainer(self) -> bool:
        assert not self.is_used and not self.is_closed
        self.is_used = True
        await self._wait()
        return True

    async def post(self, body: bytes) -> None:
        assert not self.is_closed
        await self._wait()
        self.is_used = False
        self.used_at = now()
        if self.random.random() < 0.1:
            raise ApiError("timeout")

    async def close(self) -> None:
        self.is_closed = True
        await self._wait()

    async def _wait(self) -> None:
        await asyncio.sleep(self.random.choice([0.0, 0.1, 1.0]))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32),
    starts=st.lists(st.floats(0.0, 8 * IDLE_S), min_size=5, max_size=40),
    ends_at=st.floats(0.0, 10 * IDLE_S),
)
def test_a_connection_has_one_user_at_a_time_and_is_closed_in_the_end(
    seed: int, starts: list[float], ends_at: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def call(function: Any, *arguments: Any) -> Any:
        return function(*arguments)

    async def offer(transport: HttpTransport, start: float) -> None:
        await asyncio.sleep(start)
        with contextlib.suppress(ApiError):
            assert await transport.offer(GROUP)

    async def go() -> None:
        transport = HttpTransport("http://simulated")
        offers = [asyncio.create_task(offer(transport, start)) for start in starts]
        await asyncio.wait(offers, timeout=ends_at)
        await cancel_and_wait(offers)
        for task in offers:
            assert task.cancelled() or task.exception() is None
        await transport.close()

    Connection.opened = []
    Connection.random = Random(seed)
    with monkeypatch.context() as patch:
        patch.setattr(module, "_TrainerConnection", Connection)
        patch.setattr(asyncio, "to_thread", call)
        run_virtually(go())
    assert all(connection.is_closed for connection in Connection.opened)
