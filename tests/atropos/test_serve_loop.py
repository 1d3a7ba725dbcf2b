"""The loop of `serve`: how many groups it starts, which are Atropos' numbers, and that a full queue cancels none."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from atroposlib.envs import base
from atroposlib.envs.base import BaseEnv, EvalHandlingEnum

from reasoning_gym_environment.atropos.serve_loop import (
    LoopLimits,
    ServeLoop,
    is_over,
    is_passed,
    is_queue_full,
    most_groups,
)
from reasoning_gym_environment.atropos.session import RunState
from reasoning_gym_environment.errors import EnvironmentSetupError

NOW: dict[str, Any] = {"current_step": 0, "queue_size": 0, "self_queue_size": 0, "max_group_size": 4}
LIMITS = LoopLimits(
    max_groups=3,
    max_batches_offpolicy=3,
    min_batch_allocation=None,
    eval_handling=EvalHandlingEnum.NONE,
    eval_limit_ratio=0.5,
)


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
    """What Atropos' own loop needs of an environment whose groups never end; it is asked for one status."""

    add_train_workers = BaseEnv.add_train_workers
    derived_batch_size = BaseEnv.derived_batch_size

    def __init__(self, status: dict[str, Any], limits: LoopLimits, run: RunState, is_evaluating: bool) -> None:
        self.config = SimpleNamespace(
            group_size=run.group_size,
            batch_size=run.batch_size,
            total_steps=run.total_steps,
            max_batches_offpolicy=limits.max_batches_offpolicy,
            min_batch_allocation=limits.min_batch_allocation,
            eval_handling=limits.eval_handling,
            eval_limit_ratio=limits.eval_limit_ratio,
            worker_timeout=-1,
        )
        self.status_dict, self.max_num_workers, self.curr_step = status, limits.max_groups, 0
        self.workers: set[Any] = set()
        self.running_items: dict[Any, Any] = {}
        self.backlog: list[Any] = []
        self.mainloop_timings: list[float] = []
        self.workers_added_list: list[int] = []
        self.last_loop_time = None
        self.eval_runner = SimpleNamespace(done=lambda: not is_evaluating)
        self._statuses = itertools.count()

    async def nothing(self) -> None:
        pass

    setup = setup_wandb = register_env = get_server_info = env_step_checks = nothing

    async def get_status(self) -> None:
        if next(self._statuses):
            raise StopAsyncIteration

    async def get_next_item(self) -> str:
        return "an item"

    async def handle_env(self, number: str) -> None:
        await asyncio.Event().wait()


async def groups_of_atropos(*arguments: Any) -> int | None:
    """How many groups Atropos' own loop starts from none; None if it ends the run."""
    env = AtroposEnv(*arguments)
    try:
        await BaseEnv.env_manager(env)  # type: ignore[arg-type]
    except StopAsyncIteration:
        return len(env.workers)
    finally:
        for worker in env.workers:
            worker.cancel()
    return None


def groups_of_ours(status: dict[str, Any], limits: LoopLimits, run: RunState, is_evaluating: bool) -> int | None:
    if is_over(status, run):
        return None
    if limits.max_groups <= 0 or is_queue_full(status, limits, run):
        return 0
    return max(0, most_groups(status, limits, run, is_evaluating=is_evaluating))


async def test_as_many_groups_are_started_as_atropos_would_start(monkeypatch: pytest.MonkeyPatch) -> None:
    sleep = asyncio.sleep
    monkeypatch.setattr(base, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": lambda seconds: sleep(0)}))
    dice = random.Random(5)
    seen: set[Any] = set()
    for _ in range(3000):
        group_size = dice.choice([1, 2, 4, 8])
        limits = LoopLimits(
            max_groups=dice.choice([0, 1, 5, 40]),
            max_batches_offpolicy=dice.choice([-1, 0, 1, 3]),
            min_batch_allocation=dice.choice([None, 0.0, 0.1, 0.5, 1.0]),
            eval_handling=dice.choice(list(EvalHandlingEnum)),
            eval_limit_ratio=dice.choice([0.1, 0.5]),
        )
        run = run_state(
            group_size=group_size, batch_size=dice.choice([-1, 8, 64, 100]), total_steps=dice.choice([3, 100])
        )
        status = {
            "current_step": dice.choice([0, 2, 3, 4]),
            "queue_size": dice.choice([0, 1, 7, 25, 60]),
            "self_queue_size": dice.choice([0, 1, 7, 25]),
            "max_group_size": group_size * dice.choice([1, 2]),
        }
        if dice.random() < 0.7:
            status["unallocated_fraction"] = dice.choice([0.0, 0.4, 1.0])
        is_evaluating = dice.random() < 0.4
        expected = await groups_of_atropos(status, limits, run, is_evaluating)
        assert groups_of_ours(status, limits, run, is_evaluating) == expected, (status, limits, run, is_evaluating)
        seen.add(expected if expected is None else min(expected, 3))
    assert seen == {None, 0, 1, 2, 3}, "the cases say something"


# --- the loop


class World:
    """A trajectory API and a trainer, both made of `now`; groups wait for `go_on`."""

    def __init__(self, **limits: Any) -> None:
        self.now = dict(NOW)
        self.run = run_state()
        self.started: list[int] = []
        self.ended: list[int] = []
        self.cancelled: list[int] = []
        self.is_sent = True
        self.hanging = 0
        self.go_on = asyncio.Event()
        self.statuses = 0
        self._numbers = itertools.count()
        self.loop = ServeLoop(
            LoopLimits(**{**vars(LIMITS), **limits}),
            self.run,
            status=self.status,
            checks=self.checks,
            draw=self.draw,
            work=self.work,
            hanging=lambda: self.hanging,
        )

    async def status(self) -> dict[str, Any]:
        self.statuses += 1
        return self.now

    async def checks(self) -> None:
        pass

    async def draw(self) -> int:
        return next(self._numbers)

    async def work(self, item: int) -> bool:
        self.started.append(item)
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled.append(item)
            raise
        self.ended.append(item)
        return self.is_sent

    async def until(self, condition: Callable[[], Any]) -> None:
        async def wait() -> None:
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.01)

        await asyncio.wait_for(wait(), 120)

    async def during(self, steps: Callable[[], Awaitable[None]]) -> None:
        """Run the loop while `steps` are made, then stop it."""
        running = asyncio.create_task(self.loop.run())
        try:
            await steps()
        finally:
            left = [running, *self.loop.tasks]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)


async def looked(world: World, times: int = 3) -> None:
    """Until the loop has asked for the status so often more."""
    seen = world.statuses
    await world.until(lambda: world.statuses >= seen + times)


async def test_a_full_queue_starts_no_group_and_cancels_none() -> None:
    world = World()

    async def steps() -> None:
        await world.until(lambda: len(world.started) == 3)
        world.now = {**NOW, "queue_size": 48}
        await looked(world)
        world.go_on.set()
        await world.until(lambda: len(world.ended) == 3)
        await looked(world)
        assert world.started == [0, 1, 2] and not world.cancelled
        world.now = dict(NOW)
        await world.until(lambda: len(world.started) > 3)

    await world.during(steps)


async def test_groups_under_way_and_queued_are_never_more_than_the_queue_takes() -> None:
    world = World(max_groups=100, max_batches_offpolicy=1)
    world.run.batch_size = 16  # four groups
    world.go_on.set()

    async def status() -> dict[str, Any]:
        world.statuses += 1
        return {**NOW, "queue_size": len(world.ended)}

    world.loop._status = status

    async def steps() -> None:
        await looked(world)
        # What was sent since the last status is not in it yet, and counts all the same.
        assert len(world.started) == len(world.ended) == 4

    await world.during(steps)


async def test_a_group_that_came_to_nothing_makes_room_at_once() -> None:
    world = World()
    world.is_sent = False
    world.go_on.set()

    async def steps() -> None:
        await world.until(lambda: len(world.ended) > 30)
        assert world.statuses < 30, "without a status for each"
        assert world.started == sorted(world.started)

    await world.during(steps)


async def test_groups_that_hang_stop_no_others_but_those_are_not_without_bound() -> None:
    world = World()

    async def steps() -> None:
        for hanging, groups in ((0, 3), (2, 5), (100, 6)):
            world.hanging = hanging
            await world.until(lambda groups=groups: len(world.started) == groups)
            await looked(world)
            assert len(world.started) == groups

    await world.during(steps)


async def test_a_step_of_the_trainer_is_seen_while_an_item_is_drawn_and_the_item_is_kept() -> None:
    world = World()
    is_made = asyncio.Event()
    drawn = 0

    async def slow() -> int:
        nonlocal drawn
        drawn += 1
        await is_made.wait()
        return drawn

    world.loop._draw = slow

    async def steps() -> None:
        await looked(world, 5)
        assert drawn == 1 and not world.started
        world.now = {**NOW, "queue_size": 48}
        await looked(world)
        is_made.set()
        await looked(world)
        assert not world.started, "the queue is full by now"
        world.now = dict(NOW)
        await world.until(lambda: len(world.started) == 3)
        assert world.started == [1, 2, 3]

    await world.during(steps)


async def test_the_run_ends_with_the_last_step_and_with_an_error_of_a_draw() -> None:
    world = World()
    world.now["current_step"] = 101
    await asyncio.wait_for(world.loop.run(), 60)
    assert not world.started

    async def fail() -> int:
        raise KeyError("no items")

    world = World()
    world.loop._draw = fail
    with pytest.raises(KeyError, match="no items"):
        await asyncio.wait_for(world.loop.run(), 60)


async def test_errors_of_groups_are_reported_once_and_the_loop_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    work = world.loop._work

    async def fail_twice(item: int) -> bool:
        if item < 2:
            raise KeyError("a bug")
        return await work(item)

    world.loop._work = fail_twice
    await world.during(lambda: world.until(lambda: len(world.started) == 3))
    assert caplog.text.count("A group ended with an error") == caplog.text.count("The first of them in full") == 1
    assert world.loop._events.counts == {"a group ended with an error": 2}


async def test_the_run_ends_with_what_a_person_must_change() -> None:
    world = World()

    async def work(item: Any) -> bool:
        raise EnvironmentSetupError("the server refuses it")

    world.loop._work = work
    with pytest.raises(EnvironmentSetupError, match="the server refuses it"):
        await asyncio.wait_for(world.loop.run(), 60)


async def test_stop_train_gives_the_servers_to_the_evaluation_and_limit_train_a_share(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for handling, during_it in ((EvalHandlingEnum.STOP_TRAIN, 0), (EvalHandlingEnum.LIMIT_TRAIN, 2)):
        world = World(max_groups=4, eval_handling=handling)
        done = asyncio.Event()

        async def steps(world: World = world, done: asyncio.Event = done, during_it: int = during_it) -> None:
            await world.until(lambda: len(world.started) == 4)
            world.loop.begin_evaluation(done.wait)
            world.loop.begin_evaluation(done.wait)
            world.go_on.set()
            await looked(world)
            is_stopped = during_it == 0
            assert len(world.cancelled) == (4 if is_stopped else 0)
            world.go_on.clear()
            await looked(world)
            under_way = len(world.started) - len(world.ended) - len(world.cancelled)
            assert under_way == during_it
            done.set()
            await world.until(lambda: len(world.started) - len(world.ended) - len(world.cancelled) == 4)

        await world.during(steps)
    assert caplog.text.count("this one is left out") == 2


async def test_what_is_noted_between_two_logs_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reasoning_gym_environment.atropos.serve_loop.KEPT", 2)
    monkeypatch.setattr("reasoning_gym_environment.atropos.serve_loop.TICK_S", 0.001)
    world = World()
    await world.during(lambda: looked(world, 10))
    assert len(world.loop.tick_seconds) == len(world.loop.groups_wanted) == 2
    assert all(math.isfinite(seconds) for seconds in world.loop.tick_seconds)
