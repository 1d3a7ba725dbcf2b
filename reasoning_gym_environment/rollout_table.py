"""Some rollouts for a person to read: the wandb table `train/rollouts`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import wandb

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
