"""What is unknown is worth a try, what is barren is left and forgotten; no task is starved, and draws stay diverse."""

from __future__ import annotations

import json
import logging
from collections import Counter
from typing import Any

import pytest

from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.sampling.choosers import LearnableTasks, SignalBandit, effective_number

SIZES = {"maze": 3, "gcd": 1}


def test_before_any_group_every_arm_is_worth_the_same_and_more_than_its_mean() -> None:
    values = SignalBandit(SIZES).values()
    assert values.shape == (2, 3)
    assert len(set(values.ravel())) == 1 and values[0, 0] > 0.5


def test_an_unknown_arm_beats_a_mediocre_one_and_loses_to_a_good_one() -> None:
    bandit = SignalBandit(SIZES)
    unknown = bandit.values()[0, 2]
    for number in range(40):
        bandit.observe("maze", 0, number % 2 == 0)
        bandit.observe("maze", 1, True)
    values = bandit.values()
    assert values[0, 0] < values[0, 2] < values[0, 1]
    assert values[0, 2] == values[1, 0] == unknown, "groups move only their arm"
    assert [bandit.best_level("maze", levels) for levels in ([0, 1, 2], [0, 2])] == [1, 2]


def test_a_count_loses_half_its_weight_in_three_thousand_groups() -> None:
    bandit = SignalBandit(SIZES)
    bandit.observe("maze", 1, 0.25)
    assert bandit.state_dict()["arms"]["maze"] == [[1, 0.25, 0.75]], "it counts by the spread of its rewards"
    for _ in range(3000):
        bandit.observe("gcd", 0, 0.0)
    assert bandit.state_dict()["arms"]["maze"] == [[1, pytest.approx(0.125), pytest.approx(0.375)]]


def test_a_restored_bandit_goes_on_as_the_uninterrupted_one(caplog: pytest.LogCaptureFixture) -> None:
    whole, resumed = SignalBandit(SIZES), SignalBandit(SIZES)
    for number in range(30):
        whole.observe("maze", number % 3, number % 2 == 0)
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    for bandit in (whole, resumed):
        bandit.observe("gcd", 0, True)
    assert (whole.values() == resumed.values()).all()
    resumed.load_state_dict({})
    assert (resumed.values() == SignalBandit(SIZES).values()).all()
    with caplog.at_level(logging.WARNING):
        SignalBandit({"maze": 1, "new": 1}).load_state_dict(whole.state_dict())
    assert "gcd, maze is ignored" in caplog.text


def test_a_malformed_state_is_an_error_and_changes_nothing() -> None:
    bandit = SignalBandit(SIZES)
    bandit.observe("maze", 0, True)
    before = bandit.state_dict()
    for arms in (3, None, *({"maze": bad} for bad in (3, [[0, 1.0]], [[0, -1.0, 0.0]], [["0", 1.0, 0.0]]))):
        with pytest.raises(EnvironmentSetupError, match="task choice cannot be used"):
            bandit.load_state_dict({"arms": arms})
    assert bandit.state_dict() == before


def test_what_is_no_spread_of_rewards_is_refused() -> None:
    for spread in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="between 0 and 1"):
            SignalBandit(SIZES).observe("maze", 0, spread)


MANY = {f"task_{number}": 1.0 for number in range(100)}
GOOD = [f"task_{number}" for number in range(40)]


def learnable(weights: dict[str, float] = MANY, seed: int = 42, **options: Any) -> LearnableTasks:
    return LearnableTasks(weights, seed, SignalBandit(dict.fromkeys(weights, 1)), **options)


def taught(subject: LearnableTasks, good: list[str], tasks: list[str], rounds: int = 20) -> LearnableTasks:
    for _ in range(rounds):
        for task in tasks:
            subject.observe(task, None, task in good)
    return subject


@pytest.mark.parametrize("good", [1, 5, 33, 100])
def test_tasks_with_a_signal_are_drawn_more_and_the_effective_number_stays_above_thirty(good: int) -> None:
    instructive = list(MANY)[:good]
    subject = taught(learnable(), instructive, list(MANY))
    shares = subject.shares()
    assert sum(shares[task] for task in instructive) > (0.8 if good > 30 else 0.1 + 0.02 * good)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert effective_number(list(shares.values())) >= 32.9
    assert min(shares.values()) >= 0.12 / 100
    drawn = Counter(subject.choose(index, "0") for index in range(4000))
    assert effective_number(list(drawn.values())) > 30
    assert subject.metrics()["task_choice/effective_tasks"] >= 32.9
    assert subject.metrics()["task_choice/smallest_share"] == min(shares.values())
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


def test_every_round_of_the_floor_visits_each_task_once_and_without_one_draws_are_still_diverse() -> None:
    subject = learnable(floor=1.0)
    for start in (0, 100, 200):
        assert sorted(subject.choose(index, "0") for index in range(start, start + 100)) == sorted(MANY)
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


def test_a_task_whose_items_cannot_be_used_is_drawn_less() -> None:
    subject = learnable({"maze": 1.0, "gcd": 1.0, "jugs": 1.0})
    subject.observe("maze", 7, True)
    assert subject.state_dict() == {"arms": {"maze": [[0, 1.0, 0.0]]}}, "without levels all are one arm"
    before = subject.shares()["maze"]
    for _ in range(5):
        subject.skip("maze")
    assert subject.shares()["maze"] < before


def test_effective_number_is_the_number_of_equal_shares() -> None:
    assert effective_number([]) == 0.0
    assert effective_number([5, 5, 5, 0]) == pytest.approx(3.0)
    assert effective_number([1.0, 0.0]) == pytest.approx(1.0)
    assert 1.0 < effective_number([0.9, 0.1]) < 2.0
