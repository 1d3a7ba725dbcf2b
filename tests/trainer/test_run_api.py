"""Registration, status and the way of a scored group, against an API that is restarted, refuses or fails."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import math
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import numpy as np
import pytest

from reasoning_gym_environment import ReasoningGymEnv
from reasoning_gym_environment.atropos.serve_loop import ServeLoop
from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.records import GroupOutcome
from reasoning_gym_environment.trainer import run_api as module
from reasoning_gym_environment.trainer.run_api import TrajectoryApi
from reasoning_gym_environment.trainer.run_state import RunState
from reasoning_gym_environment.trainer.transport import ApiError, Transport, _body_of
from reasoning_gym_environment.utils.resilience import RepeatedEvents
from testing.env_support import RIGHT, WRONG, ReadyEnv, rollout
from testing.fake_api import FakeApi
from testing.process_table import until


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.005)


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    api = FakeApi()
    await api.listen()
    yield api
    await api.close()


def process(
    api: FakeApi, *, max_staleness_steps: int = 2, temperature: float | None = None, **fields: Any
) -> tuple[TrajectoryApi, RunState]:
    """The API client of one process of a run."""
    settings: dict[str, Any] = {
        "max_token_length": 9,
        "wandb_name": None,
        "inference_weight": 1,
        "min_batch_allocation": None,
    }
    settings["train_temperature"] = temperature
    config: Any = SimpleNamespace(**settings, max_staleness_steps=max_staleness_steps)
    run = RunState(**{"group_size": 4, "batch_size": 16, "total_steps": 9, **fields})
    return TrajectoryApi(config, run, RepeatedEvents(module.logger), Transport(api.address)), run


# --- registration and status


async def test_registration_waits_for_api_and_trainer(api: FakeApi, caplog: pytest.LogCaptureFixture) -> None:
    api.start()
    api.step = 4
    caplog.set_level("INFO")
    session, run = process(api)
    registering = asyncio.create_task(session.register())
    await until(lambda: "Waiting for a trainer: none has registered with the run-api at http://" in caplog.text)
    assert not registering.done()
    api.register_trainer()
    await registering
    assert (run.env_id, run.step, run.metrics_prefix) == (2, 4, "reasoning_gym_0")
    assert "unavailable" not in caplog.text
    # The first environment has the number 2, after its two marks, and such a number would only confuse a reader.
    assert "Registered with the trajectory API at step 4." in caplog.messages


@pytest.mark.parametrize("answer", ["{}", '{"env_id": 0}', "[" * 100_000], ids=["empty", "incomplete", "deep"])
async def test_an_answer_of_another_program_is_no_registration(
    api: FakeApi, answer: str, caplog: pytest.LogCaptureFixture
) -> None:
    session, run = process(api)
    api.failures, api.text = iter([200]), answer
    await session.register()
    assert run.env_id == 2
    assert "has no valid wandb_name" in caplog.text or "does not answer like run-api" in caplog.text
    api.failures = iter([200])
    await session.take_over_limits()
    assert run.batch_size == 16


async def test_a_refused_registration_is_an_error_with_what_the_api_said_and_a_busy_api_is_not(api: FakeApi) -> None:
    session, run = process(api)
    api.failures = iter([422])
    with pytest.raises(EnvironmentSetupError, match=r"refuses this environment: it answers 422: .*weight: Field"):
        await session.register()
    for code in (429, 408, 503):
        api.failures, run.env_id = iter([code] * 2), None
        await session.register()
    # Once registered, it may meet a gateway whose API is being restarted.
    number = run.env_id
    api.failures = iter([404] * 2)
    await session.status()
    assert run.env_id == number, "the gateway has refused the requests, and the API still knows this environment"
    await session.close()
    assert api.disconnected == [number]


@pytest.mark.parametrize("code", [404, 401, 405])
async def test_another_program_that_refuses_the_registration_ends_the_run_and_a_gateway_does_not(
    code: int, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.failures = iter([code] * 4)
    session, run = process(api)
    await session.register()
    assert run.env_id == 2
    monkeypatch.setattr(module, "REFUSED_S", 0.1)
    api.failures = itertools.repeat(code)
    with pytest.raises(EnvironmentSetupError, match=f"/register-env refuses this environment: it answers {code}"):
        await process(api)[0].register()
    # An environment that has registered before waits.
    again = asyncio.create_task(session.status())
    await asyncio.sleep(0.3)
    api.failures = iter(())
    await again
    await session.close()


async def test_the_trainers_steps_and_limits_are_taken_over(api: FakeApi, caplog: pytest.LogCaptureFixture) -> None:
    session, run = process(api, total_steps=-1)
    await session.register()
    await session.take_over_limits()
    assert (run.total_steps, run.batch_size, run.max_token_len) == (9, 16, 500)
    assert not caplog.messages
    api.change(batchsize=18, max_token_len=-1)
    await session.take_over_limits()
    assert "The trainer's batch of 18 is no multiple of env.group_size, 4" in caplog.text
    api.change(batchsize=3)
    with pytest.raises(EnvironmentSetupError, match=r"A group of 4 does not fit the trainer's batch of 3"):
        await session.take_over_limits()
    api.change(num_steps=-1)
    with pytest.raises(EnvironmentSetupError, match=r"Neither env\.total_steps nor the trainer"):
        await process(api, total_steps=-1)[0].register()


async def test_a_status_that_fails_is_asked_again_and_is_no_restart(api: FakeApi, caplog: Any) -> None:
    session, run = process(api)
    await session.register()
    number = run.env_id
    api.failures = iter([503] * 10)
    api.refused = {"/status-env": 500}
    asking = asyncio.create_task(session.status())
    await until(lambda: "The trajectory API is unavailable" in caplog.text)
    api.refused = {}
    assert (await asking)["current_step"] == 0
    for line in ("The trajectory API is unavailable", "The trajectory API is back"):
        assert caplog.text.count(line) == 1
    assert (run.env_id, api.names, api.disconnected) == (number, ["reasoning_gym"], [])


@pytest.mark.parametrize(
    "change",
    [
        {"queue_size": None},
        {"current_step": "5"},
        {"env_weight": None},
        {"max_group_size": 0},
        {"self_queue_size": -1},
        {"unallocated_fraction": "all"},
    ],
)
async def test_a_status_of_another_form_is_an_outage_by_name(
    change: dict[str, Any], api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    session, _ = process(api)
    await session.register()
    [name] = change
    api.changed_status = change
    asking = asyncio.create_task(session.status())
    await until(lambda: not session.is_available)
    assert not asking.done() and f"its answer to /status-env has no valid {name}: " in caplog.text
    api.changed_status = {}
    assert (await asking)[name] is not None


async def test_an_api_that_was_reset_is_registered_with_again(api: FakeApi) -> None:
    session, run = process(api)
    await session.register()
    run.step = 7
    api.start()
    api.step = 3
    api.register_trainer()
    api.change(max_token_len=400)
    await session.status()
    assert (run.env_id, run.step, run.max_token_len, run.repeated_steps) == (3, 3, 400, 4)
    # A trainer that goes back although its API was not restarted.
    api.step = 1
    assert (await session.status())["current_step"] == 1
    assert (run.env_id, run.step, run.repeated_steps) == (3, 1, 6)


async def test_changes_of_the_share_that_environments_reserve_are_logged(
    api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    session, _ = process(api)
    await session.register()
    for share in (0.9, 0.9, 0.7):
        api.changed_status = {"unallocated_fraction": share}
        await session.status()
    reserves = "The environments that are registered with run-api reserve"
    lines = [line for line in caplog.messages if line.startswith(reserves)]
    assert lines == [f"{reserves} 10% of each batch.", f"{reserves} 30% of each batch."]


@pytest.mark.parametrize(
    ("own", "consequence"),
    [
        (-1, None),
        (9, None),
        (8, "this environment will end first, and the trainer will wait for batches. Set env.total_steps to -1"),
        (10, "this environment will wait for steps that the trainer does not make. Set env.total_steps to -1"),
    ],
)
async def test_another_number_of_steps_than_the_trainers_is_reported_at_the_start(
    own: int, consequence: str | None, api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    session, run = process(api, total_steps=own)
    await session.register()
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == (consequence is not None)
    if consequence is not None:
        assert warnings[0].startswith(f"env.total_steps is {own}, and the trainer makes 9 steps: {consequence}")
    assert run.ends_before_trainer is (own == 8)


async def test_a_number_that_a_busy_api_did_not_sign_off_remains_for_the_next_start(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, run = process(api)
    await session.register()
    with monkeypatch.context() as patch:
        # It encodes a batch, and the shutdown does not wait for it.
        patch.setattr(module, "CLOSE_S", 0.01)
        patch.setattr(session._transport, "request", lambda *_: asyncio.sleep(60.0))
        await session.close()
        assert run.env_id == 2
        patch.setattr(session._transport, "request", AsyncMock(side_effect=ApiError("timeout")))
        await session.close()
        assert run.env_id == 2
    await session.close()
    assert (run.env_id, api.disconnected) == (None, [2])


# --- groups on their way


GROUP = {"tokens": [[1, 2]] * 2, "masks": [[-100, 2]] * 2, "scores": [1.0, 0.0]}


async def test_groups_are_sent_or_refused_with_the_step_at_which_sampling_began(api: FakeApi) -> None:
    session, _ = process(api, step=7)
    settled: list[GroupOutcome] = []
    settled.append(await session.put({**GROUP, "generation_params": {"seed": 5}}, 5))
    api.refused = {"/scored_data": 422}
    settled.append(await session.put(GROUP, None))
    api.refused = {}
    settled.append(await session.put({**GROUP, "generation_params": None}, None))
    assert settled == [GroupOutcome.SENT, GroupOutcome.SEND_FAILED, GroupOutcome.SENT]
    assert [group["generation_params"] for group in api.groups] == [
        {"seed": 5, "sampled_at_step": 5},
        {"sampled_at_step": 7},
    ]
    assert session.metrics() == {"api/groups_in_delivery": 0.0, "train/staleness_mean": 1.0, "train/staleness_max": 2.0}
    assert session.metrics() == {"api/groups_in_delivery": 0.0}


async def test_groups_carry_the_temperature_of_training_unless_a_subclass_sets_another(api: FakeApi) -> None:
    session, _ = process(api, temperature=0.7)
    await session.put(GROUP, 0)
    await session.put({**GROUP, "generation_params": {"temperature": 0.9}}, 0)
    assert [group["generation_params"] for group in api.groups] == [
        {"temperature": 0.7, "sampled_at_step": 0},
        {"temperature": 0.9, "sampled_at_step": 0},
    ]


async def test_a_group_that_no_batch_could_hold_is_not_posted(api: FakeApi) -> None:
    session, _ = process(api)
    settled: list[GroupOutcome] = []
    for bad in (
        {"scores": [math.nan, 0.0]},
        {"inference_logprobs": [[0.0, -math.inf]] * 2},
        {"messages": [[{"role": "user", "content": "\ud83d"}]] * 2},
        {"masks": [[2], [-100, 2]]},
        {"inference_logprobs": [[0.0]] * 2},
    ):
        settled.append(await session.put({**GROUP, **bad}, None))
    settled.append(await session.put({**GROUP, "inference_logprobs": None}, None))
    assert settled == [GroupOutcome.SEND_FAILED] * 5 + [GroupOutcome.SENT] and len(api.groups) == 1


async def test_a_group_is_compressed_on_its_way_through_the_internet_only(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = ("http://127.0.0.1:8000", "http://gpu7:8000", "https://api.example.com")
    assert [Transport(address)._compresses for address in addresses] == [False, False, True]
    session, _ = process(api)
    for compresses in (False, True):
        monkeypatch.setattr(session._transport, "_compresses", compresses)
        await session.put(GROUP, None)
    assert [{name: group[name] for name in GROUP} for group in api.groups] == [GROUP, GROUP]


def test_a_subclass_may_compute_with_numpy() -> None:
    computed = {"scores": list(np.array([1.0, 0.5])), "inference_logprobs": np.array([[1.0, -0.5]] * 2)}
    assert json.loads(_body_of({**GROUP, **computed})) == {
        **GROUP,
        "scores": [1.0, 0.5],
        "inference_logprobs": [[1.0, -0.5]] * 2,
    }


@pytest.mark.parametrize(("limit", "steps", "is_dropped"), [(2, 2, False), (2, 3, True), (0, 1, True), (-1, 99, False)])
@pytest.mark.parametrize("goes_back_to", [10, 3])
async def test_a_group_is_stale_after_too_many_steps_of_the_trainer_that_is_there(
    limit: int, goes_back_to: int, steps: int, is_dropped: bool, api: FakeApi
) -> None:
    session, run = process(api, max_staleness_steps=limit, step=10)
    api.refused = {"/scored_data": 502}
    task = asyncio.ensure_future(session.put(GROUP, None))
    await until(lambda: api.posts > 0)
    # Below 10 if it is restarted from its last checkpoint.
    run.step, posts = goes_back_to, api.posts
    await until(lambda: api.posts > posts + 1)
    run.step += steps
    api.refused = {"/scored_data": 502} if is_dropped else {}
    assert await task is (GroupOutcome.STALE if is_dropped else GroupOutcome.SENT)


# --- what becomes of a group and its item in the environment


@pytest.fixture
async def env(ready_env: ReadyEnv, api: FakeApi) -> Any:
    return await ready_env(include_tasks="gcd", rollout_server_url=api.address)


@pytest.mark.parametrize(
    ("outcome", "change"),
    [
        *[("sent", {}), ("send_failed", {}), ("equal_scores", {"scores": [0.5] * 4})],
        *[("dropped", {"tokens": [[1]] * 5}), ("too_long", {"tokens": [[1] * 600] * 4}), ("dropped", {"masks": None})],
    ],
)
async def test_a_group_s_outcome_is_counted_and_its_item_done(
    outcome: str, change: dict[str, Any], env: ReasoningGymEnv, api: FakeApi, monkeypatch: Any
) -> None:
    api.refused = {"/scored_data": 422} if outcome == "send_failed" else {}
    item = await env.get_next_item()
    group: Any = await env.score([rollout(item, text) for text in (RIGHT, WRONG, RIGHT, WRONG)])
    assert len(env.run.stream.pending.handed_out) == 1
    env.state.max_token_len = 500
    monkeypatch.setattr(env, "collect_trajectories", AsyncMock(return_value=({**group, **change}, [])))
    await ServeLoop(env)._make_group(item)
    assert env.run.telemetry.outcomes.totals() == {outcome: 1}
    assert not env.run.stream.pending.handed_out and api.posts == (outcome in ("sent", "send_failed"))


@pytest.mark.parametrize("path", ["/scored_data", "/wandb_info"])
@pytest.mark.parametrize("code", [404, 401, 403, 400, 502])
async def test_groups_survive_a_gateway_that_refuses_them_while_its_api_restarts(
    path: str, code: int, api: FakeApi
) -> None:
    session, _ = process(api)
    api.refused = {path: code}
    deliveries = [asyncio.ensure_future(session.put(GROUP, None)) for _ in range(3)]
    await until(lambda: session._failures.counts["group_not_accepted_yet"] >= 6)
    api.refused = {}
    assert await asyncio.gather(*deliveries) == [GroupOutcome.SENT] * 3
    await session.close()


# --- the trainer


async def test_no_group_is_sent_to_a_process_that_has_no_trainer(api: FakeApi) -> None:
    transport = Transport(api.address)
    api.start()
    assert not await transport.offer(GROUP)
    assert api.posts == 0
    api.register_trainer()
    assert await transport.offer(GROUP)
