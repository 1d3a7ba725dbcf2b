"""An item that cannot be had: other seeds first, then easier levels."""

from __future__ import annotations

import json
from typing import Any

import pytest

from reasoning_gym_environment.errors import GenerationCrashedError, GenerationError, GenerationTimeoutError
from reasoning_gym_environment.records import Problem
from reasoning_gym_environment.sampling.curriculum import UNMADE_ITEMS, Curriculum, GroupResult
from reasoning_gym_environment.sampling.item_maker import SEEDS_TRIED
from reasoning_gym_environment.tasks.catalog import Catalog, Task
from reasoning_gym_environment.tasks.difficulty_ladder import Ladder, Level

from .test_item_stream import TASKS, FakeGenerator, item_source, take


def at_level(index: int, size: int = 3) -> dict[str, Any]:
    """Options of an item source whose every draw is planned at this level."""
    rungs = tuple(Level(index, index / max(size - 1, 1), {"level": index}) for index in range(size))
    ladders = {task.name: Ladder(task.name, rungs) for task in TASKS}
    return {"levels": lambda task, _: ladders[task].levels[index], "ladders": ladders}


GCD = Catalog((Task("gcd", "arithmetic"),))


def too_long_above(level: int) -> Any:
    """Questions of FakeGenerator have their level as the last word."""
    return lambda question: "it is long" if int(question.split()[-1]) > level else ""


async def test_an_item_that_is_too_long_comes_from_the_level_below_it() -> None:
    generator = FakeGenerator()
    source = item_source(generator, too_long=too_long_above(1), **at_level(3, size=4))
    problems = await take(source, 12)
    assert {problem.level for problem in problems} == {1}
    assert [config["level"] for _, _, config in generator.calls] == [3, 2, 1] * 12
    assert source.metrics() == {"train/replaced_prompt_too_long": 24.0}


async def test_a_task_leaves_a_level_that_gives_no_items() -> None:
    options = at_level(0)
    curriculum = Curriculum({"gcd": 3})
    for _ in range(3):
        curriculum.observe(GroupResult("gcd", 0, (1.0,)))
    assert curriculum.level("gcd") == 1
    options["levels"] = lambda task, _: options["ladders"][task].levels[curriculum.level(task)]
    generator = FakeGenerator(fails=lambda level, seed: GenerationTimeoutError("too late") if level >= 1 else None)
    source = item_source(generator, catalog=GCD, curriculum=curriculum, **options)
    assert {problem.level for problem in await take(source, 20)} == {0}
    assert curriculum.level("gcd") == 0
    assert [config["level"] for _, _, config in generator.calls].count(1) == UNMADE_ITEMS


async def test_counts_do_not_depend_on_which_item_is_made_first() -> None:
    streams: list[tuple[list[Problem], dict[str, Any]]] = []
    for generator in (FakeGenerator(), FakeGenerator(is_slow=True)):
        source = item_source(generator, too_long=too_long_above(2), prefetch=5, **at_level(3, size=4))
        streams.append((await take(source, 20), source.state_dict()))
        await source.close()
    assert streams[0] == streams[1]
    assert streams[0][1]["replaced"] == {"prompt_too_long": 20}


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
    assert resumed.metrics() == first.metrics()


@pytest.mark.parametrize(
    ("error", "asked"), [(GenerationError, SEEDS_TRIED), (GenerationTimeoutError, 1), (GenerationCrashedError, 1)]
)
async def test_only_what_fails_at_once_is_tried_with_other_seeds(error: type[Exception], asked: int) -> None:
    generator = FakeGenerator(fails=lambda *_: error("no such item") if len(generator.calls) <= asked else None)
    source = item_source(generator, catalog=GCD)
    assert (await source.next()).index == 1
    assert sum(source.skipped.values()) == 1 and len(generator.calls) == asked + 1
