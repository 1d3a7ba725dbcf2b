"""The numbers behind the curves of the page, and its table of tasks.

LoadedRun ── bins of its groups ──┐
evaluations of a run, by step ────┴──> Curve: points with estimates ── task_rows ──> a row for each task
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from operator import methodcaller
from statistics import fmean
from typing import Any, TypeAlias

from ..evaluation.results import EvalSample, as_questions, by_question, correct, scope
from ..evaluation.statistics import Estimate, mean_of, share
from ..storage.lines import UNKNOWN, DumpedGroup
from .load import GRADED, Evaluation, LoadedRun, free_name

MOST_BINS = 24
"""The curves of a run have at most this many points."""

SMALLEST_BIN = 4
"""Each point of a curve covers at least this many groups."""


@dataclass(frozen=True)
class Point:
    """Estimates at a place of the axis: at a step of the trainer, or after a number of groups."""

    place: float
    estimates: Mapping[str, Estimate]


@dataclass(frozen=True)
class Curve:
    """A run over its groups, or its evaluations over the steps of the trainer: all tasks, and each task.

    A run also has the groups of each task.
    """

    name: str
    is_held_out: bool
    axis: str
    points: Sequence[Point]
    tasks: Mapping[str, Sequence[Point]]
    groups: Mapping[str, Sequence[DumpedGroup]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The curves as plain data."""
        return {
            "name": self.name,
            "axis": self.axis,
            "isHeldOut": self.is_held_out,
            "all": _as_json(self.points, OF_ALL),
            "tasks": {task: _as_json(points, OF_A_TASK) for task, points in self.tasks.items()},
        }


def curves_of(runs: Sequence[LoadedRun], series: Sequence[Sequence[Evaluation]]) -> list[Curve]:
    """The curves of all runs and of all series of evaluations."""
    curves = []
    for run in runs:
        curves.append(_of_run("training" if len(runs) == 1 else run.name, run))
    names: list[str] = []
    for evaluations in series:
        names.append(free_name(evaluations[0].file.parent.parent, names))
        curves.append(_of_series("held-out" if len(series) == 1 else f"held-out, {names[-1]}", evaluations))
    return curves


# --- points and their estimates


OF_TRAINING = ("reward", "has_signal", "level")
"""The estimates that evaluations do not have, by the field of a rollout that they average."""

OF_ALL = ("accuracy", "exact", "truncated", "format_failures", "completion_tokens", *OF_TRAINING)
OF_A_TASK = ("accuracy", "level")
"""The estimates that have a curve."""


def estimates_of(samples: Sequence[EvalSample]) -> dict[str, Estimate]:
    """The estimates of these rollouts of training, without those that have no value."""
    groups = by_question(samples)
    estimates = dict(scope("", "", samples).estimates)
    for name in OF_TRAINING:
        mean = share if name == "has_signal" else mean_of
        found = mean(as_questions(groups, methodcaller("get", name)))
        if found is not None:
            estimates[name] = found
    return estimates


def _as_json(points: Sequence[Point], names: Sequence[str]) -> list[dict[str, Any]]:
    """The place of each point, and each estimate with its limits. An infinite limit is None."""
    found = []
    for point in points:
        values: dict[str, Any] = {"place": point.place}
        for name in names:
            estimate = point.estimates.get(name)
            if estimate is not None:
                limits = (estimate.value, estimate.low, estimate.high)
                values[name] = [round(limit, 4) if math.isfinite(limit) else None for limit in limits]
        found.append(values)
    return found


# --- a run over its groups


def _of_run(name: str, run: LoadedRun) -> Curve:
    has_steps = all(group.step is not None for group in run.groups)
    groups = by_task(run)
    tasks = {task: points_of(own, has_steps=has_steps) for task, own in groups.items()}
    axis = "step of the trainer" if has_steps else "groups"
    return Curve(name, False, axis, points_of(run.groups, has_steps=has_steps), tasks, groups)


def by_task(run: LoadedRun) -> dict[str, list[DumpedGroup]]:
    """The groups of each task, sorted by its name. Lines of other programs do not name their tasks."""
    groups: dict[str, list[DumpedGroup]] = {}
    for group in run.groups:
        if group.task != UNKNOWN:
            groups.setdefault(group.task, []).append(group)
    return dict(sorted(groups.items()))


def points_of(groups: Sequence[DumpedGroup], *, has_steps: bool) -> list[Point]:
    """The groups in at most MOST_BINS points of about the same number of groups."""
    # More points than steps would have several points at one place.
    steps = {group.step for group in groups} if has_steps else range(MOST_BINS)
    count = max(1, min(MOST_BINS, len(groups) // SMALLEST_BIN, len(steps)))
    edges = [number * len(groups) // count for number in range(count + 1)]
    points = []
    for start, end in pairwise(edges):
        own = groups[start:end]
        place = fmean(group.step or 0.0 for group in own) if has_steps else end
        points.append(Point(place, estimates_of(samples_of(own))))
    return points


def samples_of(groups: Sequence[DumpedGroup]) -> list[EvalSample]:
    """All rollouts of these groups."""
    return list(chain.from_iterable(group.rollouts for group in groups))


# --- the evaluations of a run over the trainer's steps


def series_of(evaluations: Sequence[Evaluation]) -> tuple[list[list[Evaluation]], list[Evaluation]]:
    """The series among these evaluations, and the evaluations that are in none.

    A series has several evaluations in folders such as `evals/step-25`, with the same questions and grading, in the
    order of their steps.
    """
    groups: dict[tuple[Any, ...], list[Evaluation]] = {}
    for evaluation in evaluations:
        run = evaluation.name if evaluation.step is None else evaluation.file.parent.parent
        graded = [str(evaluation.parameters.get(name)) for name in GRADED]
        groups.setdefault((run, evaluation.manifest, *graded), []).append(evaluation)
    series = [group for group in groups.values() if len(group) > 1]
    alone = [group[0] for group in groups.values() if len(group) == 1]
    return series, alone


def _of_series(name: str, evaluations: Sequence[Evaluation]) -> Curve:
    points = []
    tasks: dict[str, list[Point]] = {}
    for evaluation in evaluations:
        step = evaluation.step or 0
        points.append(Point(step, evaluation.results.overall.estimates))
        for task in evaluation.results.tasks:
            tasks.setdefault(task.name, []).append(Point(step, task.estimates))
    return Curve(name, True, "step of the trainer", points, tasks)


# --- the table of tasks


@dataclass(frozen=True)
class TaskRow:
    """A task in a curve: the points of its accuracy, and of a run its levels and groups.

    `change` is None if it is unknown. `levels` are the first and the last point of the curve of levels. If the
    task `is_held_out`, its rates come from evaluations, which always ask the same questions.
    """

    name: str
    source: str
    rates: Sequence[float] = ()
    change: float | None = None
    levels: Sequence[float] = ()
    groups: int | None = None
    without_credit: int | None = None
    is_held_out: bool = False

    @property
    def level_change(self) -> float:
        """How far the level has moved; 0 if it is less than a level."""
        change = self.levels[-1] - self.levels[0] if self.levels else 0.0
        return change if abs(change) >= 1.0 else 0.0

    @property
    def moved(self) -> float:
        """How far the task has moved: a level counts as much as ten points."""
        return abs(self.change or 0.0) + 0.1 * abs(self.level_change)


def task_rows(curves: Sequence[Curve]) -> list[TaskRow]:
    """The tasks of all curves. Tasks that moved most come first.

    With one run and one series, a task has one row, whose rates are held-out if it was evaluated.
    """
    held_out = sum(curve.is_held_out for curve in curves)
    is_merged = held_out < 2 and len(curves) - held_out < 2
    rows: dict[tuple[str, str], TaskRow] = {}
    for curve in curves:
        for name, points in curve.tasks.items():
            key = (name, "" if is_merged else curve.name)
            rates = _values(points, "accuracy")
            if not curve.is_held_out:
                groups = curve.groups[name]
                rows[key] = TaskRow(
                    name,
                    curve.name,
                    rates,
                    change=change_at_same_level(groups),
                    levels=_values(points, "level"),
                    groups=len(groups),
                    without_credit=sum(not any(group.rewards) for group in groups),
                )
            elif rates:
                row = rows.get(key, TaskRow(name, curve.name))
                change = rates[-1] - rates[0]
                rows[key] = replace(row, source=curve.name, rates=rates, change=change, is_held_out=True)
    return sorted(rows.values(), key=lambda row: (-row.moved, row.change is None, row.name))


def _values(points: Sequence[Point], name: str) -> list[float]:
    return [point.estimates[name].value for point in points if name in point.estimates]


Rates: TypeAlias = dict[float | None, list[float]]
"""The accuracies of the groups at each level."""


def change_at_same_level(groups: Sequence[DumpedGroup]) -> float | None:
    """How the accuracy differs between the two halves of these groups, level by level.

    With a curriculum, a model that learns gets harder items, so that its accuracy over all levels says little. The
    difference of a level counts as often as the level occurs in both halves. None if that is in fewer than SMALLEST_BIN
    groups.
    """
    halves: tuple[Rates, Rates] = ({}, {})
    for number, group in enumerate(groups):
        scored = [correct(rollout) for rollout in group.rollouts if rollout["score"] is not None]
        if scored:
            half = halves[2 * number >= len(groups)]
            half.setdefault(group.level, []).append(fmean(scored))
    first, second = halves
    difference = 0.0
    weight = 0
    for level in first.keys() & second.keys():
        count = min(len(first[level]), len(second[level]))
        difference += count * (fmean(second[level]) - fmean(first[level]))
        weight += count
    return difference / weight if weight >= SMALLEST_BIN else None
