"""What rewards are made of, by rule, category, level and outcome."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from reasoning_gym_environment.records import Outcome, Rollout, Score
from reasoning_gym_environment.scoring.rewards import CreditRule
from reasoning_gym_environment.training_log.metrics import RewardParts


def test_the_parts_add_up_to_the_reward(make_group: Any) -> None:
    group = make_group([1.0, 0.2, 0.0])
    penalised = dataclasses.replace(group.rollouts[0], reward=0.4)
    lowered = dataclasses.replace(group.rollouts[1], reward=0.0)
    group = dataclasses.replace(group, rollouts=[penalised, lowered, group.rollouts[2]])
    parts = RewardParts()
    parts.observe(group, CreditRule("binary"))
    values = parts.drain()
    assert values["train_reward/score"] == pytest.approx(0.4)
    assert values["train_reward/partial_credit"] == pytest.approx(-0.2 / 3)
    assert values["train_reward/length_penalty"] == pytest.approx(-0.2)
    assert values["train_reward/total"] == pytest.approx(0.4 / 3)


def test_rewards_stand_by_category_level_and_outcome_and_start_over(make_group: Any) -> None:
    parts = RewardParts()
    parts.observe(make_group([1.0, 0.0], level=2), CreditRule())
    parts.observe(make_group([1.0, 1.0], category="games"), CreditRule())
    values = parts.drain()
    assert values["train_reward/category/arithmetic"] == 0.5
    assert values["train_reward/category/games"] == 1.0
    assert values["train_reward/level/2"] == 0.5
    assert (values["train_reward/outcome/correct"], values["train_reward/outcome/wrong"]) == (1.0, 0.0)
    assert [key for key in values if "/level/" in key] == ["train_reward/level/2"]
    assert parts.drain() == {}


def test_what_we_failed_to_score_has_no_part(make_group: Any, make_completion: Any) -> None:
    unscored = Rollout(make_completion(), Score(0.0, Outcome.TIMEOUT), reward=0.5)
    parts = RewardParts()
    parts.observe(dataclasses.replace(make_group([1.0]), rollouts=[unscored]), CreditRule())
    assert parts.drain() == {}
