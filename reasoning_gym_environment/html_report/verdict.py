"""The sentences at the top of the page: first the faults, the largest on top, and then the results.

samples of an evaluation, or groups of a run ── numbers_of ──> ScoredGroup ── the rules of telemetry/alarms.py
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from ..evaluation.results import EvalSample, by_question, correct, exact, values_by_question
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
from .curves import by_task, estimates_of, samples_of
from .load import Evaluation, LoadedRun

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
    alone: Sequence[Evaluation],
    series: Sequence[Sequence[Evaluation]],
    runs: Sequence[LoadedRun],
) -> list[Sentence]:
    """All sentences. Of a series, only the last evaluation is searched for faults."""
    faults: list[tuple[str, Sign, Mapping[str, str]]] = []
    for evaluation in (*alone, *(evaluations[-1] for evaluations in series)):
        groups = scored_groups(by_question(evaluation.samples).values())
        faults += [(evaluation.name, *fault) for fault in faults_of_completions(groups)]
    for run in runs:
        faults += [(run.name, *fault) for fault in faults_of_run(run)]
    sentences = []
    for name, sign, filters in sorted(faults, key=lambda fault: -fault[1].share):
        own = {"source": name, **filters} if filters else {}
        sentences.append(Sentence(f"“{name}”: {sign.text}", True, own))
    results = []
    for run in runs:
        samples = samples_of(run.groups)
        unscored = sum(sample["score"] is None for sample in samples)
        results.append((run, estimates_of(samples), unscored))
    text = (
        templates()
        .get_template("verdict.txt.j2")
        .render(
            comparison=comparison,
            evaluations=[] if comparison else alone,
            series=[(evaluations, _change_in(evaluations)) for evaluations in series],
            runs=results,
        )
    )
    return sentences + [Sentence(line) for line in text.split("\n") if line.strip()]


def _change_in(series: Sequence[Evaluation]) -> DifferenceRow | None:
    """The last evaluation minus the first in accuracy, paired by question."""
    first, last = (values_by_question(evaluation.samples, correct) for evaluation in (series[0], series[-1]))
    return difference_of("accuracy", first, last)


# --- faults


Fault = tuple[Sign, Mapping[str, str]]
"""A sign, and the filters of the samples that it is about."""


def faults_of_completions(groups: Sequence[ScoredGroup]) -> list[Fault]:
    """What the rules about completions say of an evaluation or a run."""
    found = [
        (unreadable(groups), {"outcome": UNREADABLE}),
        (cut_off(groups), {"failure": "cut off"}),
        (one_answer(groups), {}),
        (verifier_fails(groups), {"outcome": Outcome.VERIFIER_ERROR.value}),
    ]
    return [(sign, filters) for sign, filters in found if sign]


def faults_of_run(run: LoadedRun) -> list[Fault]:
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
    """The numbers of the samples of each question, without the questions that have no score."""
    found = []
    for samples in groups:
        scored = [sample for sample in samples if sample["score"] is not None]
        if scored:
            found.append(numbers_of(scored))
    return found


def numbers_of(scored: Sequence[EvalSample]) -> ScoredGroup:
    """The numbers of the scored samples of one question, as of a group of training."""
    first = scored[0]
    errors = sum(sample.get("outcome") == Outcome.VERIFIER_ERROR for sample in scored)
    return ScoredGroup(
        task=str(first["task"]),
        level=first.get("level"),
        # A file may hold any values, also such as have no hash.
        item=hash(f"{first.get('index')} {first.get('question_digest')}"),
        completions=len(scored),
        exact=sum(exact(sample) == 1.0 for sample in scored),
        unreadable=sum(sample.get("outcome") == UNREADABLE for sample in scored),
        cut_off=sum(sample.get("finish_reason") == "length" for sample in scored),
        reward=fmean(sample.get("reward", sample["score"]) for sample in scored),
        has_signal=bool(first.get("has_signal")),
        answers=list(_answers(scored)),
        verifier_errors=errors,
        verifier_error="see the log of the run" if errors else "",
    )


def _answers(scored: Iterable[EvalSample]) -> Iterator[Answer]:
    for sample in scored:
        if sample.get("model_parsed") is not None:
            yield Answer.of(str(sample["model_parsed"]), is_right=exact(sample) == 1.0)
