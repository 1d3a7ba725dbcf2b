"""An item that cannot be had: other seeds first, then lower levels, and levels without items are closed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection
from random import Random
from typing import Any

import pytest

from reasoning_gym_environment.errors import (
    GenerationCrashedError,
    GenerationError,
    GenerationTimeoutError,
)
from reasoning_gym_environment.records import Problem
from reasoning_gym_environment.sampling.item_maker import FAILED, SEEDS_TRIED, TIMED_OUT, TOO_LONG
from reasoning_gym_environment.sampling.levels import (
    FAILED_ITEMS,
    KNOWN_ITEMS,
    NEIGHBOURS,
    RETRY_AFTER,
    TRIAL_ITEMS,
    LevelLimits,
)
from reasoning_gym_environment.tasks.catalog import Catalog, Task
from reasoning_gym_environment.tasks.difficulty_ladder import Ladder, Level

from .test_item_stream import TASKS, FakeGenerator, item_source, take


def ladders(size: int = 3) -> dict[str, Ladder]:
    rungs = tuple(Level(index, index / max(size - 1, 1), {"level": index}) for index in range(size))
    return {task.name: Ladder(task.name, rungs) for task in TASKS}


def at_level(index: int, size: int = 3) -> dict[str, Any]:
    """Options of an item source whose every draw is planned at this level."""
    made = ladders(size)
    return {"levels": lambda task, _: made[task].levels[index], "limits": LevelLimits(made)}


GCD = Catalog((Task("gcd", "arithmetic"),))
LADDER = ladders(5)


def too_long_above(level: int) -> Any:
    """Questions of FakeGenerator have their level as the last word."""
    return lambda question: "it is long" if int(question.split()[-1]) > level else ""


def closed(limits: LevelLimits) -> list[list[Any]]:
    """[task, level, reason] of every closed level."""
    found: list[list[Any]] = limits.state_dict()["closed"]
    return found


async def test_a_level_that_does_not_fit_is_closed_at_first_sight(caplog: pytest.LogCaptureFixture) -> None:
    generator = FakeGenerator()
    source = item_source(generator, too_long=too_long_above(1), **at_level(3, size=4))
    problems = await take(source, 12)
    assert {problem.level for problem in problems} == {1}
    assert len(generator.calls) == 12 + 2 * len(TASKS), "each task's levels 3 and 2 were tried once"
    assert source.metrics() == {"train/replaced_prompt_too_long": 6.0, "train/closed_levels": 6.0}
    assert caplog.text.count("is not used for the next 2000 items of the run (prompt_too_long): it is long") == 6


async def test_a_level_whose_items_are_late_again_and_again_is_closed() -> None:
    generator = FakeGenerator(fails=lambda level, seed: GenerationTimeoutError("too late") if level >= 2 else None)
    source = item_source(generator, **at_level(2))
    problems = await take(source, 200)
    assert {problem.level for problem in problems} == {1}
    assert sorted(closed(source.limits)) == [[task.name, 2, TIMED_OUT] for task in TASKS]
    late = [task for task, _, config in generator.calls if config["level"] == 2]
    assert FAILED_ITEMS * len(TASKS) <= len(late) <= NEIGHBOURS + 2 * FAILED_ITEMS * len(TASKS)
    assert source.metrics()["train/replaced_generation_timed_out"] == len(late)


async def test_the_lowest_level_is_never_closed_and_its_items_are_skipped() -> None:
    source = item_source(
        FakeGenerator(), too_long=lambda question: "" if question.startswith("gcd") else "long", **at_level(1)
    )
    problems = await take(source, 5)
    assert {(problem.task, problem.level) for problem in problems} == {("gcd", 1)}
    assert set(source.skipped) == {"prompt_too_long/chain_sum", "prompt_too_long/spell_backward"}
    assert sorted(closed(source.limits)) == [[task, 1, "prompt_too_long"] for task in ("chain_sum", "spell_backward")]


async def test_which_levels_close_does_not_depend_on_which_item_is_made_first() -> None:
    streams: list[tuple[list[Problem], dict[str, Any]]] = []
    for generator in (FakeGenerator(), FakeGenerator(is_slow=True)):
        source = item_source(generator, too_long=too_long_above(2), prefetch=5, **at_level(3, size=4))
        streams.append((await take(source, 20), source.state_dict()))
        await source.close()
    assert streams[0] == streams[1]
    assert streams[0][1]["level_limits"]["closed"]


async def test_closed_levels_are_restored() -> None:
    first = item_source(FakeGenerator(), too_long=too_long_above(0), **at_level(2))
    for problem in await take(first, 12):
        first.ledger.finish(problem)
    generator = FakeGenerator()
    resumed = item_source(generator, **at_level(2))
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert {resumed.limits.top_level(task.name) for task in TASKS} == {0}
    await take(resumed, 3)
    assert {config["level"] for _, _, config in generator.calls[-3:]} == {0}


@pytest.mark.parametrize(
    "state",
    [
        {"recent": [["gcd", 3, "yes"]]},
        {"recent": [["gcd", 3, [True, "late"]]]},
        {"recent": [["gcd", 3, 10**12]]},
        {"recent": [["gcd", -1, 5]]},
        {"replaced": "abc"},
        {"replaced": {TIMED_OUT: "many"}},
        {"closed": [["gcd", 3, None]]},
        {"items": -1},
        {"closings": [["gcd", 3, 0, 4000]]},
        {"closings": [["gcd", 3, 10**12, 4000]]},
        {"closings": [["gcd", 3, 1, "soon"]]},
        {"late": [[-1, "gcd", 3]]},
        {"late": [["gcd", 3]]},
    ],
    ids=str,
)
def test_a_malformed_state_is_refused(state: dict[str, Any]) -> None:
    limits = LevelLimits(LADDER)
    with pytest.raises(ValueError, match="validation error"):
        limits.load_state_dict(state)


@pytest.mark.parametrize(("late_share", "stays_open"), [(0.03, True), (0.2, False)])
def test_a_long_run_loses_no_level_to_chance_and_each_that_is_often_late(late_share: float, stays_open: bool) -> None:
    dice = Random(1)
    for _ in range(20):
        limits = LevelLimits(LADDER)
        for item in range(10_000):
            if item >= KNOWN_ITEMS and dice.random() < late_share:
                limits.exceeded("gcd", 3, TIMED_OUT, "too late")
            else:
                limits.made("gcd", 3)
            limits.made("chain_sum", 3)
        restarted = LevelLimits(LADDER)
        restarted.load_state_dict(json.loads(json.dumps(limits.state_dict())))
        assert (not closed(restarted)) is stays_open


def test_a_run_that_is_often_restarted_loses_no_level_by_one_long_question() -> None:
    limits = LevelLimits(LADDER)
    for _ in range(KNOWN_ITEMS):
        limits.made("gcd", 3)
        restarted = LevelLimits(LADDER)
        restarted.load_state_dict(json.loads(json.dumps(limits.state_dict())))
        limits = restarted
    limits.exceeded("gcd", 3, TOO_LONG, "it is long")
    assert not closed(limits)


async def test_a_lowered_item_has_its_seed_and_is_drawn_again_at_the_level_it_came_to() -> None:
    first = item_source(too_long=too_long_above(1), **at_level(3, size=4))
    [problem] = await take(first, 1)
    [plain] = await take(item_source(), 1)
    assert (problem.index, problem.task, problem.seed) == (plain.index, plain.task, plain.seed)
    assert (problem.level, problem.complexity, problem.config) == (1, pytest.approx(1 / 3), {"level": 1})
    generator = FakeGenerator()
    resumed = item_source(generator, too_long=too_long_above(1), **at_level(3, size=4))
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert await resumed.next() == problem
    assert len(generator.calls) == 1


@pytest.mark.parametrize(
    ("error", "asked"), [(GenerationError, SEEDS_TRIED), (GenerationTimeoutError, 1), (GenerationCrashedError, 1)]
)
async def test_only_what_fails_at_once_is_tried_with_other_seeds(error: type[Exception], asked: int) -> None:
    generator = FakeGenerator(fails=lambda *_: error("no such item") if len(generator.calls) <= asked else None)
    source = item_source(generator, catalog=GCD)
    assert (await source.next()).index == 1
    assert sum(source.skipped.values()) == 1 and len(generator.calls) == asked + 1


# --- an overloaded machine, and levels that are tried again


class Draws:
    """Draws of tasks and levels. Items of `slow` levels are always late, and all items are late for chance `late`."""

    def __init__(self, tasks: int, levels: int, slow: Collection[tuple[str, int]] = (), seed: int = 0) -> None:
        rungs = tuple(Level(index, 0.0, {}) for index in range(levels))
        self.tasks = [f"task {number}" for number in range(tasks)]
        self.limits = LevelLimits({task: Ladder(task, rungs) for task in self.tasks})
        self.levels = levels
        self.slow = slow
        self.late = 0.0
        self.late_by_level: Counter[tuple[str, int]] = Counter()
        self._random = Random(seed)

    @property
    def ever_closed(self) -> set[tuple[str, int]]:
        return {(task, level) for task, level, *_ in self.limits.state_dict()["closings"]}

    def make(self, items: int) -> None:
        for _ in range(items):
            self._make_item(self._random.choice(self.tasks), self._random.randrange(self.levels))

    def _make_item(self, task: str, drawn: int) -> None:
        for level in self.limits.from_level_down(task, self.limits.level(task, drawn).index):
            key = (task, level.index)
            if self._random.random() < self.late or key in self.slow:
                self.late_by_level[key] += 1
                self.limits.exceeded(task, level.index, TIMED_OUT, "too late")
            else:
                self.limits.made(task, level.index)
                return


SLOW = [("task 0", 3), ("task 0", 4)]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("late", [0.15, 1.0])
@pytest.mark.parametrize("tasks", [1, 2, 30])
def test_an_overloaded_machine_closes_no_level_and_hopeless_levels_close_before_or_after_it(
    tasks: int, late: float, seed: int
) -> None:
    draws = Draws(tasks, 5, SLOW, seed)
    draws.late = 0.003
    draws.make(100)
    draws.late = late
    draws.make(3000)
    draws.late = 0.003
    assert draws.ever_closed <= set(SLOW)
    draws.make(100 * tasks)
    assert draws.ever_closed == set(SLOW)


@pytest.mark.parametrize("seed", range(3))
def test_short_bursts_of_load_close_no_level(seed: int) -> None:
    draws = Draws(3, 5, seed=seed)
    for _ in range(60):
        draws.late = 0.0
        draws.make(200)
        draws.late = 1.0
        draws.make(10)
    assert not draws.ever_closed


@pytest.mark.parametrize("tasks", [1, 30])
def test_a_hopeless_level_is_closed_on_a_healthy_machine_and_then_hardly_tried(tasks: int) -> None:
    slow = [("task 0", level) for level in range(1, 5)]
    draws = Draws(tasks, 5, slow)
    draws.make(100 * tasks)
    assert draws.ever_closed == set(slow)
    until_closed = draws.late_by_level.total()
    assert until_closed <= len(slow) * (FAILED_ITEMS + 6)
    draws.make(100_000)
    for level in slow:
        assert draws.late_by_level[level] - until_closed / len(slow) <= 12
    before = draws.late_by_level.total()
    draws.make(100_000)
    assert before < draws.late_by_level.total() <= before + len(slow), "one trial each"


def test_levels_that_are_often_late_in_a_few_of_many_tasks_are_closed() -> None:
    draws = Draws(30, 5)
    often_late = [(task, 4) for task in draws.tasks[:3]]
    random = Random(1)
    for _ in range(4000):
        draws.slow = [level for level in often_late if random.random() < 0.6]
        draws.make(1)
    assert draws.ever_closed == set(often_late)


@pytest.mark.parametrize("reason", [TIMED_OUT, FAILED])
def test_a_late_item_does_not_count_shortly_after_one_of_another_task_or_of_an_easier_level(reason: str) -> None:
    limits = LevelLimits(LADDER)
    limits.made("chain_sum", 0)
    limits.made("gcd", 0)
    for task, level in [("chain_sum", 0), ("gcd", 0)] * 5 * FAILED_ITEMS:
        limits.exceeded(task, level, reason, "cause")
        for _ in range(NEIGHBOURS - 1):
            limits.made("gcd", 1)
        limits.exceeded("gcd", 3, reason, "cause")
    assert not closed(limits)
    for _ in range(FAILED_ITEMS):
        for _ in range(NEIGHBOURS):
            limits.made("gcd", 1)
        limits.exceeded("chain_sum", 4, reason, "a level that has never made an item excuses no other")
        limits.exceeded("gcd", 3, reason, "cause")
    assert sorted(closed(limits)) == [["chain_sum", 4, reason], ["gcd", 3, reason]]


def test_an_overload_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    draws = Draws(3, 5)
    draws.make(100)
    draws.late = 0.5
    draws.make(500)
    assert caplog.text.count("could not be made at about the same time (too late)") == 1


def too_long(limits: LevelLimits) -> None:
    limits.exceeded("gcd", 3, TOO_LONG, "it is long")


def test_a_closed_level_comes_back_and_the_distance_doubles_until_it_works() -> None:
    limits = LevelLimits(LADDER)
    distances = []
    for _ in range(4):
        too_long(limits)
        distance = 0
        while closed(limits):
            assert limits.top_level("gcd") == 2
            assert limits.level("gcd", 3).index == 2
            limits.made("gcd", 2)
            distance += 1
        distances.append(distance)
        assert limits.top_level("gcd") == 4
        assert limits.level("gcd", 3).index == 3
    assert distances == [RETRY_AFTER, 2 * RETRY_AFTER, 4 * RETRY_AFTER, 8 * RETRY_AFTER]
    for _ in range(KNOWN_ITEMS):
        limits.made("gcd", 3)
    too_long(limits)
    assert not closed(limits)


def test_the_trial_of_a_level_ends_after_some_items_and_old_failures_are_forgotten() -> None:
    limits = LevelLimits(LADDER)
    too_long(limits)
    too_long(limits)
    for _ in range(RETRY_AFTER):
        limits.made("gcd", 2)
    for _ in range(TRIAL_ITEMS):
        limits.made("gcd", 3)
    limits.exceeded("gcd", 3, TIMED_OUT, "too late")
    assert not closed(limits)


def test_the_limits_continue_in_the_same_way_after_any_restart() -> None:
    draws = Draws(3, 5, SLOW, seed=4)
    twin = Draws(3, 5, SLOW, seed=4)
    draws.late = twin.late = 0.02
    for _ in range(200):
        draws.make(40)
        twin.make(40)
        state = json.loads(json.dumps(draws.limits.state_dict()))
        draws.limits.load_state_dict(state)
        assert draws.limits.state_dict() == state == json.loads(json.dumps(twin.limits.state_dict()))
    assert draws.ever_closed
