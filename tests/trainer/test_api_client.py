"""Registration, status and the way of a scored group, against an API that is restarted, refuses or fails."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from reasoning_gym_environment import ReasoningGymEnv
from reasoning_gym_environment.atropos.serve_loop import ServeLoop
from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.telemetry.telemetry import GroupOutcome
from reasoning_gym_environment.trainer import api as module
from reasoning_gym_environment.trainer.api import TrajectoryApi
from reasoning_gym_environment.trainer.run_state import RunState
from reasoning_gym_environment.trainer.transport import ApiError, HttpTransport
from reasoning_gym_environment.utils.resilience import RepeatedEvents

from ..env_support import RIGHT, WRONG, ReadyEnv, rollout
from ..fake_api import FakeApi
from ..process_table import until


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"FIRST_DELAY_S": 0.01, "MAX_DELAY_S": 0.02, "RESEND_S": 0.002}.items():
        monkeypatch.setattr(module, name, seconds)


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    api = FakeApi()
    await api.start()
    yield api
    await api.stop()


def process(api: FakeApi, *, max_staleness_steps: int = 2, **fields: Any) -> tuple[TrajectoryApi, RunState]:
    """The API client of one process of a run."""
    settings = {"max_token_length": 9, "wandb_name": None, "inference_weight": 1, "min_batch_allocation": None}
    config: Any = SimpleNamespace(**settings, max_staleness_steps=max_staleness_steps)
    run = RunState(**{"group_size": 4, "batch_size": 16, "total_steps": 9, **fields})
    return TrajectoryApi(config, run, RepeatedEvents(module.logger), HttpTransport(api.address)), run


# --- registration and status


async def test_registration_waits_for_api_and_trainer(api: FakeApi, caplog: pytest.LogCaptureFixture) -> None:
    api.has_trainer, api.step = False, 4
    session, run = process(api)
    registering = asyncio.create_task(session.register())
    line = "(no trainer has requested a batch yet); waiting for run-api and its trainer."
    await until(lambda: line in caplog.text)
    assert not registering.done()
    api.has_trainer = True
    await registering
    assert (run.env_id, run.step, run.metrics_prefix) == (0, 4, "x_0")
    for line in ("The trajectory API is unavailable", "The trajectory API is back"):
        assert caplog.text.count(line) == 1


@pytest.mark.parametrize("answer", ["{}", '{"env_id": 0}', "[" * 100_000], ids=["empty", "incomplete", "deep"])
async def test_an_answer_of_another_program_is_no_registration(
    api: FakeApi, answer: str, caplog: pytest.LogCaptureFixture
) -> None:
    session, run = process(api)
    api.failures, api.failure, api.text = 1, 200, answer
    await session.register()
    assert run.env_id == 0
    assert "lacks checkpoint_dir" in caplog.text or "does not answer like run-api" in caplog.text
    api.failures = 1
    await session.take_over_limits()
    assert run.batch_size == 16


async def test_a_refused_registration_is_an_error_with_what_the_api_said_and_a_busy_api_is_not(api: FakeApi) -> None:
    session, run = process(api)
    api.failures, api.failure = 1, 422
    with pytest.raises(EnvironmentSetupError, match=r"refuses this environment: it answers 422: .*weight: Field"):
        await session.register()
    for code in (429, 408, 503):
        api.failures, api.failure, run.env_id = 2, code, None
        await session.register()
    # Once registered, it may meet a gateway whose API is being restarted.
    api.failures, api.failure, api.step = 2, 404, -1
    await session.status()
    assert run.env_id == 3
    await session.close()
    assert api.signed_off[-1] == 3


async def test_the_trainers_steps_and_limits_are_taken_over(api: FakeApi, caplog: pytest.LogCaptureFixture) -> None:
    session, run = process(api, total_steps=-1)
    await session.register()
    await session.take_over_limits()
    assert (run.total_steps, run.batch_size, run.max_token_len) == (9, 16, 500)
    assert not caplog.messages
    api.info = {"batch_size": 18, "max_token_len": -1}
    await session.take_over_limits()
    assert "The trainer's batch of 18 is no multiple of env.group_size, 4" in caplog.text
    api.info = {"batch_size": 3, "max_token_len": -1}
    with pytest.raises(EnvironmentSetupError, match=r"A group of 4 does not fit the trainer's batch of 3"):
        await session.take_over_limits()
    api.num_steps = -1
    with pytest.raises(EnvironmentSetupError, match=r"Neither env\.total_steps nor the trainer"):
        await process(api, total_steps=-1)[0].register()


async def test_a_status_that_fails_is_asked_again_and_is_no_restart(api: FakeApi, caplog: Any) -> None:
    session, run = process(api)
    await session.register()
    api.failures, api.errors = 10, 1
    assert (await session.status())["current_step"] == 0
    for line in ("The trajectory API is unavailable", "The trajectory API is back"):
        assert caplog.text.count(line) == 1
    assert (api.known, api.signed_off) == (1, []), "an API that answers with an error has not been restarted"
    api.errors = 2
    await session.status()
    assert (run.env_id, api.signed_off) == (1, [0]), "a number that the API lost is signed off: it may hold a share"


async def test_a_restarted_api_is_registered_with_again_before_a_group_is_sent(api: FakeApi, caplog: Any) -> None:
    session, run = process(api)
    await session.register()
    run.step = 7
    await api.stop()
    session.deliver({"tokens": [[1]]}, None, lambda outcome: None)
    await asyncio.sleep(0.05)
    # Another environment was faster, and has our number.
    api.known, api.has_trainer, api.step = 1, False, 5
    await api.start()
    asking = asyncio.create_task(session.status())
    await asyncio.sleep(0.1)
    assert not asking.done() and not api.groups
    api.has_trainer = True
    assert ((await asking)["number"], run.env_id, run.step, run.metrics_prefix) == (1, 1, 5, "x_0")
    await session.close()
    assert [group["env_id"] for group in api.groups] == [1]
    assert run.repeated_steps == 2
    assert "Registered again with the trajectory API (it was restarted), as environment 1 instead of 0" in caplog.text


@pytest.mark.parametrize("reset", [{"known": 0, "step": 7}, {"known": 1, "step": 3}])
async def test_an_api_that_was_reset_is_registered_with_again(api: FakeApi, reset: dict[str, int]) -> None:
    session, run = process(api)
    await session.register()
    run.step = 7
    api.known, api.step, api.info = reset["known"], reset["step"], {"batch_size": 16, "max_token_len": 400}
    await session.status()
    assert (run.env_id, run.step, run.max_token_len) == (reset["known"], reset["step"], 400)


async def test_a_restarted_trainer_may_have_another_number_of_steps_unless_the_settings_say_it(api: FakeApi) -> None:
    follows, sets = process(api, total_steps=-1), process(api, total_steps=9)
    for session, _ in (follows, sets):
        await session.register()
    api.known, api.num_steps = 0, 20
    for session, _ in (follows, sets):
        await session.status()
    assert (follows[1].total_steps, sets[1].total_steps) == (20, 9)


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
        assert run.env_id == 0
        patch.setattr(session._transport, "request", AsyncMock(side_effect=ApiError("timeout")))
        await session.close()
        assert run.env_id == 0
    await session.close()
    assert (run.env_id, api.signed_off) == (None, [0])


# --- groups on their way


GROUP = {"tokens": [[1, 2]] * 2, "masks": [[-100, 2]] * 2, "scores": [1.0, 0.0]}


async def test_groups_are_sent_or_refused_with_the_step_at_which_sampling_began(api: FakeApi) -> None:
    session, _ = process(api, step=7)
    settled: list[GroupOutcome] = []
    await session.deliver({**GROUP, "generation_params": {"seed": 5}}, 5, settled.append)
    api.status = 422
    await session.deliver(GROUP, None, settled.append)
    api.status = 200
    await session.deliver({**GROUP, "generation_params": None}, None, settled.append)
    assert settled == [GroupOutcome.SENT, GroupOutcome.SEND_FAILED, GroupOutcome.SENT]
    assert [group["generation_params"] for group in api.groups] == [
        {"seed": 5, "sampled_at_step": 5},
        {"sampled_at_step": 7},
    ]
    assert session.metrics() == {"api/groups_in_delivery": 0.0, "train/staleness_mean": 1.0, "train/staleness_max": 2.0}
    assert session.metrics() == {"api/groups_in_delivery": 0.0}


async def test_groups_wait_for_the_api_although_nobody_waits_for_them(api: FakeApi) -> None:
    session, _ = process(api)
    api.status = 502
    settled: list[GroupOutcome] = []
    waiting = [asyncio.ensure_future(asyncio.shield(session.deliver(GROUP, 0, settled.append))) for _ in range(3)]
    await until(lambda: api.posts > 6)
    assert session.metrics()["api/groups_in_delivery"] == 3.0 and not settled
    waiting[0].cancel()
    api.status = 200
    await session.close()
    assert settled == [GroupOutcome.SENT] * 3 == [GroupOutcome.SENT] * len(api.groups)
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_group_that_no_batch_could_hold_is_not_posted(api: FakeApi) -> None:
    session, _ = process(api)
    settled: list[GroupOutcome] = []
    for bad in (
        {"scores": [math.nan, 0.0]},
        {"messages": [[{"role": "user", "content": "\ud83d"}]] * 2},
        {"masks": [[2], [-100, 2]]},
        {"inference_logprobs": [[0.0]] * 2},
    ):
        await session.deliver({**GROUP, **bad}, None, settled.append)
    await session.deliver({**GROUP, "inference_logprobs": None}, None, settled.append)
    assert settled == [GroupOutcome.SEND_FAILED] * 4 + [GroupOutcome.SENT] and len(api.groups) == 1


async def test_an_unforeseen_error_costs_the_group_that_is_delivered_and_is_counted(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    session, _ = process(api)
    monkeypatch.setattr(session._transport, "offer", AsyncMock(side_effect=RuntimeError("can't start new thread")))
    settled: list[GroupOutcome] = []
    await session.deliver(GROUP, None, settled.append)
    assert settled == [GroupOutcome.FAULT] and "RuntimeError: can't start new thread" in caplog.text


@pytest.mark.parametrize(("limit", "steps", "is_dropped"), [(2, 2, False), (2, 3, True), (0, 1, True), (-1, 99, False)])
@pytest.mark.parametrize("goes_back_to", [10, 3])
async def test_a_group_is_stale_after_too_many_steps_of_the_trainer_that_is_there(
    limit: int, goes_back_to: int, steps: int, is_dropped: bool, api: FakeApi
) -> None:
    session, run = process(api, max_staleness_steps=limit, step=10)
    api.status = 502
    settled: list[GroupOutcome] = []
    task = session.deliver(GROUP, None, settled.append)
    await until(lambda: api.posts > 0)
    # Below 10 if it is restarted from its last checkpoint.
    run.step, posts = goes_back_to, api.posts
    await until(lambda: api.posts > posts + 1)
    run.step += steps
    api.status = 502 if is_dropped else 200
    await task
    assert settled == [GroupOutcome.STALE if is_dropped else GroupOutcome.SENT]


# --- what becomes of a group and its item in the environment


@pytest.fixture
async def env(ready_env: ReadyEnv, api: FakeApi) -> Any:
    return await ready_env(include_tasks="gcd", rollout_server_url=api.address)


@pytest.mark.parametrize(
    ("outcome", "status", "change"),
    [
        *[("sent", 200, {}), ("send_failed", 422, {}), ("equal_scores", 200, {"scores": [0.5] * 4})],
        *[("dropped", 200, {"tokens": [[1]] * 5}), ("too_long", 200, {"tokens": [[1] * 600] * 4})],
        ("fault", 200, {"masks": None}),
    ],
)
async def test_a_group_s_outcome_is_counted_and_its_item_done(
    outcome: str, status: int, change: dict[str, Any], env: ReasoningGymEnv, api: FakeApi, monkeypatch: Any
) -> None:
    api.status = status
    item = await env.get_next_item()
    group: Any = await env.score([rollout(item, text) for text in (RIGHT, WRONG, RIGHT, WRONG)])
    assert len(env.run.stream.ledger.handed_out) == 1
    env.state.max_token_len = 500
    monkeypatch.setattr(env, "collect_trajectories", AsyncMock(return_value=({**group, **change}, [])))
    await ServeLoop(env)._make_group(item)
    await until(lambda: not env.run.api.in_delivery)
    assert env.run.telemetry.outcomes.state_dict()["counts"] == {"gcd": {outcome: 1}}
    assert not env.run.stream.ledger.handed_out and api.posts == (outcome in ("sent", "send_failed"))


async def test_a_group_that_is_not_sent_at_the_end_is_reported_and_drawn_again(
    env: ReasoningGymEnv, api: FakeApi, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLOSE_S", 0.01)
    api.has_trainer = False
    item = await env.get_next_item()
    group = await env.score([rollout(item, text) for text in (RIGHT, WRONG) * 2])
    await env.handle_send_to_api(group, item)
    await asyncio.sleep(0.05)
    await env.close()
    assert not api.groups and "1 groups could not be sent" in caplog.text
    assert 0 in {index for index, *_ in env.run.stream.state_dict()["pending"]}


# --- connections


async def test_the_trainer_is_looked_up_once_for_many_groups(api: FakeApi) -> None:
    transport = HttpTransport(api.address)
    for _ in range(5):
        assert await transport.offer(GROUP)
    assert (api.lookups, api.posts) == (1, 5)
    await transport.close()


async def test_a_gateway_that_keeps_no_connection_is_served_too(api: FakeApi) -> None:
    api.keeps_connections = False
    transport = HttpTransport(api.address)
    for _ in range(3):
        assert await transport.offer(GROUP)
    assert (api.lookups, api.posts) == (3, 3)
    await transport.close()


async def test_no_group_reaches_a_process_that_was_not_seen_with_its_trainer(api: FakeApi) -> None:
    transport = HttpTransport(api.address)
    assert await transport.offer(GROUP)
    # Another process at the same address, at once; its trainer has not registered yet.
    await api.stop()
    api.has_trainer = False
    await api.start()
    with pytest.raises(ApiError):
        await transport.offer(GROUP)
    assert not await transport.offer(GROUP)
    assert api.posts == 1
    api.has_trainer = True
    assert await transport.offer(GROUP)
    await transport.close()
