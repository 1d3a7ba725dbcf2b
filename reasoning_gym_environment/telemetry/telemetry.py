"""What a run tells: every scored group passes here once, before it is decided whether it is sent.

    group ──observe──> metrics of this log step, conversations to read, one log line, signs of reward hacking
        └──dump──────> files of rollouts, if it is worth keeping
        └──outcomes──> what became of it, by task (also of groups that were never scored)

`drain` gives what was counted since the last log step, under its names in wandb. `outcomes` and `dumps` are saved in
checkpoints; the metrics of a log step are not. Nothing here changes what is drawn or sent.

Names of metrics: `percent_correct` is the share of rewards of at least 0.5, `percent_exact` the share of right answers.
Completions that we failed to score count as neither.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from statistics import fmean
from typing import Any

from ..records import CORRECT_THRESHOLD, Episode, FormatFailure, Outcome
from ..sampling.choosers import effective_number
from ..storage.json_lines import FAILED, ROLLOUTS
from .reward_hacking import HackingWatch
from .rollouts import ConversationLog, RolloutDumps

logger = logging.getLogger(__name__)

DIVERSITY_WINDOW = 1000
"""Groups that `train/effective_tasks` is computed from: those of one log step cannot show a hundred tasks."""


class Telemetry:
    """Counts, logs and dumps scored groups, as the settings of the run say. `run_id` stands in the names of dumps."""

    def __init__(self, settings: Any, run_id: str) -> None:
        wanted = {ROLLOUTS: settings.dump_rollouts, FAILED: settings.dump_failed_rollouts}
        kinds = [kind for kind, is_wanted in wanted.items() if is_wanted]
        self.outcomes = GroupOutcomes()
        self.dumps = RolloutDumps(Path(settings.data_dumps_dir), run_id, kinds=kinds)
        self._save_threshold = settings.rollout_save_score_threshold
        self._metrics = TrainMetrics()
        self._hacking = HackingWatch()
        groups = settings.num_rollouts_to_keep if settings.use_wandb else 0
        self._conversations = ConversationLog(groups, settings.num_rollouts_per_group_for_logging)

    @property
    def percent_correct(self) -> list[float]:
        """1.0 or 0.0 for each scored rollout since the last `drain`: whether its reward is at least 0.5."""
        return self._metrics.percent_correct

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

    def summarise(self) -> None:
        """Log what became of all groups."""
        self.outcomes.summarise()


class TrainMetrics:
    """Accumulates scored groups; `drain` gives the wandb values and starts over."""

    def __init__(self) -> None:
        self.percent_correct: list[float] = []
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


class GroupOutcome(str, Enum):
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
