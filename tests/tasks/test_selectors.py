from __future__ import annotations

from typing import Any

import pytest

from reasoning_gym_environment.errors import EnvironmentSetupError, UnknownNameError
from reasoning_gym_environment.tasks import selectors

CATEGORIES = {
    "basic_arithmetic": "arithmetic",
    "countdown": "games",
    "decimal_arithmetic": "arithmetic",
    "maze": "games",
    "simple_equations": "algebra",
    "syllogism": "logic",
}


def test_selector_stands_for_its_tasks() -> None:
    for selector, expected in (
        ("countdown", {"countdown"}),
        ("[cm]*", {"countdown", "maze"}),
        ("category: games", {"countdown", "maze"}),
        ("category:a*", {"basic_arithmetic", "decimal_arithmetic", "simple_equations"}),
    ):
        assert selectors.matching(selector, CATEGORIES) == expected


def test_selector_that_matches_nothing_fails_with_the_nearest() -> None:
    for selector, message in (
        ("countdwn", r"Unknown task 'countdwn'. Did you mean countdown\?"),
        ("*_aritmetic", r"No task matches '\*_aritmetic'. Nearest tasks: .*_arithmetic"),
        ("category:logik", r"Unknown category 'logik'. Did you mean logic\? .*algebra, arithmetic, games, logic"),
        ("logic", r"Unknown task 'logic'.* write category:logic"),
    ):
        with pytest.raises(UnknownNameError, match=message):
            selectors.matching(selector, CATEGORIES)


def test_the_most_precise_weight_wins_and_then_the_later_one() -> None:
    given: list[tuple[dict[str, float], float]] = [
        ({"countdown": 5.0, "category:games": 2.0, "c*": 3.0}, 5.0),
        ({"category:games": 2.0, "c*": 3.0}, 3.0),
        ({"c*": 3.0, "category:games": 2.0}, 2.0),
        ({"maze": 3.0}, 1.0),
    ]
    for weights, expected in given:
        assert selectors.resolve_weights(weights, CATEGORIES)["countdown"] == expected


@pytest.mark.parametrize("weight", [-0.5, float("nan"), float("inf"), True, None, "heavy", [1], 10**400])
def test_weight_that_is_not_a_finite_number_from_zero_is_refused_by_name(weight: Any) -> None:
    with pytest.raises(EnvironmentSetupError, match="the weight of 'maze' must be a finite number >= 0"):
        selectors.resolve_weights({"maze": weight}, CATEGORIES)
    with pytest.raises(ValueError, match="the weight of 'maze' must be a finite number >= 0"):
        selectors.parse_weights({"maze": weight})


def test_weights_are_read_from_text_lists_and_mappings() -> None:
    given: list[tuple[Any, dict[str, float]]] = [
        (None, {}),
        ("", {}),
        ("countdown=2.0", {"countdown": 2.0}),
        ("countdown = 2, category:logic=0.5,", {"countdown": 2.0, "category:logic": 0.5}),
        (["countdown=2", "maze=0,s*=1e1"], {"countdown": 2.0, "maze": 0.0, "s*": 10.0}),
        ({" countdown ": 2, "maze": "0.5"}, {"countdown": 2.0, "maze": 0.5}),
    ]
    for value, expected in given:
        parsed = selectors.parse_weights(value)
        assert parsed == expected and list(parsed) == list(expected)


def test_names_are_split_stripped_and_unique() -> None:
    for value in (None, ""):
        assert selectors.parse_names(value) == []
    assert selectors.parse_names(" a , b,,a") == ["a", "b"]
    assert selectors.parse_names(["a,b", " c "]) == ["a", "b", "c"]
    assert selectors.parse_names(("category:logic",)) == ["category:logic"]
    with pytest.raises(ValueError, match=r"expected names as text, got 3 \(int\)"):
        selectors.parse_names(["a", 3])  # type: ignore[list-item]
