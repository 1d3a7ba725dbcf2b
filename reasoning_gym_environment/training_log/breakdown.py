"""Signal and accuracy by category and task, and how diverse the groups are, for the log and for people.

Values by category and task cover the groups since the last log step; the effective number of tasks covers the last
`DIVERSITY_WINDOW` groups, since a few dozen groups cannot show a hundred tasks.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass

from ..records import CORRECT_THRESHOLD, RolloutGroup
from ..sampling.task_choice import effective_number

DIVERSITY_WINDOW = 1000


@dataclass
class Tally:
    """Scored groups of one task or category."""

    groups: int = 0
    with_signal: int = 0
    completions: int = 0
    correct: int = 0
    level: int | None = None

    def add(self, group: RolloutGroup) -> None:
        scored = [rollout for rollout in group.rollouts if rollout.score.outcome.is_scored]
        self.groups += 1
        self.with_signal += group.has_signal
        self.completions += len(scored)
        self.correct += sum(rollout.reward >= CORRECT_THRESHOLD for rollout in scored)
        self.level = group.problem.level

    @property
    def accuracy(self) -> float | None:
        """Share of the scored completions that are correct; None without any."""
        return self.correct / self.completions if self.completions else None


class Breakdown:
    """Accumulates scored groups; `drain` gives the wandb values and starts over."""

    def __init__(self) -> None:
        self._categories: dict[str, Tally] = {}
        self._tasks: dict[str, Tally] = {}
        self._recent: deque[str] = deque(maxlen=DIVERSITY_WINDOW)

    def observe(self, group: RolloutGroup) -> None:
        """Count one scored group, before anything is filtered."""
        problem = group.problem
        self._categories.setdefault(problem.category, Tally()).add(group)
        self._tasks.setdefault(problem.task, Tally()).add(group)
        self._recent.append(problem.task)

    @property
    def effective_tasks(self) -> float:
        """Exponential of the entropy of the tasks of the last groups: how many equally frequent ones they are like."""
        return effective_number(list(Counter(self._recent).values()))

    def drain(self) -> dict[str, float]:
        """Values since the last call, by wandb key."""
        values: dict[str, float] = {}
        if self._recent:
            values["train/effective_tasks"] = self.effective_tasks
        for name, tally in self._categories.items():
            values[f"train_category/{name}/signal_share"] = tally.with_signal / tally.groups
            values[f"train_category/{name}/groups"] = float(tally.groups)
            _set(values, f"train_category/{name}/percent_correct", tally.accuracy)
        for name, tally in self._tasks.items():
            _set(values, f"train_task/{name}/percent_correct", tally.accuracy)
            _set(values, f"train_task/{name}/level", tally.level)
        self._categories.clear()
        self._tasks.clear()
        return values


def _set(values: dict[str, float], key: str, value: float | None) -> None:
    if value is not None:
        values[key] = float(value)
