"""Tasks are drawn where there is something to learn, no task is starved, and draws stay diverse."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from reasoning_gym_environment.sampling.choosers import WeightedTasks
from reasoning_gym_environment.sampling.task_bandit import LearnableTasks, SignalBandit, effective_number

MANY = {f"task_{number}": 1.0 for number in range(100)}
GOOD = [f"task_{number}" for number in range(40)]


def learnable(weights: dict[str, float] = MANY, seed: int = 42, **options: Any) -> LearnableTasks:
    return LearnableTasks(weights, seed, SignalBandit(dict.fromkeys(weights, 1)), **options)


def taught(subject: LearnableTasks, good: list[str], tasks: list[str], rounds: int = 20) -> LearnableTasks:
    for _ in range(rounds):
        for task in tasks:
            subject.observe(task, None, task in good)
    return subject


def test_tasks_with_a_signal_are_drawn_more_and_all_are_drawn() -> None:
    subject = taught(learnable(), GOOD, list(MANY))
    drawn = Counter(subject.choose(index, "0") for index in range(4000))
    assert sum(drawn[task] for task in GOOD) > 0.8 * 4000
    assert set(drawn) == set(MANY)


@pytest.mark.parametrize("good", [1, 5, 33, 100])
def test_the_effective_number_of_tasks_stays_above_thirty(good: int) -> None:
    subject = taught(learnable(), GOOD[:good] if good < 100 else list(MANY), list(MANY))
    shares = subject.shares()
    assert sum(shares.values()) == pytest.approx(1.0)
    assert effective_number(list(shares.values())) >= 32.9
    assert min(shares.values()) >= 0.12 / 100
    drawn = Counter(subject.choose(index, "0") for index in range(4000))
    assert effective_number(list(drawn.values())) > 30
    assert min(drawn[task] for task in MANY) >= 4


def test_crumbs_of_credit_do_not_make_a_task_look_instructive() -> None:
    """Eight tasks are never solved, but their wrong answers always earn a little more or less."""
    crumbs, solved = [f"task_{number}" for number in range(8)], [f"task_{number}" for number in range(8, 58)]
    subject = learnable()
    for number in range(20):
        for task in MANY:
            subject.observe(task, None, 0.07 if task in crumbs else float(task in solved and number % 3 == 0))
    shares = subject.shares()
    assert max(shares[task] for task in crumbs) < min(shares[task] for task in solved)
    assert sum(shares[task] for task in crumbs) < 0.08


def test_every_round_of_the_floor_visits_each_task_once() -> None:
    subject = learnable(floor=1.0)
    for start in (0, 100, 200):
        assert sorted(subject.choose(index, "0") for index in range(start, start + 100)) == sorted(MANY)


def test_without_a_floor_the_draws_are_still_diverse() -> None:
    shares = taught(learnable(floor=0.0), GOOD[:2], list(MANY)).shares()
    assert effective_number(list(shares.values())) == pytest.approx(33.0, rel=0.01)


def test_of_few_tasks_half_as_many_are_kept() -> None:
    few = dict.fromkeys(GOOD[:6], 1.0)
    shares = taught(learnable(few), [GOOD[0]], list(few)).shares()
    assert effective_number(list(shares.values())) == pytest.approx(3.0, rel=0.01)
    assert shares[GOOD[0]] == max(shares.values())
    assert learnable({"gcd": 1.0}).choose(5, "0") == "gcd"


def test_weights_count_beside_the_signal() -> None:
    weights = {**MANY, "task_0": 3.0}
    shares = taught(learnable(weights, floor=0.0), list(weights), list(weights)).shares()
    assert shares["task_0"] == pytest.approx(3 * shares["task_1"], rel=0.02)


def test_a_choice_is_a_function_of_seed_instance_index_and_observations() -> None:
    one, other = taught(learnable(), GOOD, list(MANY)), taught(learnable(), GOOD, list(MANY))
    choices = [one.choose(index, "a") for index in range(200)]
    assert [other.choose(index, "a") for index in reversed(range(200))] == choices[::-1]
    assert [other.choose(index, "b") for index in range(200)] != choices
    resumed = learnable()
    resumed.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert [resumed.choose(index, "a") for index in range(200)] == choices


def test_with_levels_a_task_is_worth_its_best_open_level() -> None:
    bandit = SignalBandit({"maze": 2, "gcd": 2, "jugs": 2})
    opened = {"maze": [0, 1], "gcd": [0], "jugs": [0]}
    subject = LearnableTasks(dict.fromkeys(opened, 1.0), 42, bandit, open_levels=opened.__getitem__)
    for _ in range(20):
        for task in opened:
            subject.observe(task, 0, False)
            subject.observe(task, 1, True)
    shares = subject.shares()
    assert shares["maze"] > 2 * shares["gcd"]
    assert shares["gcd"] == pytest.approx(shares["jugs"], rel=0.02)


def test_without_levels_all_levels_are_one_arm() -> None:
    subject = learnable({"maze": 1.0, "gcd": 1.0, "jugs": 1.0})
    subject.observe("maze", 7, True)
    assert subject.state_dict() == {"arms": {"maze": [[0, 1.0, 0.0]]}}


def test_a_task_whose_items_cannot_be_used_is_drawn_less() -> None:
    subject = learnable({"maze": 1.0, "gcd": 1.0, "jugs": 1.0})
    before = subject.shares()["maze"]
    for _ in range(5):
        subject.skip("maze")
    assert subject.shares()["maze"] < before


def test_metrics_say_how_diverse_the_draws_to_come_are() -> None:
    metrics = taught(learnable(), GOOD, list(MANY)).metrics()
    assert metrics["task_choice/effective_tasks"] >= 32.9
    assert metrics["task_choice/smallest_share"] >= 0.0012
    assert metrics["task_choice/estimated_value"] > 0.7


def test_weighted_tasks_follow_their_weights_and_learn_nothing() -> None:
    subject = WeightedTasks({"maze": 3.0, "gcd": 1.0}, seed=42)
    before = [subject.choose(index, "0") for index in range(2000)]
    for _ in range(50):
        subject.observe("maze", None, False)
    assert [subject.choose(index, "0") for index in range(2000)] == before
    assert Counter(before)["maze"] / 2000 == pytest.approx(0.75, abs=0.03)
    assert (subject.state_dict(), subject.metrics()) == ({}, {})


def test_effective_number_is_the_number_of_equal_shares() -> None:
    assert effective_number([]) == 0.0
    assert effective_number([5, 5, 5, 0]) == pytest.approx(3.0)
    assert effective_number([1.0, 0.0]) == pytest.approx(1.0)
    assert 1.0 < effective_number([0.9, 0.1]) < 2.0


@pytest.mark.parametrize(("weights", "floor"), [({"gcd": 1.0}, 1.5), ({"gcd": 0.0}, 0.1), ({}, 0.1)])
def test_settings_that_cannot_work_are_refused(weights: dict[str, float], floor: float) -> None:
    with pytest.raises(ValueError, match=r"floor must lie|weights must be positive"):
        LearnableTasks(weights, 1, SignalBandit({"gcd": 1}), floor=floor)
