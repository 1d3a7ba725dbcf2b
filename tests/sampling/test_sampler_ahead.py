"""Items are made ahead of time and at levels they fit; the stream is the same as without."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from reasoning_gym_environment.errors import EnvironmentSetupError, GenerationTimeoutError
from reasoning_gym_environment.records import Problem
from reasoning_gym_environment.sampling.item_ledger import MAX_TRIES
from reasoning_gym_environment.sampling.item_stream import ItemStream
from reasoning_gym_environment.sampling.level_limits import LATE_ITEMS, LevelLimits

from .test_item_stream import TASKS, FakeGenerator, at_level, ladders, sampler, take


class Slow(FakeGenerator):
    """Takes longer for some items than for later ones."""

    async def generate(self, task: str, seed: int, config: Mapping[str, Any]) -> dict[str, Any]:
        for _ in range(seed % 7):
            await asyncio.sleep(0)
        return await super().generate(task, seed, config)


class Late(FakeGenerator):
    """Never makes an item at level `level` or above in time."""

    def __init__(self, level: int) -> None:
        super().__init__()
        self.level = level

    async def generate(self, task: str, seed: int, config: Mapping[str, Any]) -> dict[str, Any]:
        item = await super().generate(task, seed, config)
        if config["level"] >= self.level:
            raise GenerationTimeoutError(f"{task}: too late")
        return item


async def test_items_come_in_order_and_are_the_same_however_many_are_made_ahead() -> None:
    expected = await take(sampler(), 30)
    for prefetch in (1, 4, 16):
        source = sampler(Slow(), prefetch=prefetch)
        assert await take(source, 30) == expected
        await source.close()


async def test_an_item_is_there_before_it_is_asked_for() -> None:
    generator = FakeGenerator()
    source = sampler(generator, prefetch=3)
    await source.next()
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(generator.calls) == 4
    assert source.index == 1
    await source.close()


async def test_what_is_not_finished_is_drawn_again_and_the_stream_goes_on() -> None:
    first = sampler(prefetch=4)
    problems = await take(first, 10)
    for number in (0, 1, 2, 4, 5, 6, 7):
        first.ledger.done(problems[number])
        first.ledger.done(problems[number])
    state = json.loads(json.dumps(first.state_dict()))
    await first.close()
    assert [plan[0] for plan in state["pending"]] == [3, 8, 9, 10, 11, 12, 13]
    later = await take(first, 5)
    resumed = sampler(prefetch=2)
    resumed.load_state_dict(state)
    assert resumed.index == 3
    assert await take(resumed, 8) == [problems[3], problems[8], problems[9], *later]
    await first.close()
    await resumed.close()


async def test_closing_and_going_on_loses_no_item() -> None:
    source = sampler(prefetch=4)
    problems = await take(source, 3)
    await source.close()
    problems += await take(source, 3)
    await source.close()
    assert problems == await take(sampler(), 6)


async def test_an_item_whose_asker_was_cancelled_is_pending() -> None:
    class Never(FakeGenerator):
        async def generate(self, task: str, seed: int, config: Mapping[str, Any]) -> dict[str, Any]:
            await asyncio.Event().wait()
            raise AssertionError

    source = sampler(Never(), prefetch=1)
    asking = asyncio.ensure_future(source.next())
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert [plan[0] for plan in source.state_dict()["pending"]] == [0, 1]
    await source.close()


async def test_an_item_whose_asker_was_cancelled_is_handed_out_next() -> None:
    gate = asyncio.Event()

    class Gated(FakeGenerator):
        async def generate(self, task: str, seed: int, config: Mapping[str, Any]) -> dict[str, Any]:
            await gate.wait()
            return await super().generate(task, seed, config)

    source = sampler(Gated(), prefetch=2)
    asking = asyncio.ensure_future(source.next())
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    gate.set()
    assert await take(source, 4) == await take(sampler(), 4)
    await source.close()


async def test_a_lowered_item_is_drawn_again_at_the_level_it_came_to() -> None:
    first = sampler(Levelled(), too_long=too_long_above(1), **at_level(3, size=4))
    [problem] = await take(first, 1)
    generator = Levelled()
    resumed = sampler(generator, too_long=too_long_above(1), **at_level(3, size=4))
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert await resumed.next() == problem
    assert len(generator.calls) == 1


@pytest.mark.parametrize(
    "pending", [None, [[0, "gcd"]], [[7, "gcd", None]], [["0", "gcd", None]], [[0, "gcd", -1]], [[0, None, None]]]
)
def test_a_damaged_list_of_pending_items_is_refused(pending: Any) -> None:
    with pytest.raises(EnvironmentSetupError, match="pending"):
        sampler().load_state_dict({"index": 5, "pending": pending})


def test_pending_items_of_tasks_no_longer_served_are_dropped_by_name(caplog: pytest.LogCaptureFixture) -> None:
    source = sampler()
    source.load_state_dict({"index": 5, "pending": [[2, "gone", None], [3, "gcd", None]]})
    assert source.index == 3
    assert "1 pending items are dropped" in caplog.text
    assert "gone" in caplog.text


# --- budgets ---


def too_long_above(level: int) -> Any:
    """Questions of FakeLevelled have their level as the last word."""
    return lambda question: "it is long" if int(question.split()[-1]) > level else ""


class Levelled(FakeGenerator):
    async def generate(self, task: str, seed: int, config: Mapping[str, Any]) -> dict[str, Any]:
        item = await super().generate(task, seed, config)
        return {**item, "question": f"{task} {seed} {config['level']}"}


async def test_a_level_that_does_not_fit_is_closed_at_first_sight(caplog: pytest.LogCaptureFixture) -> None:
    generator = Levelled()
    source = sampler(generator, too_long=too_long_above(1), **at_level(3, size=4))
    problems = await take(source, 12)
    assert {problem.level for problem in problems} == {1}
    assert len(generator.calls) == 12 + 2 * len(TASKS), "each task's levels 3 and 2 were tried once"
    assert source.metrics() == {"train/lowered_prompt_too_long": 6.0, "train/closed_levels": 6.0}
    assert caplog.text.count("is not used from here on (prompt_too_long): it is long") == 6


async def test_the_item_of_a_closed_level_has_the_same_index_and_seed() -> None:
    plain = await take(sampler(), 8)
    lowered = await take(sampler(Levelled(), too_long=too_long_above(0), **at_level(2)), 8)
    assert [(p.index, p.task, p.seed) for p in lowered] == [(p.index, p.task, p.seed) for p in plain]


async def test_a_level_whose_items_are_late_again_and_again_is_closed() -> None:
    generator = Late(level=2)
    source = sampler(generator, **at_level(2))
    problems = await take(source, 40)
    assert {problem.level for problem in problems} == {1}
    late = [task for task, _, config in generator.calls if config["level"] == 2]
    assert len(late) == LATE_ITEMS * len(TASKS)
    assert source.metrics()["train/lowered_generation_timed_out"] == len(late)


async def test_the_lowest_level_is_never_closed_and_its_items_are_skipped() -> None:
    source = sampler(Levelled(), too_long=lambda question: "" if question.startswith("gcd") else "long", **at_level(1))
    problems = await take(source, 5)
    assert {(problem.task, problem.level) for problem in problems} == {("gcd", 1)}
    assert set(source.skipped) == {"prompt_too_long/chain_sum", "prompt_too_long/spell_backward"}
    assert source.limits.closed() == {task: {1: "prompt_too_long"} for task in ("chain_sum", "spell_backward")}


class SlowLevelled(Levelled):
    async def generate(self, task: str, seed: int, config: Mapping[str, Any]) -> dict[str, Any]:
        for _ in range(seed % 5):
            await asyncio.sleep(0)
        return await super().generate(task, seed, config)


async def test_which_levels_close_does_not_depend_on_which_item_is_made_first() -> None:
    streams: list[tuple[list[Problem], dict[str, Any]]] = []
    for generator in (Levelled(), SlowLevelled()):
        source = sampler(generator, too_long=too_long_above(2), prefetch=5, **at_level(3, size=4))
        streams.append((await take(source, 20), source.state_dict()))
        await source.close()
    assert streams[0] == streams[1]
    assert streams[0][1]["budgets"]["closed"]


async def test_closed_levels_are_restored_and_announced_again() -> None:
    first = sampler(Levelled(), too_long=too_long_above(0), **at_level(2))
    for problem in await take(first, 12):
        first.ledger.done(problem)
    announced: list[tuple[str, int]] = []
    generator = Levelled()
    resumed = sampler(generator, **at_level(2, on_close=lambda task, level: announced.append((task, level))))
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert sorted(announced) == sorted((task.name, level) for task in TASKS for level in (1, 2))
    await take(resumed, 3)
    assert {config["level"] for _, _, config in generator.calls[-3:]} == {0}


def test_damaged_budgets_are_refused_and_those_of_other_ladders_ignored() -> None:
    budgets = LevelLimits(ladders(2))
    with pytest.raises(EnvironmentSetupError, match="level limits"):
        budgets.load_state_dict({"closed": [["gcd"]]})
    budgets.load_state_dict({"closed": [["gone", 1, "x"], ["gcd", 5, "x"], ["gcd", 1, "x"]]})
    assert budgets.closed() == {"gcd": {1: "x"}}


def test_a_sampler_without_levels_needs_no_budgets() -> None:
    assert isinstance(sampler(), ItemStream)


async def test_an_item_is_tried_again_after_those_already_drawn_and_given_up_in_the_end() -> None:
    source = sampler(prefetch=2)
    handed_out = []
    problem = await source.next()
    while source.ledger.requeue(problem):
        source.ledger.done(problem)
        for _ in range(3):
            problem = await source.next()
            handed_out.append(problem.index)
    assert handed_out[:3] == [1, 2, 0]
    assert handed_out.count(0) == MAX_TRIES - 1
    source.ledger.done(problem)
    assert 0 not in [plan[0] for plan in source.state_dict()["pending"]]
    await source.close()


async def test_a_problem_that_is_not_pending_is_not_tried_again() -> None:
    source = sampler()
    problem = await source.next()
    source.ledger.done(problem)
    assert not source.ledger.requeue(problem)
    assert (await source.next()).index == 1
