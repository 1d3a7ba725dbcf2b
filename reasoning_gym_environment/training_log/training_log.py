"""What a run tells: the one place that hears of every scored group, and of what became of it.

    group ──observe──> metrics of this step, conversations to read, one line in the log
        └──dump──────> files of rollouts, when it is worth keeping
        └──outcome───> what became of it, by task (once; also of groups that were never scored)

`drain` gives what was counted since the last log step under the names that wandb shows. `outcomes` and `dumps` go into
a checkpoint; the metrics of a step do not outlive it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..records import RolloutGroup
from .dump_files import FAILED, ROLLOUTS
from .dumps import RolloutDumps
from .group_outcomes import GroupOutcome, GroupOutcomes
from .metrics import TrainMetrics, group_line
from .wandb_tables import ConversationLog

logger = logging.getLogger(__name__)


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
        self._conversations = ConversationLog(groups=settings.conversations, per_group=settings.conversations_per_group)

    @property
    def run_id(self) -> str:
        """The id in the names of the dumps; that of the earlier run when it is continued."""
        return self.dumps.run_id

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

    async def dump(self, group: RolloutGroup) -> None:
        """Write a scored group to the dumps that it belongs to; waits a while for a disk that hangs, not for ever."""
        if max(group.rewards) > self._save_threshold:
            await self.dumps.add(group, ROLLOUTS)
        # By credit, not by reward: a group that is correct but too long has not failed.
        if not any(rollout.credit for rollout in group.rollouts):
            await self.dumps.add(group, FAILED)

    def outcome(self, outcome: GroupOutcome, task: str) -> None:
        """Count what became of a group of this task; once for each group whose completions were asked for."""
        self.outcomes.add(outcome, task)

    def drain(self) -> dict[str, Any]:
        """Everything to log, by wandb key: what was counted since the last call, and totals since the start."""
        return {
            **self._metrics.drain(),
            **self._conversations.drain(),
            **self.outcomes.metrics(),
            **self.dumps.metrics(),
        }

    def summarise(self) -> None:
        """Tell of what is not told yet: format violations, and what became of all groups."""
        self._metrics.summarise_violations()
        self.outcomes.summarise()

    async def close(self) -> None:
        """Finish the dumps. Safe to call twice."""
        await self.dumps.close()
