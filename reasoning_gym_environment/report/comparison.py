"""Two evaluations question by question, one beside the published results, and what all of it comes to in words."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

import jinja2

from ..errors import EnvironmentSetupError
from ..evaluation.questions import PRESETS, published_presets, published_scores
from ..evaluation.results import EvalResults, Measure, as_questions, by_question, correct, exact, is_correct, score_of
from ..evaluation.statistics import Estimate, Question, mean_of, paired_difference, share
from .load import ASKED, GRADED, Evaluation, Group, Run

FEW = 20
"""Questions below which the result of one task says little: its interval is some 40 points wide."""
Evaluated: TypeAlias = Sequence[tuple[Evaluation, EvalResults]]
TEMPLATES = Path(__file__).resolve().parent / "templates"


@dataclass(frozen=True)
class DifferenceRow:
    """Second less first, in one measure or one task.

    `is_clear` when the interval excludes 0, which takes at least six questions.
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
    """A paired comparison; `unpaired` questions were scored on one side only, `notes` say what else differs.

    `tasks` differ by that in accuracy, and by `exact`, by name, in the exact rate.
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
        """About how many questions would show a difference in accuracy of the size that was found."""
        found = self.measures[0].difference
        return math.ceil(found.questions * ((found.high - found.low) / 2 / max(abs(found.value), 0.01)) ** 2)


def compare(first: Evaluation, second: Evaluation) -> Comparison:
    """Raises EnvironmentSetupError unless both answered the same questions and were graded in the same way."""
    _refuse_what_cannot_be_compared(first, second)
    measures = (("accuracy", correct), ("exact", exact), ("mean score", score_of))
    rows = [row for name, value in measures if (row := _difference(name, first, second, value)) is not None]
    if not rows:
        raise EnvironmentSetupError(f"{first.name} and {second.name} have no scored question in common.")
    tasks = sorted({str(sample["task"]) for sample in first.samples})
    by_task = [row for task in tasks if (row := _difference(task, first, second, correct, task)) is not None]
    by_task.sort(key=lambda row: (-row.difference.value, row.name))
    scored = [_scored(evaluation, correct) for evaluation in (first, second)]
    return Comparison(
        first=first.name,
        second=second.name,
        measures=rows,
        tasks=by_task,
        exact={
            row.name: row.difference.value for task in tasks if (row := _difference(task, first, second, exact, task))
        },
        unpaired=len(scored[0].keys() ^ scored[1].keys()),
        notes=_notes(first, second),
    )


def _refuse_what_cannot_be_compared(first: Evaluation, second: Evaluation) -> None:
    if not first.manifest or first.manifest != second.manifest:
        raise EnvironmentSetupError(
            f"{first.name} and {second.name} did not answer the same questions: manifest {first.manifest or 'none'} "
            f"against {second.manifest or 'none'}. Evaluate both with the same eval_tasks, eval_seed, eval_complexity, "
            "num_eval_samples_per_task and release of reasoning-gym; an item that one left out also makes them differ."
        )
    told = [name for name in GRADED if name in first.parameters and name in second.parameters]
    if differing := _differing(first, second, {name: name for name in told}):
        raise EnvironmentSetupError(
            f"{first.name} and {second.name} were graded differently: {differing}. Evaluate both with the same grading."
        )


def _differing(first: Evaluation, second: Evaluation, names: Mapping[str, str]) -> str:
    sides = [{name: evaluation.parameters.get(name, "unknown") for name in names} for evaluation in (first, second)]
    return ", ".join(
        f"{label} {sides[0][name]} against {sides[1][name]}"
        for name, label in names.items()
        if sides[0][name] != sides[1][name]
    )


def _notes(first: Evaluation, second: Evaluation) -> list[str]:
    """Reasons beside the models for which the two may differ."""
    notes = [
        f"{evaluation.name} does not say how it was graded ({', '.join(unknown)}): the two may differ by that alone."
        for evaluation in (first, second)
        if (unknown := [label for name, label in GRADED.items() if name not in evaluation.parameters])
    ]
    differing = _differing(first, second, ASKED)
    return [*notes, f"Not asked alike: {differing}."] if differing else notes


def _scored(evaluation: Evaluation, value: Measure, task: str | None = None) -> dict[Hashable, Question]:
    asked = by_question(one for one in evaluation.samples if task is None or one["task"] == task)
    pairs = zip(asked, as_questions(asked, value), strict=True)
    return {key: question for key, question in pairs if question.values}


def _difference(
    name: str, first: Evaluation, second: Evaluation, value: Measure, task: str | None = None
) -> DifferenceRow | None:
    sides = [_scored(evaluation, value, task) for evaluation in (first, second)]
    difference, one, other = paired_difference(*sides), share(sides[0].values()), share(sides[1].values())
    if difference is None or one is None or other is None:
        return None
    return DifferenceRow(name, one, other, difference)


@dataclass(frozen=True)
class PublishedRow:
    """One model over the tasks that all have in common; `categories` in the order of PublishedTable.categories."""

    model: str
    accuracy: Estimate
    mean_score: float
    categories: list[float | None]
    is_yours: bool = False


@dataclass(frozen=True)
class PublishedTable:
    """Yours among the published models, best first."""

    preset: str
    tasks: int
    categories: list[str]
    rows: list[PublishedRow]
    not_compared: list[str]


def beside_published(evaluation: Evaluation) -> PublishedTable:
    """Raises EnvironmentSetupError, saying why, if its questions are not those of a preset.

    By reasoning-gym's own scores, over tasks that every model was asked and whose verifier has not changed since.
    """
    preset: Any = evaluation.parameters.get("eval_complexity", "unknown")
    if preset not in PRESETS:
        raise EnvironmentSetupError(
            f"{evaluation.name} cannot stand beside the published results: it was asked at difficulty {preset!r}, they "
            f"were at the presets {' and '.join(PRESETS)}. Evaluate with env.eval_complexity easy or hard."
        )
    published = published_scores(preset)
    scored = [one for one in evaluation.samples if one.get("score") is not None and one.get("native_score") is not None]
    mine = {str(one["task"]) for one in scored}
    common = mine.intersection(*published.values()) - set(published_presets()["verifier_changed_since"])
    if not common:
        raise EnvironmentSetupError(f"{evaluation.name} has no scored task in common with the published results.")
    kept = [one for one in scored if one["task"] in common]
    category = {str(one["task"]): str(one.get("category")) for one in kept}
    categories = sorted(set(category.values()))

    def row(model: str, questions: Sequence[Question], mean_score: float, is_yours: bool = False) -> PublishedRow:
        accuracy = share(questions)
        assert accuracy is not None  # there is a common task, and each has questions
        parts = [share(one for one in questions if category[str(one.stratum)] == name) for name in categories]
        return PublishedRow(model, accuracy, mean_score, [part.value if part else None for part in parts], is_yours)

    yours = as_questions(by_question(kept), lambda sample: is_correct(float(sample["native_score"])))
    mean = math.fsum(float(one["native_score"]) for one in kept) / len(kept)
    rows = [row(f"{evaluation.model or evaluation.name} (yours)", yours, mean, is_yours=True)]
    for model, scores in published.items():
        questions = [
            Question(task, (1.0,) * right + (0.0,) * (len(scores[task].counts) - 1 - right))
            for task in sorted(common)
            for right, items in enumerate(scores[task].counts)
            for _ in range(items)
        ]
        rows.append(row(model, questions, math.fsum(scores[task].mean_score for task in common) / len(common)))
    rows.sort(key=lambda row: -row.accuracy.value)
    not_compared = sorted((mine | published_presets()[preset].keys()) - common)
    return PublishedTable(str(preset), len(common), categories, rows, not_compared)


# --- in words


def verdicts(
    comparison: Comparison | None, published: Sequence[PublishedTable], evaluations: Evaluated, runs: Sequence[Run]
) -> list[str]:
    """The sentences on top of the page, what was asked for first; plain text, which the page escapes."""
    told = [] if comparison else [(one.name, found, best_and_worst(found)) for one, found in evaluations]
    changes = [(run, change_of(run.groups)) for run in runs]
    template = templates().get_template("verdict.txt.j2")
    text = template.render(comparison=comparison, published=published, evaluations=told, runs=changes)
    return [line for line in text.split("\n") if line.strip()]


def templates() -> jinja2.Environment:
    """What stands in HTML is escaped, the sentences are not yet."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=lambda name: name is None or not name.endswith(".txt.j2"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def best_and_worst(results: EvalResults) -> list[tuple[float, str]]:
    """The lowest and the highest accuracy of categories, or of tasks where there are few, with their names."""
    ranked = [
        sorted((one.accuracy.value, one.name) for one in scopes if one.accuracy and one.questions >= FEW)
        for scopes in (results.categories, results.tasks)
    ]
    known = ranked[0] if len(ranked[0]) >= 3 else ranked[1]
    return [known[0], known[-1]] if len(known) > 1 else []


def change_of(groups: Sequence[Group]) -> dict[str, Any]:
    """How the reward of a run changed from its first quarter of groups to its last, and what share of answers is right.

    `groups` are in their order. `change` is None where a quarter has fewer than ten groups, which is too few to tell.
    """
    scores = [correct(one) for group in groups for one in group.rollouts if one["score"] is not None]
    found: dict[str, Any] = {"right": sum(scores) / len(scores) if scores else None, "change": None}
    size = len(groups) // 4
    if size < 10:
        return found
    ends = (groups[:size], groups[-size:])
    first, last = (mean_of(Question(None, (fmean(group.rewards),)) for group in part) for part in ends)
    assert first is not None and last is not None
    found |= {"first": first.value, "last": last.value, "change": last.value - first.value}
    found["half"] = math.hypot(first.high - first.value, last.high - last.value)
    levels = [[group.level for group in part if group.level is not None] for part in ends]
    return {**found, "levels": [fmean(part) for part in levels if part]}
