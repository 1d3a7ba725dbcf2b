"""Compares two evaluations, or an evaluation with published results, and sums up all sources of a report in words."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

import jinja2

from ..errors import EnvironmentSetupError
from ..evaluation.questions import PRESETS, PublishedScore, published_presets, published_scores
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
    is_correct,
    score_of,
)
from ..evaluation.statistics import (
    Estimate,
    Question,
    mean_of,
    paired_difference,
    share,
)
from .load import GRADED, RELEASES, SAMPLED, DumpedGroup, Evaluation, Run

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

    `tasks` has the difference of each task in accuracy, and `exact`, by task, the difference in the exact rate.
    """

    first: str
    second: str
    measures: list[DifferenceRow]
    tasks: list[DifferenceRow]
    exact: dict[str, float]
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
    _check_same_questions(first, second)
    _check_same_grading(first, second)
    measures = [
        _difference("accuracy", first.samples, second.samples, correct),
        _difference("exact", first.samples, second.samples, exact),
        _difference("mean score", first.samples, second.samples, score_of),
    ]
    known_measures = [row for row in measures if row is not None]
    if not known_measures:
        raise EnvironmentSetupError(f"{first.name} and {second.name} have no scored question in common.")
    tasks = []
    exact_differences = {}
    second_by_task = dict(grouped(second.samples, "task"))
    for task, samples in grouped(first.samples, "task"):
        others = second_by_task.get(task, [])
        row = _difference(task, samples, others, correct)
        exact_row = _difference(task, samples, others, exact)
        if row is not None and exact_row is not None:
            tasks.append(row)
            exact_differences[task] = exact_row.difference.value
    tasks.sort(key=lambda row: (-row.difference.value, row.name))
    unpaired = _scored(first.samples, correct).keys() ^ _scored(second.samples, correct).keys()
    return Comparison(
        first=first.name,
        second=second.name,
        measures=known_measures,
        tasks=tasks,
        exact=exact_differences,
        unpaired=len(unpaired),
        notes=_notes(first, second),
    )


def _check_same_questions(first: Evaluation, second: Evaluation) -> None:
    if not first.manifest or first.manifest != second.manifest:
        raise EnvironmentSetupError(
            f"{first.name} and {second.name} did not answer the same questions: manifest {first.manifest or 'none'} "
            f"against {second.manifest or 'none'}. Evaluate both with the same eval_tasks, eval_seed, eval_complexity, "
            "num_eval_samples_per_task and release of reasoning-gym. A skipped item is a difference too."
        )


def _check_same_grading(first: Evaluation, second: Evaluation) -> None:
    differing = _differing_if_known(first, second, {name: name for name in GRADED})
    if differing:
        raise EnvironmentSetupError(
            f"{first.name} and {second.name} were graded differently: {differing}. Evaluate both with the same grading."
        )


def _differing_if_known(first: Evaluation, second: Evaluation, labels: Mapping[str, str]) -> str:
    """The parameters that both evaluations have and that differ, as text."""
    both = first.parameters.keys() & second.parameters.keys()
    return _differing(first, second, {name: label for name, label in labels.items() if name in both})


def _differing(first: Evaluation, second: Evaluation, labels: Mapping[str, str]) -> str:
    """The parameters that differ, as text. `labels` has the label of each parameter to compare."""
    differing = []
    for name, label in labels.items():
        before = first.parameters.get(name, "unknown")
        after = second.parameters.get(name, "unknown")
        if before != after:
            differing.append(f"{label} {before} against {after}")
    return ", ".join(differing)


def _notes(first: Evaluation, second: Evaluation) -> list[str]:
    """Possible reasons for a difference other than the models."""
    notes = []
    for evaluation in (first, second):
        unknown = [label for name, label in GRADED.items() if name not in evaluation.parameters]
        if unknown:
            silent = f"{evaluation.name} does not say how it was graded ({', '.join(unknown)})"
            notes.append(f"{silent}: the two may differ by that alone.")
    releases = _differing_if_known(first, second, RELEASES)
    if releases:
        notes.append(f"Graded by different releases: {releases}. To grade both by one release, use `regrade`.")
    differing = _differing(first, second, SAMPLED)
    if differing:
        notes.append(f"Not asked alike: {differing}.")
    return notes


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


@dataclass(frozen=True)
class PublishedRow:
    """One model over the tasks that all models have. `categories` are in the order of PublishedTable.categories."""

    model: str
    accuracy: Estimate
    mean_score: float
    categories: list[float | None]
    is_yours: bool = False


@dataclass(frozen=True)
class PublishedTable:
    """Your model among the published models, the best model first."""

    preset: str
    tasks: int
    categories: list[str]
    rows: list[PublishedRow]
    not_compared: list[str]


def beside_published(evaluation: Evaluation) -> PublishedTable:
    """Compare an evaluation with the published results of its preset. Raises EnvironmentSetupError if it has none.

    The comparison uses the scores of reasoning-gym's own verifiers. It covers the tasks that every model answered and
    whose verifier has not changed since.
    """
    preset: Any = evaluation.parameters.get("eval_complexity", "unknown")
    if preset not in PRESETS:
        raise EnvironmentSetupError(
            f"{evaluation.name} is not comparable with the published results, whose difficulty is one of "
            f"{', '.join(PRESETS)}: it has difficulty {preset!r}. Evaluate with env.eval_complexity easy or hard."
        )
    published = published_scores(preset)
    answered: set[str] = set()
    samples = []
    for sample in evaluation.samples:
        if sample.get("score") is not None and sample.get("native_score") is not None:
            samples.append(sample)
            answered.add(str(sample["task"]))
    common = answered.intersection(*published.values())
    common.difference_update(published_presets()["verifier_changed_since"])
    if not common:
        raise EnvironmentSetupError(f"{evaluation.name} has no scored task in common with the published results.")
    kept = [sample for sample in samples if sample["task"] in common]
    category_of = {str(sample["task"]): str(sample.get("category")) for sample in kept}
    questions = as_questions(by_question(kept), _natively_correct)
    mean_score = fmean(float(sample["native_score"]) for sample in kept)
    your_name = f"{evaluation.model or evaluation.name} (yours)"
    rows = [_published_row(your_name, questions, mean_score, category_of, is_yours=True)]
    for model, scores in published.items():
        questions = _published_questions(scores, sorted(common))
        mean_score = fmean(scores[task].mean_score for task in common)
        rows.append(_published_row(model, questions, mean_score, category_of))
    rows.sort(key=lambda row: -row.accuracy.value)
    return PublishedTable(
        preset=str(preset),
        tasks=len(common),
        categories=sorted(set(category_of.values())),
        rows=rows,
        not_compared=sorted((answered | published_presets()[preset].keys()) - common),
    )


def _natively_correct(sample: EvalSample) -> float:
    return is_correct(float(sample["native_score"]))


def _published_questions(scores: Mapping[str, PublishedScore], tasks: Iterable[str]) -> list[Question]:
    questions = []
    for task in tasks:
        counts = scores[task].counts
        completions = len(counts) - 1
        for right, items in enumerate(counts):
            values = (1.0,) * right + (0.0,) * (completions - right)
            questions += [Question(task, values)] * items
    return questions


def _published_row(
    model: str,
    questions: Sequence[Question],
    mean_score: float,
    category_of: Mapping[str, str],
    *,
    is_yours: bool = False,
) -> PublishedRow:
    accuracy = share(questions)
    assert accuracy is not None, "every common task has questions"
    categories = []
    for category in sorted(set(category_of.values())):
        members = [question for question in questions if category_of[str(question.stratum)] == category]
        part = share(members)
        categories.append(part.value if part else None)
    return PublishedRow(model, accuracy, mean_score, categories, is_yours)


# --- sentences


def verdicts(
    comparison: Comparison | None,
    published: Sequence[PublishedTable],
    evaluations: Evaluated,
    runs: Sequence[Run],
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
