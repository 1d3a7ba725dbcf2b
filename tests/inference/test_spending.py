"""What will be asked is said before, what was spent after, and a limit ends the asking."""

from __future__ import annotations

import pytest

from reasoning_gym_environment import ReasoningGymEnvConfig
from reasoning_gym_environment.inference.client import Spending
from reasoning_gym_environment.records import Completion

TWO = [Completion("a", [0] * (100 + size), [-100] * 100 + [0] * size, None, "stop") for size in (300, 500)]


def test_a_plan_an_expectation_and_a_total_in_tokens_and_money() -> None:
    spending = Spending((0.5, 2.0))
    assert spending.plan(1000, 2_000_000, 8_000_000) == (
        "To ask: 1,000 requests, 2,000,000 prompt tokens, at most 8,000,000 completion tokens (at most 17.00)."
    )
    assert spending.expected(100) == ""
    spending.note(100, TWO)
    assert spending.expected(2000) == "800 of ~800.0k tokens, 0.0016 of ~1.65"
    assert spending.total() == "Spent: 1 requests, 100 prompt and 800 completion tokens (0.0016)."


def test_without_a_price_there_is_no_money_and_without_a_limit_no_end() -> None:
    spending = Spending()
    spending.note(100, TWO)
    assert spending.plan(1, 2, 3) == "To ask: 1 requests, 2 prompt tokens, at most 3 completion tokens."
    assert spending.expected(2) == "800 of ~800 tokens"
    assert not spending.is_over


def test_a_limit_counts_prompts_and_completions() -> None:
    for limit, is_over in ((901, False), (900, True)):
        spending = Spending(limit_tokens=limit)
        spending.note(100, TWO)
        assert spending.is_over is is_over


def test_what_is_under_way_counts_with_its_prompt_and_completions_of_the_mean_length() -> None:
    spending = Spending(limit_tokens=2500)
    with spending.under_way(1300, 9), spending.under_way(1199, 9):
        assert not spending.is_over
        with spending.under_way(1, 1):
            assert spending.is_over
    spending.note(100, TWO)
    with spending.under_way(399, 3):
        assert not spending.is_over
        with pytest.raises(ValueError), spending.under_way(1, 0):
            assert spending.is_over
            raise ValueError
    assert not spending.is_over


def test_a_price_is_two_numbers() -> None:
    assert ReasoningGymEnvConfig(price_per_million="0.3,1.2").price_per_million == (0.3, 1.2)
    for given in ("0.3", "a,b", "-1,2", "1,2,3", "inf,1", 5):
        with pytest.raises(ValueError, match=r"price_per_million[\s\S]*expected the prices of a million prompt"):
            ReasoningGymEnvConfig(price_per_million=given)
