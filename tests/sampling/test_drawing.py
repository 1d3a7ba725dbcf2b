"""An item that cannot be made: other seeds first, then lower levels, and levels without items are closed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from reasoning_gym_environment.errors import GenerationCrashedError, GenerationError, GenerationTimeoutError
from reasoning_gym_environment.sampling.choosers import CurriculumLevels, RandomLevels
from reasoning_gym_environment.sampling.curriculum import Curriculum
from reasoning_gym_environment.sampling.item_maker import SEEDS_TRIED, ItemMaker
from reasoning_gym_environment.sampling.item_stream import ItemStream
from reasoning_gym_environment.sampling.level_limits import LevelLimits
from reasoning_gym_environment.tasks.catalog import Catalog, Task
from reasoning_gym_environment.tasks.difficulty_ladder import Ladder, Level

LADDER = {"gcd": Ladder("gcd", tuple(Level(index, index / 4, {"level": index}) for index in range(5)), "test")}


class Generator:
    """Makes items, unless `fails(level, seed)` gives an error."""

    def __init__(self, fails: Any) -> None:
        self._fails = fails
        self.calls = 0

    async def generate(self, task: str, seed: int, config: Mapping[str, Any]) -> dict[str, Any]:
        self.calls += 1
        if error := self._fails(config.get("level"), seed):
            raise error
        return {"question": f"{task} {seed}", "answer": "a", "metadata": {}}


def sampler(generator: Generator, **options: Any) -> ItemStream:
    return ItemStream(ItemMaker(Catalog((Task("gcd", "arithmetic"),)), generator), seed=1, **options)


async def test_the_curriculum_stays_below_levels_whose_items_cannot_be_made() -> None:
    curriculum = Curriculum(ladder_sizes={"gcd": 5})
    budgets = LevelLimits(LADDER, on_close=curriculum.end_below)
    broken = Generator(lambda level, seed: GenerationError("no such item") if level >= 2 else None)
    source = sampler(broken, levels=CurriculumLevels(LADDER, curriculum), limits=budgets)
    levels = []
    for _ in range(60):
        problem = await source.next()
        assert problem.level is not None
        levels.append(problem.level)
        curriculum.observe("gcd", problem.level, [1.0] * 8)
        source.ledger.done(problem)
    assert max(levels) == 1 and budgets.closed() == {"gcd": {2: "generation_failed"}}
    assert source.metrics()["train/lowered_generation_failed"] == 3.0
    assert not source.skipped


async def test_a_task_that_finds_no_item_for_a_seed_in_three_keeps_its_levels() -> None:
    unlucky = Generator(lambda level, seed: GenerationError("no such item") if seed % 3 == 0 else None)
    budgets = LevelLimits(LADDER)
    source = sampler(unlucky, levels=RandomLevels(LADDER, 1), limits=budgets)
    drawn = Counter([(await source.next()).level for _ in range(300)])
    assert sum(source.skipped.values()) <= 3 and not budgets.closed()
    assert set(drawn) == set(range(5)) and min(drawn.values()) > 40


@pytest.mark.parametrize(
    ("error", "asked"),
    [(GenerationError, SEEDS_TRIED), (GenerationTimeoutError, 1), (GenerationCrashedError, 1)],
)
async def test_only_what_fails_at_once_is_tried_with_other_seeds(error: type[Exception], asked: int) -> None:
    generator = Generator(lambda level, seed: error("no such item") if generator.calls <= asked else None)
    source = sampler(generator)
    assert (await source.next()).index == 1
    assert sum(source.skipped.values()) == 1 and generator.calls == asked + 1
