"""What rewards are made of: the mean score, what each rule took from it, and the reward by category, level and outcome.

score ── partial credit ──> credit ── length penalty ──> reward

Signal and accuracy by category and task are in breakdown.py.
"""

from __future__ import annotations

from ..records import Rollout, RolloutGroup
from ..scoring.rewards import CreditRule

PREFIX = "train_reward"


class Mean:
    """A running mean."""

    def __init__(self) -> None:
        self.total = 0.0
        self.count = 0

    def add(self, value: float) -> None:
        self.total += value
        self.count += 1

    @property
    def value(self) -> float:
        return self.total / self.count


class RewardParts:
    """Accumulates the scored rollouts of groups; `drain` gives the wandb values and starts over."""

    def __init__(self) -> None:
        self._means: dict[str, Mean] = {}

    def observe(self, group: RolloutGroup, credit: CreditRule) -> None:
        """Count one scored group, before anything is filtered. What we failed to score has no parts."""
        problem = group.problem
        for rollout in group.rollouts:
            if not rollout.score.outcome.is_scored:
                continue
            self._add_parts(rollout, credit.credit(problem.task, rollout.score.value))
            self._add(f"category/{problem.category}", rollout.reward)
            self._add(f"outcome/{rollout.score.outcome.value}", rollout.reward)
            if problem.level is not None:
                self._add(f"level/{problem.level}", rollout.reward)

    def _add_parts(self, rollout: Rollout, credit: float) -> None:
        self._add("score", rollout.score.value)
        self._add("partial_credit", credit - rollout.score.value)
        self._add("length_penalty", rollout.reward - credit)
        self._add("total", rollout.reward)

    def _add(self, key: str, value: float) -> None:
        self._means.setdefault(key, Mean()).add(value)

    def drain(self) -> dict[str, float]:
        """Means since the last call, by wandb key; `total` is the sum of the three parts before it."""
        values = {f"{PREFIX}/{key}": mean.value for key, mean in sorted(self._means.items())}
        self._means.clear()
        return values
