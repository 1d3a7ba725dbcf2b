"""Students that are right as often as published models were: no model, only the fitted chances.

    simulated_students.json   per model and task: logit of the accuracy at one place of the ladder, its slope per level,
                              the spread between items
    SimulatedModel            the accuracy at any level, the chance of one item, learning

The numbers are fitted by fit_students.py, which says how, and what they are not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

from reasoning_gym_environment.errors import unknown_name

DATA = Path(__file__).with_suffix(".json")


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
