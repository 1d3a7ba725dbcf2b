"""How likely a group carries a learning signal, by task and level, from the groups seen lately.

An arm is a task at a level. Its groups with and without a signal are counted, a group whose extreme rewards differ by x
as x of the one and 1 - x of the other: with rewards of 0 and 1 that is all or nothing. Where wrong answers earn crumbs
of different size it is little; else a task that is never solved would look like the best. Every count loses half its
weight over `half_life` later groups of any arm, because the model changes: that is a Beta posterior that goes back to
its prior where nobody looks. An arm is valued at its posterior mean plus `optimism` posterior standard deviations, so
that what is unknown is tried and what is known to be barren is left.

That groups are worth what they differ: with binary rewards a group's signal is p (1 - p) at its largest near
p = 1/2 (arXiv 2504.03380); groups without it are what DAPO's dynamic sampling throws away (2503.14476). Choosing
tasks and levels by an estimate of it, as a bandit that forgets, follows the self-evolving curriculum (2505.14970),
with the chance of a signal in place of the mean absolute advantage.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import EnvironmentSetupError, unknown_name

logger = logging.getLogger(__name__)


class SignalBandit:
    """Discounted Beta posteriors of the probability of a signal, one for each arm."""

    def __init__(
        self,
        ladder_sizes: Mapping[str, int],
        *,
        prior: tuple[float, float] = (0.5, 0.5),
        half_life: float = 3000.0,
        optimism: float = 0.5,
    ) -> None:
        """`ladder_sizes` has the number of levels of each task, 1 where levels are not told apart; `prior` is Beta's.

        Raises ValueError for an empty ladder or numbers that no posterior can have.
        """
        if not ladder_sizes or min(ladder_sizes.values()) < 1:
            raise ValueError(f"every task needs at least one level, got {dict(ladder_sizes)}")
        if min(prior) <= 0 or half_life <= 0 or optimism < 0:
            raise ValueError(
                f"prior and half_life must be positive, optimism not negative: {prior}, {half_life}, {optimism}"
            )
        self._sizes = dict(ladder_sizes)
        self._rows = {task: row for row, task in enumerate(self._sizes)}
        self._prior = prior
        self._keep = 0.5 ** (1.0 / half_life)
        self._optimism = optimism
        self._counts = np.zeros((2, len(self._sizes), max(self._sizes.values())))
        self.version = 0
        """Changes with every observation, for those who keep what they computed."""

    @property
    def tasks(self) -> list[str]:
        return list(self._sizes)

    def observe(self, task: str, level: int, signal: float) -> None:
        """Take in one group and the spread of its rewards, 0 to 1.

        Raises UnknownNameError or IndexError for an arm that does not exist, ValueError for no such spread.
        """
        if not 0.0 <= signal <= 1.0:
            raise ValueError(f"the spread of a group's rewards lies between 0 and 1, got {signal}")
        row = self._row(task)
        if not 0 <= level < self._sizes[task]:
            raise IndexError(f"{task} has levels 0 to {self._sizes[task] - 1}, got {level}")
        self._counts *= self._keep
        self._counts[:, row, level] += signal, 1.0 - signal
        self.version += 1

    def mean(self, task: str, level: int) -> float:
        """The posterior mean of an arm."""
        return float(self._means()[self._row(task), level])

    def values(self) -> np.ndarray:
        """Posterior mean plus optimism of every arm, by (task in the order of `tasks`, level)."""
        means = self._means()
        strength = self._counts.sum(axis=0) + sum(self._prior)
        return np.asarray(means + self._optimism * np.sqrt(means * (1.0 - means) / (strength + 1.0)))

    def best_level(self, task: str, levels: Sequence[int]) -> int:
        """Of these levels the one with the highest value; the easiest of several."""
        values = self.values()[self._row(task)]
        return max(levels, key=lambda level: (values[level], -level))

    def state_dict(self) -> dict[str, Any]:
        """The counts of every arm that has any, as JSON: task -> [level, with signal, without]."""
        return {
            "arms": {
                task: [
                    [level, *map(float, counts)] for level, counts in enumerate(self._counts[:, row].T) if any(counts)
                ]
                for task, row in self._rows.items()
                if self._counts[:, row].any()
            }
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`; an empty one starts afresh.

        Arms that do not exist here are ignored with one log line. Raises EnvironmentSetupError, and changes nothing,
        if the state is malformed.
        """
        saved = state.get("arms", {}) if isinstance(state, Mapping) else None
        if not isinstance(saved, Mapping) or not all(_is_arm(arm) for arms in saved.values() for arm in _listed(arms)):
            raise EnvironmentSetupError(
                "The saved task choice cannot be used: expected 'arms' to be a mapping of tasks to lists of "
                f"[level, groups with a signal, groups without], got {saved!r:.200}. Start from another checkpoint."
            )
        counts = np.zeros_like(self._counts)
        ignored = set()
        for task, arms in saved.items():
            for level, with_signal, without in arms:
                if task in self._rows and level < self._sizes[task]:
                    counts[:, self._rows[task], level] = with_signal, without
                else:
                    ignored.add(str(task))
        if ignored:
            logger.warning("The saved task choice for %s is ignored: no such level here.", ", ".join(sorted(ignored)))
        self._counts = counts
        self.version += 1

    def _means(self) -> np.ndarray:
        with_signal, without = self._counts
        return np.asarray((with_signal + self._prior[0]) / (with_signal + without + sum(self._prior)))

    def _row(self, task: str) -> int:
        if task not in self._rows:
            raise unknown_name("task of the bandit", task, self._rows)
        return self._rows[task]


def _listed(arms: Any) -> list[Any]:
    return arms if isinstance(arms, list) else [arms]


def _is_arm(arm: Any) -> bool:
    if not isinstance(arm, (list, tuple)) or len(arm) != 3:
        return False
    level, *counts = arm
    is_level = isinstance(level, int) and not isinstance(level, bool) and level >= 0
    return is_level and all(isinstance(count, (int, float)) and 0.0 <= count < float("inf") for count in counts)
