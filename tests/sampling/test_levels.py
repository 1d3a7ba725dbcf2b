"""Which level a draw gets."""

from __future__ import annotations

from collections import Counter

from reasoning_gym_environment.sampling.choosers import CurriculumLevels, LearnableLevels, RandomLevels
from reasoning_gym_environment.sampling.curriculum import Curriculum
from reasoning_gym_environment.sampling.task_bandit import SignalBandit
from reasoning_gym_environment.tasks.difficulty_ladder import Ladder, Level


def ladder(task: str, size: int) -> Ladder:
    return Ladder(task, tuple(Level(i, i / max(size - 1, 1), {"size": i}) for i in range(size)), "curriculum")


LADDERS = {"chain_sum": ladder("chain_sum", 4), "gcd": ladder("gcd", 1)}


def test_random_levels_are_uniform_over_the_ladder() -> None:
    levels = RandomLevels(LADDERS, seed=42)
    counts = Counter(levels.choose("chain_sum", index).index for index in range(4000))  # type: ignore[union-attr]
    assert counts.keys() == {0, 1, 2, 3}
    assert all(900 < count < 1100 for count in counts.values())


def test_a_random_level_is_a_function_of_seed_task_and_index() -> None:
    def drawn(levels: RandomLevels, task: str, indices: list[int]) -> list[Level | None]:
        return [levels.choose(task, index) for index in indices]

    indices = list(range(50))
    first = drawn(RandomLevels(LADDERS, 42), "chain_sum", indices)
    assert drawn(RandomLevels(LADDERS, 42), "chain_sum", indices[::-1]) == first[::-1]
    assert drawn(RandomLevels(LADDERS, 43), "chain_sum", indices) != first
    renamed = RandomLevels({"other": ladder("chain_sum", 4)}, 42)
    assert drawn(renamed, "other", indices) != first


def test_a_ladder_of_one_level_always_gives_it() -> None:
    levels = RandomLevels(LADDERS, 42)
    assert {levels.choose("gcd", index) for index in range(20)} == {LADDERS["gcd"].levels[0]}


def test_curriculum_levels_are_where_the_curriculum_stands_at_the_time_of_the_draw() -> None:
    curriculum = Curriculum(ladder_sizes={"chain_sum": 4, "gcd": 1})
    levels = CurriculumLevels(LADDERS, curriculum)
    assert levels.choose("chain_sum", 7) == LADDERS["chain_sum"].levels[0]
    for _ in range(3):
        curriculum.observe("chain_sum", 0, [1.0] * 8)
    assert levels.choose("chain_sum", 7) == LADDERS["chain_sum"].levels[1]
    assert levels.choose("gcd", 7) == LADDERS["gcd"].levels[0]


def test_learnable_levels_are_the_likelier_ones_that_the_curriculum_leaves_open() -> None:
    curriculum = Curriculum(ladder_sizes={"chain_sum": 4, "gcd": 1})
    bandit = SignalBandit({"chain_sum": 4, "gcd": 1})
    levels = LearnableLevels(LADDERS, curriculum, bandit)
    for _ in range(5):
        bandit.observe("chain_sum", 0, False)
    assert levels.choose("chain_sum", 7) == LADDERS["chain_sum"].levels[0]  # the next one is not open yet
    curriculum.observe("chain_sum", 0, [1.0] * 8)
    assert levels.choose("chain_sum", 7) == LADDERS["chain_sum"].levels[1]
    for _ in range(20):
        bandit.observe("chain_sum", 0, True)
    assert levels.choose("chain_sum", 7) == LADDERS["chain_sum"].levels[0]
    assert levels.choose("gcd", 7) == LADDERS["gcd"].levels[0]
