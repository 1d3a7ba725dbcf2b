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

Numbers: shares of rewards of at least 0.5 (`percent_correct`), of exact answers, which have full credit
(`percent_exact`), of outcomes and of groups with a signal, in all, by category and by task; what rewards are made of,
and the reward by category, level and outcome. How diverse the groups are is told of the last `DIVERSITY_WINDOW`, since
a few dozen cannot show a hundred tasks. Rollouts to read: the wandb tables `train/rollouts` (what was sent, decoded
from its tokens) and `train/conversations` (what was said, also in groups that are not sent).
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import wandb

from ..errors import EnvironmentSetupError
from ..records import CORRECT_THRESHOLD, Outcome, Problem, Rollout, RolloutGroup
from ..sampling.choosers import effective_number
from .dump_files import FAILED, ROLLOUTS
from .dumps import RolloutDumps
from .hacking_watch import HackingWatch

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


# --- numbers, lines for the log, and rollouts for a person to read

SUMMARY_EVERY = 50
"""Groups between two summary lines about format violations."""

DIVERSITY_WINDOW = 1000

COLUMNS = ["full_text", "score", "expected_answer", "task_name"]
CONVERSATIONS = "train/conversations"
ALL = -1
"""As a number of rollouts to keep of a group: every one."""


class TrainMetrics:
    """Accumulates scored groups, in one pass over each; `drain` gives the wandb values and starts over."""

    def __init__(self) -> None:
        self.percent_correct: list[float] = []
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._counts: Counter[str] = Counter()
        self._groups: Counter[str] = Counter()
        self._completions: Counter[str] = Counter()
        self._levels: dict[str, int | None] = {}
        self._recent: deque[str] = deque(maxlen=DIVERSITY_WINDOW)
        self._violations: Counter[str] = Counter()
        self._unsummarised = (0, 0)
        self._since_log, self._since_start = Counter[str](), Counter[str]()

    def observe(self, group: RolloutGroup) -> None:
        """Count one scored group, before anything is filtered. What we failed to score is not counted as wrong."""
        problem = group.problem
        self._groups[problem.category] += 1
        self._levels[problem.task] = problem.level
        self._recent.append(problem.task)
        counts = accuracy_counts(group)
        self._since_log += counts
        self._since_start += counts
        for key in ("train/signal_share", f"train_category/{problem.category}/signal_share"):
            self._add(key, group.has_signal)
        for rollout in group.rollouts:
            self._completions[f"outcome_{rollout.score.outcome.value}"] += 1
            if rollout.mask_reason:
                self._completions[f"masked_{rollout.mask_reason}"] += 1
            if rollout.score.failure:
                self._violations[rollout.score.failure.value] += 1
        for rollout in group.scored:
            self._observe_scored(problem, rollout)
        groups, completions = self._unsummarised
        self._unsummarised = (groups + 1, completions + len(group.rollouts))
        if self._unsummarised[0] >= SUMMARY_EVERY:
            self.summarise_violations()

    def _observe_scored(self, problem: Problem, rollout: Rollout) -> None:
        score, credit, reward = rollout.score.value, rollout.credit, rollout.reward
        is_correct, is_exact = float(_is_correct(rollout)), float(_is_exact(rollout))
        self.percent_correct.append(is_correct)
        self._add("train/percent_exact", is_exact)
        for scope in (f"train_category/{problem.category}", f"train_task/{problem.task}"):
            self._add(f"{scope}/percent_correct", is_correct)
            self._add(f"{scope}/percent_exact", is_exact)
        # `total` is the sum of the three before it.
        self._add("train_reward/score", score)
        self._add("train_reward/partial_credit", credit - score)
        self._add("train_reward/length_penalty", reward - credit)
        self._add("train_reward/total", reward)
        self._add(f"train_reward/category/{problem.category}", reward)
        self._add(f"train_reward/outcome/{rollout.score.outcome.value}", reward)
        if problem.level is not None:
            self._add(f"train_reward/level/{problem.level}", reward)

    def _add(self, key: str, value: float) -> None:
        self._sums[key] += value
        self._counts[key] += 1

    def drain(self) -> dict[str, Any]:
        """Values since the last call, by wandb key, and a log line of the two accuracies.

        Shares are of the completions or groups seen since then.
        """
        if self._since_log["scored"]:
            logger.info("Since the last log step: %s.", accuracy_words(self._since_log))
        values: dict[str, Any] = {key: total / self._counts[key] for key, total in self._sums.items()}
        if self.percent_correct:
            values["train/percent_correct"] = sum(self.percent_correct) / len(self.percent_correct)
        # Every outcome has a share, also one that did not occur; a reason to mask only if it did.
        outcomes = [f"outcome_{outcome.value}" for outcome in Outcome]
        if total := sum(self._completions[name] for name in outcomes):
            names = {*outcomes, *self._completions}
            values.update({f"train/{name}": self._completions[name] / total for name in names})
        values.update({f"train_category/{name}/groups": float(count) for name, count in self._groups.items()})
        levels = self._levels.items()
        values.update({f"train_task/{name}/level": float(level) for name, level in levels if level is not None})
        if self._recent:
            values["train/effective_tasks"] = effective_number(list(Counter(self._recent).values()))
        self.percent_correct.clear()
        self._levels.clear()
        for counted in (self._sums, self._counts, self._groups, self._completions, self._since_log):
            counted.clear()
        return values

    def summarise(self) -> None:
        """What is not told yet: format violations, and the two accuracies since the start or the last such line."""
        self.summarise_violations()
        if self._since_start["scored"]:
            logger.info("In all: %s.", accuracy_words(self._since_start))
        self._since_start.clear()

    def summarise_violations(self) -> None:
        """One line about the format violations since the last such line, if there were any."""
        groups, completions = self._unsummarised
        if self._violations:
            found = ", ".join(f"{kind} {count}" for kind, count in self._violations.most_common())
            logger.info("Format violations in the last %d groups (%d completions): %s.", groups, completions, found)
        self._violations.clear()
        self._unsummarised = (0, 0)


def _is_correct(rollout: Rollout) -> bool:
    return rollout.reward >= CORRECT_THRESHOLD


def _is_exact(rollout: Rollout) -> bool:
    return rollout.score.outcome is Outcome.CORRECT


def accuracy_counts(group: RolloutGroup) -> Counter[str]:
    """How many groups, `scored` completions, and of these `correct` (a reward of 0.5 or more) and `exact` ones."""
    correct, exact = sum(map(_is_correct, group.scored)), sum(map(_is_exact, group.scored))
    return Counter(groups=1, scored=len(group.scored), correct=correct, exact=exact)


def accuracy_words(counts: Counter[str]) -> str:
    """The sums of `accuracy_counts` for a person, where something was scored."""
    scored = counts["scored"]
    correct, exact = counts["correct"] / scored, counts["exact"] / scored
    return f"{counts['groups']} groups, {scored} scored completions, {correct:.1%} at least 0.5, {exact:.1%} exact"


def group_line(group: RolloutGroup) -> str:
    """The log line of one scored group."""
    rewards, counts = group.rewards, accuracy_counts(group)
    scored = counts["scored"]
    level = "" if group.problem.level is None else f" level {group.problem.level}"
    remark = group_remark(group)
    average = sum(rewards) / len(rewards)
    unscored = f", {len(rewards) - scored} unscored" if scored < len(rewards) else ""
    return (
        f"{group.problem.task}{level}: group average {average:.2f}, {counts['correct']}/{scored} at least 0.5, "
        f"{counts['exact']}/{scored} exact{unscored}{f' ({remark})' if remark else ''}."
    )


def group_remark(group: RolloutGroup) -> str:
    """What is worth knowing about a group's scores in a few words; empty when they simply differ."""
    values = [rollout.score.value for rollout in group.scored]
    if not values:
        return "none could be scored"
    if all(value >= 1.0 for value in values):
        return "all exact"
    if all(rollout.score.outcome is Outcome.FORMAT_FAILURE for rollout in group.rollouts):
        return "all failed: no usable answer"
    if all(value == 0.0 for value in values):
        return "all failed"
    if all(value < 1.0 for value in values):
        return "partial credit only"
    return ""


# --- rollouts for a person to read


def table_rows(
    scored_data: Mapping[str, Any], *, decode: Callable[[list[int]], str], keep: int, expected_answer: Any, task: str
) -> list[tuple[str, float, str, str]]:
    """The first `keep` rollouts of a group (ALL: every one) as rows of the table."""
    count = len(scored_data["tokens"])
    count = count if keep == ALL else min(keep, count)
    return [
        (decode(tokens), score, str(expected_answer), task)
        for tokens, score in zip(scored_data["tokens"][:count], scored_data["scores"][:count], strict=True)
    ]


def build_table(groups: list[list[tuple[str, float, str, str]]]) -> wandb.Table:
    """A wandb table of the kept groups."""
    table = wandb.Table(columns=COLUMNS)
    for group in groups:
        for row in group:
            table.add_data(*row)
    return table


class ConversationLog:
    """The last groups' conversations as they were, for the wandb table `train/conversations`."""

    def __init__(self, *, groups: int, per_group: int) -> None:
        """Keep that many groups, and of each its first `per_group` rollouts (ALL: every one)."""
        self._groups: deque[list[dict[str, Any]]] = deque(maxlen=max(0, groups))
        self._per_group = per_group

    def observe(self, group: RolloutGroup) -> None:
        """Keep some rollouts of one scored group."""
        kept = group.rollouts if self._per_group == ALL else group.rollouts[: self._per_group]
        if rows := [_conversation(group.problem, rollout) for rollout in kept]:
            self._groups.append(rows)

    def drain(self) -> dict[str, Any]:
        """The table since the last call, if there is anything in it."""
        if not (rows := [row for group in self._groups for row in group]):
            return {}
        self._groups.clear()
        return {CONVERSATIONS: wandb.Table(columns=list(rows[0]), data=[list(row.values()) for row in rows])}


def _conversation(problem: Problem, rollout: Rollout) -> dict[str, Any]:
    """One row of the table, by column."""
    completion, score = rollout.completion, rollout.score
    return {
        "task": problem.task,
        "category": problem.category,
        "level": problem.level,
        "question": problem.question,
        "reply": completion.text,
        "answer_read": score.answer,
        "expected_answer": str(problem.entry.get("answer")),
        "score": score.value,
        "reward": rollout.reward,
        "outcome": score.outcome.value,
        "finish_reason": completion.finish_reason,
        "completion_tokens": completion.num_completion_tokens,
    }
