"""The sentences at the top of the page: first the faults, the largest on top, and then the results.

samples of an evaluation, or groups of a run ── numbers_of ──> ScoredGroup ── the rules of telemetry/alarms.py
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from ..evaluation.results import EvalSample, by_question, correct, exact
from ..records import UNREADABLE, GroupOutcome, Outcome
from ..storage.lines import FAILED
from ..telemetry.alarms import (
    Answer,
    ScoredGroup,
    Sign,
    cut_off,
    failing_tasks,
    one_answer,
    stuck_tasks,
    unreadable,
    verifier_fails,
)
from .comparison import Comparison, DifferenceRow, difference_of, templates
from .curves import Evaluated, Series, by_task, estimates_of, samples_of
from .load import LoadedRun

FEWEST_GROUPS = 10
"""The absence of credit in fewer groups is no fault."""


@dataclass(frozen=True)
class Sentence:
    """A sentence of the verdict, as plain text. `filters` show the samples that it is about."""

    text: str
    is_alarm: bool = False
    filters: Mapping[str, str] = field(default_factory=dict)


def verdict(
    comparison: Comparison | None,
    evaluations: Sequence[Evaluated],
    series: Sequence[Series],
    runs: Sequence[LoadedRun],
) -> list[Sentence]:
    """All sentences. Of a series, only the last evaluation is searched for faults."""
    in_series = {evaluation.name for one_series in series for evaluation, _ in one_series.points}
    alone = [point for point in evaluations if point[0].name not in in_series]
    newest = [one_series.points[-1] for one_series in series]
    faults: list[tuple[str, Sign, Mapping[str, str]]] = []
    for evaluation, _ in alone + newest:
        groups = scored_groups(by_question(evaluation.samples).values())
        faults += [(evaluation.name, *fault) for fault in faults_of_completions(groups)]
    for run in runs:
        faults += [(run.name, *fault) for fault in faults_of_run(run)]
    faults.sort(key=lambda fault: -fault[1].share)
    sentences = []
    for name, sign, filters in faults:
        sentences.append(Sentence(f"“{name}”: {sign.text}", True, {"source": name, **filters}))
    text = (
        templates()
        .get_template("verdict.txt.j2")
        .render(
            comparison=comparison,
            evaluations=[] if comparison else [(evaluation.name, results.overall) for evaluation, results in alone],
            series=[(one_series, _change_in(one_series)) for one_series in series],
            runs=[(run, estimates_of(samples_of(run.groups))) for run in runs],
        )
    )
    return sentences + [Sentence(line) for line in text.split("\n") if line.strip()]


# --- faults


def faults_of_completions(groups: Sequence[ScoredGroup]) -> list[tuple[Sign, Mapping[str, str]]]:
    """What the rules about completions say of an evaluation or a run, with the filters of the samples."""
    found = [
        (unreadable(groups), {"outcome": UNREADABLE}),
        (cut_off(groups), {"failure": "cut off"}),
        (one_answer(groups), {}),
        (verifier_fails(groups), {"outcome": Outcome.VERIFIER_ERROR.value}),
    ]
    return [(sign, filters) for sign, filters in found if sign]


def faults_of_run(run: LoadedRun) -> list[tuple[Sign, Mapping[str, str]]]:
    """What the rules say of the groups of a run, as `serve` would say it with all of them in its window."""
    numbers = {}
    endings = {}
    for task, groups in by_task(run).items():
        numbers[task] = scored_groups(group.rollouts for group in groups)
        unscored = len(groups) - len(numbers[task])
        endings[task] = [GroupOutcome.SENT] * len(numbers[task]) + [GroupOutcome.TIMED_OUT] * unscored
    found = faults_of_completions(scored_groups(group.rollouts for group in run.groups))
    for sign in (without_credit(run), stuck_tasks(numbers), failing_tasks(endings)):
        if sign is not None:
            found.append((sign, {"task": sign.tasks[0]} if len(sign.tasks) == 1 else {}))
    return found


def without_credit(run: LoadedRun) -> Sign | None:
    """Most groups have no credit. A dump of failed groups alone says nothing of that."""
    groups = len(run.groups)
    count = sum(not any(group.rewards) for group in run.groups)
    if groups < FEWEST_GROUPS or 2 * count <= groups or run.kinds == {FAILED}:
        return None
    return Sign(
        f"{count:,} of {groups:,} groups are without credit: none of their completions earns anything, so a trainer "
        "learns nothing from them. See docs/prompts.md.",
        share=count / groups,
    )


def scored_groups(groups: Iterable[Sequence[EvalSample]]) -> list[ScoredGroup]:
    """The numbers of these groups, without the groups that have no score."""
    numbers = map(numbers_of, groups)
    return [group for group in numbers if group is not None]


def numbers_of(samples: Sequence[EvalSample]) -> ScoredGroup | None:
    """The numbers of the samples of one question, as of a group of training; None if no sample has a score."""
    scored = [sample for sample in samples if sample["score"] is not None]
    if not scored:
        return None
    answers = []
    for sample in scored:
        if sample.get("model_parsed") is not None:
            answers.append(Answer.of(str(sample["model_parsed"]), is_right=exact(sample) == 1.0))
    errors = [sample for sample in scored if sample.get("outcome") == Outcome.VERIFIER_ERROR]
    return ScoredGroup(
        task=str(scored[0]["task"]),
        level=scored[0].get("level"),
        # A file may hold any values, also such as have no hash.
        item=hash(f"{scored[0].get('index')} {scored[0].get('question_digest')}"),
        completions=len(scored),
        exact=sum(exact(sample) == 1.0 for sample in scored),
        unreadable=sum(sample.get("outcome") == UNREADABLE for sample in scored),
        cut_off=sum(sample.get("finish_reason") == "length" for sample in scored),
        reward=fmean(sample.get("reward", sample["score"]) for sample in scored),
        has_signal=bool(scored[0].get("has_signal")),
        answers=answers,
        verifier_errors=len(errors),
        verifier_error=str(errors[0].get("explanation") or "see the log of the run") if errors else "",
    )


# --- results


def _change_in(series: Series) -> DifferenceRow | None:
    """The last evaluation of the series minus its first in accuracy, paired by question."""
    (first, _), *_, (last, _) = series.points
    return difference_of("accuracy", first.samples, last.samples, correct)
