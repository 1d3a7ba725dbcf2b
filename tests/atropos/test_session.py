"""Registration, status and the way of a scored group, against an API that is restarted, refuses or fails."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from starlette.responses import JSONResponse

from reasoning_gym_environment import ReasoningGymEnv
from reasoning_gym_environment.atropos import session as module
from reasoning_gym_environment.atropos.checkpoints import RunCheckpoints
from reasoning_gym_environment.atropos.session import ApiSession, ApiUnavailableError, Outbox, RunState
from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.telemetry.telemetry import GroupOutcome

from ..env_support import RIGHT, WRONG, ReadyEnv, rollout
from ..process_table import until


class FakeApi:
    """A trajectory API whose every answer can be changed; `known` counts the environments that it has registered."""

    def __init__(self) -> None:
        self.has_trainer = True
        self.known = self.step = self.failures = self.errors = 0
        self.num_steps, self.failure, self.status = 9, 503, 200
        self.info: dict[str, Any] = {"batch_size": 16, "max_token_len": 500}
        self.checkpoints: tuple[str, int] = ("unused", -1)
        self.groups: list[dict[str, Any]] = []
        self.signed_off: list[int] = []
        self.address, self._port = "", 0
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path}", self._answer)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True).start()
        self._port = self._runner.addresses[0][1]
        self.address = f"http://127.0.0.1:{self._port}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _answer(self, request: web.Request) -> web.Response:
        path, body = request.match_info["path"], await request.json() if request.can_read_body else {}
        if path == "scored_data":
            self.groups.append(body)
            return web.Response(status=self.status, text="{}")
        if path == "disconnect-env":
            self.signed_off.append(body["env_id"])
        if path == "wandb_info":
            return web.json_response({"group": None, "project": "p" if self.has_trainer else None})
        if self.failures > 0:
            self.failures -= 1
            return web.Response(status=self.failure, text='{"detail": "weight: Field required"}')
        if path == "register-env":
            return web.json_response(self._registered())
        if path == "status-env":
            self.errors -= 1
            if body["env_id"] >= self.known or self.errors >= 0:
                return web.Response(status=500, text="Internal Server Error")
            queue = {"queue_size": 0, "self_queue_size": 0, "max_group_size": 4}
            return web.json_response({"current_step": self.step, "env_weight": 1.0, "number": body["env_id"], **queue})
        return web.json_response(self.info)

    def _registered(self) -> dict[str, Any]:
        if not self.has_trainer:
            return {"status": "wait for trainer to start"}
        self.known += 1
        names = {"wandb_name": f"x_{self.known - 1}", "checkpoint_dir": self.checkpoints[0]}
        steps = {"checkpoint_interval": self.checkpoints[1], "starting_step": self.step, "num_steps": self.num_steps}
        return {"status": "success", "env_id": self.known - 1, **names, **steps}


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("TRAINER_POLL_S", 0.01), ("FIRST_DELAY_S", 0.01), ("MAX_DELAY_S", 0.02)):
        monkeypatch.setattr(module, name, seconds)
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(module, "MAX_PAUSE_S", 0.005)


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    api = FakeApi()
    await api.start()
    yield api
    await api.stop()


def process(api: FakeApi, **fields: Any) -> tuple[ApiSession, RunState, RunCheckpoints]:
    """What one process of a run has to deal with the API."""
    run = RunState(**{"group_size": 4, "batch_size": 16, "total_steps": 9, "drops_equal_scores": True, **fields})
    checkpoints = RunCheckpoints(run, run_id="run", wandb_name=None, seed=1, instance_id="a")
    return (
        ApiSession(api.address, run, checkpoints, registration={"weight": 1}, max_staleness_steps=2),
        run,
        checkpoints,
    )


# --- registration and status


async def test_registration_waits_for_api_and_trainer(api: FakeApi, caplog: pytest.LogCaptureFixture) -> None:
    api.failures, api.has_trainer, api.step = 3, False, 4
    session, run, _ = process(api)
    registering = asyncio.create_task(session.register())
    await until(lambda: "has no trainer yet" in caplog.text)
    assert not registering.done()
    api.has_trainer = True
    await registering
    assert (run.env_id, run.step, run.metrics_prefix) == (0, 4, "x_0")
    for line in ("The trajectory API is unavailable", "The trajectory API is back", "has no trainer yet"):
        assert caplog.text.count(line) == 1


async def test_a_refused_registration_is_an_error_with_what_the_api_said_and_a_busy_api_is_not(api: FakeApi) -> None:
    session, run, _ = process(api)
    api.failures, api.failure = 1, 422
    with pytest.raises(EnvironmentSetupError, match=r"refuses this environment with 422: .*weight: Field"):
        await session.register()
    for code in (429, 408, 503):
        api.failures, api.failure, run.env_id = 2, code, None
        await session.register()
    # Once registered, it may meet a gateway whose API is being restarted.
    api.failures, api.failure, api.step = 2, 404, -1
    await session.status()
    assert session.metrics()["api/registered_again"] == 3.0


async def test_the_trainers_steps_and_limits_are_taken_over(api: FakeApi) -> None:
    session, run, _ = process(api, total_steps=-1)
    await session.register()
    await session.take_over_limits()
    assert (run.total_steps, run.batch_size, run.max_token_len) == (9, 16, 500)
    api.info = {"batch_size": 3, "max_token_len": -1}
    with pytest.raises(EnvironmentSetupError, match=r"A group of 4 does not fit the trainer's batch of 3"):
        await session.take_over_limits()
    run.total_steps = api.num_steps = -1
    with pytest.raises(EnvironmentSetupError, match=r"Neither env\.total_steps nor the trainer"):
        await session.register()


async def test_a_status_that_fails_is_asked_again_and_is_no_restart(api: FakeApi, caplog: Any) -> None:
    session, run, _ = process(api)
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
    session, run, _ = process(api)
    await session.register()
    run.step = 7
    await api.stop()
    await session.outbox.put({"tokens": [[1]]}, lambda outcome: None)
    await until(lambda: "outbox/failed_attempts" in session.metrics())
    # Another environment was faster, and has our number.
    api.known, api.has_trainer, api.step = 1, False, 5
    await api.start()
    asking = asyncio.create_task(session.status())
    await asyncio.sleep(0.1)
    assert not asking.done() and not api.groups
    api.has_trainer = True
    assert ((await asking)["number"], run.env_id, run.step, run.metrics_prefix) == (1, 1, 5, "x_0")
    await session.outbox.close(60.0)
    assert [group["env_id"] for group in api.groups] == [1]
    assert (session.metrics()["api/registered_again"], session.metrics()["api/steps_again"]) == (1.0, 2.0)
    assert "Registered again with the trajectory API, as environment 1 instead of 0" in caplog.text


@pytest.mark.parametrize("reset", [{"known": 0, "step": 7}, {"known": 1, "step": 3}])
async def test_an_api_that_was_reset_is_registered_with_again(api: FakeApi, reset: dict[str, int]) -> None:
    session, run, _ = process(api)
    await session.register()
    run.step = 7
    api.known, api.step, api.info = reset["known"], reset["step"], {"batch_size": 16, "max_token_len": 400}
    await session.status()
    assert (run.env_id, run.step, run.max_token_len) == (reset["known"], reset["step"], 400)


async def test_a_killed_run_s_number_is_signed_off_by_its_next_start_and_no_other(api: FakeApi, tmp_path: Path) -> None:
    async def start() -> tuple[int | None, RunCheckpoints, ApiSession]:
        session, run, checkpoints = process(api)
        await session.register()
        await checkpoints.find()
        await session.keep_number()
        return run.env_id, checkpoints, session

    api.checkpoints = (str(tmp_path), 5)
    _, killed, _ = await start()
    killed.leave()  # as the end of a process does
    number, again, _ = await start()
    assert (number, api.signed_off) == (1, [0])
    again.leave()
    api.known = 0
    number, ended, session = await start()
    assert (number, api.signed_off) == (0, [0]), "1 is not this run's after a restart of the API"
    await ended.forget_number()
    await session.sign_off()
    ended.leave()
    (await start())[1].leave()
    assert api.signed_off == [0, 0], "what was signed off at the end is not signed off again"


# --- groups on their way


class Deliveries:
    """An outbox whose API takes groups unless `error` is set, or refuses those that say so."""

    def __init__(self, **options: Any) -> None:
        self.taken: list[Any] = []
        self.error: ApiUnavailableError | None = None
        self.step = 0
        self.settled: list[GroupOutcome] = []
        self.outbox = Outbox(self.post, self.is_ready, step=lambda: self.step, **{"max_staleness_steps": 2, **options})

    async def is_ready(self) -> bool:
        return True

    async def post(self, group: Any) -> str | None:
        if self.error is not None:
            raise self.error
        if group.get("bad"):
            return "422: bad group"
        self.taken.append((group["n"], group["generation_params"]))
        return None

    async def put(self, group: Any, sampled_at: int | None = None) -> asyncio.Task[None]:
        return await self.outbox.put(group, self.settled.append, sampled_at)

    async def failed_again(self) -> None:
        seen = self.outbox.metrics().get("outbox/failed_attempts", 0)
        await until(lambda: self.outbox.metrics().get("outbox/failed_attempts", 0) > seen + 1)


async def test_groups_are_sent_or_refused_with_the_step_at_which_sampling_began() -> None:
    api = Deliveries()
    api.step = 7
    await (await api.put({"n": 1, "generation_params": {"seed": 5}}, sampled_at=5))
    await (await api.put({"n": 2, "bad": True}))
    await (await api.put({"n": 3, "generation_params": None}))
    assert api.settled == [GroupOutcome.SENT, GroupOutcome.SEND_FAILED, GroupOutcome.SENT]
    assert api.taken == [(1, {"seed": 5, "sampled_at_step": 5}), (3, {"sampled_at_step": 7})]
    assert api.outbox.metrics() == {"outbox/waiting": 0.0, "outbox/refused": 1.0}
    assert api.outbox.drain() == {"train/staleness_mean": 1.0, "train/staleness_max": 2.0}
    assert api.outbox.drain() == {}


async def test_groups_wait_for_the_api_although_nobody_waits_for_them_and_the_outbox_is_bounded() -> None:
    api = Deliveries(capacity=3)
    api.error = ApiUnavailableError("nobody there")

    async def bring(n: int) -> None:
        await asyncio.shield(await api.put({"n": n}))

    bringing = [asyncio.create_task(bring(n)) for n in range(5)]
    await api.failed_again()
    assert api.outbox.metrics()["outbox/waiting"] == 3.0 and not api.settled
    bringing[0].cancel()
    api.error = None
    await asyncio.gather(*bringing, return_exceptions=True)
    await api.outbox.close(60.0)
    assert sorted(n for n, _ in api.taken) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("limit", "goes_back_to", "steps", "is_dropped"),
    [
        (2, None, 2, False),
        (2, None, 3, True),
        (0, None, 1, True),
        (-1, None, 99, False),
        (2, 3, 2, False),
        (2, 3, 3, True),
    ],
)
async def test_a_group_is_stale_after_too_many_steps_of_the_trainer_that_is_there(
    limit: int, goes_back_to: int | None, steps: int, is_dropped: bool
) -> None:
    api = Deliveries(max_staleness_steps=limit)
    api.error, api.step = ApiUnavailableError("nobody there"), 10
    task = await api.put({"n": 1})
    if goes_back_to is not None:
        # Restarted from its last checkpoint.
        api.step = goes_back_to
        await api.failed_again()
    api.step += steps
    api.error = None
    await task
    assert api.settled == [GroupOutcome.STALE if is_dropped else GroupOutcome.SENT]


async def test_a_group_at_which_the_api_itself_fails_is_dropped_and_holds_up_no_others() -> None:
    api = Deliveries()
    # A gateway's answer says nothing of the group.
    api.error = ApiUnavailableError("it answers 502")
    task = await api.put({"n": 1})
    for _ in range(module.MAX_FAILURES):
        await api.failed_again()
    assert not task.done()
    api.error = ApiUnavailableError("it answers 500", failed=True)
    await task
    assert api.settled == [GroupOutcome.SEND_FAILED]


async def test_the_end_gives_what_waits_a_last_chance_and_reports_the_rest(caplog: Any) -> None:
    api = Deliveries()
    await api.put({"n": 1})
    await api.outbox.close(60.0)
    assert len(api.taken) == 1 and not caplog.text
    api.error = ApiUnavailableError("nobody there")
    task = await api.put({"n": 2})
    await api.outbox.close(0.01)
    assert task.cancelled() and api.settled == [GroupOutcome.SENT] and "1 groups could not be sent" in caplog.text
    broken = await api.put(None)
    with pytest.raises(AttributeError):
        await broken
    assert "could not be sent at all" in caplog.text


GROUP = {"tokens": [[1, 2]] * 2, "masks": [[-100, 2]] * 2, "scores": [1.0, 0.0]}


@pytest.mark.parametrize(
    "bad",
    [
        {"scores": [math.nan, 0.0]},
        {"ref_logprobs": [[-math.inf]] * 2},
        {"messages": [[{"role": "user", "content": "\ud83d"}]] * 2},
        {"masks": [[2], [-100, 2]]},
        {"inference_logprobs": [[0.0]] * 2},
    ],
)
async def test_a_group_that_no_batch_could_hold_is_not_posted(api: FakeApi, bad: dict[str, Any]) -> None:
    session, _, _ = process(api)
    if not {"masks", "inference_logprobs"} & bad.keys():
        # So run-api answers `/batch`, after it has taken the batch out of its queue.
        with pytest.raises(ValueError, match=r"JSON|surrogates"):
            JSONResponse({"batch": [{**GROUP, **bad}]})
    settled: list[GroupOutcome] = []
    for group in ({**GROUP, **bad}, {**GROUP, "inference_logprobs": None}):
        await (await session.outbox.put(group, settled.append))
    assert settled == [GroupOutcome.SEND_FAILED, GroupOutcome.SENT] and len(api.groups) == 1


def test_large_groups_are_compressed() -> None:
    body, headers = module._encoded({**GROUP, "tokens": [[1] * 5000] * 2, "masks": [[1] * 5000] * 2})
    assert headers["Content-Encoding"] == "gzip" and len(json.loads(gzip.decompress(body))["tokens"][0]) == 5000


# --- what becomes of a group and its item in the environment


@pytest.fixture
async def env(ready_env: ReadyEnv, api: FakeApi) -> ReasoningGymEnv:
    env = await ready_env(include_tasks="gcd", rollout_server_url=api.address)
    return env


def pending(env: ReasoningGymEnv) -> int:
    return len(env.stream.ledger.handed_out)


@pytest.mark.parametrize(
    ("outcome", "status", "change"),
    [
        ("sent", 200, {}),
        ("send_failed", 422, {}),
        ("equal_scores", 200, {"scores": [0.5] * 4}),
        ("dropped", 200, {"tokens": [[1]] * 5}),
        ("too_long", 200, {"tokens": [[1] * 600] * 4}),
        ("fault", 200, {"masks": None}),
    ],
)
async def test_a_group_s_outcome_is_counted_and_its_item_done(
    outcome: str, status: int, change: dict[str, Any], env: ReasoningGymEnv, api: FakeApi
) -> None:
    api.status = status
    item = await env.get_next_item()
    group = await env.score([rollout(item, text) for text in (RIGHT, WRONG, RIGHT, WRONG)])
    assert pending(env) == 1
    env.run.max_token_len = 500
    sending = env.handle_send_to_api({**group, **change}, item)  # type: ignore[dict-item]
    await asyncio.gather(sending, return_exceptions=outcome == "fault")
    assert env.log.outcomes.by_task() == {"gcd": {outcome: 1}}
    assert not pending(env) and len(api.groups) == (outcome in ("sent", "send_failed"))


async def test_a_group_that_is_not_sent_at_the_end_or_gets_no_room_is_drawn_again(
    env: ReasoningGymEnv, api: FakeApi
) -> None:
    api.has_trainer = False
    items = [await env.get_next_item() for _ in range(2)]
    groups = [await env.score([rollout(item, text) for text in (RIGHT, WRONG) * 2]) for item in items]
    sending = [asyncio.create_task(env.handle_send_to_api(groups[0], items[0]))]
    await asyncio.sleep(0.05)
    env.session.outbox._room = asyncio.Semaphore(0)
    sending.append(asyncio.create_task(env.handle_send_to_api(groups[1], items[1])))
    await asyncio.sleep(0.05)
    sending[1].cancel()
    await env.close()
    await asyncio.gather(*sending, return_exceptions=True)
    assert not api.groups and not env.log.outcomes.by_task()
    assert {0, 1} <= {index for index, *_ in env.stream.state_dict()["pending"]}
