"""The length penalty, and which sequences carry no advantage."""

from __future__ import annotations

from typing import Any

import pytest

from reasoning_gym_environment.records import Outcome, Score
from reasoning_gym_environment.scoring.rewards import CreditRule, length_penalty, mask_reason, neutral_if_unscored


@pytest.mark.parametrize(
    ("length", "kept"), [(0, 1.0), (750, 1.0), (751, 0.996), (875, 0.5), (999, 0.004), (1000, 0.0), (5000, 0.0)]
)
def test_reward_falls_linearly_from_75_to_100_percent_of_the_limit(length: int, kept: float) -> None:
    penalised, short = length_penalty([1.0, 0.5], [length, 10], 1000)
    assert penalised == pytest.approx(kept)
    assert short == 0.5


def test_partial_credit_is_scaled_not_replaced() -> None:
    assert length_penalty([0.8], [875], 1000) == pytest.approx([0.4])


@pytest.mark.parametrize("lowest", [0.0, 0.499])
def test_one_score_below_half_spares_the_whole_group(lowest: float) -> None:
    assert length_penalty([1.0, lowest], [1000, 1000], 1000) == [1.0, lowest]


def test_scores_of_exactly_half_count_as_correct() -> None:
    assert length_penalty([0.5, 0.5], [1000, 0], 1000) == [0.0, 0.5]


def test_no_values_give_no_rewards() -> None:
    assert length_penalty([], [], 1000) == []


def test_values_are_copied() -> None:
    values = [0.0, 1.0]
    assert length_penalty(values, [1, 1], 1000) is not values


def test_values_and_lengths_must_pair_up() -> None:
    with pytest.raises(ValueError):
        length_penalty([1.0, 1.0], [1], 1000)


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_tiny_limits_do_not_divide_by_zero(limit: int) -> None:
    assert length_penalty([1.0], [limit], limit) == [0.0]


def score(outcome: Outcome) -> Score:
    return Score(0.0, outcome)


def test_an_ordinary_completion_is_not_masked(make_completion: Any) -> None:
    for outcome in Outcome:
        reason = mask_reason(make_completion(length=10), score(outcome), mask_too_long=True)
        assert reason == (None if outcome.is_scored else f"unscored_{outcome.value}")


def test_truncation_masks_only_when_asked(make_completion: Any) -> None:
    cut = make_completion(finish_reason="length")
    assert mask_reason(cut, score(Outcome.WRONG), mask_too_long=True) == "too_long"
    assert mask_reason(cut, score(Outcome.WRONG), mask_too_long=False) is None


@pytest.mark.parametrize(("length", "reason"), [(0, "too_short"), (9, "too_short"), (10, None)])
def test_fewer_than_ten_completion_tokens_are_masked(make_completion: Any, length: int, reason: str | None) -> None:
    assert mask_reason(make_completion(length=length), score(Outcome.CORRECT), mask_too_long=True) == reason


def test_prompt_tokens_do_not_make_a_short_completion_long(make_completion: Any) -> None:
    completion = make_completion(tokens=[0] * 50, masks=[-100] * 45 + [0] * 5)
    assert mask_reason(completion, score(Outcome.CORRECT), mask_too_long=True) == "too_short"


def test_an_unscored_completion_is_named_so_before_its_length(make_completion: Any) -> None:
    cut = make_completion(length=2, finish_reason="length")
    assert mask_reason(cut, score(Outcome.TIMEOUT), mask_too_long=True) == "unscored_timeout"
    assert mask_reason(cut, score(Outcome.WRONG), mask_too_long=True) == "too_long"


def scored(value: float, outcome: Outcome = Outcome.PARTIAL) -> Score:
    return Score(value, outcome)


def test_an_unscored_completion_gets_the_mean_of_the_scored_ones() -> None:
    scores = [scored(1.0), scored(0.0, Outcome.TIMEOUT), scored(0.5)]
    assert neutral_if_unscored(scores, [1.0, 0.0, 0.5]) == [1.0, 0.75, 0.5]


@pytest.mark.parametrize("outcome", [Outcome.TIMEOUT, Outcome.MEMORY, Outcome.CRASHED])
def test_an_unscored_completion_makes_no_signal(outcome: Outcome) -> None:
    rewards = neutral_if_unscored([scored(1.0), scored(0.0, outcome), scored(1.0)], [1.0, 0.0, 1.0])
    assert len(set(rewards)) == 1


def test_a_group_without_any_score_has_rewards_of_zero() -> None:
    assert neutral_if_unscored([scored(0.0, Outcome.CRASHED)] * 2, [0.0, 0.0]) == [0.0, 0.0]


def test_a_wrong_answer_keeps_its_zero() -> None:
    assert neutral_if_unscored([scored(0.0, Outcome.WRONG), scored(1.0)], [0.0, 1.0]) == [0.0, 1.0]


FLOORS = {"jugs": 0.05}


def test_native_credit_is_the_score_itself() -> None:
    rule = CreditRule("native", FLOORS)
    assert [rule.credit("jugs", value) for value in (0.0, 0.05, 0.3, 1.0)] == [0.0, 0.05, 0.3, 1.0]


def test_floor_gives_nothing_for_what_garbage_gets_and_leaves_the_rest() -> None:
    rule = CreditRule("floor", FLOORS)
    assert [rule.credit("jugs", value) for value in (0.01, 0.05, 0.051, 1.0)] == [0.0, 0.0, 0.051, 1.0]
    assert rule.credit("gcd", 0.05) == 0.05


def test_binary_credit_is_all_or_nothing() -> None:
    assert [CreditRule("binary").credit("jugs", value) for value in (0.49, 0.5, 1.0)] == [0.0, 1.0, 1.0]
    assert [CreditRule("binary", threshold=1.0).credit("jugs", value) for value in (0.99, 1.0)] == [0.0, 1.0]


def test_a_completion_we_failed_to_score_does_not_make_equal_scores_differ() -> None:
    scores = [Score(0.3, Outcome.PARTIAL)] * 7 + [Score(0.0, Outcome.TIMEOUT)]
    rewards = neutral_if_unscored(scores, [score.value for score in scores])
    assert rewards == [0.3] * 8
