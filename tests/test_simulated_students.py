"""The simulated models are like those they were fitted to."""

from __future__ import annotations

import json
from random import Random

import pytest

from benchmarks.fit_students import (
    COUNTS,
    FittedTask,
    Learning,
    SimulatedStudent,
    accuracy_of,
    beta_parameters,
    fit,
    fitted_tasks,
    load_students,
    signal_probability,
)
from reasoning_gym_environment.errors import UnknownNameError

FACTS = json.loads(COUNTS.read_text(encoding="utf-8"))
TASK = FittedTask("logic", levels=4, easy=1.0, logit=0.0, slope=-1.0, rho=0.3, wrong_score=0.05)


def student(**options: object) -> SimulatedStudent:
    return SimulatedStudent("someone", {"maze": TASK, "gcd": TASK}, **options)  # type: ignore[arg-type]


def test_the_shipped_numbers_are_what_the_fit_gives() -> None:
    assert "reasoning-gym-eval" in FACTS["source"] and FACTS["license"] == "Apache-2.0"
    anew, shipped = fit(FACTS), fitted_tasks()
    assert len(shipped) == 9 and shipped.keys() == anew.keys()
    for name, tasks in shipped.items():
        assert tasks.keys() == anew[name].keys()
        for task, fitted in tasks.items():
            assert (fitted.category, fitted.levels) == (anew[name][task].category, anew[name][task].levels)
            assert list(vars(fitted).values())[2:] == pytest.approx(list(vars(anew[name][task]).values())[2:], abs=1e-5)


def test_the_fit_goes_through_what_was_observed_and_harder_levels_are_never_easier() -> None:
    for below_easy in ("line", "flat"):
        for name, one in load_students(below_easy=below_easy).items():  # type: ignore[arg-type]
            runs = FACTS[f"models/{name}"]
            errors = [accuracy_of(runs[task][0][0]) - one.accuracy(task, one.tasks[task].easy) for task in runs]
            assert sum(map(abs, errors)) / len(errors) < 0.04
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
    slopes = {name: tasks["dice"].slope for name, tasks in fitted_tasks().items()}
    own = slopes.pop("anthropic_claude-sonnet-4")
    assert own == pytest.approx(sum(slopes.values()) / len(slopes), abs=1e-4)


def test_learning_raises_the_task_and_its_category_up_to_a_ceiling() -> None:
    one, fixed = student(learning=Learning(gain=1.0, transfer=0.5, ceiling=1.5)), student()
    one.learn("maze", False)
    fixed.learn("maze", True)
    assert one.accuracy("maze", 1) == fixed.accuracy("maze", 1) == 0.5
    one.learn("maze", True)
    assert one.accuracy("maze", 1) == pytest.approx(0.731, abs=0.001)
    assert one.accuracy("gcd", 1) == pytest.approx(0.622, abs=0.001)
    for _ in range(10):
        one.learn("maze", True)
    assert one.accuracy("maze", 1) == pytest.approx(0.818, abs=0.001)


def test_stubborn_tasks_learn_nothing_and_what_is_not_trained_is_forgotten() -> None:
    stuck = student(learning=Learning(gain=1.0, stubborn=1.0))
    stuck.learn("maze", True)
    assert stuck.accuracy("maze", 1) == 0.5
    learning = Learning(gain=1.0, transfer=0.0, speeds=3.0, forgets=0.5)
    assert 1 / 3 <= learning.speed("maze") <= 3.0 and learning.speed("maze") != learning.speed("gcd")
    one = student(learning=learning)
    one.learn("maze", True)
    before = one.accuracy("maze", 1)
    one.learn("gcd", True)
    assert 0.5 < one.accuracy("maze", 1) < before


def test_a_task_without_data_is_an_error() -> None:
    with pytest.raises(UnknownNameError, match="mazes"):
        student().accuracy("mazes", 0)
