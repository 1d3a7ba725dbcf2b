"""Credit, the length penalty, and which sequences carry no advantage."""

from __future__ import annotations

from typing import Any

import pytest

from reasoning_gym_environment.records import Outcome, Score
from reasoning_gym_environment.scoring.rewards import (
    base_reward,
    length_penalty,
    mask_reason,
    neutral_if_unscored,
    rollouts_of,
)


def test_a_right_answer_is_paid_and_a_wrong_one_what_reasoning_gym_pays_or_nothing() -> None:
    for value, native, exactly, natively in (
        (1.0, 1.0, 1.0, 1.0),
        (1.0, 0.3, 1.0, 1.0),
        (0.0, 0.3, 0.0, 0.3),
        (0.3, 0.3, 0.0, 0.3),
        (0.0, 1.0, 0.0, 0.0),
        (0.0, 0.0, 0.0, 0.0),
        (0.0, None, 0.0, 0.0),
    ):
        score = Score(value, Outcome.PARTIAL, native=native)
        assert (base_reward(score, "exact"), base_reward(score, "native")) == (exactly, natively)


def test_reward_falls_linearly_from_75_to_100_percent_of_the_limit() -> None:
    lengths = {0: 1.0, 750: 1.0, 751: 0.996, 875: 0.5, 999: 0.004, 1000: 0.0, 5000: 0.0}
    kept = length_penalty([1.0] * len(lengths), list(lengths), 1000)
    assert kept == pytest.approx(list(lengths.values()))
    assert length_penalty([0.8, 0.5], [875, 10], 1000) == pytest.approx([0.4, 0.5]), "partial credit is scaled"
    for limit in (1, 2, 3, 7):
        assert length_penalty([1.0], [limit], limit) == [0.0]


def test_one_score_below_half_spares_the_whole_group() -> None:
    for lowest in (0.0, 0.499):
        assert length_penalty([1.0, lowest], [1000, 1000], 1000) == [1.0, lowest]
    assert length_penalty([0.5, 0.5], [1000, 0], 1000) == [0.0, 0.5]
    assert length_penalty([], [], 1000) == []
    with pytest.raises(ValueError):
        length_penalty([1.0, 1.0], [1], 1000)


@pytest.mark.parametrize(
    ("fields", "outcome", "reason"),
    [
        ({"length": 1}, Outcome.CORRECT, None),
        ({"length": 0}, Outcome.CORRECT, "empty"),
        # The prompt is no part of the completion.
        ({"tokens": [0] * 50, "masks": [-100] * 50}, Outcome.CORRECT, "empty"),
        ({"finish_reason": "length"}, Outcome.WRONG, "too_long"),
        ({"length": 2, "finish_reason": "length"}, Outcome.WRONG, "too_long"),
        ({"length": 2, "finish_reason": "length"}, Outcome.TIMEOUT, "unscored_timeout"),
        ({}, Outcome.MEMORY, "unscored_memory"),
        ({}, Outcome.CRASHED, "unscored_crashed"),
        ({}, Outcome.VERIFIER_ERROR, None),
        ({}, Outcome.NO_ANSWER, None),
    ],
)
def test_what_is_cut_off_empty_or_unscored_carries_no_advantage(
    make_completion: Any, fields: dict[str, Any], outcome: Outcome, reason: str | None
) -> None:
    completion, score = make_completion(**fields), Score(0.0, outcome)
    assert mask_reason(completion, score, mask_too_long=True) == reason
    if reason == "too_long":
        assert mask_reason(completion, score, mask_too_long=False) is None


@pytest.mark.parametrize("lost", [Outcome.TIMEOUT, Outcome.MEMORY, Outcome.CRASHED])
def test_an_unscored_completion_gets_the_mean_of_the_scored_ones(lost: Outcome) -> None:
    def neutral(*values: float | None) -> list[float]:
        scores = [Score(value or 0.0, lost if value is None else Outcome.PARTIAL) for value in values]
        return neutral_if_unscored(scores, [score.value for score in scores])

    assert neutral(1.0, None, 0.5) == [1.0, 0.75, 0.5]
    assert neutral(0.0, 1.0) == [0.0, 1.0]
    assert neutral(None, None) == [0.0, 0.0]
    assert neutral(*[0.3] * 7, None) == [0.3] * 8, "a mean that is off in the last digit would look like a signal"


def test_a_rollout_has_its_credit_and_the_reward_made_from_it(make_completion: Any) -> None:
    lengths = (8, 847, 0, 997)
    completions = [make_completion(str(length), length=length) for length in lengths]
    scores = [Score(value, Outcome.CORRECT) for value in (1.0, 1.0)]
    scores += [Score(1.0, Outcome.CORRECT), Score(0.0, Outcome.TIMEOUT)]
    made = rollouts_of(completions, scores, "exact", 1000, True)
    assert [(rollout.completion, rollout.score) for rollout in made] == list(zip(completions, scores, strict=True))
    assert [rollout.base_reward for rollout in made] == [1.0, 1.0, 1.0, 0.0]
    assert [rollout.reward for rollout in made] == pytest.approx([1.0, 0.6, 1.0, 2.6 / 3])
    assert [rollout.mask_reason for rollout in made] == [None, None, "empty", "unscored_timeout"]
