"""The loop of `serve`: how many groups it starts, which are Atropos' numbers, and that a full queue cancels none."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from atroposlib.envs.base import BaseEnv, EvalHandlingEnum

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


@pytest.mark.parametrize(
    ("before", "now", "interval", "expected"),
    [
        *[(0, 1, 1, True), (4, 5, 5, True), (5, 9, 5, False), (5, 10, 5, True), (2, 23, 5, True)],
        *[(9, 3, 5, False), (0, 9, 0, False), (0, 9, -1, False)],
    ],
)
def test_a_boundary_counts_when_it_has_been_passed(before: int, now: int, interval: int, expected: bool) -> None:
    assert is_passed(before, now, interval) is expected


# --- Atropos' arithmetic


class AtroposEnv:
    """What Atropos' own loop needs of an environment whose groups never end."""

    add_train_workers = BaseEnv.add_train_workers
    derived_batch_size = BaseEnv.derived_batch_size

    def __init__(self, status: dict[str, Any], config: Any, run: RunState, most: int, is_evaluating: bool) -> None:
        self.config = SimpleNamespace(**vars(config), group_size=run.group_size, batch_size=run.batch_size)
        self.status_dict, self.max_num_workers, self.curr_step = status, most, 0
        self.workers: set[Any] = set()
        self.running_items: dict[Any, Any] = {}
        self.backlog: list[Any] = []
        self.workers_added_list: list[int] = []
        self.eval_runner = SimpleNamespace(done=lambda: not is_evaluating)

    async def get_next_item(self) -> str:
        return "an item"

    async def handle_env(self, number: str) -> None:
        await asyncio.Event().wait()


async def groups_of_atropos(*case: Any) -> int:
    """How many groups Atropos' own loop starts from none."""
    env = AtroposEnv(*case)
    await BaseEnv.add_train_workers(env)  # type: ignore[arg-type]
    for worker in env.workers:
        worker.cancel()
    return len(env.workers)


async def test_as_many_groups_are_started_as_atropos_would_start() -> None:
    dice = random.Random(5)
    seen: set[int] = set()
    for _ in range(3000):
        group_size, most = dice.choice([1, 2, 4, 8]), dice.choice([0, 1, 5, 40])
        config = settings(
            max_batches_offpolicy=dice.choice([-1, 0, 1, 3]),
            min_batch_allocation=dice.choice([None, 0.0, 0.1, 0.5, 1.0]),
            eval_handling=dice.choice(list(EvalHandlingEnum)),
            eval_limit_ratio=dice.choice([0.1, 0.5]),
        )
        run = run_state(group_size=group_size, batch_size=dice.choice([8, 64, 100]))
        status = {
            "queue_size": dice.choice([0, 1, 7, 25, 60]),
            "self_queue_size": dice.choice([0, 1, 7, 25]),
            "max_group_size": group_size * dice.choice([1, 2]),
            "unallocated_fraction": dice.choice([0.0, 0.4, 1.0]),
        }
        is_evaluating = dice.random() < 0.4
        expected = await groups_of_atropos(status, config, run, most, is_evaluating)
        ours = most_groups(status, config, run, most, is_evaluating=is_evaluating)
        assert max(0, ours) == expected, (status, config, run, most, is_evaluating)
        seen.add(min(expected, 3))
    assert seen == {0, 1, 2, 3}, "the cases say something"


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
        assert world.started == sorted(world.started)


async def test_a_step_of_the_trainer_is_seen_while_an_item_is_drawn_and_the_item_is_kept() -> None:
    world = World()
    is_made, draws = asyncio.Event(), itertools.count(1)

    async def slow() -> int:
        number = next(draws)
        await is_made.wait()
        return number

    world.get_next_item = slow  # type: ignore[method-assign]
    async with world.running():
        await world.looked(5)
        world.status_dict = {**NOW, "queue_size": 48}
        await world.looked()
        is_made.set()
        await world.looked()
        assert not world.started, "the queue is full by now"
        world.status_dict = dict(NOW)
        await until(lambda: len(world.started) == 3)
        assert world.started == [1, 2, 3]


@pytest.mark.parametrize(
    ("part", "error"),
    [("get_next_item", KeyError("no items")), ("make_and_send", EnvironmentSetupError("the server refuses it"))],
)
async def test_the_run_ends_with_the_last_step_and_with_an_error_that_nothing_can_mend(
    part: str, error: Exception
) -> None:
    world = World()
    world.status_dict["current_step"] = 101
    await asyncio.wait_for(world.loop.run(), 60)
    assert not world.started

    async def fail(*_: Any) -> Any:
        raise error

    world = World()
    setattr(world, part, fail)
    with pytest.raises(type(error)):
        await asyncio.wait_for(world.loop.run(), 60)


@pytest.mark.parametrize(
    ("handling", "during_it"), [(EvalHandlingEnum.STOP_TRAIN, 0), (EvalHandlingEnum.LIMIT_TRAIN, 2)]
)
async def test_stop_train_gives_the_servers_to_the_evaluation_and_limit_train_a_share(
    handling: EvalHandlingEnum, during_it: int, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(max_groups=4, eval_handling=handling)
    done = asyncio.Event()

    def running() -> int:
        return len(world.started) - len(world.ended) - len(world.cancelled)

    async with world.running():
        await until(lambda: running() == 4)
        for _ in range(2):
            world.loop.begin_evaluation(done.wait)
        world.go_on.set()
        await world.looked()
        assert len(world.cancelled) == (4 if during_it == 0 else 0)
        world.go_on.clear()
        await world.looked()
        assert running() == during_it
        done.set()
        await until(lambda: running() == 4)
    assert caplog.text.count("this one is left out") == 1
