"""The numbers behind the curves of the page: a run over its groups, and its evaluations over the steps of the trainer.

    LoadedRun ── run_curves ──> at most MOST_BINS points for the run, and fewer for each task
    evaluations of one run ── series_of ──> Series ── series_curves ──> a point with its interval for each evaluation
    both ── task_rows ──> a row for each task: before, now, and a small curve

All curves are plain data for JSON. None is a gap in a curve.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

from ..evaluation.results import FORMAT_FAILURE, EvalResults, EvalSample, ScopeResult, exact
from ..storage.lines import UNKNOWN, DumpedGroup
from .load import GRADED, Evaluation, LoadedRun, free_name

Evaluated: TypeAlias = tuple[Evaluation, EvalResults]
Columns: TypeAlias = dict[str, list[Any]]

MOST_BINS = 60
"""The curves of a run have at most this many points."""

MOST_TASK_BINS = 24
"""The curves of one task have at most this many points."""

SMALLEST_BIN = 4
"""Each point of a curve covers at least this many groups."""

UUID = re.compile(r"([0-9a-f]{8})(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""The identity of a run in the name of a folder. Its first eight digits are enough for a reader."""

CURVES = ("accuracy", "exact", "truncated", "format_failures", "completion_tokens")
"""The estimates of an evaluation that have a curve over the steps."""


# --- a run over its groups


def run_curves(run: LoadedRun) -> dict[str, Any]:
    """The columns of a run, and of each of its tasks."""
    tasks = {task: curves_of(groups, MOST_TASK_BINS) for task, groups in by_task(run).items()}
    return {"name": run.name, "all": curves_of(run.groups, MOST_BINS), "tasks": tasks}


def by_task(run: LoadedRun) -> dict[str, list[DumpedGroup]]:
    """The groups of each task, sorted by its name."""
    groups: dict[str, list[DumpedGroup]] = {}
    for group in run.groups:
        if group.task != UNKNOWN:
            groups.setdefault(group.task, []).append(group)
    return dict(sorted(groups.items()))


def curves_of(groups: Sequence[DumpedGroup], most: int) -> Columns:
    """The values of the groups in at most `most` bins of about the same size, a column for each curve."""
    # More bins than steps would have several points at one place.
    steps = {group.step for group in groups if group.step is not None}
    count = max(1, min(most, len(groups) // SMALLEST_BIN, len(steps) or most))
    edges = [number * len(groups) // count for number in range(count + 1)]
    points = [{"groups": end, **bin_of(groups[start:end])} for start, end in pairwise(edges)]
    return {name: [point[name] for point in points] for name in points[0]}


def bin_of(groups: Sequence[DumpedGroup]) -> dict[str, float | None]:
    """The values of these groups, None if unknown."""
    rewards: list[float] = []
    scored: list[EvalSample] = []
    for group in groups:
        rewards += group.rewards
        scored += [rollout for rollout in group.rollouts if rollout["score"] is not None]
    with_outcome = [rollout for rollout in scored if rollout["outcome"] != UNKNOWN]
    return {
        "step": _mean(group.step for group in groups),
        "reward": _mean(rewards),
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
    found = known(values)
    return round(fmean(found), 4) if found else None


# --- the evaluations of a run over the trainer's steps


@dataclass(frozen=True)
class Series:
    """At least two evaluations of one run, in the order of their steps, with the same questions and grading."""

    name: str
    points: list[Evaluated]

    def of_task(self, name: str) -> list[ScopeResult | None]:
        """The result of a task in each evaluation."""
        found = []
        for _, results in self.points:
            found.append(next((task for task in results.tasks if task.name == name), None))
        return found


def series_of(evaluations: Sequence[Evaluated]) -> list[Series]:
    """The series among these evaluations, which are in folders such as `evals/step-25`."""
    groups: dict[tuple[Any, ...], list[Evaluated]] = {}
    for evaluation, results in evaluations:
        if evaluation.step is not None:
            graded = [str(evaluation.parameters.get(name)) for name in GRADED]
            groups.setdefault((evaluation.folder, evaluation.manifest, *graded), []).append((evaluation, results))
    found: list[Series] = []
    for (folder, *_), points in groups.items():
        if len(points) > 1:
            name = free_name(Path(folder), {series.name for series in found})
            found.append(Series(UUID.sub(r"\1", name), sorted(points, key=lambda point: point[0].step or 0)))
    return found


def series_curves(series: Series) -> dict[str, Any]:
    """The columns of a series, and of each of its tasks: each value has its lower and upper limit."""
    steps = {"step": [evaluation.step for evaluation, _ in series.points]}
    names = {task.name for _, results in series.points for task in results.tasks}
    tasks = {name: {**steps, **_estimates(series.of_task(name), ("accuracy",))} for name in sorted(names)}
    overall = _estimates([results.overall for _, results in series.points], CURVES)
    return {"name": series.name, "all": {**steps, **overall}, "tasks": tasks}


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


# --- the table of tasks


@dataclass(frozen=True)
class TaskRow:
    """A task in a run or in a series of evaluations: the known points of its rate of right answers, and its groups.

    `change` is None if it is unknown. `levels` are the first and the last point of the curve of levels. The rates of a
    task that `is_held_out` are those of evaluations, which always ask the same questions.
    """

    name: str
    source: str
    rates: Sequence[float]
    change: float | None = None
    levels: tuple[float, float] | None = None
    groups: int | None = None
    without_credit: int | None = None
    is_held_out: bool = False

    @property
    def level_change(self) -> float:
        """How far the level has moved; 0 if it is less than a level."""
        first, last = self.levels or (0.0, 0.0)
        return last - first if abs(last - first) >= 1.0 else 0.0

    @property
    def moved(self) -> float:
        """How far the task has moved: a level counts as much as ten points."""
        return abs(self.change or 0.0) + 0.1 * abs(self.level_change)

    @property
    def polyline(self) -> str:
        """The curve in a box of 100 by 24, as SVG has it."""
        width = 100 / max(1, len(self.rates) - 1)
        return " ".join(f"{place * width:.1f},{22 - 20 * rate:.1f}" for place, rate in enumerate(self.rates))


def task_rows(runs: Sequence[LoadedRun], series: Sequence[Series]) -> list[TaskRow]:
    """The tasks of all runs and series, those that moved most first.

    With one run and one series, a task has one row, whose rates are held-out if it was evaluated.
    """
    is_merged = len(runs) < 2 and len(series) < 2
    rows: dict[tuple[str, str], TaskRow] = {}
    for run in runs:
        source = "training" if is_merged else run.name
        for name, groups in by_task(run).items():
            rows["" if is_merged else source, name] = _trained(name, source, groups)
    for one_series in series:
        source = "held-out" if is_merged else f"held-out, {one_series.name}"
        for name, columns in series_curves(one_series)["tasks"].items():
            key = ("" if is_merged else source, name)
            rates = known(columns["accuracy"]["value"])
            if rates:
                row = rows.get(key, TaskRow(name, source, rates))
                change = rates[-1] - rates[0]
                rows[key] = replace(row, source=source, rates=rates, change=change, is_held_out=True)
    return sorted(rows.values(), key=lambda row: (-row.moved, row.change is None, row.name))


def _trained(name: str, source: str, groups: Sequence[DumpedGroup]) -> TaskRow:
    columns = curves_of(groups, MOST_TASK_BINS)
    levels = known(columns["level"])
    return TaskRow(
        name,
        source,
        rates=known(columns["exact"]),
        change=change_at_same_level(groups),
        levels=(levels[0], levels[-1]) if levels else None,
        groups=len(groups),
        without_credit=sum(not any(group.rewards) for group in groups),
    )


def change_at_same_level(groups: Sequence[DumpedGroup]) -> float | None:
    """How the rate of right answers differs between the two halves of these groups, level by level.

    With a curriculum, a model that learns gets harder items, so that its rate over all levels says little. The
    difference of a level counts as often as the level occurs in both halves. None if that is in fewer than SMALLEST_BIN
    groups.
    """
    middle = len(groups) // 2
    first, second = _rates_by_level(groups[:middle]), _rates_by_level(groups[middle:])
    difference = 0.0
    weight = 0
    for level in first.keys() & second.keys():
        count = min(len(first[level]), len(second[level]))
        difference += count * (fmean(second[level]) - fmean(first[level]))
        weight += count
    return difference / weight if weight >= SMALLEST_BIN else None


def _rates_by_level(groups: Sequence[DumpedGroup]) -> dict[float | None, list[float]]:
    """The rates of right answers of the groups at each level."""
    rates: dict[float | None, list[float]] = {}
    for group in groups:
        scored = [exact(rollout) for rollout in group.rollouts if rollout["score"] is not None]
        if scored:
            rates.setdefault(group.level, []).append(fmean(scored))
    return rates


def known(values: Iterable[float | None]) -> list[float]:
    """The values without gaps."""
    return [value for value in values if value is not None]
