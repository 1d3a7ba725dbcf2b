from __future__ import annotations

import pytest

from reasoning_gym_environment.errors import UnknownNameError
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
        ("category:math", {"basic_arithmetic", "decimal_arithmetic", "simple_equations"}),
        ("all", set(CATEGORIES)),
    ):
        assert selectors.matching(selector, CATEGORIES) == expected


def test_selector_that_matches_nothing_fails_with_the_nearest() -> None:
    for selector, message in (
        ("countdwn", r"Unknown task 'countdwn'. Did you mean countdown\?"),
        ("*_aritmetic", r"Unknown task '\*_aritmetic'. Did you mean .*_arithmetic"),
        ("category:logik", r"Unknown category 'logik'. Did you mean logic\? .*algebra, arithmetic, games, logic, math"),
        ("logic", r"Unknown task 'logic'.* write category:logic"),
        ("math", r"Unknown task 'math'.* write category:math"),
    ):
        with pytest.raises(UnknownNameError, match=message):
            selectors.matching(selector, CATEGORIES)


def test_no_selector_and_all_mean_every_task() -> None:
    weights = selectors.resolve_weights({}, CATEGORIES)
    for include in ([], ["all"], ["maze", "all"]):
        assert selectors.excluded_tasks(include, [], weights, CATEGORIES) == {}


def test_the_most_precise_weight_wins_and_then_the_later_one() -> None:
    given: list[tuple[dict[str, float], float]] = [
        ({"countdown": 5.0, "category:games": 2.0, "c*": 3.0}, 5.0),
        ({"category:games": 2.0, "c*": 3.0}, 3.0),
        ({"c*": 3.0, "category:games": 2.0}, 2.0),
        ({"maze": 3.0}, 1.0),
    ]
    for weights, expected in given:
        assert selectors.resolve_weights(weights, CATEGORIES)["countdown"] == expected
