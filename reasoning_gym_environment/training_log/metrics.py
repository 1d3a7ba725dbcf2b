"""What is told of scored groups: numbers for each log step, lines for the log, and some rollouts for a person to read.

Numbers: shares of rewards of at least 0.5 (`percent_correct`), of exact answers, which have full credit
(`percent_exact`), of outcomes and of groups with a signal, in all, by category and by task; what rewards are made of,
and the reward by category, level and outcome.

    score ── partial credit ──> credit ── length penalty ──> reward

How diverse the groups are is told of the last `DIVERSITY_WINDOW` groups, since a few dozen cannot show a hundred tasks.
Rollouts: the wandb tables `train/rollouts` (what was sent, decoded from its tokens) and `train/conversations` (what was
said, also in groups that are not sent).
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any

import wandb

from ..records import CORRECT_THRESHOLD, Outcome, Problem, Rollout, RolloutGroup
from ..sampling.choosers import effective_number

logger = logging.getLogger(__name__)

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
