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
CONVERSATION_COLUMNS = [
    "task",
    "category",
    "level",
    "question",
    "reply",
    "answer_read",
    "expected_answer",
    "score",
    "reward",
    "outcome",
    "finish_reason",
    "completion_tokens",
]


class ConversationLog:
    """The last groups' conversations as they were, for the wandb table `train/conversations`.

    Also of groups that are not sent; `train/rollouts` has those that are, decoded from their tokens.
    """

    def __init__(self, *, groups: int, per_group: int) -> None:
        """Keep that many groups, and of each its first `per_group` rollouts (ALL: every one)."""
        self._groups: deque[list[list[Any]]] = deque(maxlen=max(0, groups))
        self._per_group = per_group

    def observe(self, group: RolloutGroup) -> None:
        """Keep some rollouts of one scored group."""
        problem = group.problem
        kept = group.rollouts if self._per_group == ALL else group.rollouts[: self._per_group]
        rows = [_conversation(problem, rollout) for rollout in kept]
        if rows:
            self._groups.append(rows)

    def drain(self) -> dict[str, Any]:
        """The table since the last call, if there is anything in it."""
        if not self._groups:
            return {}
        table = wandb.Table(columns=CONVERSATION_COLUMNS, data=[row for group in self._groups for row in group])
        self._groups.clear()
        return {CONVERSATIONS: table}


def _conversation(problem: Problem, rollout: Rollout) -> list[Any]:
    completion, score = rollout.completion, rollout.score
    return [
        problem.task,
        problem.category,
        problem.level,
        problem.question,
        completion.text,
        score.answer,
        str(problem.entry.get("answer")),
        score.value,
        rollout.reward,
        score.outcome.value,
        completion.finish_reason,
        completion.num_completion_tokens,
    ]
