"""What is counted between two log steps, and the lines that summarise it."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

from ..records import CORRECT_THRESHOLD, Outcome, RolloutGroup

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
