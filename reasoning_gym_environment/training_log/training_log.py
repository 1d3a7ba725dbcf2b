"""What a run tells: the one place that hears of every scored group, and of what became of it.

    group ──observe──> metrics of this step, conversations to read, one line in the log, signs of reward farming
        └──dump──────> files of rollouts, when it is worth keeping
        └──outcomes──> what became of it, by task (once; also of groups that were never scored)

`drain` gives what was counted since the last log step under the names that wandb shows. `outcomes` and `dumps` go into
a checkpoint; the metrics of a step do not outlive it. Every group whose completions were asked for has one outcome:

    asked for ──> no completions came                                     (inference_failed)
    scored ─────> no score came, a verifier's deadline or a crash         (timed_out)
             ├──> all cut off by the token budget, or over the trainer's  (too_long)
             ├──> all zero / all equal: nothing to learn from             (all_zero, equal_scores)
             ├──> they differ, but those that do carry no advantage       (masked)
             └──> offered to the trajectory API ──> taken or refused      (sent, send_failed)
                  too many steps were taken since its sampling began      (stale)
                  `process` writes to its file instead                    (written)
                  it is of another size than the trainer expects          (dropped)
    at any point ─> an error in this environment, which is logged         (fault)

Only `sent` and `written` groups are of use; the rest of the inference was spent for nothing.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from ..errors import EnvironmentSetupError
from ..records import RolloutGroup
from .dump_files import FAILED, ROLLOUTS
from .dumps import RolloutDumps
from .hacking_watch import HackingWatch
from .metrics import ConversationLog, TrainMetrics, group_line

logger = logging.getLogger(__name__)

WORST_TASKS = 5
"""Tasks named in the summary."""


@dataclass(frozen=True)
class TrainingLogSettings:
    """What is kept of a run, and where.

    `save_threshold`: a group is dumped when a rollout's reward is above it. `conversations` is how many groups are kept
    for wandb (0 without it), `conversations_per_group` how many rollouts of each (-1: all).
    """

    folder: Path
    run_id: str
    dump_rollouts: bool = False
    dump_failed_rollouts: bool = False
    save_threshold: float = 0.7
    conversations: int = 0
    conversations_per_group: int = 0


class TrainingLog:
    """Counts, prints and dumps scored groups. Only reads them: nothing here moves what is drawn or sent."""

    def __init__(self, settings: TrainingLogSettings) -> None:
        wanted = ((ROLLOUTS, settings.dump_rollouts), (FAILED, settings.dump_failed_rollouts))
        self.outcomes = GroupOutcomes()
        self.dumps = RolloutDumps(
            settings.folder, settings.run_id, kinds=[kind for kind, is_wanted in wanted if is_wanted]
        )
        self._save_threshold = settings.save_threshold
        self._metrics = TrainMetrics()
        self._watch = HackingWatch()
        self._conversations = ConversationLog(groups=settings.conversations, per_group=settings.conversations_per_group)

    @property
    def percent_correct(self) -> list[float]:
        """1.0 or 0.0 for each scored rollout since the last `drain`: whether its reward is at least 0.5."""
        return self._metrics.percent_correct

    async def open(self, version: str) -> None:
        """Make the dumps ready for groups that this version of reasoning-gym made; see `RolloutDumps.open`."""
        await self.dumps.open(version)

    def observe(self, group: RolloutGroup) -> None:
        """Count and tell of one scored group, before anything is filtered."""
        self._metrics.observe(group)
        self._conversations.observe(group)
        logger.info("%s", group_line(group))
        self._watch.observe(group)

    async def dump(self, group: RolloutGroup) -> None:
        """Write a scored group to the dumps that it belongs to; waits a while for a disk that hangs, not for ever."""
        if max(group.rewards) > self._save_threshold:
            await self.dumps.add(group, ROLLOUTS)
        # By credit, not by reward: a group that is correct but too long has not failed.
        if not any(rollout.credit for rollout in group.rollouts):
            await self.dumps.add(group, FAILED)

    def drain(self, *, has_tables: bool = True) -> dict[str, Any]:
        """Everything to log, by wandb key: what was counted since the last call, and totals since the start.

        Conversations wait for a log step that has tables.
        """
        return {
            **self._metrics.drain(),
            **self._watch.metrics(),
            **(self._conversations.drain() if has_tables else {}),
            **self.outcomes.metrics(),
            **self.dumps.metrics(),
        }

    def summarise(self) -> None:
        """Tell of what is not told yet: format violations, how many were right, and what became of all groups."""
        self._metrics.summarise()
        self.outcomes.summarise()

    async def close(self) -> None:
        """Finish the dumps. Safe to call twice."""
        await self.dumps.close()


# --- what became of the groups


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

    @property
    def is_useful(self) -> bool:
        return self in (GroupOutcome.SENT, GroupOutcome.WRITTEN)

    @property
    def words(self) -> str:
        return self.value.replace("_", " ")


class GroupOutcomes:
    """Counts outcomes by task since the start of the run."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[GroupOutcome]] = {}
        self._summarised = 0

    def add(self, outcome: GroupOutcome, task: str) -> None:
        """Count a group of this task; once for each group whose completions were asked for."""
        self._counts.setdefault(task, Counter())[outcome] += 1

    @property
    def totals(self) -> dict[GroupOutcome, int]:
        """Groups by outcome, of those that occurred."""
        return _in_order(sum(self._counts.values(), Counter()))

    def by_task(self) -> dict[str, dict[str, int]]:
        """Task -> outcome -> groups, sorted by task; outcomes that did not occur are left out."""
        tasks = sorted(self._counts.items())
        return {task: {one.value: count for one, count in _in_order(counts).items()} for task, counts in tasks}

    def metrics(self) -> dict[str, float]:
        """Groups since the start, by outcome."""
        return {f"funnel/{outcome.value}": float(count) for outcome, count in self.totals.items()}

    def state_dict(self) -> dict[str, Any]:
        return {"counts": self.by_task()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Count on from a `state_dict`. Raises EnvironmentSetupError if it is malformed."""
        try:
            self._counts = {
                str(task): Counter({GroupOutcome(outcome): int(count) for outcome, count in counts.items()})
                for task, counts in state["counts"].items()
            }
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise EnvironmentSetupError(
                f"The state of the funnel counts outcomes by task, got {dict(state)!r:.200}."
            ) from error

    def summary(self) -> str:
        """What became of all groups in two sentences; empty if there were none."""
        totals = self.totals
        groups = sum(totals.values())
        if not groups:
            return ""
        parts = [f"{count} {outcome.words} ({count / groups:.0%})" for outcome, count in totals.items()]
        wasted = Counter(
            {task: sum(counts[one] for one in counts if not one.is_useful) for task, counts in self._counts.items()}
        )
        worst = [
            f"{task} {count} of {sum(self._counts[task].values())}"
            for task, count in wasted.most_common(WORST_TASKS)
            if count
        ]
        return f"Of {groups} groups: {', '.join(parts)}." + (f" Most of no use: {', '.join(worst)}." if worst else "")

    def summarise(self) -> None:
        """Log the summary and a table by task; nothing if no group was added since the last time."""
        groups = sum(self.totals.values())
        if groups == self._summarised:
            return
        self._summarised = groups
        logger.info("%s", self.summary())
        logger.info("Groups by task:\n%s", self.table())

    def table(self) -> str:
        """Groups by task and outcome, most groups first; outcomes that did not occur have no column."""
        columns = list(self.totals)
        width = max([len(task) for task in self._counts], default=0)
        rows = [" " * width + "".join(f"  {outcome.words}" for outcome in columns)]
        for task, counts in sorted(self._counts.items(), key=lambda row: (-sum(row[1].values()), row[0])):
            rows.append(task.ljust(width) + "".join(f"  {counts[one]:>{len(one.value)}}" for one in columns))
        return "\n".join(rows)


def _in_order(counts: Counter[GroupOutcome]) -> dict[GroupOutcome, int]:
    return {outcome: counts[outcome] for outcome in GroupOutcome if counts[outcome]}


def outcome_without_signal(group: RolloutGroup) -> GroupOutcome:
    """Why a scored group teaches nothing, by the first that holds: timed_out, too_long, masked, all_zero, equal_scores.

    `timed_out` is any failure of our own to score the whole group.
    """
    if not group.scored:
        return GroupOutcome.TIMED_OUT
    if all(rollout.completion.finish_reason == "length" for rollout in group.rollouts):
        return GroupOutcome.TOO_LONG
    if len(set(group.rewards)) > 1:
        return GroupOutcome.MASKED
    return GroupOutcome.ALL_ZERO if not any(group.rewards) else GroupOutcome.EQUAL_SCORES
