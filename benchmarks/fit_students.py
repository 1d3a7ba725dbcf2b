"""How well the simulated students fit their data: python benchmarks/students.py [--student NAME] > fit.json

The students themselves are in reasoning_gym_environment/students.py, which also says what the fit is and is not. For
each: the accuracy observed and fitted at both configs, the correlation between completions of an item, and how much of
its ladders lies below the easy config, where the fit extrapolates. With --student, every task and level of one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from reasoning_gym_environment.demo.simulated_students import DATA, Student, load_students

GROUP_SIZE = 8


def accuracy_of(counts: list[int]) -> float:
    """The share of correct completions in counts of items by number of correct completions."""
    return sum(right * items for right, items in enumerate(counts)) / ((len(counts) - 1) * sum(counts))


def fit_of(student: Student, runs: dict[str, Any], places: dict[str, Any]) -> dict[str, Any]:
    """Observed against fitted, over the tasks of one student."""
    easy = [(accuracy_of(run[0][0]), student.accuracy(task, student.tasks[task].easy)) for task, run in runs.items()]
    hard = [
        (accuracy_of(run[1][0]), student.accuracy(task, places[task]["hard"]))
        for task, run in runs.items()
        if len(run) > 1 and places[task].get("hard") is not None
    ]
    below = [level < fitted.easy for fitted in student.tasks.values() for level in range(fitted.levels)]
    signals = [student.signal(task, fitted.easy, GROUP_SIZE) for task, fitted in student.tasks.items()]
    return {
        "tasks": len(student.tasks),
        "tasks_with_a_hard_run": len(hard),
        "easy_accuracy_observed": mean(observed for observed, _ in easy),
        "easy_accuracy_fitted": mean(fitted for _, fitted in easy),
        "easy_mean_absolute_error": mean(abs(observed - fitted) for observed, fitted in easy),
        "hard_mean_absolute_error": mean(abs(observed - fitted) for observed, fitted in hard),
        "median_correlation_of_an_items_completions": round(
            statistics.median(fitted.rho for fitted in student.tasks.values()), 3
        ),
        "median_slope_per_level": round(statistics.median(fitted.slope for fitted in student.tasks.values()), 3),
        "share_of_levels_below_the_easy_config": mean(below),
        "signal_of_uniform_draws_at_the_easy_config": mean(signals),
    }


def mean(values: Any) -> float | None:
    found = list(values)
    return round(statistics.fmean(found), 4) if found else None


def curves(student: Student) -> dict[str, Any]:
    """Accuracy and chance of a signal at every level of every task."""
    return {
        task: {
            "easy_config_at_level": fitted.easy,
            "accuracy": [round(student.accuracy(task, level), 4) for level in range(fitted.levels)],
            "signal": [round(student.signal(task, level, GROUP_SIZE), 4) for level in range(fitted.levels)],
            "correlation": round(fitted.rho, 3),
            "score_when_wrong": round(fitted.wrong_score, 3),
        }
        for task, fitted in student.tasks.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--student", choices=sorted(load_students()), help="print this one's curves")
    parser.add_argument("--quick", action="store_true", help="the same: it takes a second")
    chosen = parser.parse_args().student
    students = load_students()
    if chosen:
        print(json.dumps(curves(students[chosen]), indent=1))
        return
    data = json.loads(DATA.read_text(encoding="utf-8"))
    report = {name: fit_of(one, data[f"models/{name}"], data["tasks"]) for name, one in students.items()}
    print(json.dumps({"source": data["source"], "students": report}, indent=1))


if __name__ == "__main__":
    main()
