"""Some rollouts for a person to read: the wandb tables `train/rollouts` and `train/conversations`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import wandb

from ..records import Problem, Rollout, RolloutGroup

COLUMNS = ["full_text", "score", "expected_answer", "task_name"]
ALL = -1


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


CONVERSATIONS = "train/conversations"


class ConversationLog:
    """The last groups' conversations as they were, for the wandb table `train/conversations`.

    Also of groups that are not sent; `train/rollouts` has those that are, decoded from their tokens.
    """

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
