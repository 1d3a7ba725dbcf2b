"""Which task and which level a draw gets, by the combination of settings."""

from __future__ import annotations

import json
import math
from collections import Counter, deque
from random import Random
from typing import Any

import pytest

from reasoning_gym_environment.sampling.choosers import (
    WINDOW,
    Curriculum,
    Group,
    LearnableTasks,
    LevelChooser,
    TaskChooser,
    build_choosers,
    progress,
)
from reasoning_gym_environment.settings import SamplingSettings
from reasoning_gym_environment.tasks.difficulty_ladder import Ladder, Level


def ladder(task: str, size: int) -> Ladder:
    return Ladder(task, tuple(Level(i, i / max(size - 1, 1), {"size": i}) for i in range(size)), "curriculum")


LADDERS = {"chain_sum": ladder("chain_sum", 4), "gcd": ladder("gcd", 1)}
WEIGHTS = {"chain_sum": 3.0, "gcd": 1.0}


def build(sampling: str, mode: str | None, seed: int = 42) -> tuple[TaskChooser, LevelChooser | None]:
    settings = SamplingSettings(task_sampling=sampling, complexity_mode=mode, seed=seed)
    curriculum = Curriculum(ladder_sizes={task: len(steps) for task, steps in LADDERS.items()})
    return build_choosers(settings, WEIGHTS, LADDERS if mode else {}, curriculum)


def test_weighted_tasks_follow_their_weights_and_learn_nothing() -> None:
    chooser, _ = build("weighted", None)
    before = [chooser.choose(index, "0") for index in range(2000)]
    for _ in range(50):
        chooser.observe("chain_sum", None, 0.0, False)
    assert [chooser.choose(index, "0") for index in range(2000)] == before
    assert before.count("chain_sum") / 2000 == pytest.approx(0.75, abs=0.03)
    assert (chooser.state_dict(), chooser.metrics()) == ({}, {})


def test_a_random_level_is_a_function_of_seed_task_and_index() -> None:
    def drawn(seed: int, indices: list[int]) -> list[int]:
        _, levels = build("weighted", "random", seed)
        assert levels is not None
        return [levels("chain_sum", index).index for index in indices]

    counts = Counter(drawn(42, list(range(4000))))
    assert counts.keys() == {0, 1, 2, 3} and all(900 < count < 1100 for count in counts.values())
    indices = list(range(50))
    assert drawn(42, indices[::-1]) == drawn(42, indices)[::-1]
    assert drawn(43, indices) != drawn(42, indices)


# --- tasks that the model gets better at are drawn more than those that stand still; no task is starved


MANY = {f"task_{number}": 1.0 for number in range(100)}
RISING = [f"task_{number}" for number in range(40)]


def learnable(weights: dict[str, float] = MANY, seed: int = 42, **options: Any) -> LearnableTasks:
    return LearnableTasks(weights, seed, **options)


def group(rate: float, rng: Random, size: int = 8) -> tuple[float, bool]:
    """Mean reward, and whether there is a signal."""
    right = sum(rng.random() < rate for _ in range(size))
    return right / size, 0 < right < size


def taught(subject: LearnableTasks, rates: dict[str, tuple[float, float]], rounds: int = 60) -> LearnableTasks:
    """Groups of every task, whose accuracy goes from the first of its `rates` to the second."""
    rng = Random(1)
    for number in range(rounds):
        for task, (first, last) in rates.items():
            subject.observe(task, None, *group(first + (last - first) * number / rounds, rng))
    return subject


def half_of_them_rise() -> LearnableTasks:
    return taught(learnable(), {task: (0.1, 0.7) if task in RISING else (0.25, 0.25) for task in MANY})


def test_a_signal_that_leads_nowhere_is_left_and_what_rises_is_not() -> None:
    rates = {
        "rises": (0.1, 0.7),
        "slowly": (0.1, 0.4),
        "guessed": (0.25, 0.25),
        "coin": (0.5, 0.5),
        "never": (0.0, 0.0),
    }
    subject = taught(learnable(dict.fromkeys(rates, 1.0), floor=0.0), rates, rounds=WINDOW)
    shares = subject.shares()
    assert shares["rises"] == max(shares.values())
    assert min(shares["rises"], shares["slowly"]) > 2 * max(shares[task] for task in ("guessed", "coin", "never"))
    assert sum(shares.values()) == pytest.approx(1.0)


def test_levels_that_differ_in_difficulty_are_no_progress() -> None:
    """Drawn at random levels, a task's mean reward jumps; each level is compared with itself."""
    rng = Random(3)
    drawn = [rng.randrange(4) for _ in range(WINDOW)]
    mixed = deque(Group(level, *group(0.9 - 0.2 * level, rng)) for level in drawn)
    climbing = deque(Group(number // 32, 0.9 - 0.2 * (number // 32), True) for number in range(WINDOW))
    rising = deque(Group(number % 4, 0.2 * (number % 4) + 0.4 * number / WINDOW, True) for number in range(WINDOW))
    assert max(progress(mixed), progress(climbing)) < progress(rising) / 2
    assert progress(rising) == pytest.approx(0.4 / WINDOW, rel=0.2)
    assert 0.0 < progress(deque([Group(0, 0.5, True), Group(1, 0.2, True)])) < math.inf


def test_no_task_is_starved_and_weights_count_beside_progress() -> None:
    subject = half_of_them_rise()
    shares = subject.shares()
    drawn = Counter(subject.choose(index, "0") for index in range(4000))
    assert min(shares.values()) >= 0.12 / 100 and min(drawn[task] for task in MANY) >= 4
    assert sum(drawn[task] for task in RISING) / 4000 == pytest.approx(sum(shares[task] for task in RISING), abs=0.03)
    weighted = learnable({**MANY, "task_0": 3.0}, floor=0.0).shares()
    assert weighted["task_0"] == pytest.approx(3 * weighted["task_1"])
    everything = learnable(floor=1.0)
    for start in (0, 100, 200):
        assert sorted(everything.choose(index, "0") for index in range(start, start + 100)) == sorted(MANY)


def test_a_choice_is_a_function_of_seed_instance_index_and_observations() -> None:
    one, other = half_of_them_rise(), half_of_them_rise()
    choices = [one.choose(index, "a") for index in range(200)]
    assert [other.choose(index, "a") for index in reversed(range(200))] == choices[::-1]
    assert [other.choose(index, "b") for index in range(200)] != choices
    resumed = learnable()
    resumed.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert [resumed.choose(index, "a") for index in range(200)] == choices
    assert resumed.metrics() == one.metrics() and one.metrics()["task_choice/known_tasks"] == 100.0
    resumed.load_state_dict({})
    assert resumed.shares() == learnable().shares()
