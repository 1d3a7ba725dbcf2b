"""What the loop of `serve` decides: how many groups may start, when a boundary is passed, when the run is over."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from atroposlib.envs.base import BaseEnv, EvalHandlingEnum
from hypothesis import given, settings
from hypothesis import strategies as st

from reasoning_gym_environment.atropos.serve_loop import ServeLoop, crosses_multiple, free_places
from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.trainer.run_state import RunState
from testing.simulation import World
from testing.virtual_time import run_virtually


def test_a_boundary_counts_when_it_has_been_passed() -> None:
    for before, after, interval in [(0, 1, 1), (4, 5, 5), (5, 10, 5), (2, 23, 5)]:
        assert crosses_multiple(before, after, interval)
    for before, after, interval in [(5, 9, 5), (9, 3, 5), (0, 9, 0), (0, 9, -1)]:
        assert not crosses_multiple(before, after, interval)


# --- Atropos' own arithmetic


class AtroposEnv:
    """What Atropos' `add_train_workers` reads of an environment; the groups that it starts never end."""

    add_train_workers = BaseEnv.add_train_workers
    derived_batch_size = BaseEnv.derived_batch_size

    def __init__(self, status: dict[str, Any], config: Any, workers: int, is_evaluating: bool) -> None:
        self.status_dict = status
        self.config = config
        self.max_num_workers = workers
        self.curr_step = 0
        self.workers: set[Any] = set()
        self.running_items: dict[Any, Any] = {}
        self.backlog: list[Any] = []
        self.workers_added_list: list[int] = []
        self.eval_runner = SimpleNamespace(done=lambda: not is_evaluating)

    async def get_next_item(self) -> str:
        return "an item"

    async def handle_env(self, number: str) -> None:
        await asyncio.Event().wait()


async def started_by_atropos(status: dict[str, Any], config: Any, workers: int, is_evaluating: bool) -> int:
    env: Any = AtroposEnv(status, config, workers, is_evaluating)
    await env.add_train_workers()
    for worker in env.workers:
        worker.cancel()
    await asyncio.gather(*env.workers, return_exceptions=True)
    return len(env.workers)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(
    group_size=st.sampled_from([1, 2, 4, 8]),
    groups_per_batch=st.integers(1, 40),
    workers=st.integers(0, 60),
    max_batches_offpolicy=st.integers(0, 4),
    allocation=st.sampled_from([None, 0.1, 0.35, 0.5, 1.0]),
    unallocated=st.sampled_from([0.0, 0.3, 0.9, 1.0]),
    handling=st.sampled_from(list(EvalHandlingEnum)),
    ratio=st.sampled_from([0.1, 0.5]),
    queue=st.integers(0, 80),
    own=st.integers(0, 80),
    largest=st.sampled_from([1, 2]),
    is_evaluating=st.booleans(),
)
def test_as_many_groups_start_as_atropos_would_start(
    group_size: int,
    groups_per_batch: int,
    workers: int,
    max_batches_offpolicy: int,
    allocation: float | None,
    unallocated: float,
    handling: EvalHandlingEnum,
    ratio: float,
    queue: int,
    own: int,
    largest: int,
    is_evaluating: bool,
) -> None:
    batch_size = group_size * groups_per_batch
    config: Any = SimpleNamespace(
        group_size=group_size,
        batch_size=batch_size,
        max_batches_offpolicy=max_batches_offpolicy,
        min_batch_allocation=allocation,
        eval_handling=handling,
        eval_limit_ratio=ratio,
    )
    status = {
        "queue_size": queue,
        "self_queue_size": min(own, queue),
        "max_group_size": group_size * largest,
        "unallocated_fraction": unallocated,
    }
    ours = free_places(
        status,
        config,
        RunState(group_size, batch_size, 100),
        workers=workers,
        sampling=0,
        on_the_way=0,
        is_evaluating=is_evaluating,
    )
    theirs = run_virtually(started_by_atropos(status, config, workers, is_evaluating))
    assert max(0, ours) == theirs


def test_nothing_starts_without_a_batch_size() -> None:
    config: Any = SimpleNamespace(max_batches_offpolicy=3, min_batch_allocation=0.5, eval_handling="NONE")
    status = {"queue_size": 0, "self_queue_size": 0, "max_group_size": 4}
    state = RunState(4, -1, 100)
    assert free_places(status, config, state, workers=5, sampling=0, on_the_way=0, is_evaluating=False) == 0


# --- the end of the loop


def test_the_loop_ends_with_the_last_step_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    async def go() -> None:
        world = World()
        await world.run.api.register()
        await world.run.api.take_over_limits()
        world.run.state.total_steps = 3
        world.api.step = 4
        await ServeLoop(world).run()
        assert not world.started

    run_virtually(go())
    end = "The run is over: run-api is at step 4 with 0 groups in its queue, and the run has 3 steps."
    assert end in caplog.text


@pytest.mark.parametrize("hook", ["get_next_item", "collect_trajectories", "wandb_log"])
def test_the_loop_ends_with_an_error_that_nothing_can_mend(hook: str) -> None:
    async def fail(*_: Any) -> None:
        raise EnvironmentSetupError("nothing can mend it")

    async def go() -> None:
        world = World()
        setattr(world, hook, fail)
        world.items_sent_this_step = 1000
        await world.serve(60.0, (5.0, lambda: setattr(world.api, "step", 7)))

    with pytest.raises(EnvironmentSetupError, match="nothing can mend it"):
        run_virtually(go())
