"""Additions to Atropos' logging to wandb: the table `train/rollouts`, and a remedy for two defects.

group ── table_rows ──> rows, kept by the environment ── build_table ──> train/rollouts, at each log step
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

import wandb

from ..records import Completion

logger = logging.getLogger(__name__)

TIMINGS = (
    "request_timings",
    "attempts_list",
    "eval_request_timings",
    "eval_attempts_list",
)
"""Atropos keeps a number for every request of the run in these lists, and averages over all of them each step."""

ALL = -1
"""Setting of `keep` that keeps every rollout of a group."""


def table_rows(
    scored_data: Mapping[str, Any],
    *,
    decode: Callable[[list[int]], str],
    completions: Iterable[Completion],
    keep: int,
    expected_answer: Any,
    task: str,
) -> list[tuple[str, float, str, str]]:
    """The first `keep` rollouts of a group as rows of `train/rollouts`.

    Completions are long, so a sequence of one of the `completions`, which have the same prompt, is not decoded again.
    """
    count = None if keep == ALL else keep
    by_identity = {id(completion.tokens): completion for completion in completions}
    prompt = None
    rows = []
    for tokens, score in zip(scored_data["tokens"][:count], scored_data["scores"][:count], strict=True):
        completion = by_identity.get(id(tokens))
        if completion is None:
            text = decode(tokens)
        else:
            if prompt is None:
                prompt = decode(tokens[: len(tokens) - completion.num_completion_tokens])
            text = prompt + completion.text
        rows.append((text, score, str(expected_answer), task))
    return rows


def build_table(groups: list[list[tuple[str, float, str, str]]]) -> wandb.Table:
    """The table `train/rollouts` of the given groups."""
    columns = ["full_text", "score", "expected_answer", "task_name"]
    rows = [list(row) for row in chain.from_iterable(groups)]
    return wandb.Table(columns=columns, data=rows)


def forget_timings(servers: Iterable[Any]) -> None:
    """Empty Atropos' lists of request timings, after a log step."""
    for server in servers:
        for name in TIMINGS:
            getattr(server, name, []).clear()


def continue_offline(error: wandb.errors.CommError) -> None:
    """Let wandb keep its next run on disk, because wandb is unavailable. Raises any other `error` again."""
    # wandb refuses a wrong key or project immediately, without a timeout.
    if "timed out" not in str(error).lower():
        raise error
    logger.warning("wandb is unavailable. Writing metrics to wandb/offline-run-*; `wandb sync` sends them later.")
    wandb.setup(settings=wandb.Settings(mode="offline"))
