"""The simulated students, and their fit: python benchmarks/fit_students.py [--student NAME] [--write] > fit.json

    the package's published_students.json (items by number of correct completions, at an easy and a hard config)
        ── fit ──> simulated_students.json: per model and task the logit of the mean accuracy, linear in the ladder
                   level, and the spread between items (--write makes it anew)
        ── SimulatedStudent ──> accuracy and chance of a signal at any level, completions' scores for an item, learning

The fit, for one model and task. An item's success probability is Beta-distributed around the accuracy of its level
with intra-class correlation rho: 0, and every item is as hard as any other; 1, and an item is always or never solved.
The accuracy's logit falls linearly with the level. The posterior mean over a grid is taken of (logit at the easy
config, slope, rho), from the likelihood of the counts at both configs (beta-binomial), a slope that is never
positive (`SLOPE_PRIOR`), and rho's distribution over the model's tasks (empirical Bayes, `RHO_ROUNDS` times). Without a
run at the hard config the slope is the mean of the other models' slopes on that task.

Limits. Two points determine a line and cannot contradict it. Where both configs lie on nearly the same level
the slope is mostly prior. A config spans wider ranges than a level, so the spread between the items of one level is
overstated. Levels easier than the easy config extrapolate: `line` goes on along the fitted logit, `flat` keeps the
easy config's accuracy. A wrong completion scores the same each time, the mean of the wrong ones, because the source
tells no more: partial credit never makes a simulated signal. Scores are of temperature 0.6, training samples at 1.0.

Printed is how well each fits: the accuracy observed and fitted at both configs, the correlation between completions of
an item, and how much of its ladders lies below the easy config, where the fit extrapolates. With --student, every task
and level of one.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from reasoning_gym_environment.errors import unknown_name

DATA = Path(__file__).with_name("simulated_students.json")
COUNTS = Path(__file__).resolve().parents[1] / "reasoning_gym_environment" / "data" / "published_students.json"
GROUP_SIZE = 8

SLOPE_PRIOR = (-1.2, 1.2)
"""Mean and standard deviation of the change in logit per level, or per third of a ladder of more than four levels."""

LOGIT_PRIOR_SD = 3.0
RHO_ROUNDS = 4

_LOGITS = np.arange(-8.0, 8.01, 0.25)
_SLOPES = np.arange(-5.0, -0.04, 0.1)
_RHOS = np.array([0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])

BelowEasy = Literal["line", "flat"]


@dataclass(frozen=True)
class FittedTask:
    """One model on one task. `easy` is the place of the fitted logit on the ladder, in levels; `slope` is per level."""

    category: str
    levels: int
    easy: float
    logit: float
    slope: float
    rho: float
    wrong_score: float

    def accuracy(self, level: float, gained: float = 0.0) -> float:
        """Mean success probability at a level, after `gained` logits of learning."""
        return sigmoid(self.logit + gained + self.slope * (level - self.easy))


@dataclass(frozen=True)
class Learning:
    """A group that carries a signal raises the logit of its task by `gain`, that of others of its category by a share.

    Growth ends at `ceiling`. A share of the tasks is `stubborn`: nothing is learned there, whatever differs in a group.
    The others learn up to `speeds` times faster or slower than `gain`. Every such group lets all other tasks forget a
    share of what they gained. Rules of thumb to judge a way of choosing by, fitted to nothing.
    """

    gain: float = 0.01
    transfer: float = 0.1
    ceiling: float = 4.0
    stubborn: float = 0.0
    speeds: float = 1.0
    forgets: float = 0.0

    def speed(self, task: str) -> float:
        """How fast a task learns, relative to `gain`: the same for all models."""
        rng = Random(f"speed of {task}")
        return 0.0 if rng.random() < self.stubborn else self.speeds ** rng.uniform(-1.0, 1.0)


class SimulatedModel:
    """One published model. Deterministic but for the random generators it is given."""

    def __init__(self, name: str, tasks: Mapping[str, FittedTask], learning: Learning | None = None) -> None:
        self.name = name
        self.tasks = dict(tasks)
        self._learning = learning
        self._gained = dict.fromkeys(self.tasks, 0.0)
        self._speeds = {task: learning.speed(task) if learning else 0.0 for task in self.tasks}

    def accuracy(self, task: str, level: float) -> float:
        """Mean success probability at a (fractional) level. Raises UnknownNameError for a task without data."""
        return self.fitted(task).accuracy(level, self._gained[task])

    def item_probability(self, task: str, level: float, rng: Random) -> float:
        """The success probability of one item, drawn around the accuracy of its level."""
        a, b = beta_parameters(self.accuracy(task, level), self.fitted(task).rho)
        return rng.betavariate(a, b)

    def learn(self, task: str, has_signal: bool) -> None:
        """Be trained on one group; without `learning` nothing changes."""
        if self._learning is None or not has_signal:
            return
        category = self.fitted(task).category
        for other, fitted in self.tasks.items():
            if fitted.category == category:
                gain = self._speeds[other] * self._learning.gain * (1.0 if other == task else self._learning.transfer)
                self._gained[other] = min(self._learning.ceiling, self._gained[other] + gain)
            if other != task:
                self._gained[other] *= 1.0 - self._learning.forgets

    def fitted(self, task: str) -> FittedTask:
        if task not in self.tasks:
            raise unknown_name(f"task of {self.name}", task, self.tasks)
        return self.tasks[task]


def beta_parameters(mean: float, rho: float) -> tuple[float, float]:
    """Of the Beta distribution with this mean whose draws correlate two completions of an item by `rho`."""
    size = 1.0 / rho - 1.0
    mean = min(max(mean, 1e-6), 1.0 - 1e-6)
    return mean * size, (1.0 - mean) * size


def sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else math.exp(x) / (1.0 + math.exp(x))


def fitted_tasks() -> dict[str, dict[str, FittedTask]]:
    """The fitted numbers by model and task."""
    data = json.loads(DATA.read_text(encoding="utf-8"))
    places = data["tasks"]
    return {
        name.removeprefix("models/"): {task: FittedTask(*places[task], *numbers) for task, numbers in table.items()}
        for name, table in data.items()
        if name.startswith("models/")
    }


class SimulatedStudent(SimulatedModel):
    """A model that answers whole groups."""

    def __init__(
        self,
        name: str,
        tasks: Mapping[str, FittedTask],
        *,
        below_easy: BelowEasy = "line",
        learning: Learning | None = None,
    ) -> None:
        super().__init__(name, tasks, learning)
        self._is_flat = below_easy == "flat"

    def accuracy(self, task: str, level: float) -> float:
        return super().accuracy(task, max(level, self.fitted(task).easy) if self._is_flat else level)

    def scores(self, task: str, level: float, group_size: int, rng: Random) -> list[float]:
        """The scores of a group of completions for a new item."""
        probability = self.item_probability(task, level, rng)
        wrong = self.fitted(task).wrong_score
        return [1.0 if rng.random() < probability else wrong for _ in range(group_size)]

    def signal(self, task: str, level: float, group_size: int) -> float:
        """The chance that a group for a new item has both right and wrong completions."""
        return signal_probability(self.accuracy(task, level), self.fitted(task).rho, group_size)


def signal_probability(mean: float, rho: float, group_size: int) -> float:
    """1 - E[q^n + (1-q)^n], q Beta-distributed: the beta-binomial chance of neither all nor none."""
    a, b = beta_parameters(mean, rho)
    all_right = all_wrong = 1.0
    for drawn in range(group_size):
        all_right *= (a + drawn) / (a + b + drawn)
        all_wrong *= (b + drawn) / (a + b + drawn)
    return 1.0 - all_right - all_wrong


def load_students(*, below_easy: BelowEasy = "line", learning: Learning | None = None) -> dict[str, SimulatedStudent]:
    """The nine students by model name, each new and untrained."""
    return {
        name: SimulatedStudent(name, tasks, below_easy=below_easy, learning=learning)
        for name, tasks in sorted(fitted_tasks().items())
    }


# --- the fit


def fit(data: Mapping[str, Any]) -> dict[str, dict[str, FittedTask]]:
    """Every model on every task it was asked, from the published counts."""
    places = data["tasks"]
    models = {key.removeprefix("models/"): value for key, value in data.items() if key.startswith("models/")}
    fits = {name: _fit_model(facts, places, {}) for name, facts in models.items()}
    slopes: dict[str, list[float]] = {}
    for name, facts in models.items():
        for task, runs in facts.items():
            if len(runs) > 1:
                slopes.setdefault(task, []).append(fits[name][task].slope)
    usual = {task: float(np.mean(found)) for task, found in slopes.items()}
    for name, facts in models.items():
        without = {task: runs for task, runs in facts.items() if len(runs) == 1 and task in usual}
        if without:
            fits[name].update(_fit_model(without, places, usual))
    return fits


def _fit_model(
    facts: Mapping[str, Any], places: Mapping[str, Any], usual_slopes: Mapping[str, float]
) -> dict[str, FittedTask]:
    """All tasks of one model; a task in `usual_slopes` has that slope (per level)."""
    easy = {task: np.tensordot(_count_likelihood(), np.array(runs[0][0], float), 1) for task, runs in facts.items()}
    rho_prior = np.full(len(_RHOS), -math.log(len(_RHOS)))
    for _ in range(RHO_ROUNDS):
        shares = [_normalised(table + _logit_prior()[:, None] + rho_prior).sum(axis=0) for table in easy.values()]
        rho_prior = np.log(np.mean(shares, axis=0) + 1e-9)
    return {
        task: _fit_task(places[task], runs, easy[task] + rho_prior, usual_slopes.get(task))
        for task, runs in facts.items()
    }


def _fit_task(
    place: Mapping[str, Any], runs: Sequence[Any], easy_likelihood: np.ndarray, usual_slope: float | None
) -> FittedTask:
    """Posterior means over the grid; `easy_likelihood` is by (logit, rho), rho's prior included."""
    unit = max(1.0, (place["levels"] - 1) / 3.0)
    mean, sd = SLOPE_PRIOR
    slope_prior = -0.5 * ((_SLOPES - mean) / sd) ** 2
    at_hard = np.zeros((len(_LOGITS), len(_SLOPES)))
    easy, hard = _places(place)
    if len(runs) > 1:
        wrong, right = runs[1][0]
        logits = _LOGITS[:, None] + _SLOPES * (hard - easy) / unit
        at_hard = -right * np.logaddexp(0.0, -logits) - wrong * np.logaddexp(0.0, logits)
    by_rho = _normalised(
        easy_likelihood + _logit_prior()[:, None] + np.logaddexp.reduce(at_hard + slope_prior, axis=1)[:, None]
    )
    by_logit = np.logaddexp.reduce(easy_likelihood, axis=1) + _logit_prior()
    joint = _normalised(by_logit[:, None] + at_hard + slope_prior)
    slope = float((joint.sum(axis=0) * _SLOPES).sum()) / unit
    return FittedTask(
        category=place["category"],
        levels=place["levels"],
        easy=easy,
        logit=float((joint.sum(axis=1) * _LOGITS).sum()),
        slope=slope if usual_slope is None else usual_slope,
        rho=float((by_rho.sum(axis=0) * _RHOS).sum()),
        wrong_score=_wrong_score(*runs[0]),
    )


def _places(place: Mapping[str, Any]) -> tuple[float, float]:
    """Of the easy and the hard config; one that no field tells lies a level from the other, or on the first level."""
    easy, hard = place.get("easy"), place.get("hard")
    if easy is None:
        easy = max(0.0, hard - 1.0) if hard is not None else 0.0
    return float(easy), float(easy if hard is None else hard)


def _wrong_score(counts: Sequence[int], mean_score: float) -> float:
    """The mean score of the completions that count as wrong (under 0.5), if those that count as right scored 1."""
    completions = (len(counts) - 1) * sum(counts)
    right = sum(correct * items for correct, items in enumerate(counts)) / max(1, completions)
    return min(0.49, max(0.0, (mean_score - right) / (1.0 - right))) if right < 1.0 else 0.0


@functools.cache
def _count_likelihood() -> np.ndarray:
    """Log probability of k of three correct completions, by (logit, rho, k)."""
    table = np.zeros((len(_LOGITS), len(_RHOS), 4))
    for i, logit in enumerate(_LOGITS):
        for j, rho in enumerate(_RHOS):
            a, b = beta_parameters(sigmoid(float(logit)), float(rho))
            for k in range(4):
                ways = math.log(math.comb(3, k))
                table[i, j, k] = ways + _log_beta(a + k, b + 3 - k) - _log_beta(a, b)
    return table


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _logit_prior() -> np.ndarray:
    return np.asarray(-0.5 * (_LOGITS / LOGIT_PRIOR_SD) ** 2)


def _normalised(log_weights: np.ndarray) -> np.ndarray:
    weights = np.exp(log_weights - log_weights.max())
    return np.asarray(weights / weights.sum())


# --- how well it fits


def accuracy_of(counts: list[int]) -> float:
    """The share of correct completions in counts of items by number of correct completions."""
    return sum(right * items for right, items in enumerate(counts)) / ((len(counts) - 1) * sum(counts))


def fit_of(student: SimulatedStudent, runs: dict[str, Any], places: dict[str, Any]) -> dict[str, Any]:
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


def curves(student: SimulatedStudent) -> dict[str, Any]:
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


def write(data: Mapping[str, Any]) -> None:
    """The fitted numbers, one line per task of a model, so that the file can be read and compared."""
    models = fit(data)
    tasks = {task: fitted for table in models.values() for task, fitted in table.items()}
    places = {task: [one.category, one.levels, one.easy] for task, one in sorted(tasks.items())}
    tables: dict[str, Any] = {"tasks": places}
    for name, table in sorted(models.items()):
        numbers = {task: (one.logit, one.slope, one.rho, one.wrong_score) for task, one in table.items()}
        tables[f"models/{name}"] = {task: [round(number, 5) for number in row] for task, row in numbers.items()}
    head = {
        "source": data["source"],
        "license": data["license"],
        "fitted": "by benchmarks/fit_students.py from published_students.json; of a task: category, levels, place of "
        "the easy config; of a model on it: logit there, slope per level, correlation of an item's completions, score "
        "when wrong",
    }
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    for key, rows in tables.items():
        text = ",\n".join(f"  {json.dumps(task)}: {json.dumps(row)}" for task, row in rows.items())
        lines.append(f"{json.dumps(key)}: {{\n{text}\n}}")
    DATA.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def main() -> None:
    data = json.loads(COUNTS.read_text(encoding="utf-8"))
    names = sorted(key.removeprefix("models/") for key in data if key.startswith("models/"))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--student", choices=names, help="print this one's curves")
    parser.add_argument("--write", action="store_true", help="fit anew, and replace the numbers that the package ships")
    parser.add_argument("--quick", action="store_true", help="the same: it takes a second")
    options = parser.parse_args()
    if options.write:
        write(data)
    students = load_students()
    if options.student:
        print(json.dumps(curves(students[options.student]), indent=1))
        return
    report = {name: fit_of(one, data[f"models/{name}"], data["tasks"]) for name, one in students.items()}
    print(json.dumps({"source": data["source"], "students": report}, indent=1))


if __name__ == "__main__":
    main()
