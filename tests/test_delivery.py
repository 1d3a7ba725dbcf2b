"""Groups offered to the trajectory API end in the funnel as what really became of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
import tenacity
from aiohttp import web
from atroposlib.envs.base import BaseEnv

from reasoning_gym_environment import ReasoningGymEnv

from .env_support import RIGHT, WRONG, rollout

MakeEnv = Callable[..., ReasoningGymEnv]


@pytest.fixture
async def api() -> AsyncIterator[Any]:
    """A trajectory API that answers groups with `status[0]`; returns (address, status, groups received)."""
    status, received = [200], []

    async def take(request: web.Request) -> web.Response:
        received.append(await request.json())
        return web.Response(status=status[0], text="{}")

    app = web.Application()
    app.router.add_post("/scored_data", take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}", status, received
    await runner.cleanup()


@pytest.fixture(autouse=True)
def retries_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BaseEnv._send_scored_data_to_api.retry, "wait", tenacity.wait_none())


async def offered(env: ReasoningGymEnv) -> tuple[Any, Any]:
    await env.setup()
    item = await env.get_next_item()
    return await env.score([rollout(item, text) for text in (RIGHT, WRONG, RIGHT, WRONG)]), item


async def test_a_group_that_the_api_takes_is_sent(make_env: MakeEnv, api: Any) -> None:
    address, _, received = api
    env = make_env(include_tasks="gcd", rollout_server_url=address)
    await env.handle_send_to_api(*await offered(env))
    assert env.funnel.by_task() == {"gcd": {"sent": 1}}
    assert len(received) == 1 and len(received[0]["tokens"]) == 4


@pytest.mark.parametrize(("status", "attempts"), [(422, 1), (500, 3)])
async def test_a_group_that_the_api_refuses_has_failed(make_env: MakeEnv, api: Any, status: int, attempts: int) -> None:
    address, answers, received = api
    answers[0] = status
    env = make_env(include_tasks="gcd", rollout_server_url=address)
    await env.handle_send_to_api(*await offered(env))
    assert env.funnel.by_task() == {"gcd": {"send_failed": 1}}
    assert len(received) == attempts
    answers[0] = 200
    await env.handle_send_to_api(*await offered(env))
    assert env.funnel.by_task() == {"gcd": {"send_failed": 1, "sent": 1}}


async def test_without_an_api_the_group_has_failed(make_env: MakeEnv) -> None:
    env = make_env(include_tasks="gcd", rollout_server_url="http://127.0.0.1:9")
    await env.handle_send_to_api(*await offered(env))
    assert env.funnel.by_task() == {"gcd": {"send_failed": 1}}
    with pytest.raises((tenacity.RetryError, aiohttp.ClientError)):
        await env._send_scored_data_to_api({})


async def test_a_group_over_the_trainers_limit_is_too_long(make_env: MakeEnv, api: Any) -> None:
    address, _, received = api
    env = make_env(include_tasks="gcd", rollout_server_url=address)
    group, item = await offered(env)
    env.max_token_len = len(group["tokens"][0])
    await env.handle_send_to_api(group, item)
    assert env.funnel.by_task() == {"gcd": {"too_long": 1}} and not received


async def test_a_group_of_another_size_is_dropped(make_env: MakeEnv, api: Any) -> None:
    address, _, received = api
    env = make_env(include_tasks="gcd", rollout_server_url=address)
    group, item = await offered(env)
    env.config.group_size = 5
    await env.handle_send_to_api(group, item)
    assert env.funnel.by_task() == {"gcd": {"dropped": 1}} and not received


async def test_process_writes(make_env: MakeEnv) -> None:
    env = make_env(include_tasks="gcd")
    group, item = await offered(env)
    await env.handle_send_to_api(group, item, do_send_to_api=False, abort_on_any_max_length_exceeded=False)
    assert env.funnel.by_task() == {"gcd": {"written": 1}}


async def test_equal_scores_and_zeros_are_not_offered(make_env: MakeEnv) -> None:
    env = make_env(include_tasks="gcd")
    await env.setup()
    for text in (RIGHT, WRONG):
        assert await env.score([rollout(await env.get_next_item(), text)] * 4) is None
    assert env.funnel.by_task() == {"gcd": {"equal_scores": 1, "all_zero": 1}}
