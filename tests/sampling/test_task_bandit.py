"""What is unknown is worth a try, what is known to be barren is left, and all of it is forgotten in time."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from reasoning_gym_environment.errors import EnvironmentSetupError, UnknownNameError
from reasoning_gym_environment.sampling.task_bandit import SignalBandit

SIZES = {"maze": 3, "gcd": 1}


def test_before_any_group_every_arm_is_worth_the_same_and_more_than_its_mean() -> None:
    values = SignalBandit(SIZES).values()
    assert values.shape == (2, 3)
    assert len(set(values.ravel())) == 1 and values[0, 0] > 0.5


def test_groups_move_only_their_arm() -> None:
    bandit = SignalBandit(SIZES)
    for _ in range(10):
        bandit.observe("maze", 1, True)
        bandit.observe("maze", 2, False)
    assert bandit.mean("maze", 1) > 0.9 and bandit.mean("maze", 2) < 0.1
    assert bandit.mean("maze", 0) == bandit.mean("gcd", 0) == 0.5


def test_an_unknown_arm_beats_a_mediocre_one_and_loses_to_a_good_one() -> None:
    bandit = SignalBandit(SIZES)
    for number in range(40):
        bandit.observe("maze", 0, number % 2 == 0)
        bandit.observe("maze", 1, True)
    values = bandit.values()
    assert values[0, 0] < values[0, 2] < values[0, 1]


def test_the_best_level_is_taken_from_those_given() -> None:
    bandit = SignalBandit(SIZES)
    for _ in range(5):
        bandit.observe("maze", 2, True)
    assert bandit.best_level("maze", [0, 1, 2]) == 2
    assert bandit.best_level("maze", [0, 1]) == 0


def test_what_is_not_looked_at_goes_back_to_the_prior() -> None:
    bandit = SignalBandit(SIZES, half_life=10)
    for _ in range(20):
        bandit.observe("maze", 0, False)
    barren = bandit.mean("maze", 0)
    for _ in range(100):
        bandit.observe("gcd", 0, True)
    assert barren < 0.05 and bandit.mean("maze", 0) > 0.45


def test_a_count_loses_half_its_weight_in_three_thousand_groups() -> None:
    bandit = SignalBandit(SIZES)
    bandit.observe("maze", 0, 1.0)
    for _ in range(3000):
        bandit.observe("gcd", 0, 0.0)
    [[_, with_signal, without]] = bandit.state_dict()["arms"]["maze"]
    assert (with_signal, without) == (pytest.approx(0.5), 0.0)


@pytest.mark.parametrize("spread", [0.25, 0.5])
def test_a_group_counts_by_the_spread_of_its_rewards(spread: float) -> None:
    bandit = SignalBandit(SIZES)
    bandit.observe("maze", 1, spread)
    assert bandit.state_dict()["arms"]["maze"] == [[1, spread, 1.0 - spread]]


@pytest.mark.parametrize("spread", [-0.1, 1.1, float("nan")])
def test_no_spread_of_rewards_is_refused(spread: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        SignalBandit(SIZES).observe("maze", 0, spread)


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


@pytest.mark.parametrize(
    "arms", [3, {"maze": 3}, {"maze": [[0, 1.0]]}, {"maze": [[0, -1.0, 0.0]]}, {"maze": [["0", 1.0, 0.0]]}, None]
)
def test_a_malformed_state_is_an_error_and_changes_nothing(arms: Any) -> None:
    bandit = SignalBandit(SIZES)
    bandit.observe("maze", 0, True)
    before = bandit.state_dict()
    with pytest.raises(EnvironmentSetupError, match="task choice cannot be used"):
        bandit.load_state_dict({"arms": arms})
    assert bandit.state_dict() == before


def test_arms_that_do_not_exist_are_errors() -> None:
    bandit = SignalBandit(SIZES)
    with pytest.raises(UnknownNameError, match="mazes"):
        bandit.observe("mazes", 0, True)
    with pytest.raises(IndexError, match="levels 0 to 0, got 1"):
        bandit.observe("gcd", 1, True)


@pytest.mark.parametrize(
    ("sizes", "options"), [({}, {}), ({"maze": 0}, {}), (SIZES, {"half_life": 0}), (SIZES, {"prior": (0.0, 1.0)})]
)
def test_settings_that_cannot_work_are_refused(sizes: dict[str, int], options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be positive|at least one level"):
        SignalBandit(sizes, **options)
