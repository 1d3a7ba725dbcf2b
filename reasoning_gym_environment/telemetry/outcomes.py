"""What became of each group whose completions were asked for: one outcome, counted by task.

    asked for ──> no completions came                                    inference_failed
    scored ─────> no completion could be scored                          timed_out
             ├──> all were cut off by the token budget                   too_long
             ├──> the rewards differ, but only where no advantage counts masked
             ├──> all rewards are zero / equal                           all_zero, equal_scores
             └──> offered to the trajectory API: accepted or refused     sent, send_failed
                  the trainer took too many steps since it was sampled   stale
                  `process` wrote it to its file                         written
                  it has another size than the trainer expects           dropped
    at any point ─> an error in this environment, which is logged        fault

The inference for groups that are neither `sent` nor `written` was spent without use.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from enum import Enum
from typing import Any

from ..errors import EnvironmentSetupError
from ..records import Episode

logger = logging.getLogger(__name__)


class GroupOutcome(str, Enum):
    """What became of a group."""

    SENT = "sent"
    WRITTEN = "written"
    EQUAL_SCORES = "equal_scores"
    ALL_ZERO = "all_zero"
    MASKED = "masked"
    TOO_LONG = "too_long"
    TIMED_OUT = "timed_out"
    SEND_FAILED = "send_failed"
    STALE = "stale"
    DROPPED = "dropped"
    INFERENCE_FAILED = "inference_failed"
    FAULT = "fault"


USED = (GroupOutcome.SENT, GroupOutcome.WRITTEN)


def outcome_without_signal(group: Episode) -> GroupOutcome:
    """Why a scored group teaches nothing: the first reason that holds."""
    if not group.scored:
        return GroupOutcome.TIMED_OUT
    if all(rollout.completion.finish_reason == "length" for rollout in group.rollouts):
        return GroupOutcome.TOO_LONG
    if len(set(group.rewards)) > 1:
        return GroupOutcome.MASKED
    return GroupOutcome.EQUAL_SCORES if any(group.rewards) else GroupOutcome.ALL_ZERO


class GroupOutcomes:
    """Counts outcomes by task since the start of the run."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[GroupOutcome]] = {}
        self._summarised = 0

    def add(self, outcome: GroupOutcome, task: str) -> None:
        """Count a group of this task; once for each group whose completions were asked for."""
        self._counts.setdefault(task, Counter())[outcome] += 1

    def by_task(self) -> dict[str, dict[str, int]]:
        """Task -> outcome -> groups, sorted by task; outcomes that did not occur are left out."""
        return {task: _in_order(counts) for task, counts in sorted(self._counts.items())}

    def metrics(self) -> dict[str, float]:
        """Groups since the start, by outcome."""
        return {f"groups/{outcome}": float(count) for outcome, count in self._totals().items()}

    def state_dict(self) -> dict[str, Any]:
        return {"counts": self.by_task()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue counting from a `state_dict`. Raises EnvironmentSetupError if it is malformed."""
        try:
            self._counts = {
                str(task): Counter({GroupOutcome(outcome): int(count) for outcome, count in counts.items()})
                for task, counts in state["counts"].items()
            }
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise EnvironmentSetupError(f"Group outcomes are counts by task, got {dict(state)!r:.200}.") from error

    def summarise(self) -> None:
        """Log what became of all groups, and a table by task; nothing if no group was added since the last time."""
        totals = self._totals()
        if (groups := sum(totals.values())) == self._summarised:
            return
        self._summarised = groups
        shares = ", ".join(f"{count} {_words(outcome)} ({count / groups:.0%})" for outcome, count in totals.items())
        unused = {task: counts.total() - sum(counts[one] for one in USED) for task, counts in self._counts.items()}
        worst = [f"{task} {n} of {self._counts[task].total()}" for task, n in Counter(unused).most_common(5) if n]
        logger.info("Of %d groups: %s.%s", groups, shares, f" Most unused: {', '.join(worst)}." if worst else "")
        width = max(map(len, self._counts))
        rows = [" " * width + "".join(f"  {_words(outcome)}" for outcome in totals)]
        for task, counts in sorted(self._counts.items(), key=lambda row: (-row[1].total(), row[0])):
            rows.append(task.ljust(width) + "".join(f"  {counts[GroupOutcome(one)]:>{len(one)}}" for one in totals))
        logger.info("Groups by task:\n%s", "\n".join(rows))

    def _totals(self) -> dict[str, int]:
        return _in_order(sum(self._counts.values(), Counter()))


def _in_order(counts: Counter[GroupOutcome]) -> dict[str, int]:
    return {outcome.value: counts[outcome] for outcome in GroupOutcome if counts[outcome]}


def _words(outcome: str) -> str:
    return outcome.replace("_", " ")
