"""Metrics, log lines and dumps of a run. Every scored group passes through here once, before it is filtered.

    group ──observe──> metrics of this log step, the window of the alarms
        └──dump──────> files of rollouts, if the settings ask for them
        └──ended─────> counts of how attempts to make a group ended, by task (also without a scored group)

    a dumped group ──> a line of {stem}_{kind}_{run_id}_{batch:04d}.jsonl; a full file is followed by the next file

`drain` returns everything that was counted since the last log step, by wandb name. Checkpoints save `outcomes` and
`dumps`, but not the metrics of a log step. This module never changes what is sampled or sent.

Names of metrics: `percent_correct` is the share of base rewards of at least 0.5, that is before the length penalty, and
`percent_exact` the share of right answers. Both exclude completions that the environment failed to score. The reward
after the penalty is `train_reward/total`.

A dumped group is on disk as soon as it is scored. A resumed run appends to the file where it stopped. While the disk is
unavailable, training continues, and some groups wait for it in memory (storage/disk_queue.py).
"""

from __future__ import annotations

import logging
import shlex
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import EnvironmentSetupError
from ..records import (
    CORRECT_THRESHOLD,
    KINDS,
    Group,
    GroupOutcome,
    MaskReason,
    Outcome,
    Problem,
    Rollout,
)
from ..storage.append_log import AppendLog
from ..storage.disk_queue import DiskQueue
from ..storage.lines import FAILED, FILE_STEM, ROLLOUTS, SAMPLE, dump_record
from .alarms import Alarms, Window, completion_rules, numbers_of

logger = logging.getLogger(__name__)

MOST_VALUES = 100_000
"""Lists of values for the next log step keep at most this many values, which are a few megabytes.

Atropos empties them in a log step, and makes none while no group is sent, which can be for days.
"""


class Telemetry:
    """Counts, logs and dumps scored groups according to the settings of the run.

    `run_id` is part of the file names of dumps. `version` is the release of reasoning-gym and is part of their lines.
    """

    def __init__(self, settings: Any, run_id: str, version: str) -> None:
        kinds = []
        if settings.dump_rollouts:
            kinds.append(ROLLOUTS)
        if settings.dump_failed_rollouts:
            kinds.append(FAILED)
        if settings.keep_for_report:
            kinds.append(SAMPLE)
        self.outcomes = GroupOutcomes()
        self.dumps = RolloutDumps(settings.dumps_folder, run_id, version, kinds=kinds)
        self._save_threshold = settings.rollout_save_score_threshold
        self._metrics = TrainMetrics()
        self.percent_correct = self._metrics.percent_correct
        self._groups_not_dumped = 0
        self.completions: Counter[str] = Counter()
        """The completions since the start: `all`, and those of which something else than their answer is wrong."""
        self._summarised = 0
        self.window = Window()
        self.alarms = Alarms(completion_rules(self.window))

    def observe(self, group: Group) -> None:
        """Count one scored group, before it is filtered."""
        self._metrics.observe(group)
        self.window.add(numbers_of(group.problem, group.rollouts))
        for rollout in group.rollouts:
            self.completions.update(faults_of(rollout))
        logger.debug("%s, level %s: rewards %s.", group.problem.task, group.problem.level, group.rewards)

    def ended(self, outcome: GroupOutcome, task: str) -> None:
        """Count how an attempt to make a group of this task ended."""
        self.outcomes.add(outcome)
        self.window.note_ending(task, outcome, is_sent=outcome in (GroupOutcome.SENT, GroupOutcome.WRITTEN))

    async def dump(self, group: Group) -> None:
        """Write a scored group to the dump of rollouts, if one of its scores is high enough, or to the sample."""
        if max(group.rewards, default=0.0) > self._save_threshold and ROLLOUTS in self.dumps.kinds:
            await self.dumps.add(group, ROLLOUTS)
        elif not (_has_failed(group) and FAILED in self.dumps.kinds) and group.rollouts:
            if is_sampled(self._groups_not_dumped):
                await self.dumps.add(group, SAMPLE)
            self._groups_not_dumped += 1

    async def dump_if_failed(self, group: Group) -> None:
        """Write a scored group to the dump of failed groups, if it is one."""
        if _has_failed(group):
            await self.dumps.add(group, FAILED)

    def summarise(self) -> None:
        """Log what became of the groups and completions of this process, unless there are no new ones."""
        totals = self.outcomes.totals()
        ended = sum(totals.values())
        if ended == self._summarised:
            return
        self._summarised = ended
        shares = [f"{count:,} {outcome_words(name)} ({count / ended:.0%})" for name, count in totals.items()]
        logger.info("Of %s groups: %s.", f"{ended:,}", ", ".join(shares))
        if self.window.groups:
            logger.info("%s.", self.window.in_words())
        completions = self.completions["all"]
        faults = [f"{count / completions:.0%} {name}" for name, count in self.completions.items() if name != "all"]
        if faults:
            logger.warning("Of the %s completions of this start: %s.", f"{completions:,}", ", ".join(faults))

    def drain(self) -> dict[str, Any]:
        """All metrics by wandb name: counts since the last call, and totals since the start."""
        return {
            **self._metrics.drain(),
            **self.alarms.metrics(),
            **self.outcomes.metrics(),
            **self.dumps.metrics(),
        }


def faults_of(rollout: Rollout) -> list[str]:
    """`all`, and the faults of a completion, as the last lines of a command name them."""
    found = ["all"]
    if rollout.completion.finish_reason == "length":
        found.append("cut off")
    if rollout.outcome.is_unreadable:
        found.append("without a readable answer")
    if rollout.outcome is Outcome.VERIFIER_ERROR:
        found.append("wrong because their verifier raised an error")
    if not rollout.outcome.is_scored:
        found.append("unscored")
    return found


def is_sampled(number: int) -> bool:
    """Whether the sample has the group with this number, counted from 0."""
    return number % max(SAMPLE_EVERY, number // SAMPLE_SIZE) == 0


def _has_failed(group: Group) -> bool:
    # The base reward decides, not the reward: a group with a right answer that is too long has not failed.
    return not any(rollout.base_reward for rollout in group.rollouts)


class TrainMetrics:
    """Accumulates scored groups. `drain` returns the values for wandb and starts over."""

    def __init__(self) -> None:
        self.percent_correct: list[float] = []
        """For each scored rollout since the last `drain`: 1.0 if its base reward is at least 0.5, else 0.0.

        Subclasses read this list. It has only the newest rollouts, and the metrics do not depend on it.
        """
        # Sums, because a model without any success makes no log step for days.
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._counts: Counter[str] = Counter()
        self._groups: Counter[str] = Counter()
        self._masked: Counter[MaskReason] = Counter()

    def observe(self, group: Group) -> None:
        """Count one scored group."""
        problem = group.problem
        category = f"train_category/{problem.category}"
        has_signal = group.has_signal
        self._groups[category] += 1
        self._add("train/signal_share", has_signal)
        self._add(f"{category}/signal_share", has_signal)
        if problem.level is not None:
            self._add(f"train_task/{problem.task}/level", problem.level)
        for rollout in group.rollouts:
            self._observe_outcome(rollout)
        for rollout in group.scored:
            self._observe_score(problem, rollout)
            self._observe_reward(problem, rollout)
        keep_newest(self.percent_correct)

    def _add(self, name: str, value: float) -> None:
        self._sums[name] += value
        self._counts[name] += 1

    def _observe_outcome(self, rollout: Rollout) -> None:
        found = rollout.outcome.kind
        for kind in KINDS:
            self._add(f"train/outcome_{kind}", kind == found)
        if rollout.mask_reason:
            self._masked[rollout.mask_reason] += 1

    def _observe_score(self, problem: Problem, rollout: Rollout) -> None:
        is_correct = 1.0 if rollout.base_reward >= CORRECT_THRESHOLD else 0.0
        is_exact = rollout.outcome is Outcome.CORRECT
        self.percent_correct.append(is_correct)
        for scope in (
            "train",
            f"train_category/{problem.category}",
            f"train_task/{problem.task}",
        ):
            self._add(f"{scope}/percent_correct", is_correct)
            self._add(f"{scope}/percent_exact", is_exact)

    def _observe_reward(self, problem: Problem, rollout: Rollout) -> None:
        reward = rollout.reward
        # `total` is the sum of the three values above it.
        shown = {
            "score": rollout.score.value,
            "partial_credit": rollout.base_reward - rollout.score.value,
            "length_penalty": reward - rollout.base_reward,
            "total": reward,
            f"category/{problem.category}": reward,
        }
        for name, value in shown.items():
            self._add(f"train_reward/{name}", value)

    def drain(self) -> dict[str, float]:
        """The means since the last call, by wandb name."""
        means = {name: total / self._counts[name] for name, total in self._sums.items()}
        completions = self._counts[f"train/outcome_{Outcome.CORRECT.value}"]
        for reason, count in self._masked.items():
            means[f"train/masked_{reason}"] = count / completions
        for category, count in self._groups.items():
            means[f"{category}/groups"] = float(count)
        self.percent_correct.clear()
        self._sums.clear()
        self._counts.clear()
        self._groups.clear()
        self._masked.clear()
        return means


# --- lists that grow until the next log step


def keep_newest(values: list[Any]) -> None:
    """Remove the oldest values of a list that grows until the next log step.

    The list stays an ordinary list, because a subclass may use it like one and Atropos replaces it by one.
    """
    del values[:-MOST_VALUES]


def keep_newest_metrics(metrics: list[tuple[str, Any]]) -> None:
    """Keep only the newest value of each metric. A log step would not log the older values."""
    metrics[:] = dict(metrics).items()


# --- what became of each group


class GroupOutcomes:
    """Counts how the attempts to make groups have ended since the start of the run."""

    def __init__(self) -> None:
        self._counts: Counter[GroupOutcome] = Counter()

    def add(self, outcome: GroupOutcome) -> None:
        """Count the end of an attempt."""
        self._counts[outcome] += 1

    def metrics(self) -> dict[str, float]:
        """Groups since the start, by outcome."""
        return {f"groups/{outcome}": float(count) for outcome, count in self.totals().items()}

    def totals(self) -> dict[str, int]:
        """How many attempts ended with each outcome that occurred."""
        return {outcome.value: self._counts[outcome] for outcome in GroupOutcome if self._counts[outcome]}

    def state_dict(self) -> dict[str, Any]:
        return {"counts": self.totals()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue counting from a `state_dict`."""
        self._counts = Counter({GroupOutcome(name): int(count) for name, count in state["counts"].items()})


def outcome_words(name: str) -> str:
    """An outcome as the log names it, such as `all wrong`."""
    words: dict[str, str] = {GroupOutcome.TOO_LONG: "cut off or too long", GroupOutcome.TIMED_OUT: "not scored"}
    return words.get(name, name.replace("_", " "))


# --- rollouts for other programs: dumps

GROUPS_PER_FILE = {ROLLOUTS: 100, FAILED: 50, SAMPLE: 100}
"""A file with this many groups is full."""

SAMPLE_EVERY = 20
"""At first, the sample has every twentieth of the groups that are dumped nowhere else."""

SAMPLE_SIZE = 1000
"""When the sample has this many groups, the distance begins to grow, so that ten times as many groups only add 2,300.

A group with long completions takes 100 kB, and a run makes hundreds of thousands of groups a day.
"""


class RolloutDumps:
    """Writes groups of the wanted `kinds` to `folder`. Every line contains the `version` of reasoning-gym.

    A resumed run keeps the `run_id` of the run that it resumes.
    """

    def __init__(self, folder: Path, run_id: str, version: str, *, kinds: Iterable[str]) -> None:
        self.run_id = run_id
        self._version = version
        self.folder = folder
        self._counts = {kind: Counter[str]() for kind in kinds}
        self._logs: dict[str, AppendLog] = {}
        self._queue = DiskQueue(
            self._append, name="dumps", remedy="training continues, and the dumps get the groups later"
        )

    @property
    def kinds(self) -> Collection[str]:
        """The kinds of groups that are wanted."""
        return self._counts.keys()

    @property
    def pattern(self) -> str:
        """Names the files of this run to a shell."""
        return f"{shlex.quote(str(self.folder))}/*{self.run_id}*"

    async def add(self, group: Group, kind: str) -> None:
        """Write a group, or lose and count it; see `DiskQueue.offer`."""
        if kind in self._counts and not await self._queue.offer((group, kind)):
            self._counts[kind]["groups_dropped"] += 1

    async def close(self) -> None:
        """Write the groups that wait, and release the files. Safe to call twice. Raises OSError."""
        await self._queue.close(self._close_all)

    def metrics(self) -> dict[str, float]:
        """Groups written and dropped since the start of the run, and outages of the disk."""
        values = self._queue.metrics("dumps/disk")
        for kind, counts in self._counts.items():
            for event in ("written", "dropped"):
                values[f"dumps/{kind}_{event}"] = float(counts[f"groups_{event}"])
        return values

    def progress(self) -> str:
        """How full the open files are, such as `37/100 rollouts, 12/50 FAILED_rollouts`; "" if no file is open."""
        shares = []
        for kind in self._counts:
            log = self._logs.get(kind)
            if log is not None:
                shares.append(f"{log.count}/{GROUPS_PER_FILE[kind]} {kind}")
        return ", ".join(shares)

    def state_dict(self) -> dict[str, Any]:
        kinds = {kind: dict(counts) for kind, counts in self._counts.items()}
        return {"run_id": self.run_id, "kinds": kinds}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the file names and counts of an earlier run."""
        self.run_id = str(state["run_id"])
        for kind in self._counts.keys() & state["kinds"].keys():
            saved = state["kinds"][kind]
            self._counts[kind] = Counter({name: int(count) for name, count in saved.items()})

    # --- methods that run in the thread of `_queue`

    def _append(self, dumped: tuple[Group, str]) -> None:
        """Raises OSError, also if another run writes to the file."""
        group, kind = dumped
        record = {**dump_record(group, self._version), "written_at": round(time.time(), 1)}
        try:
            log = self._logs.get(kind) or self._open(kind)
        except EnvironmentSetupError as error:
            raise OSError(str(error)) from error
        log.append(record)
        self._counts[kind]["groups_written"] += 1
        if log.count >= GROUPS_PER_FILE[kind]:
            self._close(kind)
            # Other programs may move a full file away, and its name must not be used again.
            self._counts[kind]["batch"] += 1

    def _open(self, kind: str) -> AppendLog:
        """Open the first file that is not full. A resumed run may find full files with its own names."""
        counts = self._counts[kind]
        while True:
            name = f"{FILE_STEM}_{kind}_{self.run_id}_{counts['batch']:04d}.jsonl"
            log = AppendLog(self.folder / name)
            if log.count < GROUPS_PER_FILE[kind]:
                self._logs[kind] = log
                return log
            log.close()
            counts["batch"] += 1

    def _close_all(self) -> None:
        for kind in list(self._logs):
            self._close(kind)

    def _close(self, kind: str) -> None:
        log = self._logs.pop(kind)
        try:
            log.close()
        except OSError as error:
            # The group must not be written again, so this is not raised.
            logger.error("%s may have lost groups: %s.", log.path, error)
