"""What became of every group whose completions were asked for: one fate each, by reason and task.

asked for ──> no completions came                                     (inference_failed)
scored ─────> no score came, a verifier's deadline or a crash         (timed_out)
         ├──> all cut off by the token budget, or over the trainer's  (too_long)
         ├──> all zero / all equal: nothing to learn from             (all_zero, equal_scores)
         ├──> they differ, but those that do carry no advantage       (masked)
         └──> offered to the trajectory API ──> taken or refused      (sent, send_failed)
              the API was away until it was of no use                 (stale)
              `process` writes to its file instead                    (written)
              it is of another size than the trainer expects          (dropped)
at any point ─> an error in this environment, which is logged          (fault)

Only `sent` and `written` groups are of use; the rest of the inference was spent for nothing.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from enum import Enum
from typing import Any

from ..errors import EnvironmentSetupError
from ..records import RolloutGroup

logger = logging.getLogger(__name__)

WORST_TASKS = 5
"""Tasks named in the summary."""


class Fate(str, Enum):
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

    @property
    def is_useful(self) -> bool:
        return self in (Fate.SENT, Fate.WRITTEN)


class Funnel:
    """Counts fates by task since the start of the run."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[Fate]] = {}
        self._summarised = 0

    def note(self, fate: Fate, task: str) -> None:
        """Count one group."""
        self._counts.setdefault(task, Counter())[fate] += 1

    @property
    def totals(self) -> Counter[Fate]:
        return sum(self._counts.values(), Counter())

    def by_task(self) -> dict[str, dict[str, int]]:
        """Task -> fate -> groups, sorted by task; fates that did not occur are left out."""
        return {task: {f.value: fates[f] for f in Fate if fates[f]} for task, fates in sorted(self._counts.items())}

    def metrics(self) -> dict[str, float]:
        """Groups since the start, by fate."""
        totals = self.totals
        return {f"funnel/{fate.value}": float(totals[fate]) for fate in Fate if totals[fate]}

    def state_dict(self) -> dict[str, Any]:
        return {"counts": self.by_task()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Count on from a `state_dict`. Raises EnvironmentSetupError if it is malformed."""
        try:
            self._counts = {
                str(task): Counter({Fate(fate): int(count) for fate, count in fates.items()})
                for task, fates in state["counts"].items()
            }
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise EnvironmentSetupError(
                f"The state of the funnel counts fates by task, got {dict(state)!r:.200}."
            ) from error

    def summary(self) -> str:
        """What became of all groups in two sentences; empty if there were none."""
        totals = self.totals
        groups = sum(totals.values())
        if not groups:
            return ""
        parts = [f"{totals[fate]} {_words(fate)} ({totals[fate] / groups:.0%})" for fate in Fate if totals[fate]]
        worst = [f"{task} {count} of {sum(self._counts[task].values())}" for task, count in self._wasted()]
        return f"Of {groups} groups: {', '.join(parts)}." + (f" Most of no use: {', '.join(worst)}." if worst else "")

    def _wasted(self) -> list[tuple[str, int]]:
        """The tasks with the most groups of no use, and how many."""
        wasted = {
            task: sum(count for fate, count in fates.items() if not fate.is_useful)
            for task, fates in self._counts.items()
        }
        return [(task, count) for task, count in Counter(wasted).most_common(WORST_TASKS) if count]

    def summarise(self) -> None:
        """Log the summary and a table by task; nothing if no group was added since the last time."""
        groups = sum(self.totals.values())
        if groups == self._summarised:
            return
        self._summarised = groups
        logger.info("%s", self.summary())
        logger.info("Groups by task:\n%s", self.table())

    def table(self) -> str:
        """Groups by task and fate, most groups first; fates that did not occur have no column."""
        totals = self.totals
        columns = [fate for fate in Fate if totals[fate]]
        width = max([len(task) for task in self._counts], default=0)
        rows = [" " * width + "".join(f"  {_words(fate)}" for fate in columns)]
        for task, fates in sorted(self._counts.items(), key=lambda row: (-sum(row[1].values()), row[0])):
            rows.append(task.ljust(width) + "".join(f"  {fates[fate]:>{len(fate.value)}}" for fate in columns))
        return "\n".join(rows)


def fate_without_signal(group: RolloutGroup) -> Fate:
    """Why a scored group teaches nothing, by the first that holds: timed_out, too_long, masked, all_zero, equal_scores.

    `timed_out` is any failure of our own to score the whole group.
    """
    rollouts = group.rollouts
    if not any(rollout.score.outcome.is_scored for rollout in rollouts):
        return Fate.TIMED_OUT
    if all(rollout.completion.finish_reason == "length" for rollout in rollouts):
        return Fate.TOO_LONG
    if len(set(group.rewards)) > 1:
        return Fate.MASKED
    return Fate.ALL_ZERO if not any(group.rewards) else Fate.EQUAL_SCORES


def _words(fate: Fate) -> str:
    return fate.value.replace("_", " ")
