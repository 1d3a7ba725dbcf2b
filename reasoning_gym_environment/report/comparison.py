"""Two evaluations question by question, and one beside the published results."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from ..errors import EnvironmentSetupError
from ..evaluation.questions import PRESETS, changed_verifiers, preset_configs, published_scores
from ..evaluation.results import Measure, as_questions, by_question, correct, exact, is_correct, score_of
from ..evaluation.statistics import Estimate, Question, paired_difference, share
from .load import ASKED, GRADED, Evaluation

CLEAR_FROM = 3
"""Questions that a clear difference takes: two that flip the same way by chance look like one, at any width."""


@dataclass(frozen=True)
class DifferenceRow:
    """Second less first, in one measure or one task; `is_clear` when the interval leaves 0 out."""

    name: str
    first: Estimate
    second: Estimate
    difference: Estimate

    @property
    def is_clear(self) -> bool:
        leaves_zero_out = self.difference.low > 0 or self.difference.high < 0
        return leaves_zero_out and self.difference.questions >= CLEAR_FROM


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
            f"num_eval_samples_per_task and release of reasoning-gym.{_left_out_apart(first, second)}"
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


def _left_out_apart(first: Evaluation, second: Evaluation) -> str:
    """What only one of the two had to leave out, such as items that were not made in time."""
    sides = [evaluation.parameters.get("left_out") for evaluation in (first, second)]
    reasons = [
        {(str(task), str(reason)) for task, reason in side.items()} if isinstance(side, Mapping) else set()
        for side in sides
    ]
    apart = sorted(f"{task} ({reason})" for task, reason in reasons[0] ^ reasons[1])
    return f" Left out on one side only: {', '.join(apart)}." if apart else ""


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
    asked = str(evaluation.parameters.get("eval_complexity", "unknown"))
    if asked not in PRESETS:
        raise EnvironmentSetupError(
            f"{evaluation.name} cannot stand beside the published results: it was asked at difficulty {asked!r}, they "
            f"were at the presets {' and '.join(PRESETS)}. Evaluate with env.eval_complexity easy or hard."
        )
    [preset] = [name for name in PRESETS if name == asked]
    published = published_scores(preset)
    scored = [one for one in evaluation.samples if one.get("score") is not None and one.get("native_score") is not None]
    mine = {str(one["task"]) for one in scored}
    common = mine.intersection(*published.values()) - changed_verifiers()
    if not common:
        raise EnvironmentSetupError(f"{evaluation.name} has no scored task in common with the published results.")
    kept = [one for one in scored if one["task"] in common]
    category = {str(one["task"]): str(one.get("category")) for one in kept}
    categories = sorted(set(category.values()))
    yours = as_questions(by_question(kept), lambda sample: is_correct(float(sample["native_score"])))
    mean = math.fsum(float(one["native_score"]) for one in kept) / len(kept)
    name = f"{evaluation.model or evaluation.name} (yours)"
    rows = [_published_row(name, yours, mean, category, categories, is_yours=True)]
    for model, scores in published.items():
        questions = [
            Question(task, (1.0,) * right + (0.0,) * (len(scores[task].counts) - 1 - right))
            for task in sorted(common)
            for right, items in enumerate(scores[task].counts)
            for _ in range(items)
        ]
        mean = math.fsum(scores[task].mean_score for task in common) / len(common)
        rows.append(_published_row(model, questions, mean, category, categories))
    rows.sort(key=lambda row: -row.accuracy.value)
    not_compared = sorted((mine | set(preset_configs(preset))) - common)
    return PublishedTable(preset, len(common), categories, rows, not_compared)


def _published_row(
    model: str,
    questions: list[Question],
    mean_score: float,
    category: dict[str, str],
    categories: list[str],
    *,
    is_yours: bool = False,
) -> PublishedRow:
    accuracy = share(questions)
    assert accuracy is not None  # there is a common task, and each has questions
    parts = [share(q for q in questions if category[str(q.stratum)] == name) for name in categories]
    return PublishedRow(model, accuracy, mean_score, [part.value if part else None for part in parts], is_yours)
