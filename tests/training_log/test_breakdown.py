"""Signal and accuracy by category and task."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from reasoning_gym_environment.records import Outcome, Score
from reasoning_gym_environment.training_log.metrics import DIVERSITY_WINDOW, Breakdown


def test_values_are_by_category_and_task_and_start_over(make_group: Any) -> None:
    breakdown = Breakdown()
    breakdown.observe(make_group([1.0, 0.0], task="gcd", category="arithmetic", level=2))
    breakdown.observe(make_group([1.0, 1.0], task="lcm", category="arithmetic"))
    breakdown.observe(make_group([0.0, 0.0], task="maze", category="games"))
    values = breakdown.drain()
    assert values["train_category/arithmetic/signal_share"] == 0.5
    assert values["train_category/arithmetic/percent_correct"] == 0.75
    assert values["train_category/games/groups"] == 1.0
    assert values["train_task/gcd/percent_correct"] == 0.5
    assert values["train_task/gcd/level"] == 2.0
    assert "train_task/lcm/level" not in values
    assert breakdown.drain().keys() == {"train/effective_tasks"}


def test_the_effective_number_of_tasks_is_of_the_last_groups(make_group: Any) -> None:
    breakdown = Breakdown()
    assert breakdown.drain() == {}
    for number in range(4):
        breakdown.observe(make_group([1.0], task=f"task_{number}"))
    assert breakdown.effective_tasks == pytest.approx(4.0)
    group = make_group([1.0], task="gcd")
    for _ in range(DIVERSITY_WINDOW):
        breakdown.observe(group)
    assert breakdown.effective_tasks == pytest.approx(1.0)


def test_what_we_failed_to_score_is_not_counted_as_wrong(make_group: Any) -> None:
    breakdown = Breakdown()
    group = make_group([1.0, 0.0], task="gcd", category="arithmetic")
    lost = replace(group.rollouts[1], score=Score(0.0, Outcome.TIMEOUT))
    breakdown.observe(replace(group, rollouts=[group.rollouts[0], lost]))
    breakdown.observe(replace(group, rollouts=[lost], problem=replace(group.problem, task="maze")))
    values = breakdown.drain()
    assert values["train_task/gcd/percent_correct"] == 1.0
    assert "train_task/maze/percent_correct" not in values
