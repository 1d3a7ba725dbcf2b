"""What is counted between two log steps, and the lines that summarise it.

Signal and accuracy by category and task, and how diverse the groups are, for the log and for people.

Values by category and task cover the groups since the last log step; the effective number of tasks covers the last
`DIVERSITY_WINDOW` groups, since a few dozen groups cannot show a hundred tasks.

What rewards are made of: the mean score, what each rule took from it, and the reward by category, level and outcome.

score ── partial credit ──> credit ── length penalty ──> reward

Signal and accuracy by category and task are in breakdown.py.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from dataclasses import dataclass
from typing import Any

from ..records import CORRECT_THRESHOLD, Outcome, Rollout, RolloutGroup
from ..sampling.task_bandit import effective_number
from ..scoring.rewards import CreditRule

logger = logging.getLogger(__name__)


SUMMARY_EVERY = 50
"""Groups between two summary lines about format violations."""


class TrainMetrics:
    """Accumulates scored groups; `drain` gives the wandb values and starts over."""

    def __init__(self) -> None:
        self.percent_correct: list[float] = []
        self._outcomes: Counter[str] = Counter()
        self._masked: Counter[str] = Counter()
        self._groups = 0
        self._groups_with_signal = 0
        self._violations: Counter[str] = Counter()
        self._unsummarised = (0, 0)

    def observe(self, group: RolloutGroup) -> None:
        """Count one scored group, before anything is filtered."""
        self._groups += 1
        self._groups_with_signal += group.has_signal
        for rollout in group.rollouts:
            if rollout.score.outcome.is_scored:
                self.percent_correct.append(float(rollout.reward >= CORRECT_THRESHOLD))
            self._outcomes[rollout.score.outcome.value] += 1
            if rollout.mask_reason:
                self._masked[rollout.mask_reason] += 1
            if rollout.score.failure:
                self._violations[rollout.score.failure.value] += 1
        groups, completions = self._unsummarised
        self._unsummarised = (groups + 1, completions + len(group.rollouts))
        if self._unsummarised[0] >= SUMMARY_EVERY:
            self.summarise_violations()

    def summarise_violations(self) -> None:
        """One line about the format violations since the last such line, if there were any."""
        groups, completions = self._unsummarised
        if self._violations:
            found = ", ".join(f"{kind} {count}" for kind, count in self._violations.most_common())
            logger.info("Format violations in the last %d groups (%d completions): %s.", groups, completions, found)
        self._violations.clear()
        self._unsummarised = (0, 0)

    def drain(self) -> dict[str, Any]:
        """Values since the last call, by wandb key; shares are of the completions or groups seen since then."""
        total = sum(self._outcomes.values())
        values: dict[str, Any] = {}
        if self.percent_correct:
            values["train/percent_correct"] = sum(self.percent_correct) / len(self.percent_correct)
        if self._groups:
            values["train/signal_share"] = self._groups_with_signal / self._groups
        for outcome in Outcome:
            if total:
                values[f"train/outcome_{outcome.value}"] = self._outcomes[outcome.value] / total
        for reason, count in self._masked.items():
            values[f"train/masked_{reason}"] = count / total
        self.percent_correct.clear()
        self._outcomes.clear()
        self._masked.clear()
        self._groups = self._groups_with_signal = 0
        return values


def group_remark(group: RolloutGroup) -> str:
    """What is worth knowing about a group's scores in a few words; empty when they simply differ."""
    values = [rollout.score.value for rollout in group.rollouts]
    if all(value >= 1.0 for value in values):
        return "all correct"
    if all(rollout.score.outcome is Outcome.FORMAT_FAILURE for rollout in group.rollouts):
        return "all failed: no usable answer"
    if all(value == 0.0 for value in values):
        return "all failed"
    if all(value < 1.0 for value in values):
        return "partial credit only"
    return ""


def group_line(group: RolloutGroup) -> str:
    """The log line of one scored group."""
    rewards = group.rewards
    correct = sum(rollout.score.outcome is Outcome.CORRECT for rollout in group.rollouts)
    level = "" if group.problem.level is None else f" level {group.problem.level}"
    remark = group_remark(group)
    average = sum(rewards) / len(rewards)
    return (
        f"{group.problem.task}{level}: group average {average:.2f}, {correct}/{len(rewards)} correct"
        f"{f' ({remark})' if remark else ''}."
    )


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
