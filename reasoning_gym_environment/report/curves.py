"""The numbers behind the curves of the page: a run over its groups, and its evaluations over the steps of the trainer.

    LoadedRun ── run_curves ──> at most MOST_BINS points for the run, and fewer for each task
    evaluations of one run ── series_of ──> Series ── series_curves ──> a point with its interval for each evaluation

All values are plain data for JSON. None is a gap in a curve.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

from ..evaluation.results import FORMAT_FAILURE, EvalResults, EvalSample, ScopeResult, correct, exact
from ..storage.lines import UNKNOWN, DumpedGroup
from .load import GRADED, Evaluation, LoadedRun, free_name
from .samples import columns_of

Evaluated: TypeAlias = tuple[Evaluation, EvalResults]
Columns: TypeAlias = dict[str, list[Any]]

MOST_BINS = 120
"""The curves of a run have at most this many points."""

MOST_TASK_BINS = 24
"""The curves of one task have at most this many points."""

SMALLEST_BIN = 4
"""Each point of a curve covers at least this many groups."""

CURVES = ("accuracy", "exact", "truncated", "format_failures", "completion_tokens")
"""The estimates of an evaluation that have a curve over the steps."""


# --- a run over its groups


def run_curves(run: LoadedRun) -> dict[str, Any]:
    """The columns of a run, and of each of its tasks."""
    by_task: dict[str, list[DumpedGroup]] = {}
    for group in run.groups:
        by_task.setdefault(group.task, []).append(group)
    tasks = {task: curves_of(groups, MOST_TASK_BINS) for task, groups in sorted(by_task.items()) if task != UNKNOWN}
    return {"name": run.name, "isProcess": run.is_process, "all": curves_of(run.groups, MOST_BINS), "tasks": tasks}


def curves_of(groups: Sequence[DumpedGroup], most: int) -> Columns:
    """The values of the groups in at most `most` bins of about the same size, a column for each curve."""
    count = max(1, min(most, len(groups) // SMALLEST_BIN))
    edges = [number * len(groups) // count for number in range(count + 1)]
    return columns_of(bin_of(groups[start:end]) for start, end in pairwise(edges))


def bin_of(groups: Sequence[DumpedGroup]) -> dict[str, float | None]:
    """The values of these groups, None if unknown. `item`, `step` and `time` are places on an axis."""
    scored: list[EvalSample] = []
    rewards: list[float] = []
    for group in groups:
        rewards += group.rewards
        scored += [rollout for rollout in group.rollouts if rollout["score"] is not None]
    with_outcome = [rollout for rollout in scored if rollout["outcome"] != UNKNOWN]
    return {
        "item": (groups[0].index + groups[-1].index) / 2,
        "step": _mean(group.step for group in groups),
        "time": _mean(group.written_at for group in groups),
        "groups": len(groups),
        "reward": _mean(rewards),
        "accuracy": _mean(map(correct, scored)),
        "exact": _mean(map(exact, scored)),
        "signal": _mean(group.has_signal for group in groups),
        "no_answer": _mean(rollout["outcome"] == FORMAT_FAILURE for rollout in with_outcome),
        "cut_off": _mean(rollout.get("finish_reason") == "length" for rollout in with_outcome),
        "tokens": _mean(rollout["num_completion_tokens"] for rollout in scored),
        "level": _mean(group.level for group in groups),
        "staleness": _mean(group.staleness for group in groups),
    }


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean of the known values."""
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 4) if known else None


# --- the evaluations of a run over the trainer's steps


@dataclass(frozen=True)
class Series:
    """At least two evaluations of one run, in the order of their steps, with the same questions and grading."""

    name: str
    points: list[Evaluated]


def series_of(evaluations: Sequence[Evaluated]) -> list[Series]:
    """The series among these evaluations, which are in folders such as `evals/step-25`."""
    groups: dict[tuple[Path, tuple[str, ...]], list[Evaluated]] = {}
    for evaluation, results in evaluations:
        if evaluation.step is not None:
            graded = [str(evaluation.parameters.get(name)) for name in GRADED]
            key = (evaluation.folder, (evaluation.manifest, *graded))
            groups.setdefault(key, []).append((evaluation, results))
    found: list[Series] = []
    for (folder, _), points in groups.items():
        if len(points) > 1:
            name = free_name(folder, {series.name for series in found})
            found.append(Series(name, sorted(points, key=lambda point: point[0].step or 0)))
    return found


def series_curves(series: Series) -> dict[str, Any]:
    """The columns of a series, and of each of its tasks: each value has its lower and upper limit."""
    tasks = sorted({task.name for _, results in series.points for task in results.tasks})
    places = {
        "step": [evaluation.step for evaluation, _ in series.points],
        "time": [evaluation.seconds for evaluation, _ in series.points],
    }
    by_task = {}
    for name in tasks:
        scopes = []
        for _, results in series.points:
            scopes.append(next((scope for scope in results.tasks if scope.name == name), None))
        by_task[name] = {**places, **_estimates(scopes, ("accuracy", "exact"))}
    overall = _estimates([results.overall for _, results in series.points], CURVES)
    return {"name": series.name, "all": {**places, **overall}, "tasks": by_task}


def _estimates(scopes: Sequence[ScopeResult | None], names: Iterable[str]) -> Mapping[str, Columns]:
    columns: dict[str, Columns] = {}
    for name in names:
        columns[name] = {"value": [], "low": [], "high": []}
        for scope in scopes:
            found = scope.estimates.get(name) if scope else None
            for limit, values in columns[name].items():
                value = getattr(found, limit, None)
                values.append(round(value, 4) if value is not None and math.isfinite(value) else None)
    return columns
