"""Which task and which level a draw gets, by the combination of settings."""

from __future__ import annotations

import logging
from collections import Counter

import pytest

from reasoning_gym_environment.sampling.choosers import (
    CurriculumLevels,
    LearnableTasks,
    RandomLevels,
    TaskChooser,
    WeightedTasks,
    build_choosers,
)
from reasoning_gym_environment.sampling.curriculum import Curriculum
from reasoning_gym_environment.tasks.difficulty_ladder import Ladder, Level


def ladder(task: str, size: int) -> Ladder:
    return Ladder(task, tuple(Level(i, i / max(size - 1, 1), {"size": i}) for i in range(size)), "curriculum")


LADDERS = {"chain_sum": ladder("chain_sum", 4), "gcd": ladder("gcd", 1)}
WEIGHTS = {"chain_sum": 3.0, "gcd": 1.0}


def build(sampling: str, mode: str | None) -> tuple[TaskChooser, object]:
    return build_choosers(
        task_sampling=sampling,
        complexity_mode=mode,
        weights=WEIGHTS,
        ladders=LADDERS if mode else {},
        curriculum=Curriculum(ladder_sizes={task: len(steps) for task, steps in LADDERS.items()}),
        seed=42,
        task_floor=0.12,
    )


def test_every_combination_has_its_choosers() -> None:
    for sampling, mode, tasks, levels in (
        ("uniform", None, WeightedTasks, type(None)),
        ("weighted", "random", WeightedTasks, RandomLevels),
        ("weighted", "curriculum", WeightedTasks, CurriculumLevels),
        ("learnability", None, LearnableTasks, type(None)),
        ("learnability", "random", LearnableTasks, RandomLevels),
        ("learnability", "curriculum", LearnableTasks, CurriculumLevels),
    ):
        chooser, level_chooser = build(sampling, mode)
        assert (type(chooser), type(level_chooser)) == (tasks, levels)
        chooser.observe("chain_sum", 2 if mode else None, 1.0, True)
        assert chooser.choose(0, "0") in WEIGHTS


def test_weighted_tasks_follow_their_weights_and_learn_nothing() -> None:
    chooser, _ = build("weighted", None)
    before = [chooser.choose(index, "0") for index in range(2000)]
    for _ in range(50):
        chooser.observe("chain_sum", None, 0.0, False)
    assert [chooser.choose(index, "0") for index in range(2000)] == before
    assert before.count("chain_sum") / 2000 == pytest.approx(0.75, abs=0.03)
    assert (chooser.state_dict(), chooser.metrics()) == ({}, {})


def test_uniform_ignores_the_weights_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        chooser, _ = build("uniform", None)
    assert "task_sampling is uniform" in caplog.text
    share = sum(chooser.choose(index, "0") == "chain_sum" for index in range(2000)) / 2000
    assert share == pytest.approx(0.5, abs=0.05)


def test_a_random_level_is_a_function_of_seed_task_and_index() -> None:
    def drawn(levels: RandomLevels, task: str, indices: list[int]) -> list[Level | None]:
        return [levels.choose(task, index) for index in indices]

    counts = Counter(level.index for level in drawn(RandomLevels(LADDERS, 42), "chain_sum", list(range(4000))) if level)
    assert counts.keys() == {0, 1, 2, 3} and all(900 < count < 1100 for count in counts.values())
    indices = list(range(50))
    first = drawn(RandomLevels(LADDERS, 42), "chain_sum", indices)
    assert drawn(RandomLevels(LADDERS, 42), "chain_sum", indices[::-1]) == first[::-1]
    assert drawn(RandomLevels(LADDERS, 43), "chain_sum", indices) != first
    assert drawn(RandomLevels({"other": ladder("chain_sum", 4)}, 42), "other", indices) != first


def test_curriculum_levels_are_where_the_curriculum_stands_at_the_time_of_the_draw() -> None:
    curriculum = Curriculum(ladder_sizes={"chain_sum": 4, "gcd": 1})
    levels = CurriculumLevels(LADDERS, curriculum)
    assert levels.choose("chain_sum", 7) == LADDERS["chain_sum"].levels[0]
    for _ in range(3):
        curriculum.observe("chain_sum", 0, [1.0] * 8)
    assert levels.choose("chain_sum", 7) == LADDERS["chain_sum"].levels[1]
    assert levels.choose("gcd", 7) == LADDERS["gcd"].levels[0]
