"""Groups on their way to the trajectory API: delivered, refused or too old, and never lost without a word."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from reasoning_gym_environment.atropos import session as outbox_module
from reasoning_gym_environment.atropos.session import ApiUnavailableError, Outbox
from reasoning_gym_environment.training_log.training_log import GroupOutcome

from ..process_table import until


class Api:
    """Takes groups unless it is away; refuses those that say so."""

    def __init__(self) -> None:
        self.taken: list[Any] = []
        self.params: list[Any] = []
        self.is_away = self.hangs = False
        self.step = 0

    async def post(self, group: Any) -> str | None:
        if self.hangs:
            await asyncio.Event().wait()
        if self.is_away:
            raise ApiUnavailableError("nobody there")
        if group.get("bad"):
            return "422: bad group"
        self.taken.append(group["n"])
        self.params.append(group["generation_params"])
        return None

    async def is_ready(self) -> bool:
        return True

    def outbox(self, *, max_staleness_steps: int = 8, **options: Any) -> Outbox:
        return Outbox(
            self.post, self.is_ready, step=lambda: self.step, max_staleness_steps=max_staleness_steps, **options
        )


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(outbox_module, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(outbox_module, "MAX_PAUSE_S", 0.005)
    yield


async def test_a_group_is_sent_or_refused_and_its_end_is_told() -> None:
    api, told = Api(), []
    outbox = api.outbox()
    for group in ({"n": 1}, {"n": 2, "bad": True}, {"n": 3}):
        await (await outbox.put(group, lambda delivery, n=group["n"]: told.append((n, delivery))))
    assert told == [(1, GroupOutcome.SENT), (2, GroupOutcome.SEND_FAILED), (3, GroupOutcome.SENT)]
    assert api.taken == [1, 3]
    assert outbox.metrics() == {"outbox/waiting": 0.0, "outbox/refused": 1.0}


async def test_what_waits_is_delivered_when_the_api_is_back_although_nobody_waits_for_it() -> None:
    api, told = Api(), []
    api.is_away = True
    outbox = api.outbox()

    async def bring(n: int) -> None:
        await asyncio.shield(await outbox.put({"n": n}, told.append))

    bringing = [asyncio.create_task(bring(n)) for n in range(20)]
    await until(lambda: outbox.failed_attempts >= 20)
    assert outbox.waiting == 20 and not told
    assert outbox.metrics()["outbox/failed_attempts"] >= 20
    for task in bringing:
        task.cancel()
    api.is_away = False
    await outbox.close(60.0)
    assert sorted(api.taken) == list(range(20)) and told == [GroupOutcome.SENT] * 20


@pytest.mark.parametrize(("limit", "steps", "is_dropped"), [(2, 2, False), (2, 3, True), (0, 1, True), (-1, 99, False)])
async def test_a_group_that_waited_for_too_many_steps_is_dropped_and_counted(
    caplog: pytest.LogCaptureFixture, limit: int, steps: int, is_dropped: bool
) -> None:
    api, told = Api(), []
    api.is_away, api.step = True, 10
    outbox = api.outbox(max_staleness_steps=limit)
    task = await outbox.put({"n": 1}, told.append)
    await asyncio.sleep(0.01)
    api.step, api.is_away = 10 + steps, False
    await task
    assert told == [GroupOutcome.STALE if is_dropped else GroupOutcome.SENT]
    assert ("outbox/stale" in outbox.metrics()) == is_dropped == ("too old" in caplog.text)


@pytest.mark.parametrize(("steps", "is_dropped"), [(0, False), (2, False), (3, True)])
async def test_after_a_trainer_went_back_its_steps_from_there_on_count(steps: int, is_dropped: bool) -> None:
    api, told = Api(), []
    api.is_away, api.step = True, 10
    outbox = api.outbox(max_staleness_steps=2)
    task = await outbox.put({"n": 1}, told.append, sampled_at=9)
    await asyncio.sleep(0.001)
    api.step = 3
    seen = outbox.failed_attempts
    await until(lambda: outbox.failed_attempts > seen + 1)
    api.step, api.is_away = 3 + steps, False
    await task
    assert told == [GroupOutcome.STALE if is_dropped else GroupOutcome.SENT]
    assert api.params == ([] if is_dropped else [{"sampled_at_step": 3}])


async def test_what_is_posted_says_when_its_sampling_began_and_is_counted_from_there() -> None:
    api, told = Api(), []
    api.step = 7
    outbox = api.outbox(max_staleness_steps=3)
    await (await outbox.put({"n": 1, "generation_params": {"seed": 5}}, told.append, sampled_at=4))
    await (await outbox.put({"n": 2, "generation_params": None}, told.append))
    await (await outbox.put({"n": 3}, told.append, sampled_at=3))
    assert told == [GroupOutcome.SENT, GroupOutcome.SENT, GroupOutcome.STALE]
    assert api.params == [{"seed": 5, "sampled_at_step": 4}, {"sampled_at_step": 7}]
    assert outbox.drain() == {"train/staleness_mean": 1.5, "train/staleness_max": 3.0}
    assert outbox.drain() == {}


async def test_a_full_outbox_lets_nobody_in_and_drops_nothing() -> None:
    api = Api()
    api.is_away = True
    outbox = api.outbox(capacity=3)
    putting = [asyncio.create_task(outbox.put({"n": n}, lambda delivery: None)) for n in range(5)]
    await until(lambda: sum(task.done() for task in putting) == 3)
    await asyncio.sleep(0.02)
    assert sum(task.done() for task in putting) == 3 == outbox.waiting
    api.is_away = False
    for task in putting:
        await (await task)
    assert sorted(api.taken) == [0, 1, 2, 3, 4]


async def test_the_close_gives_what_waits_a_last_chance_and_reports_the_rest(
    caplog: pytest.LogCaptureFixture,
) -> None:
    api, told = Api(), []
    outbox = api.outbox()
    await outbox.put({"n": 1}, told.append)
    await outbox.close(60.0)
    assert api.taken == [1] and not caplog.text
    api.hangs = True
    task = await outbox.put({"n": 2}, told.append)
    await outbox.close(0.01)
    assert task.cancelled() and told == [GroupOutcome.SENT]
    assert "1 groups could not be sent" in caplog.text
    await outbox.close(0.0)


async def test_a_group_at_which_the_api_fails_again_and_again_is_dropped_and_holds_up_no_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(outbox_module, "MAX_PAUSE_S", 0.01)
    api, settled, tries = Api(), [], 0

    async def post(group: Any) -> str | None:
        nonlocal tries
        if group["n"] == 1:
            tries += 1
            # A gateway's answer says nothing of the group.
            raise ApiUnavailableError("it answers 500", failed=tries > 5)
        return await api.post(group)

    outbox = api.outbox()
    outbox._post = post
    for number in (1, 2):
        await outbox.put({"n": number}, settled.append)
    await until(lambda: len(settled) == 2)
    assert settled == [GroupOutcome.SENT, GroupOutcome.SEND_FAILED] and api.taken == [2]
    assert tries == 5 + outbox_module.MAX_FAILURES
    assert "the trajectory API fails at it: it answers 500" in caplog.text


async def test_a_group_that_can_never_be_sent_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    api, told = Api(), []
    outbox = api.outbox()
    task = await outbox.put({}, told.append)
    with pytest.raises(KeyError):
        await task
    assert not told and "could not be sent at all" in caplog.text
