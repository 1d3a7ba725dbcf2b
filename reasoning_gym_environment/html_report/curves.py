"""The numbers behind the curves of the page: a run over its groups, and its evaluations over the steps of the trainer.

    LoadedRun ── bins of its groups ─────────────────┐
    evaluations of one run ── series_of ──> Series ──┴──> points ── curve_of ──> estimates with their intervals
    both ── task_rows ──> a row for each task: its change, now, and a small curve

All curves are plain data for JSON. None is a gap in a curve.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from operator import methodcaller
from statistics import fmean
from typing import Any, TypeAlias

from ..evaluation.results import EvalResults, EvalSample, as_questions, by_question, exact, grouped, scope
from ..evaluation.statistics import Estimate, Question, mean_of, share
from ..storage.lines import UNKNOWN, DumpedGroup
from .load import GRADED, Evaluation, LoadedRun, free_name

Evaluated: TypeAlias = tuple[Evaluation, EvalResults]
Columns: TypeAlias = dict[str, Any]

MOST_BINS = 24
"""The curves of a run have at most this many points."""

SMALLEST_BIN = 4
"""Each point of a curve covers at least this many groups."""


# --- points and their estimates


def reward_of(questions: Sequence[Question]) -> Estimate | None:
    """The mean reward. Rewards of other environments of Atropos may be outside [0, 1], and have no interval."""
    rewards = [reward for question in questions for reward in question.values]
    if all(0.0 <= reward <= 1.0 for reward in rewards):
        return share(questions)
    return Estimate(fmean(rewards), -math.inf, math.inf, len(questions))


OF_EVALUATIONS = ("accuracy", "exact", "truncated", "format_failures", "completion_tokens")
OF_TRAINING: Mapping[str, Callable[[Sequence[Question]], Estimate | None]] = {
    "reward": reward_of,
    "has_signal": share,
    "level": mean_of,
    "staleness": mean_of,
}
"""The estimates that have a curve. An estimate of training has the name of the field that it averages."""

Point: TypeAlias = tuple[float | None, int, Sequence[EvalSample]]
"""The trainer's step, the number of groups so far, and the samples of a point."""


def estimates_of(samples: Sequence[EvalSample]) -> dict[str, Estimate | None]:
    """The estimates of these samples; None without any value."""
    groups = by_question(samples)
    estimates = scope("", "", samples).estimates
    found = {name: estimates.get(name) for name in OF_EVALUATIONS}
    for name, estimate in OF_TRAINING.items():
        found[name] = estimate(as_questions(groups, methodcaller("get", name)))
    return found


def curve_of(points: Sequence[Point]) -> Columns:
    """The places of the points, and of each estimate the values with their limits."""
    columns: Columns = {"step": [step for step, *_ in points], "groups": [groups for _, groups, _ in points]}
    estimates = [estimates_of(samples) for *_, samples in points]
    for name in (*OF_EVALUATIONS, *OF_TRAINING):
        columns[name] = {}
        for limit in ("value", "low", "high"):
            columns[name][limit] = [_number(getattr(found[name], limit, None)) for found in estimates]
    return columns


def _number(value: float | None) -> float | None:
    return round(value, 4) if value is not None and math.isfinite(value) else None


# --- a run over its groups


def run_curves(run: LoadedRun) -> dict[str, Any]:
    """The columns of a run, and of each of its tasks."""
    tasks = {task: curve_of(bins_of(groups)) for task, groups in by_task(run).items()}
    return {"name": run.name, "all": curve_of(bins_of(run.groups)), "tasks": tasks}


def by_task(run: LoadedRun) -> dict[str, list[DumpedGroup]]:
    """The groups of each task, sorted by its name."""
    groups: dict[str, list[DumpedGroup]] = {}
    for group in run.groups:
        if group.task != UNKNOWN:
            groups.setdefault(group.task, []).append(group)
    return dict(sorted(groups.items()))


def bins_of(groups: Sequence[DumpedGroup]) -> list[Point]:
    """The groups in at most MOST_BINS points of about the same number of groups."""
    # More points than steps would have several points at one place.
    steps = {group.step for group in groups if group.step is not None}
    count = max(1, min(MOST_BINS, len(groups) // SMALLEST_BIN, len(steps) or MOST_BINS))
    edges = [number * len(groups) // count for number in range(count + 1)]
    points: list[Point] = []
    for start, end in pairwise(edges):
        steps_of_bin = known(group.step for group in groups[start:end])
        step = round(fmean(steps_of_bin), 4) if steps_of_bin else None
        points.append((step, end, samples_of(groups[start:end])))
    return points


def samples_of(groups: Sequence[DumpedGroup]) -> list[EvalSample]:
    """All rollouts of these groups."""
    return list(chain.from_iterable(group.rollouts for group in groups))


# --- the evaluations of a run over the trainer's steps


@dataclass(frozen=True)
class Series:
    """At least two evaluations of one run, in the order of their steps, with the same questions and grading."""

    name: str
    points: list[Evaluated]


def series_of(evaluations: Sequence[Evaluated]) -> list[Series]:
    """The series among these evaluations, which are in folders such as `evals/step-25`, and in the order of steps."""
    groups: dict[tuple[Any, ...], list[Evaluated]] = {}
    for evaluation, results in evaluations:
        if evaluation.step is not None:
            graded = [str(evaluation.parameters.get(name)) for name in GRADED]
            groups.setdefault((evaluation.folder, evaluation.manifest, *graded), []).append((evaluation, results))
    found: list[Series] = []
    for (folder, *_), points in groups.items():
        if len(points) > 1:
            found.append(Series(free_name(folder, {series.name for series in found}), points))
    return found


def series_curves(series: Series) -> dict[str, Any]:
    """The columns of a series, and of each of its tasks."""
    whole: list[Point] = []
    of_tasks: dict[str, list[Point]] = {}
    for evaluation, _ in series.points:
        whole.append((evaluation.step, 0, evaluation.samples))
        for task, samples in grouped(evaluation.samples, "task"):
            of_tasks.setdefault(task, []).append((evaluation.step, 0, samples))
    tasks = {task: curve_of(points) for task, points in sorted(of_tasks.items())}
    return {"name": series.name, "all": curve_of(whole), "tasks": tasks}


# --- the table of tasks


@dataclass(frozen=True)
class TaskRow:
    """A task in a run or in a series of evaluations: the known points of its rate of right answers, and its groups.

    `change` is None if it is unknown. `levels` are the first and the last point of the curve of levels. If the
    task `is_held_out`, its rates come from evaluations, which always ask the same questions.
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
    """The tasks of all runs and series. Tasks that moved most come first.

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
    columns = curve_of(bins_of(groups))
    levels = known(columns["level"]["value"])
    return TaskRow(
        name,
        source,
        rates=known(columns["exact"]["value"]),
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
