"""An evaluation's results for a person: one line for the log, a table for the terminal, one for wandb."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import wandb
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .results import EvalResults, ScopeResult
from .statistics import Estimate

TASK_TABLE = "eval/tasks"


def result_line(results: EvalResults, manifest: str) -> str:
    """The log line of an evaluation."""
    overall = results.overall
    assert overall.score is not None and overall.accuracy is not None  # summarise refuses a set without scores
    return (
        f"Evaluation {manifest}, {overall.completions} completions of {overall.questions} questions: mean score "
        f"{overall.score.value:.4f}, accuracy {_with_interval(overall.accuracy)}"
        f"{f', {overall.unscored} unscored' if overall.unscored else ''}{_without_verdict(results)}."
    )


def _without_verdict(results: EvalResults) -> str:
    found = [f"{count} ({name})" for name, count in results.without_verdict.items()]
    return f", {' and '.join(found)} wrong because no verifier could finish the answer" if found else ""


WIDE = 118
"""Columns of text that the whole table needs; a narrower terminal gets the main numbers."""


def print_table(results: EvalResults, described: Mapping[str, Any]) -> None:
    """Tasks by category, categories and overall, on standard output."""
    console = Console()
    if not console.is_terminal:
        # A redirected table keeps its columns, whatever width the terminal would have.
        console = Console(width=WIDE + 22)
    console.print(results_table(results, described, narrow=console.width < WIDE))


def results_table(results: EvalResults, described: Mapping[str, Any], *, narrow: bool = False) -> Table:
    """The same as a Rich table; a narrow one leaves out pass@k, exact, lengths and failures."""
    ks = [] if narrow else [k for k in sorted(results.overall.pass_at) if k > 1]
    table = Table(
        title=f"Evaluation {described['manifest']}: reasoning-gym {described['reasoning_gym_version']}, difficulty "
        f"{described['eval_complexity']}, seed {described['eval_seed']}",
        caption=_caption(described),
        caption_justify="left",
    )
    middle = [] if narrow else ["exact", *(f"pass@{k}" for k in ks), "no format", "cut off", "tokens"]
    for number, column in enumerate(["", "score", "accuracy (95%)", *middle, "questions", "unscored"]):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)

    def add(scope: ScopeResult, style: str = "", indent: str = "") -> None:
        shown = [indent + scope.name, *_cells(scope), *([] if narrow else _more_cells(scope, ks))]
        shown += [str(scope.questions), str(scope.unscored or "")]
        table.add_row(*(Text(cell, style=style) for cell in shown))

    for category in results.categories:
        add(category, "bold")
        for task in results.tasks:
            if task.category == category.name:
                add(task, indent="  ")
        table.add_section()
    add(results.overall, "bold")
    return table


def _caption(described: Mapping[str, Any]) -> str:
    note = "Intervals: 95%, clustered by question; Wilson's where there are few. No format: no answer could be read."
    left_out = described.get("left_out") or {}
    reasons = "; ".join(f"{task} ({reason})" for task, reason in left_out.items())
    return f"{note} Left out: {reasons}." if reasons else note


def _cells(scope: ScopeResult) -> list[str]:
    if scope.score is None or scope.accuracy is None:
        return ["-", "-"]
    return [f"{scope.score.value:.3f}", _with_interval(scope.accuracy)]


def _more_cells(scope: ScopeResult, ks: list[int]) -> list[str]:
    passed = [_share(scope.pass_at.get(k)) for k in ks]
    exact, failures, cut_off = (_share(one) for one in (scope.exact, scope.format_failures, scope.truncated))
    return [exact, *passed, failures, cut_off, f"{scope.mean_tokens.value:.0f}" if scope.mean_tokens else "-"]


def _share(estimate: Estimate | None) -> str:
    return "-" if estimate is None else f"{estimate.value:.1%}"


def _with_interval(estimate: Estimate) -> str:
    return f"{estimate.value:.1%} [{estimate.low:.1%}, {estimate.high:.1%}]"


COLUMNS = [
    "task",
    "category",
    "questions",
    "completions",
    "unscored",
    "mean_score",
    "accuracy",
    "accuracy_low",
    "accuracy_high",
    "exact",
    "truncated",
    "format_failures",
    "completion_tokens",
    "manifest",
]


def task_table(results: EvalResults, manifest: str) -> wandb.Table:
    """One row per task; numbers that do not exist are None."""
    table = wandb.Table(columns=COLUMNS)
    for task in results.tasks:
        accuracy = task.accuracy
        table.add_data(
            task.name,
            task.category,
            task.questions,
            task.completions,
            task.unscored,
            task.score.value if task.score else None,
            accuracy.value if accuracy else None,
            accuracy.low if accuracy else None,
            accuracy.high if accuracy else None,
            task.exact.value if task.exact else None,
            *(one.value if one else None for one in (task.truncated, task.format_failures, task.mean_tokens)),
            manifest,
        )
    return table
