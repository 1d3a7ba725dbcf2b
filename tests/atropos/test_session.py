"""Registration, status and the way of a scored group, against an API that is there, away, restarted or refusing."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import atroposlib.envs.base as atropos_base
import pytest
from aiohttp import web
from atroposlib.envs.server_handling.vllm_server import VLLMServer
from starlette.responses import JSONResponse
from wandb.errors import CommError

from reasoning_gym_environment import ReasoningGymEnv
from reasoning_gym_environment.atropos import session
from reasoning_gym_environment.errors import EnvironmentSetupError

from ..env_support import RIGHT, WRONG, ReadyEnv, dumped, rollout
from ..process_table import until


class FakeApi:
    """A trajectory API whose every answer can be changed; `known` are the environments that it has registered."""

    def __init__(self) -> None:
        self.has_trainer = True
        self.known = 0
        self.step = 0
        self.num_steps = 9
        self.status = 200
        self.failures = 0
        self.failure = 503
        self.info: dict[str, Any] = {"batch_size": 16, "max_token_len": 500}
        self.groups: list[dict[str, Any]] = []
        self.signed_off: list[int] = []
        self.errors = 0
        self.checkpoints: tuple[str, int] = ("unused", -1)
        self.address = ""
        self._runner: web.AppRunner | None = None
        self._port = 0

    async def start(self) -> None:
        app = web.Application()
        app.router.add_post("/register-env", self._register)
        app.router.add_get("/status-env", self._status)
        app.router.add_get("/wandb_info", self._wandb_info)
        app.router.add_get("/info", self._info)
        app.router.add_post("/scored_data", self._scored_data)
        app.router.add_post("/disconnect-env", self._disconnect)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True).start()
        self._port = self._runner.addresses[0][1]
        self.address = f"http://127.0.0.1:{self._port}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def _fails(self) -> bool:
        self.failures -= 1
        return self.failures >= 0

    async def _register(self, request: web.Request) -> web.Response:
        if self._fails():
            return web.Response(status=self.failure, text='{"detail": "weight: Field required"}')
        if not self.has_trainer:
            return web.json_response({"status": "wait for trainer to start"})
        self.known += 1
        return web.json_response(
            {
                "status": "success",
                "env_id": self.known - 1,
                "wandb_name": f"x_{self.known - 1}",
                "checkpoint_dir": self.checkpoints[0],
                "checkpoint_interval": self.checkpoints[1],
                "starting_step": self.step,
                "num_steps": self.num_steps,
            }
        )

    async def _status(self, request: web.Request) -> web.Response:
        if self._fails():
            return web.Response(status=503)
        number = (await request.json())["env_id"]
        self.errors -= 1
        if number >= self.known or self.errors >= 0:
            return web.Response(status=500, text="Internal Server Error")
        queue = {"queue_size": 0, "self_queue_size": 0, "max_group_size": 4}
        return web.json_response({"current_step": self.step, "env_weight": 1.0, "number": number, **queue})

    async def _wandb_info(self, request: web.Request) -> web.Response:
        return web.json_response({"group": None, "project": "p" if self.has_trainer else None})

    async def _info(self, request: web.Request) -> web.Response:
        return web.Response(status=502) if self._fails() else web.json_response(self.info)

    async def _disconnect(self, request: web.Request) -> web.Response:
        self.signed_off.append((await request.json())["env_id"])
        return web.json_response({"status": "success"})

    async def _scored_data(self, request: web.Request) -> web.Response:
        self.groups.append(await request.json())
        return web.Response(status=self.status, text="{}")


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "TRAINER_POLL_S", 0.01)
    monkeypatch.setattr(session, "FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(session, "MAX_DELAY_S", 0.02)
    monkeypatch.setattr(session, "FIRST_PAUSE_S", 0.01)


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    api = FakeApi()
    await api.start()
    yield api
    await api.stop()


@pytest.fixture
async def env(ready_env: ReadyEnv, api: FakeApi) -> ReasoningGymEnv:
    env = await ready_env(include_tasks="gcd", rollout_server_url=api.address, max_staleness_steps=2)
    return env


# --- registration and status


async def test_registration_waits_for_api_and_trainer(
    env: ReasoningGymEnv, api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    api.failures, api.has_trainer, api.step = 3, False, 4
    registering = asyncio.create_task(env.register_env())
    await until(lambda: "has no trainer yet" in caplog.text)
    assert not registering.done()
    api.has_trainer = True
    await registering
    assert (env.run.env_id, env.curr_step, env.wandb_prepend) == (0, 4, "x_0")
    for line in ("The trajectory API is away", "The trajectory API is back", "has no trainer yet"):
        assert caplog.text.count(line) == 1
    assert "asks for no checkpoints" in caplog.text


async def test_a_refused_registration_is_an_error_with_what_the_api_said_and_a_busy_api_is_not(
    env: ReasoningGymEnv, api: FakeApi
) -> None:
    api.failures, api.failure = 1, 422
    with pytest.raises(
        EnvironmentSetupError, match=r"/register-env refuses this environment with 422: .*weight: Field"
    ):
        await env.register_env()
    for code in (429, 408, 503):
        api.failures, api.failure, env.env_id = 2, code, None
        await env.register_env()
    # Known once, it may meet a gateway without its API.
    api.failures, api.failure = 2, 404
    api.step = -1
    await env.get_status()
    assert env.session.metrics()["api/registered_again"] == 3.0


async def test_the_trainer_may_set_the_number_of_steps_and_somebody_must(env: ReasoningGymEnv, api: FakeApi) -> None:
    env.run.total_steps = -1
    await env.register_env()
    assert env.run.total_steps == 9
    env.run.total_steps = api.num_steps = -1
    with pytest.raises(EnvironmentSetupError, match=r"Neither env\.total_steps nor the trainer"):
        await env.register_env()


async def test_the_trainers_limits_are_taken_over(env: ReasoningGymEnv, api: FakeApi) -> None:
    api.failures = 2
    await env.get_server_info()
    assert (env.run.batch_size, env.max_token_len) == (16, 500)
    api.info = {"batch_size": 3, "max_token_len": -1}
    with pytest.raises(EnvironmentSetupError, match=r"A group of 4 does not fit the trainer's batch of 3"):
        await env.get_server_info()


async def test_a_status_that_fails_is_asked_again_and_the_run_goes_on(
    env: ReasoningGymEnv, api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    await env.register_env()
    api.failures = 10
    await env.get_status()
    assert env.status_dict["current_step"] == 0
    assert caplog.text.count("The trajectory API is away") == caplog.text.count("The trajectory API is back") == 1
    assert api.known == 1, "an API that answers with an error has not been restarted"


async def test_a_restarted_api_is_registered_with_again(
    env: ReasoningGymEnv, api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    await env.register_env()
    env.curr_step = 7
    await api.stop()
    asking = asyncio.create_task(env.get_status())
    await until(lambda: "The trajectory API is away" in caplog.text)
    # Another environment was faster, and has our number.
    api.known, api.has_trainer, api.step = 1, False, 5
    await api.start()
    await asyncio.sleep(0.1)
    assert not asking.done()
    api.has_trainer = True
    await asking
    assert (env.run.env_id, env.status_dict["number"], env.curr_step) == (1, 1, 5)
    assert env.wandb_prepend == "x_0", "the names of the metrics stay"
    assert env.session.metrics()["api/registered_again"] == 1.0
    assert "Registered again with the trajectory API, as environment 1 instead of 0" in caplog.text


@pytest.mark.parametrize("reset", [{"known": 0, "step": 7}, {"known": 1, "step": 3}])
async def test_an_api_that_was_reset_is_registered_with_again(
    env: ReasoningGymEnv, api: FakeApi, reset: dict[str, int]
) -> None:
    await env.register_env()
    env.curr_step = 7
    await env.get_server_info()
    api.known, api.step, api.info = reset["known"], reset["step"], {"batch_size": 16, "max_token_len": 400}
    await env.get_status()
    assert (env.run.env_id, env.curr_step) == (reset["known"], reset["step"])
    assert env.max_token_len == 400, "its trainer may have other limits"


async def test_wandb_gets_the_steps_that_a_restarted_trainer_takes_again(
    env: ReasoningGymEnv, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    monkeypatch.setattr(atropos_base.wandb, "log", lambda metrics, step: steps.append(step))
    await env.register_env()
    monkeypatch.setattr(env.config, "use_wandb", True)
    for step in (6, 7, 1, 2, 3, 0, 1):
        api.step = step
        await env.get_status()
        env.items_sent_this_step = 100
        await env.env_step_checks()
        assert env.curr_step == step
    # A step to which the trainer goes back is where it starts, not one that it has taken.
    assert steps == [6, 7, 8, 9, 10]
    assert env.session.metrics()["api/steps_again"] == 9.0


@pytest.mark.parametrize(("said", "is_away"), [("Timed out while retrying: Post", True), ("permission denied", False)])
async def test_a_start_does_not_wait_for_a_wandb_that_is_away(
    env: ReasoningGymEnv, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, said: str, is_away: bool
) -> None:
    modes: list[str] = []
    projects: list[str] = []

    def init(*, project: str, **_: Any) -> None:
        if not modes:
            raise CommError(f"{said}\nConsider increasing the init_timeout setting")
        projects.append(project)

    monkeypatch.setattr(atropos_base.wandb, "init", init)
    monkeypatch.setattr(atropos_base.wandb, "setup", lambda settings: modes.append(settings.mode))
    monkeypatch.setattr(env.config, "use_wandb", True)
    if is_away:
        await env.setup_wandb()
        assert (modes, projects) == (["offline"], ["p"])
        assert f"wandb is away ({said}): the metrics of this process are kept in wandb/offline-run-*" in caplog.text
    else:
        with pytest.raises(CommError):
            await env.setup_wandb()
        assert modes == []


async def test_one_error_inside_the_api_is_no_restart_and_a_lost_number_is_signed_off(
    env: ReasoningGymEnv, api: FakeApi
) -> None:
    await env.register_env()
    api.errors = 1
    await env.get_status()
    assert (env.run.env_id, api.signed_off) == (0, [])
    api.errors = 2
    await env.get_status()
    assert (env.run.env_id, api.signed_off) == (1, [0]), "its share of every batch would stay reserved"


async def test_a_run_that_was_killed_signs_off_the_number_it_had(
    ready_env: ReadyEnv, api: FakeApi, tmp_path: Path
) -> None:
    async def start() -> ReasoningGymEnv:
        env = await ready_env(rollout_server_url=api.address, instance_id="a")
        await env.register_env()
        return env

    api.checkpoints = (str(tmp_path), 5)
    killed = await start()
    killed.checkpoints.leave()  # as the end of a process does
    again = await start()
    assert (again.env_id, api.signed_off) == (1, [0])
    again.checkpoints.leave()
    api.known = 0
    assert ((await start()).env_id, api.signed_off) == (0, [0]), "1 is not this run's after a restart of the API"


async def test_a_run_that_signed_off_itself_has_nothing_to_sign_off(
    ready_env: ReadyEnv, api: FakeApi, tmp_path: Path
) -> None:
    api.checkpoints = (str(tmp_path), 5)
    for _ in range(2):
        env = await ready_env(rollout_server_url=api.address, instance_id="a")
        await env.register_env()
        await env.close()
    assert api.known == 2 and api.signed_off == []


async def test_an_instance_that_joins_after_a_restart_has_a_stream_of_its_own(
    ready_env: ReadyEnv, api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start() -> ReasoningGymEnv:
        env = await ready_env(rollout_server_url=api.address)
        await env.register_env()
        return env

    monkeypatch.delenv("SLURM_PROCID", raising=False)
    api.checkpoints = (str(tmp_path), 5)
    await (await start()).close()
    api.known = 1
    goes_on = await start()
    api.known = 0
    joins = await start()
    assert (goes_on.components.stream.instance, joins.components.stream.instance) == ("0", "0.1")


# --- the way of a group


async def offered(env: ReasoningGymEnv) -> tuple[Any, Any]:
    item = await env.get_next_item()
    return await env.score([rollout(item, text) for text in (RIGHT, WRONG, RIGHT, WRONG)]), item


def pending(env: ReasoningGymEnv) -> int:
    return len(env.components.stream.ledger.handed_out)


async def test_a_group_that_the_api_takes_is_sent(env: ReasoningGymEnv, api: FakeApi) -> None:
    group, item = await offered(env)
    assert pending(env) == 1
    await env.handle_send_to_api(group, item)
    assert env.log.outcomes.by_task() == {"gcd": {"sent": 1}}
    assert len(api.groups) == 1 and len(api.groups[0]["tokens"]) == 4
    assert pending(env) == 0


async def test_a_group_that_the_api_refuses_has_failed(
    env: ReasoningGymEnv, api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    api.status = 422
    await env.handle_send_to_api(*await offered(env))
    assert env.log.outcomes.by_task() == {"gcd": {"send_failed": 1}}
    assert len(api.groups) == 1 and pending(env) == 0
    assert "refused by the trajectory API: 422" in caplog.text


async def test_what_run_api_could_not_hand_on_in_a_batch_is_not_posted(
    env: ReasoningGymEnv, api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    half_a_pair = [[{"role": "user", "content": "\ud83d"}]] * 4
    for bad in ({"scores": [math.nan, 0.0, 1.0, 1.0]}, {"ref_logprobs": [[-math.inf]] * 4}, {"messages": half_a_pair}):
        group, item = await offered(env)
        group.update(bad)
        # So run-api answers `/batch`, after it has taken the batch out of its queue.
        with pytest.raises(ValueError, match=r"JSON|surrogates"):
            JSONResponse({"batch": [group]})
        await env.handle_send_to_api(group, item)
    assert env.log.outcomes.by_task() == {"gcd": {"send_failed": 3}} and not api.groups and not pending(env)
    assert "not sent, for no batch with it could be used" in caplog.text


async def test_masks_and_logprobs_that_are_not_one_for_each_token_are_not_posted(
    env: ReasoningGymEnv, api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("masks", "inference_logprobs"):
        group, item = await offered(env)
        group[name][1] = group[name][1][1:]
        await env.handle_send_to_api(group, item)
    assert env.log.outcomes.by_task() == {"gcd": {"send_failed": 2}} and not api.groups and not pending(env)
    assert "its masks are not as many as its tokens" in caplog.text


async def test_a_group_is_kept_while_the_api_fails_and_its_item_pending(env: ReasoningGymEnv, api: FakeApi) -> None:
    api.status = 500
    sending = asyncio.create_task(env.handle_send_to_api(*await offered(env)))
    await until(lambda: len(api.groups) > 1)
    assert pending(env) == 1 and not env.log.outcomes.totals
    sending.cancel()
    api.status = 200
    await env.session.outbox.close(60.0)
    assert env.log.outcomes.by_task() == {"gcd": {"sent": 1}} and pending(env) == 0


async def test_no_group_is_posted_to_an_api_without_a_trainer(env: ReasoningGymEnv, api: FakeApi) -> None:
    api.has_trainer = False
    sending = asyncio.create_task(env.handle_send_to_api(*await offered(env)))
    await asyncio.sleep(0.1)
    assert not api.groups
    api.has_trainer = True
    await sending
    assert len(api.groups) == 1


async def test_what_waits_is_sent_at_once_when_the_api_is_back(
    env: ReasoningGymEnv, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "FIRST_PAUSE_S", 3600.0)
    monkeypatch.setattr(session, "MAX_PAUSE_S", 3600.0)
    await env.register_env()
    await api.stop()
    asking = asyncio.create_task(env.get_status())
    sending = asyncio.create_task(env.handle_send_to_api(*await offered(env)))
    await asyncio.sleep(0.1)
    await api.start()
    await asyncio.wait_for(asyncio.gather(asking, sending), 120)
    assert len(api.groups) == 1


async def test_a_group_that_is_too_old_by_then_is_stale(env: ReasoningGymEnv, api: FakeApi) -> None:
    api.status = 500
    sending = asyncio.create_task(env.handle_send_to_api(*await offered(env)))
    await until(lambda: bool(api.groups))
    env.curr_step += 3
    await sending
    assert env.log.outcomes.by_task() == {"gcd": {"stale": 1}} and pending(env) == 0


@pytest.mark.parametrize("limit", [2, 1])
async def test_staleness_counts_from_the_request_that_was_answered(
    limit: int, ready_env: ReadyEnv, api: FakeApi, byte_tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[dict[str, Any]] = []

    async def ask(_: Any, **request: Any) -> tuple[Any, ...]:
        requests.append(request)
        env.run.step += 2
        if len(requests) == 1:
            raise OSError("cut off")
        texts = [RIGHT.format(answer=item[1]["answer"]), WRONG] * 2
        tokens = [byte_tokenizer.encode(text) for text in texts]
        return request["input_ids"], tokens, [[-0.5] * len(one) for one in tokens], ["stop"] * 4

    monkeypatch.setattr(VLLMServer, "_tokens_and_logprobs_completion_wrapper", ask)
    settings = {"max_staleness_steps": limit, "train_temperature": 0.7, "train_top_p": 0.9, "dump_rollouts": True}
    env = await ready_env(include_tasks="gcd", rollout_server_url=api.address, **settings)
    item = await env.get_next_item()
    env.run.step = 3
    group, _ = await env.collect_trajectories(item)
    assert [(one["temperature"], one["top_p"]) for one in requests] == [(0.7, 0.9)] * 2
    await env.handle_send_to_api(group, item)
    assert [one["generation_params"] for one in api.groups] == [{"sampled_at_step": 5}] * (limit == 2)
    assert env.log.outcomes.by_task() == {"gcd": {"sent" if limit == 2 else "stale": 1}} and pending(env) == 0
    await env.close()
    [line] = dumped(env.datadumps_dir, "*.jsonl")
    assert (line["sampled_at_step"], line["scored_at_step"]) == (5, 7)


async def test_what_is_not_sent_at_the_end_is_drawn_again(env: ReasoningGymEnv, api: FakeApi) -> None:
    await env.register_env()
    await api.stop()
    sending = asyncio.create_task(env.handle_send_to_api(*await offered(env)))
    asking = asyncio.create_task(env.get_status())
    await asyncio.sleep(0.05)
    asking.cancel()
    await env.close()
    await asyncio.gather(sending, asking, return_exceptions=True)
    assert pending(env) == 1 and not env.log.outcomes.totals
    assert env.components.stream.state_dict()["pending"][0][0] == 0


async def test_a_group_that_did_not_get_into_the_outbox_is_made_again(env: ReasoningGymEnv, api: FakeApi) -> None:
    env.session.outbox._room = asyncio.Semaphore(0)
    group, item = await offered(env)
    sending = asyncio.create_task(env.handle_send_to_api(group, item))
    await asyncio.sleep(0.01)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    assert not env.log.outcomes.totals and not pending(env)
    drawn = [(await env.get_next_item())[1] for _ in range(2 + env.config.prefetch_items)]
    assert item[1] in drawn


async def test_a_restart_that_only_a_group_has_noticed_is_one(env: ReasoningGymEnv, api: FakeApi) -> None:
    await env.register_env()
    await api.stop()
    sending = asyncio.create_task(env.handle_send_to_api(*await offered(env)))
    await until(lambda: env.session.outbox.failed_attempts > 0)
    # Another environment was faster, and has our number.
    api.known = 1
    await api.start()
    await asyncio.sleep(0.05)
    assert not api.groups
    await env.get_status()
    await sending
    assert env.run.env_id == 1 and [group["env_id"] for group in api.groups] == [1]


async def test_a_group_over_the_trainers_limit_is_too_long(env: ReasoningGymEnv, api: FakeApi) -> None:
    group, item = await offered(env)
    env.max_token_len = len(group["tokens"][0])
    await env.handle_send_to_api(group, item)
    assert env.log.outcomes.by_task() == {"gcd": {"too_long": 1}} and not api.groups and not pending(env)


async def test_a_group_of_another_size_is_dropped(env: ReasoningGymEnv, api: FakeApi) -> None:
    group, item = await offered(env)
    env.run.group_size = 5
    await env.handle_send_to_api(group, item)
    assert env.log.outcomes.by_task() == {"gcd": {"dropped": 1}} and not api.groups and not pending(env)


async def test_a_group_that_the_file_does_not_take_is_sent_all_the_same(
    ready_env: ReadyEnv, api: FakeApi, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "file" / "groups.jsonl"
    path.parent.touch()
    env = await ready_env(include_tasks="gcd", rollout_server_url=api.address, data_path_to_save_groups=str(path))
    env.collect_trajectories = partial(collected, env)  # type: ignore[method-assign]
    for _ in range(3):
        assert await env._group_of(await env.get_next_item())
    assert env.log.outcomes.by_task() == {"gcd": {"sent": 3}} and len(api.groups) == 3 and not pending(env)
    assert caplog.text.count("Group not written to data_path_to_save_groups") == 1
    assert env.failures.metrics("train/failures")["train/failures_group_not_written_to_data_path_to_save_groups"] == 3.0


async def collected(env: ReasoningGymEnv, item: Any) -> tuple[Any, list[Any]]:
    return await env.score([rollout(item, text) for text in (RIGHT, WRONG, RIGHT, WRONG)]), []


async def test_a_group_that_nobody_foresaw_how_to_handle_is_a_fault_and_its_item_settled(
    env: ReasoningGymEnv, api: FakeApi
) -> None:
    group, item = await offered(env)
    del group["masks"]
    with pytest.raises(KeyError):
        await env.handle_send_to_api(group, item)
    assert env.log.outcomes.by_task() == {"gcd": {"fault": 1}} and not api.groups and not pending(env)


async def test_a_fault_of_a_subclass_costs_its_group_and_its_item_is_done(
    env: ReasoningGymEnv, api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(group: Any) -> Any:
        raise KeyError("a field of its own")

    env.collect_trajectories = partial(collected, env)  # type: ignore[method-assign]
    env.postprocess_histories = fail  # type: ignore[method-assign]
    for _ in range(2):
        assert not await env._group_of(await env.get_next_item())
    assert env.log.outcomes.by_task() == {"gcd": {"fault": 2}} and not api.groups and not pending(env)
    assert caplog.text.count("please report it") == 1


async def test_a_group_made_equal_on_the_way_is_not_sent(env: ReasoningGymEnv, api: FakeApi) -> None:
    group, item = await offered(env)
    group["scores"] = [0.5] * 4
    await env.handle_send_to_api(group, item)
    assert env.log.outcomes.by_task() == {"gcd": {"equal_scores": 1}} and not api.groups and not pending(env)


async def test_process_writes(env: ReasoningGymEnv) -> None:
    group, item = await offered(env)
    await env.handle_send_to_api(group, item, do_send_to_api=False, abort_on_any_max_length_exceeded=False)
    assert env.log.outcomes.by_task() == {"gcd": {"written": 1}} and not pending(env)


async def test_equal_scores_and_zeros_are_not_offered(env: ReasoningGymEnv) -> None:
    for text in (RIGHT, WRONG):
        assert await env.score([rollout(await env.get_next_item(), text)] * 4) is None
    assert env.log.outcomes.by_task() == {"gcd": {"equal_scores": 1, "all_zero": 1}} and not pending(env)
