"""Compares two evaluations of the same questions."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from ..errors import EnvironmentSetupError
from ..evaluation.results import correct, exact, score_of, values_by_question
from ..evaluation.statistics import Estimate, Question, paired_difference, share
from .load import GRADED, RELEASES, SAMPLED, Evaluation

TEMPLATES = Path(__file__).resolve().parent / "templates"

MEASURES = {"accuracy": correct, "exact": exact, "mean score": score_of}


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
    """A paired comparison.

    `measures` are over all questions: the accuracy, and other measures whose difference is another one. `tasks` has the
    difference of each task in accuracy. `unpaired` counts questions with a score on one side only, and `differing` says
    what else differs.
    """

    first: str
    second: str
    measures: list[DifferenceRow]
    tasks: list[DifferenceRow]
    unpaired: int
    differing: str

    @property
    def limit(self) -> float:
        """The end of an axis on which all intervals of the tasks have a place."""
        return max(abs(end) for row in self.tasks for end in (row.difference.low, row.difference.high))


def compare(first: Evaluation, second: Evaluation) -> Comparison:
    """Raises EnvironmentSetupError unless both have the same questions and the same grading."""
    _check_comparable(first, second)
    measures: list[DifferenceRow] = []
    for name, measure in MEASURES.items():
        before, after = (values_by_question(side.samples, measure) for side in (first, second))
        row = difference_of(name, before, after)
        if row is None:
            raise EnvironmentSetupError(f"{first.name} and {second.name} have no scored question in common.")
        if row.difference not in [other.difference for other in measures]:
            measures.append(row)
    before, after = (values_by_question(side.samples, correct) for side in (first, second))
    tasks = []
    for task in sorted({task for task, _ in before}):
        row = difference_of(task, {key: question for key, question in before.items() if key[0] == task}, after)
        if row is not None:
            tasks.append(row)
    tasks.sort(key=lambda row: (not row.is_clear, -abs(row.difference.value)))
    unpaired = len(before.keys() ^ after.keys())
    differing = _differing(first, second, SAMPLED + RELEASES)
    return Comparison(first.name, second.name, measures, tasks, unpaired, differing)


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


def _differing(first: Evaluation, second: Evaluation, names: Sequence[str]) -> str:
    """Those of these parameters that differ, as text."""
    differing = []
    for name in names:
        before = first.parameters.get(name, "unknown")
        after = second.parameters.get(name, "unknown")
        if before != after:
            differing.append(f"{name} {before} against {after}")
    return ", ".join(differing)


def difference_of(name: str, first: Mapping[Any, Question], second: Mapping[Any, Question]) -> DifferenceRow | None:
    """None if the two sides have no question in common. Each question has values."""
    difference = paired_difference(first, second)
    before = share(question for key, question in first.items() if key in second)
    after = share(question for key, question in second.items() if key in first)
    if difference is None or before is None or after is None:
        return None
    return DifferenceRow(name, before, after, difference)


@functools.cache
def templates() -> jinja2.Environment:
    """The templates of the page. HTML templates escape every value, and templates of sentences do not."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=lambda name: name is None or not name.endswith(".txt.j2"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
