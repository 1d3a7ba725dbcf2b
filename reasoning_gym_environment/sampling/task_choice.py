"""Which task a training index gets: evenly, by weight, or by how much there is to learn.

learnability, for every index:
    each (1 / floor)-th index ──> the next task of a shuffled round of all tasks      (nothing is starved)
    else ──> drawn with probability ∝ weight · exp(value / λ)                         (value: see signal_bandit)

λ is the temperature at which all draws together, floor included, have a given effective number of tasks, the
exponential of the entropy of their distribution. That form is no accident: of all distributions with that entropy it
has the highest expected value, which is what the constrained optimum looks like when the values are exact. When few
tasks are served, half of what the weights alone give is asked for.

A choice is a function of (run seed, instance, index) and of what has been observed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ..utils.seeding import derive_random
from .task_bandit import SignalBandit

EFFECTIVE_TASKS = 33.0
"""What learnability keeps to; a little over 30, because the draws of a run scatter around their distribution."""

_BISECTIONS = 18
_COLDEST, _HOTTEST = 1e-3, 1e2


class TaskChooser(Protocol):
    """Chooses tasks, and learns from the groups that were scored."""

    def choose(self, index: int, instance: str) -> str: ...

    def observe(self, task: str, level: int | None, signal: float) -> None: ...

    def skip(self, task: str) -> None: ...

    def metrics(self) -> dict[str, float]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class WeightedTasks:
    """Draws tasks by fixed weights, whatever happens to their groups."""

    def __init__(self, weights: Mapping[str, float], seed: int) -> None:
        self._tasks = list(weights)
        self._weights = list(weights.values())
        self._seed = seed

    def choose(self, index: int, instance: str) -> str:
        choice = derive_random(self._seed, "task", "train", instance, index)
        return choice.choices(self._tasks, weights=self._weights)[0]

    def observe(self, task: str, level: int | None, signal: float) -> None:
        """Nothing is learned."""

    def skip(self, task: str) -> None:
        """Nothing is learned."""

    def metrics(self) -> dict[str, float]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """There is no state."""


class LearnableTasks:
    """Prefers tasks whose groups are likely to carry a signal, on top of their weights."""

    def __init__(
        self,
        weights: Mapping[str, float],
        seed: int,
        bandit: SignalBandit,
        *,
        open_levels: Callable[[str], Sequence[int]] | None = None,
        floor: float = 0.12,
        effective_tasks: float = EFFECTIVE_TASKS,
    ) -> None:
        """`weights` are positive; `open_levels` gives the levels that a task may be drawn at, all one if None.

        `floor` is the share of draws spread evenly. Raises ValueError if it is outside [0, 1] or a weight is not
        positive.
        """
        if not 0.0 <= floor <= 1.0:
            raise ValueError(f"floor must lie between 0 and 1, got {floor}")
        if not weights or min(weights.values()) <= 0:
            raise ValueError(f"weights must be positive, got {dict(weights)}")
        self._tasks = list(weights)
        self._rows = [bandit.tasks.index(task) for task in self._tasks]
        shares = np.array(list(weights.values()))
        self._weights = shares / shares.sum()
        self._seed = seed
        self._bandit = bandit
        self._open_levels = open_levels
        self._floor = floor
        self._target = min(effective_tasks, max(1.0, effective_number(self._weights) / 2.0))
        self._distribution: tuple[int, np.ndarray] | None = None

    def choose(self, index: int, instance: str) -> str:
        """The task of one index, given what has been observed so far."""
        visits = math.floor((index + 1) * self._floor)
        if visits > math.floor(index * self._floor):
            round_, place = divmod(visits - 1, len(self._tasks))
            order = list(self._tasks)
            derive_random(self._seed, "task round", "train", instance, round_).shuffle(order)
            return order[place]
        choice = derive_random(self._seed, "task", "train", instance, index)
        return choice.choices(self._tasks, cum_weights=list(itertools.accumulate(self._preferred().tolist())))[0]

    def observe(self, task: str, level: int | None, signal: float) -> None:
        """Take in one scored group, and the spread of its rewards; `level` counts only where levels are told apart."""
        self._bandit.observe(task, level if self._open_levels and level is not None else 0, signal)

    def skip(self, task: str) -> None:
        """A draw of this task gave no usable item: that teaches as little as a group without a signal.

        Otherwise a task that cannot be generated would stay unknown, and worth trying, for ever.
        """
        level = self._bandit.best_level(task, self._open_levels(task)) if self._open_levels else 0
        self._bandit.observe(task, level, 0.0)

    def shares(self) -> dict[str, float]:
        """Each task's share of the draws to come, floor included."""
        return dict(zip(self._tasks, self._mixed(self._preferred()).tolist(), strict=True))

    def metrics(self) -> dict[str, float]:
        """What the draws to come look like: effective number of tasks, smallest share, estimated signal."""
        mixed = self._mixed(self._preferred())
        return {
            "task_choice/effective_tasks": effective_number(mixed),
            "task_choice/smallest_share": float(mixed.min()),
            "task_choice/estimated_value": float((mixed * self._values()).sum()),
        }

    def state_dict(self) -> dict[str, Any]:
        return self._bandit.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises EnvironmentSetupError if the state is malformed."""
        self._bandit.load_state_dict(state)

    def _values(self) -> np.ndarray:
        """Each task's value: that of its best open level."""
        by_level = self._bandit.values()
        if self._open_levels is None:
            return by_level[self._rows, 0]
        return np.array(
            [
                max(by_level[row, level] for level in self._open_levels(task))
                for task, row in zip(self._tasks, self._rows, strict=True)
            ]
        )

    def _preferred(self) -> np.ndarray:
        """The distribution of the draws that are not spread evenly; computed once for each state of the bandit."""
        if self._distribution is None or self._distribution[0] != self._bandit.version:
            self._distribution = (self._bandit.version, self._tempered(self._values()))
        return self._distribution[1]

    def _tempered(self, values: np.ndarray) -> np.ndarray:
        """weight · exp(value / λ), normalised, at the lowest λ that leaves the asked effective number of tasks."""
        cold, hot = math.log(_COLDEST), math.log(_HOTTEST)
        for _ in range(_BISECTIONS):
            middle = (cold + hot) / 2.0
            if effective_number(self._mixed(self._at_temperature(values, math.exp(middle)))) < self._target:
                cold = middle
            else:
                hot = middle
        return self._at_temperature(values, math.exp(hot))

    def _at_temperature(self, values: np.ndarray, temperature: float) -> np.ndarray:
        raised = self._weights * np.exp((values - values.max()) / temperature)
        return np.asarray(raised / raised.sum())

    def _mixed(self, preferred: np.ndarray) -> np.ndarray:
        return self._floor / len(self._tasks) + (1.0 - self._floor) * preferred


def effective_number(shares: Sequence[float] | np.ndarray) -> float:
    """The exponential of the entropy of a distribution: how many equally frequent things are as diverse.

    `shares` are non-negative and need not sum to one; 0 for none.
    """
    given = np.asarray(shares, dtype=float)
    positive = given[given > 0]
    if not len(positive):
        return 0.0
    positive = positive / positive.sum()
    return float(np.exp(-(positive * np.log(positive)).sum()))
