"""Which level an item gets, for each difficulty setting."""

from __future__ import annotations

from collections import Counter
from typing import Any

from reasoning_gym_environment.sampling.curriculum import Curriculum
from reasoning_gym_environment.sampling.item_stream import LevelChooser, level_chooser
from reasoning_gym_environment.settings.components import SamplingSettings
from reasoning_gym_environment.tasks.difficulty_ladder import Ladder, Level


def ladder(task: str, size: int) -> Ladder:
    levels = [Level(index, index / max(size - 1, 1), {"size": index}) for index in range(size)]
    return Ladder(task, tuple(levels))


LADDERS = {"chain_sum": ladder("chain_sum", 4), "gcd": ladder("gcd", 1)}


def chooser(mode: Any, seed: int = 42) -> LevelChooser | None:
    settings = SamplingSettings(complexity_mode=mode, seed=seed)
    curriculum = Curriculum({task: len(ladder) for task, ladder in LADDERS.items()})
    return level_chooser(settings, LADDERS, curriculum.level)


def test_a_random_level_is_a_function_of_seed_task_and_index() -> None:
    def drawn(seed: int, indices: list[int]) -> list[int]:
        levels = chooser("random", seed)
        assert levels is not None
        return [levels("chain_sum", index).index for index in indices]

    counts = Counter(drawn(42, list(range(4000))))
    assert counts.keys() == {0, 1, 2, 3}
    assert all(900 < count < 1100 for count in counts.values())
    indices = list(range(50))
    assert drawn(42, indices[::-1]) == drawn(42, indices)[::-1]
    assert drawn(43, indices) != drawn(42, indices)


def test_a_number_asks_for_the_nearest_level_and_none_for_the_defaults() -> None:
    fixed = chooser(0.6)
    assert fixed is not None
    assert [fixed(task, 0).index for task in LADDERS] == [2, 0]
    assert chooser(None) is None
