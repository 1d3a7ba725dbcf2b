"""Atropos' main loop: boundaries of the step, groups that are started, groups that are cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from atroposlib.envs.base import EvalHandlingEnum

from reasoning_gym_environment import ReasoningGymEnv
from reasoning_gym_environment.atropos import steps
from reasoning_gym_environment.training_log.dump_files import FAILED, ROLLOUTS

from ..env_support import RIGHT, WRONG, dumped, rollout

MakeEnv = Callable[..., ReasoningGymEnv]


@pytest.mark.parametrize(
    ("before", "now", "interval", "is_due"),
    [
        (0, 1, 1, True),
        (4, 5, 5, True),
        (5, 9, 5, False),
        (3, 8, 5, True),
        (5, 10, 5, True),
        (2, 23, 5, True),
        (9, 3, 5, False),
        (0, 9, 0, False),
        (0, 9, -1, False),
    ],
)
async def test_a_boundary_counts_when_it_has_been_passed(
    make_env: MakeEnv, before: int, now: int, interval: int, is_due: bool
) -> None:
    env = make_env(steps_per_eval=interval, min_items_sent_before_logging=10**9)
    env.checkpoint_interval, env.curr_step, env.status_dict = interval, before, {"current_step": now}
    happened: list[Any] = []

    async def evaluate() -> dict[str, float]:
        happened.append("evaluation")
        return {}

    def save(step: int) -> None:
        happened.append(step)

    env.evaluate, env.checkpoint_now = evaluate, save  # type: ignore[method-assign]
    await env.env_step_checks()
    await asyncio.sleep(0)
    assert happened == ([now // interval * interval, "evaluation"] if is_due else [])
    assert env.curr_step == now


async def test_what_is_noted_while_the_trainer_takes_no_step_is_bounded(make_env: MakeEnv) -> None:
    env = make_env()
    env.checkpoint_interval, env.status_dict = -1, {"current_step": 0}
    env.mainloop_timings = [0.1] * (2 * steps.KEPT)
    env.workers_added_list = [1] * (2 * steps.KEPT)
    await env.env_step_checks()
    assert len(env.mainloop_timings) == len(env.workers_added_list) == steps.KEPT


async def test_an_evaluation_that_still_runs_is_not_started_twice_and_stops_training_if_asked(
    make_env: MakeEnv, caplog: pytest.LogCaptureFixture
) -> None:
    env = make_env(steps_per_eval=1, eval_handling=EvalHandlingEnum.STOP_TRAIN)
    gate, started = asyncio.Event(), 0

    async def evaluate() -> dict[str, float]:
        nonlocal started
        started += 1
        await gate.wait()
        return {}

    env.evaluate = evaluate  # type: ignore[method-assign]
    worker = asyncio.create_task(asyncio.sleep(3600))
    env.workers, env.running_items = {worker}, {"a": {"item": "the item", "worker": worker, "start_time": 0}}
    for step in (1, 2):
        env.status_dict = {"current_step": step}
        await env.env_step_checks()
        await asyncio.sleep(0)
    assert started == 1 and "this one is left out" in caplog.text
    assert worker.cancelled() and env.backlog == ["the item"] and not env.running_items
    gate.set()
    await env.eval_runner


async def test_starting_groups_does_not_hold_up_the_main_loop(
    make_env: MakeEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "FILL_S", 0.1)
    env = make_env(max_num_workers=10**6, batch_size=10**6, max_batches_offpolicy=100)
    await env.setup()
    env.status_dict = {"queue_size": 0, "self_queue_size": 0, "max_group_size": 1, "unallocated_fraction": 1.0}
    env.max_num_workers = 10**6
    drawn: list[int] = []

    async def collect(item: Any) -> Any:
        drawn.append(item[2].problem.index)
        return None, []

    env.collect_trajectories = collect  # type: ignore[method-assign]
    for _ in range(3):
        await asyncio.wait_for(env.add_train_workers(), timeout=60)
    await asyncio.gather(*env.workers)
    assert drawn == list(range(len(drawn))) and len(drawn) > 3, "no item is left out where it was interrupted"
    assert (await env.get_next_item())[2].problem.index == len(drawn)


async def test_a_group_cancelled_while_it_is_dumped_is_dumped_once_and_goes_on(
    make_env: MakeEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make_env(dump_rollouts=True, rollout_save_score_threshold=0.5)
    await env.setup()
    item = await env.get_next_item()
    is_writing, go_on = threading.Event(), threading.Event()
    write = env.log.dumps._writers[ROLLOUTS].write

    def slow() -> None:
        is_writing.set()
        go_on.wait(60)
        write()

    monkeypatch.setattr(env.log.dumps._writers[ROLLOUTS], "write", slow)
    scoring = asyncio.create_task(env.score([rollout(item, text) for text in (RIGHT, WRONG, RIGHT, WRONG)]))
    await asyncio.to_thread(is_writing.wait, 60)
    scoring.cancel()
    await asyncio.sleep(0.01)
    go_on.set()
    group = await scoring
    assert group is not None and len(group["tokens"]) == 4
    assert await env.collect_trajectories(item) == (None, []), "Atropos has it on its backlog, but it is done"
    assert not env.log.outcomes.totals
    await env.close()
    assert len(dumped(env.datadumps_dir, "*.jsonl")) == 1
    assert FAILED not in env.log.dumps._writers
