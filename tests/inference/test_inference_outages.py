"""Inference that fails: for one item, for all of them, for a while, or by never answering."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from reasoning_gym_environment import ReasoningGymEnv
from reasoning_gym_environment.atropos.conversions import problem_of
from reasoning_gym_environment.errors import GivenUpError, InferenceError
from reasoning_gym_environment.inference import availability as inference_health
from reasoning_gym_environment.inference.availability import AWAY_AFTER, MAX_FAILURES, InferenceHealth
from reasoning_gym_environment.records import Completion
from reasoning_gym_environment.sampling.item_stream import MAX_TRIES

from ..env_support import WRONG, ReadyEnv


def fails_at(env: ReasoningGymEnv, monkeypatch: pytest.MonkeyPatch, fails: Callable[[int], bool]) -> list[int]:
    """The env's inference fails at the items whose index `fails` names; the indices asked for are in the list."""
    asked: list[int] = []
    sample = env._sample

    async def note(problem: Any, item: Any) -> Any:
        asked.append(problem.index)
        return await sample(problem, item)

    async def complete(prompt: Any, sampling: Any) -> list[Completion]:
        if fails(asked[-1]):
            raise InferenceError("no route")
        return [Completion(WRONG, [1, 2], [-100, 2], None, "stop") for _ in range(sampling.n)]

    monkeypatch.setattr(env, "_sample", note)
    assert env.components is not None
    monkeypatch.setattr(env.components.inference, "complete", complete)
    return asked


async def test_an_item_that_fails_while_others_work_is_given_up_and_counted(
    ready_env: ReadyEnv, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    env = await ready_env()
    monkeypatch.setattr(inference_health, "AWAY_AFTER", 100)
    fails_at(env, monkeypatch, lambda index: index == 1)
    for _ in range(3):
        assert await env.collect_trajectories(await env.get_next_item()) == (None, [])
    assert env.failures.counts == Counter({"inference failed": MAX_FAILURES, "item given up, no completions come": 1})
    assert env.components.stream.state_dict()["pending"][0][0] == 3
    assert len([message for message in caplog.messages if "no route" in message]) == 2


async def test_no_item_is_lost_however_long_inference_is_away(
    ready_env: ReadyEnv, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    env = await ready_env()
    is_down = True
    asked = fails_at(env, monkeypatch, lambda index: is_down)
    for _ in range(4 * MAX_TRIES):
        assert await env.collect_trajectories(await env.get_next_item()) == (None, [])
    assert env.patience.health.is_away
    is_down = False
    while len(set(asked)) < 12:
        await env.collect_trajectories(await env.get_next_item())
    assert not env.patience.health.is_away
    assert "item given up, no completions come" not in env.failures.counts
    pending = [index for index, *_ in env.components.stream.state_dict()["pending"]]
    assert min(pending) == 12 and set(asked) == set(range(12)), "every item was asked for until it was answered"
    assert caplog.text.count("Inference is away (") == caplog.text.count("Inference is back") == 1


async def test_a_group_that_takes_too_long_is_drawn_again(ready_env: ReadyEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    env = await ready_env(worker_timeout=0.05)
    assert env.components is not None

    async def hang(prompt: Any, sampling: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(env.components.inference, "complete", hang)
    drawn = []
    for _ in range(5 * MAX_TRIES):
        item = await env.get_next_item()
        drawn.append(problem_of(*item[1:]).index)
        assert await env.collect_trajectories(item) == (None, [])
    assert set(Counter(drawn).values()) == {MAX_TRIES}
    assert env.failures.counts["item given up, no completions come"] == 5


@pytest.mark.parametrize("part", ["inference.complete", "scorer.score"])
async def test_an_error_of_our_own_costs_its_group_and_is_counted(
    ready_env: ReadyEnv, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, part: str
) -> None:
    env = await ready_env()
    assert env.components is not None

    def fail(*args: Any, **options: Any) -> Any:
        raise ZeroDivisionError("that nobody foresaw")

    fails_at(env, monkeypatch, lambda index: False)
    owner, method = part.split(".")
    monkeypatch.setattr(getattr(env.components, owner), method, fail)
    for _ in range(3):
        assert await env.collect_trajectories(await env.get_next_item()) == (None, [])
    assert env.log.outcomes.metrics() == {"funnel/fault": 3.0}
    drawn_ahead = 1 + env.config.prefetch_items
    pending = [plan[0] for plan in env.components.stream.state_dict()["pending"]]
    assert len(pending) <= drawn_ahead and min(pending) == 3, "their items are settled"
    ours = [record for record in caplog.records if record.name.startswith("reasoning_gym_environment")]
    assert sum(record.exc_info is not None for record in ours) == 1, "the first one in full"


async def one_attempt(health: InferenceHealth, *, fails: bool) -> bool:
    """Whether it was made without an error."""
    try:
        async with health.attempt():
            if fails:
                raise InferenceError("no route")
    except InferenceError:
        return False
    return True


async def gone(**delays: float) -> InferenceHealth:
    """Inference that has just gone away."""
    health = InferenceHealth(**delays)
    for _ in range(AWAY_AFTER):
        await one_attempt(health, fails=True)
    assert health.is_away
    return health


async def test_a_few_failures_among_successes_are_no_outage() -> None:
    health = InferenceHealth()
    for fails in [*[True] * (AWAY_AFTER - 1), False] * 3:
        await one_attempt(health, fails=fails)
    assert not health.is_away and health.metrics() == {}


async def test_requests_that_hung_while_others_were_answered_are_no_outage() -> None:
    health, go_on = InferenceHealth(), asyncio.Event()

    async def hang() -> None:
        with contextlib.suppress(InferenceError):
            async with health.attempt():
                await go_on.wait()
                raise GivenUpError("no answer")

    for is_answered in (True, False):
        hanging = [asyncio.create_task(hang()) for _ in range(AWAY_AFTER)]
        await asyncio.sleep(0.01)
        if is_answered:
            await one_attempt(health, fails=False)
        go_on.set()
        await asyncio.gather(*hanging)
        assert health.is_away is not is_answered
        go_on.clear()


async def test_during_an_outage_one_attempt_is_made_at_a_time() -> None:
    health = await gone(first_delay_s=0.001, max_delay_s=0.001)
    inside, most, works = 0, 0, False

    async def ask() -> None:
        nonlocal inside, most
        while True:
            with contextlib.suppress(InferenceError):
                async with health.attempt():
                    inside += 1
                    most = max(most, inside)
                    await asyncio.sleep(0.002)
                    inside -= 1
                    if works:
                        return
                    raise InferenceError("no route")

    asking = [asyncio.create_task(ask()) for _ in range(20)]
    await asyncio.sleep(0.05)
    assert most == 1
    works = True
    await asyncio.gather(*asking)
    assert not health.is_away
    assert health.metrics()["inference/requests_outages"] == 1.0


async def test_during_an_outage_attempts_are_made_ever_less_often() -> None:
    health = await gone(first_delay_s=0.002, max_delay_s=60.0)
    times = []
    for _ in range(5):
        with contextlib.suppress(InferenceError):
            async with health.attempt():
                times.append(asyncio.get_running_loop().time())
                raise InferenceError("no route")
    waits = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert all(wait > 0.99 * least for wait, least in zip(waits, (0.004, 0.008, 0.016, 0.032), strict=True)), waits


async def test_an_attempt_that_is_cancelled_lets_another_one_be_made() -> None:
    health = await gone(first_delay_s=0.001, max_delay_s=0.001)
    is_inside = asyncio.Event()

    async def hang() -> None:
        async with health.attempt():
            is_inside.set()
            await asyncio.Event().wait()

    hanging = asyncio.create_task(hang())
    await is_inside.wait()
    other = asyncio.create_task(one_attempt(health, fails=False))
    await asyncio.sleep(0.01)
    assert not other.done()
    hanging.cancel()
    assert await other
    assert not health.is_away
