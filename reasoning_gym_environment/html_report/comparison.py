"""Compares two evaluations of the same questions."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import jinja2

from ..errors import EnvironmentSetupError
from ..evaluation.results import (
    EvalSample,
    Measure,
    as_questions,
    by_question,
    correct,
    exact,
    grouped,
    score_of,
)
from ..evaluation.statistics import Estimate, Question, paired_difference, share
from .load import GRADED, RELEASES, SAMPLED, Evaluation

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
    """A paired comparison. `unpaired` counts questions with a score on one side only, and `differing` says
    what else differs.

    `measures` are over all questions, and `tasks` has the difference of each task in accuracy.
    """

    first: str
    second: str
    measures: list[DifferenceRow]
    tasks: list[DifferenceRow]
    unpaired: int
    differing: str


def compare(first: Evaluation, second: Evaluation) -> Comparison:
    """Raises EnvironmentSetupError unless both have the same questions and the same grading."""
    _check_comparable(first, second)
    measures = []
    for name, measure in (("accuracy", correct), ("exact", exact), ("mean score", score_of)):
        row = difference_of(name, first.samples, second.samples, measure)
        if row is None:
            raise EnvironmentSetupError(f"{first.name} and {second.name} have no scored question in common.")
        measures.append(row)
    tasks = []
    second_by_task = dict(grouped(second.samples, "task"))
    for task, samples in grouped(first.samples, "task"):
        row = difference_of(task, samples, second_by_task.get(task, []), correct)
        if row is not None:
            tasks.append(row)
    tasks.sort(key=lambda row: (not row.is_clear, -abs(row.difference.value), row.name))
    unpaired = _scored(first.samples, correct).keys() ^ _scored(second.samples, correct).keys()
    differing = _differing(first, second, {**SAMPLED, **RELEASES})
    return Comparison(first.name, second.name, measures, tasks, len(unpaired), differing)


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


def difference_of(
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


def templates() -> jinja2.Environment:
    """The templates of the page. HTML templates escape every value, and templates of sentences do not."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=lambda name: name is None or not name.endswith(".txt.j2"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
