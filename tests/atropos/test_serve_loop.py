"""The loop of `serve`: how many groups it starts, which are Atropos' numbers, and that a full queue cancels none."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from atroposlib.envs.base import EvalHandlingEnum

from reasoning_gym_environment.atropos.serve_loop import ServeLoop, is_over, is_passed, most_groups
from reasoning_gym_environment.atropos.session import RunState
from reasoning_gym_environment.errors import EnvironmentSetupError

from ..process_table import until

NOW: dict[str, Any] = {"current_step": 0, "queue_size": 0, "self_queue_size": 0, "max_group_size": 4}


def settings(**fields: Any) -> Any:
    values = {"max_batches_offpolicy": 3, "min_batch_allocation": None, "eval_limit_ratio": 0.5, **fields}
    return SimpleNamespace(**{"eval_handling": EvalHandlingEnum.NONE, **values})


def run_state(**fields: Any) -> RunState:
    return RunState(**{"group_size": 4, "batch_size": 64, "total_steps": 100, "drops_equal_scores": True, **fields})


def test_a_boundary_counts_when_it_has_been_passed() -> None:
    for before, now, interval in [(0, 1, 1), (4, 5, 5), (5, 10, 5), (2, 23, 5)]:
        assert is_passed(before, now, interval)
    for before, now, interval in [(5, 9, 5), (9, 3, 5), (0, 9, 0), (0, 9, -1)]:
        assert not is_passed(before, now, interval)


def test_the_run_is_over_with_what_is_queued_and_nothing_is_started_without_a_batch_size() -> None:
    run = run_state(total_steps=3)
    assert [is_over({"current_step": step, "queue_size": 16}, run) for step in (2, 3)] == [False, True]
    run.batch_size = -1
    assert most_groups(NOW, settings(min_batch_allocation=0.5), run, 5, is_evaluating=False) == 0


# --- the loop


class World:
    """An environment with a trajectory API and a trainer that are made of `status_dict`; groups wait for `go_on`."""

    def __init__(self, max_groups: int = 3, **fields: Any) -> None:
        self.status_dict = dict(NOW)
        self.config, self.max_num_workers = settings(**fields), max_groups
        self.run = run_state()
        self.started: list[int] = []
        self.ended: list[int] = []
        self.cancelled: list[int] = []
        self.is_sent = True
        self.go_on = asyncio.Event()
        self.statuses = 0
        self.evaluate: Any = None
        self._numbers = itertools.count()
        self.loop = ServeLoop(self)

    async def get_status(self) -> None:
        self.statuses += 1

    async def env_step_checks(self) -> None:
        pass

    async def get_next_item(self) -> int:
        return next(self._numbers)

    async def make_and_send(self, item: int) -> bool:
        self.started.append(item)
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled.append(item)
            raise
        self.ended.append(item)
        return self.is_sent

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        running = asyncio.create_task(self.loop.run())
        try:
            yield
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await self.loop.stop()

    async def looked(self, times: int = 3) -> None:
        """Until the loop has asked for the status so often more."""
        seen = self.statuses
        await until(lambda: self.statuses >= seen + times)


async def test_a_full_queue_starts_no_group_and_cancels_none() -> None:
    world = World()
    async with world.running():
        await until(lambda: len(world.started) == 3)
        world.status_dict = {**NOW, "queue_size": 48}
        await world.looked()
        world.go_on.set()
        await until(lambda: len(world.ended) == 3)
        await world.looked()
        assert world.started == [0, 1, 2] and not world.cancelled
        world.status_dict = dict(NOW)
        await until(lambda: len(world.started) > 3)


async def test_groups_that_run_or_are_queued_are_never_more_than_the_queue_takes() -> None:
    world = World(max_groups=100, max_batches_offpolicy=1)
    world.run.batch_size = 16  # four groups
    world.go_on.set()

    async def status() -> None:
        world.statuses += 1
        world.status_dict = {**NOW, "queue_size": len(world.ended)}

    world.get_status = status  # type: ignore[method-assign]
    async with world.running():
        await world.looked()
        # What was sent since the last status is not in it yet, and counts all the same.
        assert len(world.started) == len(world.ended) == 4


async def test_a_group_that_came_to_nothing_makes_room_at_once() -> None:
    world = World()
    world.is_sent = False
    world.go_on.set()
    async with world.running():
        await until(lambda: len(world.ended) > 30)
        assert world.statuses < 30, "without a status for each"


async def test_a_step_of_the_trainer_is_seen_while_an_item_is_drawn_and_the_item_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    is_made, draw = asyncio.Event(), world.get_next_item

    async def slow() -> int:
        await is_made.wait()
        return await draw()

    monkeypatch.setattr(world, "get_next_item", slow)
    async with world.running():
        await world.looked(5)
        world.status_dict = {**NOW, "queue_size": 48}
        await world.looked()
        is_made.set()
        await world.looked()
        assert not world.started, "the queue is full by now"
        world.status_dict = dict(NOW)
        await until(lambda: world.started == [0, 1, 2])


@pytest.mark.parametrize(("handling", "during_it"), [("STOP_TRAIN", 0), ("LIMIT_TRAIN", 2)])
async def test_stop_train_gives_the_servers_to_the_evaluation_and_limit_train_a_share(
    handling: str, during_it: int, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(max_groups=4, eval_handling=EvalHandlingEnum(handling))
    done = asyncio.Event()
    world.evaluate = done.wait

    def running() -> int:
        return len(world.started) - len(world.ended) - len(world.cancelled)

    async with world.running():
        await until(lambda: running() == 4)
        for _ in range(2):
            world.loop.begin_evaluation()
        world.go_on.set()
        await world.looked()
        assert len(world.cancelled) == (4 if during_it == 0 else 0)
        world.go_on.clear()
        await world.looked()
        assert running() == during_it
        done.set()
        await until(lambda: running() == 4)
    assert caplog.text.count("this one is left out") == 1


async def test_the_run_ends_with_the_last_step_and_with_an_error_that_nothing_can_mend(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    over = World()
    over.status_dict["current_step"] = 101
    await asyncio.wait_for(over.loop.run(), 60)
    assert not over.started
    for part, error in [("get_next_item", KeyError("no items")), ("make_and_send", EnvironmentSetupError("refused"))]:
        monkeypatch.setattr(world := World(), part, AsyncMock(side_effect=error))
        with pytest.raises(type(error)):
            await asyncio.wait_for(world.loop.run(), 60)
