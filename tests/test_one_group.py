"""The life of one group where its parts meet: steps of the trainer, limits, and how each attempt ends."""

from __future__ import annotations

from collections import Counter
from typing import Any
from unittest.mock import AsyncMock

import pytest

from reasoning_gym_environment.atropos.serve_loop import ServeLoop
from reasoning_gym_environment.errors import EnvironmentSetupError, InferenceError
from reasoning_gym_environment.inference.chat_tokenizer import Prompt
from reasoning_gym_environment.inference.prompts import RequestParameters, build_messages
from reasoning_gym_environment.inference.servers import Reply
from reasoning_gym_environment.records import GroupOutcome
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from testing.env_support import RIGHT, WRONG, ReadyEnv, rollout
from testing.fake_server import FakeServer, retry_quickly, tokens


async def test_a_group_is_as_old_as_its_oldest_completion(ready_env: ReadyEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    env = await ready_env(group_size=3)

    async def answer(prompt: Prompt, sampling: RequestParameters) -> Reply:
        text = next(replies)
        if text is None:
            # The trainer moves on while this request hangs, and the request is made again.
            env.state.step = 20
            raise InferenceError("timeout")
        return tokens(text)

    server = FakeServer(answer)
    server.completions_per_request = 1
    retry_quickly(env.inference, server)
    env.state.step = 3
    item = await env.get_next_item()
    right = RIGHT.format(answer=item[1]["answer"])
    replies = iter([WRONG, None, right, right])
    put = AsyncMock(return_value=GroupOutcome.SENT)
    monkeypatch.setattr(env.run.api, "put", put)
    async with env.run.ledger.attempt(item, 3) as attempt:
        payload, _ = await env.collect_trajectories(item)
        [group] = attempt.groups
        assert {completion.sampled_at for completion in group.completions} == {3, 20}
        assert (group.sampled_at, group.scored_at) == (3, 20)
        # From its age the client of run-api sees whether the group is too old for the trainer.
        await env.handle_send_to_api(payload, item)
    await env.handle_send_to_api(payload, item)
    ages = [call.args[1] for call in put.await_args_list]
    assert ages == [3, None], "a group of unknown age counts as new"
    assert outcomes(env) == {GroupOutcome.SENT.value: 1}


@pytest.mark.parametrize(("trainer", "last"), [(-1, 1.0), (5000, 1.0), (200, 0.5), (101, 0.0)])
async def test_the_length_penalty_follows_a_lower_limit_of_the_trainer(
    ready_env: ReadyEnv, trainer: int, last: float
) -> None:
    env = await ready_env(group_size=2, max_token_length=2048)
    item = await env.get_next_item()
    # The trainer has lowered its limit since the item was drawn.
    env.state.max_token_len = trainer
    # 175 tokens are half way from 75 to 100 % of a limit of 200, of which Atropos takes one token less.
    group = await env.score([rollout(item, RIGHT), rollout(item, RIGHT, prompt=3, length=171)])
    assert env.percent_correct_buffer == [1.0, 1.0], "the penalty does not make an answer wrong"
    if group is None:
        assert last == 1.0, "equal rewards"
    else:
        assert group["scores"] == pytest.approx([1.0, last], abs=0.02)


# --- how an attempt ends


async def test_an_attempt_that_is_left_without_a_word_gives_its_item_back(ready_env: ReadyEnv) -> None:
    env = await ready_env()
    async with env.run.ledger.attempt(await env.get_next_item(), 0):
        pass
    assert outcomes(env) == {GroupOutcome.CANCELLED.value: 1}
    assert [draw.index for draw in env.run.stream.pending.waiting] == [0]


async def test_an_error_that_nothing_can_mend_ends_the_run_and_gives_the_item_back(ready_env: ReadyEnv) -> None:
    env = await ready_env()
    with pytest.raises(EnvironmentSetupError):
        async with env.run.ledger.attempt(await env.get_next_item(), 0):
            raise EnvironmentSetupError("set another server")
    assert [draw.index for draw in env.run.stream.pending.waiting] == [0]


async def test_hooks_without_an_attempt_only_compute(ready_env: ReadyEnv) -> None:
    env = await ready_env()
    item = await env.get_next_item()
    assert await env.score([rollout(item, RIGHT), rollout(item, WRONG)]) is not None
    assert not outcomes(env)
    assert list(env.run.stream.pending.handed_out) == [0]


async def test_a_caller_s_own_item_that_is_too_long_is_no_failure_of_the_stream(ready_env: ReadyEnv) -> None:
    env = await ready_env(include_tasks="gcd", max_token_length=2048)
    dataset: Any = library.create_dataset("lcm", seed=1, size=1)
    await ServeLoop(env)._make_group((build_messages("word " * 3000), dataset[0], dataset))
    assert outcomes(env) == {GroupOutcome.TOO_LONG.value: 1}
    assert not env.run.stream.skipped and not env.run.failures.counts


async def test_a_caller_s_own_item_without_completions_is_dropped(
    ready_env: ReadyEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = await ready_env(include_tasks="gcd")
    dataset: Any = library.create_dataset("lcm", seed=1, size=1)
    monkeypatch.setattr(env.inference, "complete", AsyncMock(side_effect=InferenceError("no reply")))
    await ServeLoop(env)._make_group((build_messages(dataset[0]["question"]), dataset[0], dataset))
    assert outcomes(env) == {GroupOutcome.INFERENCE_FAILED.value: 1}
    assert env.run.failures.counts == {"item_dropped": 1}


def outcomes(env: Any) -> Counter[str]:
    return Counter(env.run.telemetry.outcomes.totals())
