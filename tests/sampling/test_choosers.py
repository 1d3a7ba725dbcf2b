"""The choosers that each combination of settings gives."""

from __future__ import annotations

import logging

import pytest

from reasoning_gym_environment.sampling.choosers import (
    CurriculumLevels,
    LearnableLevels,
    RandomLevels,
    TaskChooser,
    WeightedTasks,
    build_choosers,
)
from reasoning_gym_environment.sampling.curriculum import Curriculum
from reasoning_gym_environment.sampling.task_bandit import LearnableTasks
from reasoning_gym_environment.tasks.difficulty_ladder import Ladder, Level

WEIGHTS = {"maze": 3.0, "gcd": 1.0}
LADDERS = {task: Ladder(task, tuple(Level(i, i / 2, {}) for i in range(3)), "test") for task in WEIGHTS}


def build(sampling: str, mode: str | None) -> tuple[TaskChooser, object]:
    return build_choosers(
        task_sampling=sampling,
        complexity_mode=mode,
        weights=WEIGHTS,
        ladders=LADDERS if mode else {},
        curriculum=Curriculum(ladder_sizes=dict.fromkeys(LADDERS, 3)),
        seed=42,
        task_floor=0.12,
    )


@pytest.mark.parametrize(
    ("sampling", "mode", "tasks", "levels"),
    [
        ("uniform", None, WeightedTasks, type(None)),
        ("weighted", "random", WeightedTasks, RandomLevels),
        ("weighted", "curriculum", WeightedTasks, CurriculumLevels),
        ("learnability", None, LearnableTasks, type(None)),
        ("learnability", "random", LearnableTasks, RandomLevels),
        ("learnability", "curriculum", LearnableTasks, LearnableLevels),
    ],
)
def test_every_combination_has_its_choosers(sampling: str, mode: str | None, tasks: type, levels: type) -> None:
    chooser, level_chooser = build(sampling, mode)
    assert (type(chooser), type(level_chooser)) == (tasks, levels)
    chooser.observe("maze", 2 if mode else None, True)
    assert chooser.choose(0, "0") in WEIGHTS


def test_uniform_ignores_the_weights_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        chooser, _ = build("uniform", None)
    assert "task_sampling is uniform" in caplog.text
    share = sum(chooser.choose(index, "0") == "maze" for index in range(2000)) / 2000
    assert share == pytest.approx(0.5, abs=0.05)
