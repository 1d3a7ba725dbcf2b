"""Which task and which level a draw gets: by fixed shares, or where there is something to learn.

`task_sampling` and `complexity_mode` decide together (`build_choosers`, at the end):

                  task_sampling:  uniform, weighted     learnability
complexity_mode: none             fixed shares          one arm for each task
                 random           fixed shares          one arm for each task, over all its levels
                 curriculum       fixed shares,         one arm for each task and level; of the levels that the
                                  its level             curriculum leaves open the likeliest to carry a signal

A choice is a function of (run seed, instance, index) and of what has been observed.

`SignalBandit` estimates how likely a group carries a learning signal, by arm: a task at a level. An arm's groups with
and without a signal are counted, a group whose extreme rewards differ by x as x of the one and 1 - x of the other: with
rewards of 0 and 1 that is all or nothing. Where wrong answers earn crumbs of different size it is little; else a task
that is never solved would look like the best. Every count loses half its weight over HALF_LIFE later groups of any arm,
because the model changes: that is a Beta posterior that goes back to its prior where nobody looks. An arm is valued at
its posterior mean plus OPTIMISM posterior standard deviations, so that what is unknown is tried and what is known to be
barren is left.

That groups are worth what they differ: with binary rewards a group's signal is p (1 - p) at its largest near
p = 1/2 (arXiv 2504.03380); groups without it are what DAPO's dynamic sampling throws away (2503.14476). Choosing
tasks and levels by an estimate of it, as a bandit that forgets, follows the self-evolving curriculum (2505.14970),
with the chance of a signal in place of the mean absolute advantage.

`LearnableTasks` is what learnability makes of that estimate:

    each (1 / floor)-th index ──> the next task of a shuffled round of all tasks      (nothing is starved)
    else ──> drawn with probability ∝ weight · exp(value / λ)                         (value: of its best open arm)

λ is the temperature at which all draws together, floor included, have a given effective number of tasks, the
exponential of the entropy of their distribution. That form is no accident: of all distributions with that entropy it
has the highest expected value, which is what the constrained optimum looks like when the values are exact. When few
tasks are served, half of what the weights alone give is asked for.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from ..errors import EnvironmentSetupError
from ..tasks.difficulty_ladder import Ladder, Level
from ..utils.seeding import derive_random
from .curriculum import Curriculum

logger = logging.getLogger(__name__)

PRIOR = (0.5, 0.5)
"""Of the Beta posterior: pseudo-counts of groups with and without a signal."""

HALF_LIFE = 3000.0
OPTIMISM = 0.5

EFFECTIVE_TASKS = 33.0
"""What learnability keeps to; a little over 30, because the draws of a run scatter around their distribution."""

_BISECTIONS = 18
_COLDEST, _HOTTEST = 1e-3, 1e2


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


class SignalBandit:
    """Discounted Beta posteriors of the probability of a signal, one for each arm."""

    def __init__(self, ladder_sizes: Mapping[str, int]) -> None:
        """`ladder_sizes` has the number of levels of each task, 1 where levels are not told apart."""
        self._sizes = dict(ladder_sizes)
        self.rows = {task: row for row, task in enumerate(self._sizes)}
        """Where each task stands in `values`."""
        self._counts = np.zeros((2, len(self._sizes), max(self._sizes.values())))
        self.version = 0
        """Changes with every observation, for those who keep what they computed."""

    def observe(self, task: str, level: int, signal: float) -> None:
        """Take in one group and the spread of its rewards. Raises ValueError if that is not between 0 and 1."""
        # A NaN would stay in the counts, and in every checkpoint, for good.
        if not 0.0 <= signal <= 1.0:
            raise ValueError(f"the spread of a group's rewards lies between 0 and 1, got {signal}")
        self._counts *= 0.5 ** (1.0 / HALF_LIFE)
        self._counts[:, self.rows[task], level] += signal, 1.0 - signal
        self.version += 1

    def values(self) -> np.ndarray:
        """Posterior mean plus optimism of every arm, by (row of the task, level)."""
        with_signal, without = self._counts
        strength = with_signal + without + sum(PRIOR)
        means = (with_signal + PRIOR[0]) / strength
        return np.asarray(means + OPTIMISM * np.sqrt(means * (1.0 - means) / (strength + 1.0)))

    def best_level(self, task: str, levels: Sequence[int]) -> int:
        """Of these levels the one with the highest value; the easiest of several."""
        values = self.values()[self.rows[task]]
        return max(levels, key=lambda level: (values[level], -level))

    def state_dict(self) -> dict[str, Any]:
        """The counts of every arm that has any, as JSON: task -> [level, with signal, without]."""
        return {
            "arms": {
                task: [
                    [level, *map(float, counts)] for level, counts in enumerate(self._counts[:, row].T) if any(counts)
                ]
                for task, row in self.rows.items()
                if self._counts[:, row].any()
            }
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`; an empty one starts afresh.

        Arms that do not exist here are ignored with one log line. Raises EnvironmentSetupError, and changes nothing,
        if the state is malformed.
        """
        saved = state.get("arms", {}) if isinstance(state, Mapping) else None
        if not isinstance(saved, Mapping) or not all(
            isinstance(arms, list) and all(map(_is_arm, arms)) for arms in saved.values()
        ):
            raise EnvironmentSetupError(
                "The saved task choice cannot be used: expected 'arms' to be a mapping of tasks to lists of "
                f"[level, groups with a signal, groups without], got {saved!r:.200}. Start from another checkpoint."
            )
        counts = np.zeros_like(self._counts)
        ignored = set()
        for task, arms in saved.items():
            for level, with_signal, without in arms:
                if task in self.rows and level < self._sizes[task]:
                    counts[:, self.rows[task], level] = with_signal, without
                else:
                    ignored.add(str(task))
        if ignored:
            logger.warning("The saved task choice for %s is ignored: no such level here.", ", ".join(sorted(ignored)))
        self._counts = counts
        self.version += 1


def _is_arm(saved: Any) -> bool:
    match saved:
        case [int(level), int() | float() as with_signal, int() | float() as without]:
            return level >= 0 and all(0.0 <= count < math.inf for count in (with_signal, without))
    return False


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
    ) -> None:
        """`weights` are positive; `open_levels` gives the levels that a task may be drawn at, all one if None.

        `floor` is the share of draws spread evenly, in [0, 1].
        """
        self._tasks = list(weights)
        self._rows = [bandit.rows[task] for task in self._tasks]
        shares = np.array(list(weights.values()))
        self._weights = shares / shares.sum()
        self._seed = seed
        self._bandit = bandit
        self._open_levels = open_levels
        self._floor = floor
        self._target = min(EFFECTIVE_TASKS, max(1.0, effective_number(self._weights) / 2.0))
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


TaskChooser: TypeAlias = WeightedTasks | LearnableTasks


class LevelChooser(Protocol):
    """Chooses the difficulty of a draw; None means reasoning-gym's own defaults."""

    def choose(self, task: str, index: int) -> Level | None: ...


@dataclass(frozen=True)
class RandomLevels:
    """Uniform over each task's ladder; a function of (seed, task, index)."""

    ladders: Mapping[str, Ladder]
    seed: int

    def choose(self, task: str, index: int) -> Level | None:
        return derive_random(self.seed, "level", task, index).choice(self.ladders[task].levels)


@dataclass(frozen=True)
class CurriculumLevels:
    """Where the curriculum stands for the task at the time of the draw."""

    ladders: Mapping[str, Ladder]
    curriculum: Curriculum

    def choose(self, task: str, index: int) -> Level | None:
        return self.ladders[task].levels[self.curriculum.level(task)]


@dataclass(frozen=True)
class LearnableLevels:
    """Of the levels that the curriculum leaves open, the one whose groups are likeliest to carry a signal."""

    ladders: Mapping[str, Ladder]
    curriculum: Curriculum
    bandit: SignalBandit

    def choose(self, task: str, index: int) -> Level | None:
        return self.ladders[task].levels[self.bandit.best_level(task, self.curriculum.open_levels(task))]


def build_choosers(
    *,
    task_sampling: str,
    complexity_mode: str | None,
    weights: Mapping[str, float],
    ladders: Mapping[str, Ladder],
    curriculum: Curriculum,
    seed: int,
    task_floor: float,
) -> tuple[TaskChooser, LevelChooser | None]:
    """The task chooser and the level chooser; None means reasoning-gym's own defaults.

    `weights` has every served task; `uniform` ignores what they are, and says so if they differ.
    """
    follows = complexity_mode == "curriculum"
    levels: LevelChooser | None = RandomLevels(ladders, seed) if complexity_mode == "random" else None
    if task_sampling == "learnability":
        bandit = SignalBandit({task: len(ladders[task]) if follows else 1 for task in weights})
        open_levels = curriculum.open_levels if follows else None
        tasks = LearnableTasks(weights, seed, bandit, open_levels=open_levels, floor=task_floor)
        return tasks, LearnableLevels(ladders, curriculum, bandit) if follows else levels
    if task_sampling == "uniform":
        if len(set(weights.values())) > 1:
            logger.warning("task_sampling is uniform: the task weights only leave out tasks of weight 0.")
        weights = dict.fromkeys(weights, 1.0)
    return WeightedTasks(weights, seed), CurriculumLevels(ladders, curriculum) if follows else levels
