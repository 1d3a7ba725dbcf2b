"""The sentences at the top of the page: first the alarms, applied to the files, and then the results.

samples of an evaluation, or groups of a run ── numbers_of ──> ScoredGroup ── the rules of telemetry/alarms.py
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from ..evaluation.results import FORMAT_FAILURE, EvalSample, by_question, correct, exact
from ..records import Outcome, has_signal
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
from ..telemetry.telemetry import GroupOutcome
from .comparison import Comparison, DifferenceRow, difference_of, templates
from .curves import Evaluated, Series
from .load import LoadedRun

FEWEST_GROUPS = 10
"""The absence of a signal in fewer groups is no alarm."""


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
    """All sentences. Of a series, only the last evaluation is searched for alarms."""
    in_series = {evaluation.name for one_series in series for evaluation, _ in one_series.points}
    alone = [point for point in evaluations if point[0].name not in in_series]
    sentences = []
    for evaluation, _ in [*alone, *(one_series.points[-1] for one_series in series)]:
        groups = scored_groups(by_question(evaluation.samples).values())
        sentences += alarms_of_completions(evaluation.name, groups)
    for run in runs:
        sentences += alarms_of_run(run)
    template = templates().get_template("verdict.txt.j2")
    text = template.render(
        comparison=comparison,
        evaluations=[] if comparison else [(evaluation.name, results.overall) for evaluation, results in alone],
        series=[(one_series, _change_in(one_series)) for one_series in series],
        runs=[(run, shares_of(run)) for run in runs],
    )
    return sentences + [Sentence(line) for line in text.split("\n") if line.strip()]


# --- alarms


def alarms_of_completions(name: str, groups: Sequence[ScoredGroup]) -> list[Sentence]:
    """What the rules about completions say of an evaluation or a run."""
    found = [
        (unreadable(groups), {"outcome": FORMAT_FAILURE}),
        (cut_off(groups), {"failure": "cut off"}),
        (one_answer(groups), {}),
        (verifier_fails(groups), {"outcome": Outcome.VERIFIER_ERROR.value}),
    ]
    return [_alarm(name, sign, filters) for sign, filters in found if sign]


def alarms_of_run(run: LoadedRun) -> list[Sentence]:
    """What the rules say of the groups of a run, as `serve` would say it with all of them in its window."""
    by_task: dict[str, list[ScoredGroup]] = {}
    endings: dict[str, list[str]] = {}
    for group in run.groups:
        numbers = numbers_of(group.rollouts)
        if numbers is None:
            endings.setdefault(group.task, []).append(GroupOutcome.TIMED_OUT)
        else:
            endings.setdefault(group.task, []).append(GroupOutcome.SENT)
            by_task.setdefault(group.task, []).append(numbers)
    sentences = alarms_of_completions(run.name, [group for groups in by_task.values() for group in groups])
    for sign in (_without_signal(run), stuck_tasks(by_task), failing_tasks(endings)):
        if sign is not None:
            sentences.append(_alarm(run.name, sign, {"task": sign.tasks[0]} if len(sign.tasks) == 1 else {}))
    return sentences


def _alarm(name: str, sign: Sign, filters: Mapping[str, str]) -> Sentence:
    return Sentence(f"“{name}”: {sign.text}", True, {"source": name, **filters})


def _without_signal(run: LoadedRun) -> Sign | None:
    """What `nothing_sent` says of a run: a dump has no groups that were sent, but groups without a signal are not."""
    count = len(run.groups)
    if count < FEWEST_GROUPS or run.is_process or any(group.has_signal for group in run.groups):
        return None
    return Sign(
        f"None of its {count:,} dumped groups has a signal: the rewards of each group are equal, so the trainer learns "
        "nothing from them. See docs/prompts.md."
    )


def scored_groups(groups: Iterable[Sequence[EvalSample]]) -> list[ScoredGroup]:
    """The numbers of these groups, without the groups that have no score."""
    return [numbers for samples in groups if (numbers := numbers_of(samples)) is not None]


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
    rewards = [float(sample.get("reward", sample["score"])) for sample in scored]
    return ScoredGroup(
        task=str(scored[0]["task"]),
        level=scored[0].get("level"),
        # A file may hold any values, also such as have no hash.
        item=hash(f"{scored[0].get('index')} {scored[0].get('question_digest')}"),
        completions=len(scored),
        exact=sum(exact(sample) == 1.0 for sample in scored),
        unreadable=sum(sample.get("outcome") == FORMAT_FAILURE for sample in scored),
        cut_off=sum(sample.get("finish_reason") == "length" for sample in scored),
        reward=fmean(rewards),
        has_signal=has_signal(rewards, [bool(sample.get("mask_reason")) for sample in scored]),
        answers=answers,
        verifier_errors=len(errors),
        verifier_error=str(errors[0].get("explanation") or "see the log of the run") if errors else "",
    )


# --- results


def _change_in(series: Series) -> DifferenceRow | None:
    """The last evaluation of the series minus its first in accuracy, paired by question."""
    (first, _), *_, (last, _) = series.points
    return difference_of("accuracy", first.samples, last.samples, correct)


def shares_of(run: LoadedRun) -> dict[str, float]:
    """The mean reward of a run, and the shares of groups with a signal and of right completions, if any has a score."""
    rewards: list[float] = []
    rights: list[float] = []
    for group in run.groups:
        rewards += group.rewards
        rights += [exact(rollout) for rollout in group.rollouts if rollout["score"] is not None]
    shares = {"reward": fmean(rewards), "signal": fmean(group.has_signal for group in run.groups)}
    if rights:
        shares["right"] = fmean(rights)
    return shares
