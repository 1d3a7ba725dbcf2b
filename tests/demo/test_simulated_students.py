"""The simulated students are like the models they were fitted to."""

from __future__ import annotations

import json
from random import Random

import pytest

from reasoning_gym_environment.demo.simulated_students import (
    DATA,
    FittedTask,
    Learning,
    Student,
    beta_parameters,
    load_students,
    signal_probability,
)
from reasoning_gym_environment.errors import UnknownNameError

FACTS = json.loads(DATA.read_text(encoding="utf-8"))
TASK = FittedTask("logic", levels=4, easy=1.0, logit=0.0, slope=-1.0, rho=0.3, wrong_score=0.05)


def student(**options: object) -> Student:
    return Student("someone", {"maze": TASK, "gcd": TASK}, **options)  # type: ignore[arg-type]


def test_there_are_nine_and_the_data_says_where_it_is_from() -> None:
    assert len(load_students()) == 9
    assert "reasoning-gym-eval" in FACTS["source"] and FACTS["license"] == "Apache-2.0"


@pytest.mark.parametrize("name", sorted(load_students()))
def test_the_fit_goes_through_what_was_observed(name: str) -> None:
    errors = []
    for task, runs in FACTS[f"models/{name}"].items():
        counts, _ = runs[0]
        observed = sum(right * items for right, items in enumerate(counts)) / (3 * sum(counts))
        errors.append(abs(observed - load_students()[name].accuracy(task, load_students()[name].tasks[task].easy)))
    assert sum(errors) / len(errors) < 0.04


@pytest.mark.parametrize("below_easy", ["line", "flat"])
def test_harder_levels_are_never_easier(below_easy: str) -> None:
    for one in load_students(below_easy=below_easy).values():  # type: ignore[arg-type]
        for task, fitted in one.tasks.items():
            accuracies = [one.accuracy(task, level) for level in range(fitted.levels)]
            assert accuracies == sorted(accuracies, reverse=True)
            assert 0.0 < fitted.rho < 1.0 and 0.0 <= fitted.wrong_score < 0.5


def test_below_the_easy_config_the_line_goes_on_or_stays_flat() -> None:
    assert student().accuracy("maze", 0) == pytest.approx(0.731, abs=0.001)
    assert student(below_easy="flat").accuracy("maze", 0) == 0.5
    assert student().accuracy("maze", 2) == student(below_easy="flat").accuracy("maze", 2) < 0.5


def test_the_chance_of_a_signal_is_that_of_the_simulated_groups() -> None:
    one, rng = student(), Random(5)
    groups = [one.scores("maze", 1, 8, rng) for _ in range(4000)]
    share = sum(len(set(group)) > 1 for group in groups) / len(groups)
    assert one.signal("maze", 1, 8) == pytest.approx(share, abs=0.03)
    accuracy = sum(score == 1.0 for group in groups for score in group) / (8 * len(groups))
    assert accuracy == pytest.approx(0.5, abs=0.03)
    assert {score for group in groups for score in group} == {1.0, 0.05}


def test_items_that_agree_with_themselves_give_less_signal() -> None:
    shares = [signal_probability(0.5, rho, 8) for rho in (0.001, 0.3, 0.6, 0.999)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == pytest.approx(1 - 2 * 0.5**8, abs=0.01) and shares[-1] < 0.01
    a, b = beta_parameters(0.25, 0.5)
    assert (a / (a + b), 1 / (a + b + 1)) == pytest.approx((0.25, 0.5))


def test_a_model_without_a_hard_run_falls_as_the_others_do() -> None:
    students = load_students()
    own = students["anthropic_claude-sonnet-4"].tasks["dice"].slope
    others = [one.tasks["dice"].slope for name, one in students.items() if name != "anthropic_claude-sonnet-4"]
    assert own == pytest.approx(sum(others) / len(others))


def test_learning_raises_the_task_and_its_category_up_to_a_ceiling() -> None:
    one = student(learning=Learning(gain=1.0, transfer=0.5, ceiling=1.5))
    one.learn("maze", False)
    assert one.accuracy("maze", 1) == 0.5
    one.learn("maze", True)
    assert one.accuracy("maze", 1) == pytest.approx(0.731, abs=0.001)
    assert one.accuracy("gcd", 1) == pytest.approx(0.622, abs=0.001)
    for _ in range(10):
        one.learn("maze", True)
    assert one.accuracy("maze", 1) == pytest.approx(0.818, abs=0.001)


def test_without_learning_nothing_changes() -> None:
    one = student()
    one.learn("maze", True)
    assert one.accuracy("maze", 1) == 0.5


def test_unknown_tasks_and_rules_are_errors() -> None:
    with pytest.raises(UnknownNameError, match="mazes"):
        student().accuracy("mazes", 0)
    with pytest.raises(ValueError, match="below_easy must be one of line, flat"):
        student(below_easy="curve")
