"""Simulated students: how often nine published models solved each task, as a function of its difficulty.

data/published_students.json (items by number of correct completions, at an easy and a hard config)
    ── fit ──> per task: logit of the mean accuracy, linear in the ladder level; spread between items
    ── Student ──> accuracy and chance of a signal at any level, completions' scores for an item, learning

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
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal, get_args

import numpy as np

from ..errors import unknown_name

DATA = Path(__file__).resolve().parent.parent / "data" / "published_students.json"

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
    """One model on one task. `easy` is the easy config's place on the ladder, in levels; `slope` is per level."""

    category: str
    levels: int
    easy: float
    logit: float
    slope: float
    rho: float
    wrong_score: float

    def accuracy(self, level: float, below_easy: BelowEasy = "line", gained: float = 0.0) -> float:
        """Mean success probability at a level, after `gained` logits of learning."""
        beyond = level - self.easy
        if below_easy == "flat":
            beyond = max(0.0, beyond)
        return _sigmoid(self.logit + gained + self.slope * beyond)


@dataclass(frozen=True)
class Learning:
    """A group that carries a signal raises the logit of its task by `gain`, that of others of its category by a share.

    Growth ends at `ceiling`. A rule of thumb to see a curriculum follow a model, fitted to nothing.
    """

    gain: float = 0.01
    transfer: float = 0.1
    ceiling: float = 4.0


class Student:
    """One published model. Deterministic but for the random generators it is given."""

    def __init__(
        self,
        name: str,
        tasks: Mapping[str, FittedTask],
        *,
        below_easy: BelowEasy = "line",
        learning: Learning | None = None,
    ) -> None:
        if below_easy not in get_args(BelowEasy):
            raise ValueError(f"below_easy must be one of {', '.join(get_args(BelowEasy))}, got {below_easy!r}")
        self.name = name
        self.tasks = dict(tasks)
        self._below_easy: BelowEasy = below_easy
        self._learning = learning
        self._gained = dict.fromkeys(self.tasks, 0.0)

    def accuracy(self, task: str, level: float) -> float:
        """Mean success probability at a (fractional) level. Raises UnknownNameError for a task without data."""
        return self._fitted(task).accuracy(level, self._below_easy, self._gained[task])

    def item_probability(self, task: str, level: float, rng: Random) -> float:
        """The success probability of one item, drawn around the accuracy of its level."""
        a, b = beta_parameters(self.accuracy(task, level), self._fitted(task).rho)
        return rng.betavariate(a, b)

    def scores(self, task: str, level: float, group_size: int, rng: Random) -> list[float]:
        """The scores of a group of completions for a new item."""
        probability = self.item_probability(task, level, rng)
        wrong = self._fitted(task).wrong_score
        return [1.0 if rng.random() < probability else wrong for _ in range(group_size)]

    def signal(self, task: str, level: float, group_size: int) -> float:
        """The chance that a group for a new item has both right and wrong completions."""
        return signal_probability(self.accuracy(task, level), self._fitted(task).rho, group_size)

    def learn(self, task: str, has_signal: bool) -> None:
        """Be trained on one group; without `learning` nothing changes."""
        if self._learning is None or not has_signal:
            return
        category = self._fitted(task).category
        for other, fitted in self.tasks.items():
            if fitted.category == category:
                gain = self._learning.gain * (1.0 if other == task else self._learning.transfer)
                self._gained[other] = min(self._learning.ceiling, self._gained[other] + gain)

    def _fitted(self, task: str) -> FittedTask:
        if task not in self.tasks:
            raise unknown_name(f"task of {self.name}", task, self.tasks)
        return self.tasks[task]


def beta_parameters(mean: float, rho: float) -> tuple[float, float]:
    """Of the Beta distribution with this mean whose draws correlate two completions of an item by `rho`."""
    size = 1.0 / rho - 1.0
    mean = min(max(mean, 1e-6), 1.0 - 1e-6)
    return mean * size, (1.0 - mean) * size


def signal_probability(mean: float, rho: float, group_size: int) -> float:
    """1 - E[q^n + (1-q)^n], q Beta-distributed: the beta-binomial chance of neither all nor none."""
    a, b = beta_parameters(mean, rho)
    all_right = all_wrong = 1.0
    for drawn in range(group_size):
        all_right *= (a + drawn) / (a + b + drawn)
        all_wrong *= (b + drawn) / (a + b + drawn)
    return 1.0 - all_right - all_wrong


def load_students(*, below_easy: BelowEasy = "line", learning: Learning | None = None) -> dict[str, Student]:
    """The nine students by model name, each new and untrained."""
    fitted = _fitted_models()
    return {
        name: Student(name, tasks, below_easy=below_easy, learning=learning) for name, tasks in sorted(fitted.items())
    }


# --- the fit ---


@functools.cache
def _fitted_models() -> dict[str, dict[str, FittedTask]]:
    data = json.loads(DATA.read_text(encoding="utf-8"))
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
            a, b = beta_parameters(_sigmoid(float(logit)), float(rho))
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


def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else math.exp(x) / (1.0 + math.exp(x))
