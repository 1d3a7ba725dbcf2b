"""Compares two evaluations, and sums up all sources of a report in words."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

import jinja2

from ..errors import EnvironmentSetupError
from ..evaluation.published import PublishedTable
from ..evaluation.results import (
    EvalResults,
    EvalSample,
    Measure,
    ScopeResult,
    as_questions,
    by_question,
    correct,
    exact,
    grouped,
    score_of,
)
from ..evaluation.statistics import Estimate, Question, mean_of, paired_difference, share
from ..storage.lines import DumpedGroup
from .load import GRADED, RELEASES, SAMPLED, Evaluation, LoadedRun

FEW = 20
"""A task with fewer questions than this has an interval of about 40 points, which is too wide to say much."""

Evaluated: TypeAlias = Sequence[tuple[Evaluation, EvalResults]]

TEMPLATES = Path(__file__).resolve().parent / "templates"


@dataclass(frozen=True)
class DifferenceRow:
    """Second minus first, in one measure or one task, over the questions that both sides have a score for.

    `is_clear` if the interval excludes 0, which takes at least six questions.
    """

    name: str
    first: Estimate
    second: Estimate
    difference: Estimate

    @property
    def is_clear(self) -> bool:
        return self.difference.low > 0 or self.difference.high < 0


@dataclass(frozen=True)
class Comparison:
    """A paired comparison. `unpaired` counts questions with a score on one side only. `notes` say what else differs.

    `measures` are over all questions, and `tasks` has the difference of each task in accuracy.
    """

    first: str
    second: str
    measures: list[DifferenceRow]
    tasks: list[DifferenceRow]
    unpaired: int
    notes: list[str]

    @property
    def questions_to_show(self) -> int:
        """Approximate number of questions that would show a difference in accuracy of this size."""
        difference = self.measures[0].difference
        half = (difference.high - difference.low) / 2
        ratio = half / max(abs(difference.value), 0.01)
        return math.ceil(difference.questions * ratio**2)


def compare(first: Evaluation, second: Evaluation) -> Comparison:
    """Raises EnvironmentSetupError unless both have the same questions and the same grading."""
    _check_comparable(first, second)
    measures = []
    for name, measure in (("accuracy", correct), ("exact", exact), ("mean score", score_of)):
        row = _difference(name, first.samples, second.samples, measure)
        if row is None:
            raise EnvironmentSetupError(f"{first.name} and {second.name} have no scored question in common.")
        measures.append(row)
    tasks = []
    second_by_task = dict(grouped(second.samples, "task"))
    for task, samples in grouped(first.samples, "task"):
        row = _difference(task, samples, second_by_task.get(task, []), correct)
        if row is not None:
            tasks.append(row)
    tasks.sort(key=lambda row: (-row.difference.value, row.name))
    unpaired = _scored(first.samples, correct).keys() ^ _scored(second.samples, correct).keys()
    notes = []
    releases = _differing(first, second, RELEASES)
    if releases:
        notes.append(f"Graded by different releases: {releases}. To grade both by one release, use `regrade`.")
    differing = _differing(first, second, SAMPLED)
    if differing:
        notes.append(f"Not asked alike: {differing}.")
    return Comparison(first.name, second.name, measures, tasks, len(unpaired), notes)


def _check_comparable(first: Evaluation, second: Evaluation) -> None:
    if not first.manifest or first.manifest != second.manifest:
        raise EnvironmentSetupError(
            f"{first.name} and {second.name} did not answer the same questions: manifest {first.manifest or 'none'} "
            f"against {second.manifest or 'none'}. Evaluate both with the same eval_tasks, eval_seed, eval_complexity, "
            "num_eval_samples_per_task and release of reasoning-gym. A skipped item is a difference too."
        )
    differing = _differing(first, second, GRADED)
    if differing:
        raise EnvironmentSetupError(
            f"{first.name} and {second.name} were graded differently: {differing}. Evaluate both with the same grading."
        )


def _differing(first: Evaluation, second: Evaluation, labels: Mapping[str, str]) -> str:
    """The parameters that differ, as text. `labels` has the label of each parameter to compare."""
    differing = []
    for name, label in labels.items():
        before = first.parameters.get(name, "unknown")
        after = second.parameters.get(name, "unknown")
        if before != after:
            differing.append(f"{label} {before} against {after}")
    return ", ".join(differing)


def _scored(samples: Iterable[EvalSample], measure: Measure) -> dict[Hashable, Question]:
    """The questions with at least one scored completion, by their key."""
    groups = by_question(samples)
    questions = as_questions(groups, measure)
    return {key: question for key, question in zip(groups, questions, strict=True) if question.values}


def _difference(
    name: str,
    first_samples: Iterable[EvalSample],
    second_samples: Iterable[EvalSample],
    measure: Measure,
) -> DifferenceRow | None:
    """None if the two sides have no scored question in common."""
    first = _scored(first_samples, measure)
    second = _scored(second_samples, measure)
    difference = paired_difference(first, second)
    before = share(question for key, question in first.items() if key in second)
    after = share(question for key, question in second.items() if key in first)
    if difference is None or before is None or after is None:
        return None
    return DifferenceRow(name, before, after, difference)


# --- sentences


def verdicts(
    comparison: Comparison | None,
    published: Sequence[PublishedTable],
    evaluations: Evaluated,
    runs: Sequence[LoadedRun],
) -> list[str]:
    """The sentences at the top of the page, as plain text that the page must escape. Comparisons come first."""
    described = []
    if comparison is None:
        for evaluation, results in evaluations:
            described.append((evaluation.name, results, best_and_worst(results)))
    template = templates().get_template("verdict.txt.j2")
    text = template.render(
        comparison=comparison,
        published=published,
        evaluations=described,
        runs=[(run, change_of(run.groups)) for run in runs],
    )
    return [line for line in text.split("\n") if line.strip()]


def templates() -> jinja2.Environment:
    """The templates of the page. HTML templates escape every value, and templates of sentences do not."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=lambda name: name is None or not name.endswith(".txt.j2"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def best_and_worst(results: EvalResults) -> list[tuple[float, str]]:
    """The lowest and the highest accuracy with their names, among categories, or among tasks if there are under three.

    Empty if there are fewer than two.
    """
    ranked = _ranked(results.categories)
    if len(ranked) < 3:
        ranked = _ranked(results.tasks)
    if len(ranked) < 2:
        return []
    return [ranked[0], ranked[-1]]


def _ranked(scopes: Iterable[ScopeResult]) -> list[tuple[float, str]]:
    """Accuracies in rising order, of scopes with at least FEW questions."""
    accuracies = []
    for scope in scopes:
        if scope.accuracy and scope.accuracy.questions >= FEW:
            accuracies.append((scope.accuracy.value, scope.name))
    return sorted(accuracies)


def change_of(groups: Sequence[DumpedGroup]) -> dict[str, Any]:
    """The share of right answers of a run, and the change of its reward from its first quarter of groups to its last.

    `groups` are in order. `change` is None if a quarter has fewer than ten groups, which are too few to show a change.
    """
    scores = []
    for group in groups:
        scores += [correct(rollout) for rollout in group.rollouts if rollout["score"] is not None]
    right = fmean(scores) if scores else None
    size = len(groups) // 4
    if size < 10:
        return {"right": right, "change": None}
    first = _mean_reward(groups[:size])
    last = _mean_reward(groups[-size:])
    levels = [_mean_level(groups[:size]), _mean_level(groups[-size:])]
    return {
        "right": right,
        "first": first.value,
        "last": last.value,
        "change": last.value - first.value,
        "half": math.hypot(first.high - first.value, last.high - last.value),
        "levels": [level for level in levels if level is not None],
    }


def _mean_reward(groups: Sequence[DumpedGroup]) -> Estimate:
    mean = mean_of(Question(None, (fmean(group.rewards),)) for group in groups)
    assert mean is not None, "there are groups"
    return mean


def _mean_level(groups: Sequence[DumpedGroup]) -> float | None:
    levels = [group.level for group in groups if group.level is not None]
    return fmean(levels) if levels else None
