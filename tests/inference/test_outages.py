"""The items of groups whose inference fails: for a single item, for all items, or with an error of our own."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest.mock import AsyncMock

import pytest

from reasoning_gym_environment import ReasoningGymEnv
from reasoning_gym_environment.atropos.serve_loop import ServeLoop
from reasoning_gym_environment.errors import EnvironmentSetupError, InferenceError
from reasoning_gym_environment.group import problem_of
from reasoning_gym_environment.inference import server_pool
from reasoning_gym_environment.inference.chat_tokenizer import Prompt
from reasoning_gym_environment.inference.prompts import RequestParameters
from reasoning_gym_environment.inference.servers import Reply
from reasoning_gym_environment.ledger import GIVEN_UP
from reasoning_gym_environment.sampling.pending_items import MAX_FAILURES
from testing.env_support import WRONG, ReadyEnv
from testing.fake_server import FakeServer, retry_quickly, tokens


async def make_group(env: ReasoningGymEnv, fails: Callable[[int], bool] = lambda index: False) -> int:
    """Draw an item, make its group, and return its index. No group results, because all answers are wrong."""
    item = await env.get_next_item()
    index = problem_of(*item[1:]).index

    async def answer(prompt: Prompt, sampling: RequestParameters) -> Reply:
        if fails(index):
            raise InferenceError("no route")
        return tokens(*[WRONG] * sampling.n)

    env.inference.servers.states[0].adapter.sample = answer
    await ServeLoop(env)._make_group(item)
    return index


@pytest.fixture
async def env(ready_env: ReadyEnv) -> ReasoningGymEnv:
    env = await ready_env()
    retry_quickly(env.inference, FakeServer(None))
    return env


async def test_an_item_that_fails_while_others_work_is_requeued_and_then_given_up_by_name(
    env: ReasoningGymEnv, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_pool, "UNAVAILABLE_AFTER", 100)
    made = [await make_group(env, lambda index: index == 1) for _ in range(20)]
    assert made.count(1) == MAX_FAILURES
    assert env.run.failures.counts == Counter({"item_requeued": MAX_FAILURES - 1, GIVEN_UP: 1})
    assert 1 not in [index for index, *_ in env.run.stream.state_dict()["pending"]]
    assert re.search("Item given up, no completions: item 1, .*, after 3 failures: no route", caplog.text)


async def test_no_item_is_lost_however_long_the_servers_are_unavailable(env: ReasoningGymEnv) -> None:
    failed = [await make_group(env, lambda index: True) for _ in range(40)]
    assert env.inference.servers.unavailable_since() is not None
    made: set[int] = set()
    while not made.issuperset(failed):
        made.add(await make_group(env))
    assert env.inference.servers.unavailable_since() is None
    assert not {"item_dropped", GIVEN_UP} & env.run.failures.counts.keys()
    pending = [index for index, *_ in env.run.stream.state_dict()["pending"]]
    assert made.isdisjoint(pending), "every item is repeated until it has completions"


async def test_an_unexpected_error_costs_its_group_and_is_counted(
    env: ReasoningGymEnv, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(env.run.runtime.scorer, "score", AsyncMock(side_effect=ZeroDivisionError("unexpected")))
    for _ in range(3):
        await make_group(env)
    assert env.run.telemetry.outcomes.metrics() == {"groups/fault": 3.0}
    assert min(plan[0] for plan in env.run.stream.state_dict()["pending"]) == 3, "their items are settled"
    assert sum(record.exc_info is not None for record in caplog.records) == 1, "the first one in full"


async def test_failed_requests_are_summarised_at_shutdown(
    env: ReasoningGymEnv, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        await make_group(env, lambda index: True)
    await env.close()
    count = env.inference.events.counts["requests_failed"]
    assert count > 1 and f"Requests failed: {count} times so far; last: no route" in caplog.text


async def test_a_refusal_for_good_ends_a_group_and_its_item_is_kept(env: ReasoningGymEnv, monkeypatch: Any) -> None:
    refuse = AsyncMock(side_effect=EnvironmentSetupError("the server wants none of it"))
    monkeypatch.setattr(env.inference, "complete", refuse)
    with pytest.raises(EnvironmentSetupError, match="none of it"):
        await make_group(env)
    assert 0 in [index for index, *_ in env.run.stream.state_dict()["pending"]]
