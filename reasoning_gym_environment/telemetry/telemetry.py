"""What a run tells: every scored group passes here once, before it is decided whether it is sent.

    group ──observe──> metrics of this log step, conversations to read, one log line, signs of reward hacking
        └──dump──────> files of rollouts, if it is worth keeping
        └──outcomes──> what became of it, by task (also of groups that were never scored)

    a dumped group ──> a line of {stem}_{kind}_{run_id}_{batch:04d}.jsonl ──(it has enough groups)──> the next file

`drain` gives what was counted since the last log step, under its names in wandb. `outcomes` and `dumps` are saved in
checkpoints; the metrics of a log step are not. Nothing here changes what is drawn or sent.

Names of metrics: `percent_correct` is the share of rewards of at least 0.5, `percent_exact` the share of right answers.
Completions that we failed to score count as neither.

A dumped group is on disk as soon as it is scored. A resumed run goes on in the file where it stopped. A group that the
disk refuses is lost to the dumps, which is logged and counted. A disk that does not answer holds up a group for
PATIENCE_S; until it answers, further groups are lost to the dumps. Training goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from statistics import fmean
from typing import Any

import wandb

from ..errors import EnvironmentSetupError
from ..records import CORRECT_THRESHOLD, Episode, FormatFailure, Outcome
from ..sampling.task_policy import effective_number
from ..storage.json_lines import FAILED, FILE_STEM, ROLLOUTS, AppendLog, dump_record, rollout_record
from ..utils.resilience import Background, Outage
from .reward_hacking import HackingWatch

logger = logging.getLogger(__name__)

DIVERSITY_WINDOW = 1000
"""Groups that `train/effective_tasks` is computed from: those of one log step cannot show a hundred tasks."""


class Telemetry:
    """Counts, logs and dumps scored groups, as the settings of the run say.

    `run_id` stands in the names of dumps, and `version`, that of reasoning-gym, in their lines.
    """

    def __init__(self, settings: Any, run_id: str, version: str) -> None:
        wanted = {ROLLOUTS: settings.dump_rollouts, FAILED: settings.dump_failed_rollouts}
        kinds = [kind for kind, is_wanted in wanted.items() if is_wanted]
        self.outcomes = GroupOutcomes()
        self.dumps = RolloutDumps(Path(settings.data_dumps_dir), run_id, version, kinds=kinds)
        self._save_threshold = settings.rollout_save_score_threshold
        self._metrics = TrainMetrics()
        self.percent_correct = self._metrics.percent_correct
        self._hacking = HackingWatch()
        groups = settings.num_rollouts_to_keep if settings.use_wandb else 0
        self._conversations = ConversationLog(groups, settings.num_rollouts_per_group_for_logging)

    def observe(self, group: Episode) -> None:
        """Count and log one scored group, before anything is filtered."""
        self._metrics.observe(group)
        self._conversations.observe(group)
        self._hacking.observe(group)
        logger.info("%s", group_line(group))

    async def dump(self, group: Episode) -> None:
        """Write a scored group to the dumps that it belongs to."""
        if max(group.rewards) > self._save_threshold:
            await self.dumps.add(group, ROLLOUTS)
        # Not by reward: a group that is right but too long has not failed.
        if not any(rollout.credit for rollout in group.rollouts):
            await self.dumps.add(group, FAILED)

    def drain(self, *, has_tables: bool = True) -> dict[str, Any]:
        """Everything to log, by wandb key: what was counted since the last call, and totals since the start.

        Conversations wait for a log step that has tables.
        """
        parts = [self._metrics.drain(), self._hacking.metrics(), self.outcomes.metrics(), self.dumps.metrics()]
        if has_tables:
            parts.append(self._conversations.drain())
        return {name: value for part in parts for name, value in part.items()}


class TrainMetrics:
    """Accumulates scored groups; `drain` gives the wandb values and starts over."""

    def __init__(self) -> None:
        self.percent_correct: list[float] = []
        """1.0 or 0.0 for each scored rollout since the last `drain`: whether its reward is at least 0.5."""
        self._values: defaultdict[str, list[float]] = defaultdict(list)
        self._groups: Counter[str] = Counter()
        self._masked: Counter[str] = Counter()
        self._recent: deque[str] = deque(maxlen=DIVERSITY_WINDOW)
        self._since_log = Counter[str]()

    def observe(self, group: Episode) -> None:
        """Count one scored group."""
        problem, values = group.problem, self._values
        category, task = f"train_category/{problem.category}", f"train_task/{problem.task}"
        self._groups[category] += 1
        self._recent.append(problem.task)
        self._since_log += accuracy_counts(group)
        for scope in ("train", category):
            values[f"{scope}/signal_share"].append(group.has_signal)
        if problem.level is not None:
            values[f"{task}/level"].append(problem.level)
        for rollout in group.rollouts:
            for outcome in Outcome:
                values[f"train/outcome_{outcome.value}"].append(rollout.score.outcome is outcome)
            if rollout.mask_reason:
                self._masked[rollout.mask_reason] += 1
        for rollout in group.scored:
            score, credit, reward = rollout.score.value, rollout.credit, rollout.reward
            is_correct = float(reward >= CORRECT_THRESHOLD)
            self.percent_correct.append(is_correct)
            for scope in ("train", category, task):
                values[f"{scope}/percent_correct"].append(is_correct)
                values[f"{scope}/percent_exact"].append(rollout.score.outcome is Outcome.CORRECT)
            # `total` is the sum of the three before it.
            values["train_reward/score"].append(score)
            values["train_reward/partial_credit"].append(credit - score)
            values["train_reward/length_penalty"].append(reward - credit)
            values["train_reward/total"].append(reward)
            values[f"train_reward/category/{problem.category}"].append(reward)
            values[f"train_reward/outcome/{rollout.score.outcome.value}"].append(reward)
            if problem.level is not None:
                values[f"train_reward/level/{problem.level}"].append(reward)

    def drain(self) -> dict[str, float]:
        """Means since the last call, by wandb key; the accuracies are also logged in one line."""
        if self._since_log["scored"]:
            logger.info("Since the last log step: %s.", accuracy_words(self._since_log))
        means = {name: fmean(values) for name, values in self._values.items()}
        completions = len(self._values[f"train/outcome_{Outcome.CORRECT.value}"])
        means.update({f"train/masked_{reason}": count / completions for reason, count in self._masked.items()})
        means.update({f"{category}/groups": float(count) for category, count in self._groups.items()})
        if self._recent:
            means["train/effective_tasks"] = effective_number(list(Counter(self._recent).values()))
        self.percent_correct.clear()
        self._values.clear()
        for counted in (self._groups, self._masked, self._since_log):
            counted.clear()
        return means


def accuracy_counts(group: Episode) -> Counter[str]:
    """How many groups, `scored` completions, of these `correct` and `exact` ones, and format failures by kind."""
    failures = Counter(rollout.score.failure.value for rollout in group.rollouts if rollout.score.failure)
    correct = sum(rollout.reward >= CORRECT_THRESHOLD for rollout in group.scored)
    exact = sum(rollout.score.outcome is Outcome.CORRECT for rollout in group.scored)
    return Counter(groups=1, scored=len(group.scored), correct=correct, exact=exact) + failures


def accuracy_words(counts: Counter[str]) -> str:
    """The sums of `accuracy_counts` for a person, where something was scored."""
    scored = counts["scored"]
    failures = [f"{one.value} {counts[one.value]}" for one in FormatFailure if counts[one.value]]
    return (
        f"{counts['groups']} groups, {scored} scored completions, {counts['correct'] / scored:.1%} at least 0.5, "
        f"{counts['exact'] / scored:.1%} exact" + ("; no usable answer: " + ", ".join(failures) if failures else "")
    )


def group_line(group: Episode) -> str:
    """The log line of one scored group."""
    problem, counts, size = group.problem, accuracy_counts(group), len(group.rollouts)
    level = "" if problem.level is None else f" level {problem.level}"
    unscored = "" if counts["scored"] == size else f", {size - counts['scored']} unscored"
    return (
        f"{problem.task}{level}: mean reward {fmean(group.rewards):.2f}, "
        f"{counts['correct']}/{counts['scored']} at least 0.5, {counts['exact']}/{counts['scored']} exact{unscored}."
    )


# --- what became of each group


class GroupOutcome(StrEnum):
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
        at any point ─> stopped, its item is requeued                        cancelled
                        an error in this environment, which is logged        fault

    The inference for groups that are neither `sent` nor `written` was spent without use.
    """

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
    CANCELLED = "cancelled"
    FAULT = "fault"


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

    def metrics(self) -> dict[str, float]:
        """Groups since the start, by outcome."""
        return {f"groups/{outcome}": float(count) for outcome, count in self._totals().items()}

    def state_dict(self) -> dict[str, Any]:
        """`counts`: task -> outcome -> groups, sorted by task; outcomes that did not occur are left out."""
        return {"counts": {task: _in_order(counts) for task, counts in sorted(self._counts.items())}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue counting from a `state_dict`."""
        self._counts = {
            task: Counter({GroupOutcome(outcome): int(count) for outcome, count in counts.items()})
            for task, counts in state["counts"].items()
        }

    def summarise(self) -> None:
        """Log what became of all groups, and a table by task; nothing if no group was added since the last time."""
        totals = self._totals()
        if (groups := sum(totals.values())) == self._summarised:
            return
        self._summarised = groups
        largest_first = sorted(self._counts.items(), key=lambda row: (-row[1].total(), row[0]))
        rows = "\n".join(f"  {task}: {_shares(_in_order(counts))}" for task, counts in largest_first)
        logger.info("Of %d groups: %s. By task:\n%s", groups, _shares(totals), rows)

    def _totals(self) -> dict[str, int]:
        return _in_order(sum(self._counts.values(), Counter()))


def _in_order(counts: Counter[GroupOutcome]) -> dict[str, int]:
    return {outcome.value: counts[outcome] for outcome in GroupOutcome if counts[outcome]}


def _shares(counts: Mapping[str, int]) -> str:
    total = sum(counts.values())
    return ", ".join(f"{count} {outcome.replace('_', ' ')} ({count / total:.0%})" for outcome, count in counts.items())


# --- rollouts for other programs: dumps

GROUPS_PER_FILE = {ROLLOUTS: 100, FAILED: 50}
PATIENCE_S = 10.0


class RolloutDumps:
    """Writes groups of the wanted `kinds` to `folder`; `version` of reasoning-gym stands in every line.

    A resumed run keeps the `run_id` of the earlier one.
    """

    def __init__(self, folder: Path, run_id: str, version: str, *, kinds: Iterable[str]) -> None:
        self.run_id = run_id
        self._version = version
        self._folder = folder
        self._counts = {kind: Counter[str]() for kind in kinds}
        self._logs: dict[str, AppendLog] = {}
        # A call to a disk that hangs must not hold up the event loop, nor the end of the process.
        self._disk = Background("dumps")
        self._outage = Outage(logger, "The disk of the dumps", first_delay_s=0.0, max_delay_s=0.0)
        self._overdue: asyncio.Task[None] | None = None

    async def add(self, group: Episode, kind: str) -> None:
        """Write a group; see above for a disk that refuses it or hangs."""
        if kind not in self._counts:
            return
        if self._overdue is not None and not self._overdue.done():
            self._note_lost(kind, "it does not answer")
            return
        writing = asyncio.ensure_future(self._write(group, kind))
        await asyncio.wait([writing], timeout=PATIENCE_S)
        if not writing.done():
            self._overdue = writing
            self._outage.failed(f"no answer for {PATIENCE_S:g} s", "training goes on, and groups are not dumped")

    async def _write(self, group: Episode, kind: str) -> None:
        try:
            await self._disk.submit(self._append, group, kind)
        except (OSError, EnvironmentSetupError) as error:
            self._note_lost(kind, str(error))
        else:
            self._outage.over()

    def _note_lost(self, kind: str, why: str) -> None:
        self._counts[kind]["groups_dropped"] += 1
        self._outage.failed(why, f"groups of {kind} are lost to the dumps, and counted")

    async def close(self) -> None:
        """Release the files. Safe to call twice."""
        for kind, counts in self._counts.items():
            await self._disk.submit(self._close, kind)
            if lost := counts["groups_dropped"]:
                logger.warning("%d groups of %s could not be written: they are not in the dumps.", lost, kind)

    def metrics(self) -> dict[str, float]:
        """Groups written, removed and dropped since the start of the run; outages of the disk, if any.

        `removed` are groups that were written to a file that was removed or moved before the run had left it.
        """
        values = self._outage.metrics("dumps/disk")
        for kind, counts in self._counts.items():
            for what in ("written", "removed", "dropped"):
                values[f"dumps/{kind}_{what}"] = float(counts[f"groups_{what}"])
        return values

    def state_dict(self) -> dict[str, Any]:
        return {"run_id": self.run_id, "kinds": {kind: dict(counts) for kind, counts in self._counts.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue names and counts of an earlier run."""
        self.run_id = str(state["run_id"])
        for kind in self._counts.keys() & state["kinds"].keys():
            self._counts[kind] = Counter({name: int(n) for name, n in state["kinds"][kind].items()})

    # --- in the thread that waits for the disk

    def _append(self, group: Episode, kind: str) -> None:
        """Raises OSError, and EnvironmentSetupError if another run holds the file."""
        record = dump_record(group, self._version)
        log = self._logs.get(kind) or self._open(kind)
        try:
            log.append(record)
        except FileNotFoundError:
            self._close(kind)
            log = self._open(kind)
            log.append(record)
        self._counts[kind]["groups_written"] += 1
        if log.count >= GROUPS_PER_FILE[kind]:
            self._close(kind)

    def _open(self, kind: str) -> AppendLog:
        """The first file that is not full: a run that is resumed may have left some."""
        while True:
            name = f"{FILE_STEM}_{kind}_{self.run_id}_{self._counts[kind]['batch']:04d}.jsonl"
            log = AppendLog(self._folder / name)
            if log.count < GROUPS_PER_FILE[kind]:
                self._logs[kind] = log
                return log
            log.close()
            self._counts[kind]["batch"] += 1

    def _close(self, kind: str) -> None:
        if log := self._logs.pop(kind, None):
            if log.path.exists():
                logger.info("Wrote %d groups of %s to %s.", log.count, kind, log.path)
            elif log.count:
                self._counts[kind]["groups_removed"] += log.count
                logger.error("%s was removed or moved away with %d groups of %s.", log.path, log.count, kind)
            try:
                log.close()
            except OSError as error:
                logger.error("%s may have lost groups: %s.", log.path, error)


# --- rollouts for people: tables in wandb

ALL = -1
"""As a number of rollouts to keep of a group: every one."""


def table_rows(
    scored_data: Mapping[str, Any], *, decode: Callable[[list[int]], str], keep: int, expected_answer: Any, task: str
) -> list[tuple[str, float, str, str]]:
    """The first `keep` rollouts of a group (ALL: every one) as rows of `train/rollouts`."""
    count = None if keep == ALL else keep
    rows = zip(scored_data["tokens"][:count], scored_data["scores"][:count], strict=True)
    return [(decode(tokens), score, str(expected_answer), task) for tokens, score in rows]


def build_table(groups: list[list[tuple[str, float, str, str]]]) -> wandb.Table:
    """The table of the groups that were kept."""
    columns = ["full_text", "score", "expected_answer", "task_name"]
    return wandb.Table(columns=columns, data=[list(row) for group in groups for row in group])


class ConversationLog:
    """The last groups' conversations as they were, for the wandb table `train/conversations`."""

    def __init__(self, groups: int, per_group: int) -> None:
        """Keep that many groups, and the first `per_group` rollouts of each (ALL: every one)."""
        self._groups: deque[list[dict[str, Any]]] = deque(maxlen=max(0, groups))
        self._per_group = None if per_group == ALL else per_group

    def observe(self, group: Episode) -> None:
        problem, rows = group.problem, []
        about = {"task": problem.task, "category": problem.category, "level": problem.level}
        for rollout in group.rollouts[: self._per_group]:
            record = rollout_record(group.messages, rollout)
            texts = {"question": problem.question, "reply": record.pop("conversation")[-1]["content"]}
            rows.append({**about, **texts, "expected_answer": str(problem.entry.get("answer")), **record})
        self._groups.append(rows)

    def drain(self) -> dict[str, Any]:
        """The table since the last call, if there is anything in it."""
        rows = [row for group in self._groups for row in group]
        self._groups.clear()
        if not rows:
            return {}
        return {"train/conversations": wandb.Table(columns=list(rows[0]), data=[list(row.values()) for row in rows])}
