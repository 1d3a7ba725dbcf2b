"""Which task and which level an item gets, for each combination of settings."""

from __future__ import annotations

import json
import math
from collections import Counter, deque
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reasoning_gym_environment.sampling.curriculum import Curriculum
from reasoning_gym_environment.sampling.learnability import WINDOW, LearnableTasks
from reasoning_gym_environment.sampling.learning_progress import Group, progress
from reasoning_gym_environment.sampling.policies import LevelChooser, build_level_chooser, build_task_policy
from reasoning_gym_environment.sampling.task_policy import GroupResult, TaskPolicy
from reasoning_gym_environment.settings import SamplingSettings
from reasoning_gym_environment.tasks.difficulty_ladder import Ladder, Level


def ladder(task: str, size: int) -> Ladder:
    return Ladder(task, tuple(Level(i, i / max(size - 1, 1), {"size": i}) for i in range(size)), "curriculum")


LADDERS = {"chain_sum": ladder("chain_sum", 4), "gcd": ladder("gcd", 1)}
WEIGHTS = {"chain_sum": 3.0, "gcd": 1.0}


def task_policy(sampling: str) -> TaskPolicy:
    return build_task_policy(SamplingSettings(task_sampling=sampling, seed=42), WEIGHTS, curriculum_of_ladders())


def level_chooser(mode: Any, seed: int = 42) -> LevelChooser | None:
    settings = SamplingSettings(complexity_mode=mode, seed=seed)
    return build_level_chooser(settings, LADDERS, curriculum_of_ladders())


def curriculum_of_ladders() -> Curriculum:
    return Curriculum(LADDERS, lambda task: len(LADDERS[task]) - 1)


def result(task: str, rewards: Sequence[float]) -> GroupResult:
    return GroupResult(task, None, tuple(rewards), max(rewards) > min(rewards))


# --- fixed shares, and levels


def test_weighted_tasks_follow_their_weights_whatever_happens_to_their_groups() -> None:
    policy = task_policy("weighted")
    before = [policy.choose(index, "0") for index in range(2000)]
    for _ in range(50):
        policy.observe(result("chain_sum", [0.0, 1.0]))
        policy.note_failure("gcd")
    assert [policy.choose(index, "0") for index in range(2000)] == before
    assert before.count("chain_sum") / 2000 == pytest.approx(0.75, abs=0.03)
    assert (policy.state_dict(), policy.metrics()) == ({}, {})


def test_uniform_ignores_the_weights_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    policy = task_policy("uniform")
    drawn = [policy.choose(index, "0") for index in range(2000)]
    assert drawn.count("chain_sum") / 2000 == pytest.approx(0.5, abs=0.03)
    assert "task_sampling is uniform" in caplog.text


def test_a_random_level_is_a_function_of_seed_task_and_index() -> None:
    def drawn(seed: int, indices: list[int]) -> list[int]:
        levels = level_chooser("random", seed)
        assert levels is not None
        return [levels("chain_sum", index).index for index in indices]

    counts = Counter(drawn(42, list(range(4000))))
    assert counts.keys() == {0, 1, 2, 3}
    assert all(900 < count < 1100 for count in counts.values())
    indices = list(range(50))
    assert drawn(42, indices[::-1]) == drawn(42, indices)[::-1]
    assert drawn(43, indices) != drawn(42, indices)


def test_a_number_asks_for_the_nearest_level_and_none_for_the_defaults() -> None:
    fixed = level_chooser(0.6)
    assert fixed is not None
    assert [fixed(task, 0).index for task in LADDERS] == [2, 0]
    assert level_chooser(None) is None


# --- learnability: tasks that the model gets better at are drawn more often, and no task is starved


MANY = {f"task_{number}": 1.0 for number in range(100)}
RISING = [f"task_{number}" for number in range(40)]


def learnable(weights: dict[str, float] = MANY, seed: int = 42, **options: Any) -> LearnableTasks:
    return LearnableTasks(weights, seed, **options)


def group(rate: float, rng: Random, size: int = 8) -> list[float]:
    return [float(rng.random() < rate) for _ in range(size)]


def taught(subject: LearnableTasks, rates: dict[str, tuple[float, float]], rounds: int = 60) -> LearnableTasks:
    """Groups of every task, whose accuracy goes from the first of its `rates` to the second."""
    rng = Random(1)
    for number in range(rounds):
        for task, (first, last) in rates.items():
            subject.observe(result(task, group(first + (last - first) * number / rounds, rng)))
    return subject


def half_of_them_rise() -> LearnableTasks:
    return taught(learnable(), {task: (0.1, 0.7) if task in RISING else (0.25, 0.25) for task in MANY})


def test_a_signal_without_progress_loses_weight_and_progress_does_not() -> None:
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
    """The mean reward of a task jumps with its level. The policy compares each level with itself."""
    rng = Random(3)

    def at(level: int, reward: float) -> Group:
        return Group(level, reward, has_signal=True)

    drawn = [rng.randrange(4) for _ in range(WINDOW)]
    mixed = deque(at(level, sum(group(0.9 - 0.2 * level, rng)) / 8) for level in drawn)
    climbing = deque(at(number // 32, 0.9 - 0.2 * (number // 32)) for number in range(WINDOW))
    rising = deque(at(number % 4, 0.2 * (number % 4) + 0.4 * number / WINDOW) for number in range(WINDOW))
    assert max(progress(mixed), progress(climbing)) < progress(rising) / 2
    assert progress(rising) == pytest.approx(0.4 / WINDOW, rel=0.2)
    assert 0.0 < progress(deque([at(0, 0.5), at(1, 0.2)])) < math.inf


def test_no_task_is_starved_and_weights_count_beside_progress() -> None:
    subject = half_of_them_rise()
    shares = subject.shares()
    drawn = Counter(subject.choose(index, "0") for index in range(4000))
    assert min(shares.values()) >= 0.12 / 100
    assert min(drawn[task] for task in MANY) >= 4
    assert sum(drawn[task] for task in RISING) / 4000 == pytest.approx(sum(shares[task] for task in RISING), abs=0.03)
    weighted = learnable({**MANY, "task_0": 3.0}, floor=0.0).shares()
    assert weighted["task_0"] == pytest.approx(3 * weighted["task_1"])
    everything = learnable(floor=1.0)
    for start in (0, 100, 200):
        assert sorted(everything.choose(index, "0") for index in range(start, start + 100)) == sorted(MANY)


def test_a_choice_is_a_function_of_seed_instance_index_and_observations() -> None:
    first = half_of_them_rise()
    second = half_of_them_rise()
    for subject in (first, second):
        subject.note_failure("task_1")
        subject.note_failure("task_2")
        subject.observe(result("task_2", [0.0, 1.0]))
    choices = [first.choose(index, "a") for index in range(200)]
    assert [second.choose(index, "a") for index in reversed(range(200))] == choices[::-1]
    assert [second.choose(index, "b") for index in range(200)] != choices
    resumed = learnable()
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert [resumed.choose(index, "a") for index in range(200)] == choices
    assert resumed.metrics() == first.metrics()
    assert first.metrics()["task_choice/known_tasks"] == 100.0
    assert first.metrics()["task_choice/failing_tasks"] == 1.0
    resumed.load_state_dict({})
    assert resumed.shares() == learnable().shares()


# --- failures: items that could not be made, or whose completions could not be scored


TASKS = ("maze", "gcd", "acre")
Event = GroupResult | str
"""A scored group, or the task of an item that failed."""


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """Up to thirty rounds of groups, each task with an accuracy and a trend of its own, some items of which fail."""
    rng = Random(draw(st.integers(0, 2**32)))
    trends = [draw(st.tuples(st.floats(0, 1), st.floats(0, 1))) for _ in TASKS]
    failing = draw(st.sampled_from([0.0, 0.0, 0.2, 0.8]))
    rounds = draw(st.integers(0, 30))
    events: list[Event] = []
    for number in range(rounds):
        for task, (first, last) in zip(TASKS, trends, strict=True):
            rate = first + (last - first) * number / rounds
            is_failure = rng.random() < failing
            events.append(task if is_failure else result(task, group(rate, rng)))
    return events


def shares_after(events: Sequence[Event]) -> dict[str, float]:
    subject = learnable(dict.fromkeys(TASKS, 1.0))
    for event in events:
        if isinstance(event, GroupResult):
            subject.observe(event)
        else:
            subject.note_failure(event)
    return subject.shares()


@settings(deadline=None)
@given(histories(), st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_failures_never_raise_the_share_of_their_task(history: list[Event], places: list[float]) -> None:
    failed: list[Event] = list(history)
    for place in places:
        failed.insert(round(place * len(failed)), "maze")
    before = shares_after(history)
    after = shares_after(failed)
    assert after["maze"] <= before["maze"] + 1e-12
    assert all(after[task] >= before[task] - 1e-12 for task in ("gcd", "acre"))


def test_a_task_whose_items_always_fail_falls_to_the_floor() -> None:
    subject = taught(learnable(dict.fromkeys(TASKS, 1.0)), dict.fromkeys(TASKS, (0.7, 0.7)), rounds=WINDOW)
    shares = []
    for number in range(1000):
        if number in (0, 1, 5, 20, 80):
            shares.append(subject.shares()["maze"])
        subject.note_failure("maze")
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.3
    assert subject.shares()["maze"] == pytest.approx(0.12 / len(TASKS), abs=0.001)


@settings(deadline=None)
@given(histories())
def test_one_scored_group_ends_the_effect_of_the_failures_before_it(history: list[Event]) -> None:
    group_of_maze = result("maze", [0.0, 1.0])
    failed = [*history, *["maze"] * 50, group_of_maze]
    assert shares_after(failed) == shares_after([*history, group_of_maze])
