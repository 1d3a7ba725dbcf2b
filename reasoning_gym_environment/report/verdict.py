"""The sentences at the top of the page: first what makes a result worthless, and then the result."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, TypeAlias

from ..evaluation.results import (
    FORMAT_FAILURE,
    EvalResults,
    EvalSample,
    ScopeResult,
    by_question,
    correct,
)
from ..evaluation.statistics import Estimate, Question, mean_of
from ..storage.lines import FAILED, DumpedGroup
from ..utils.terminal import printable
from .comparison import Comparison, DifferenceRow, difference_of, templates
from .curves import Evaluated, Series
from .load import LoadedRun
from .samples import UNSCORED

FEW = 20
"""A task with fewer questions than this has an interval of about 40 points, which is too wide to say much."""

DISASTER_SHARE = 0.5
"""A fault that affects at least this share of the completions comes before the result."""

FEWEST_COMPLETIONS = 20
"""With fewer completions, or with fewer groups or questions than half of this, no disaster is reported."""

Samples: TypeAlias = Sequence[EvalSample]


@dataclass(frozen=True)
class Sentence:
    """A sentence of the verdict, as plain text. `filters` show the samples that it is about."""

    text: str
    is_disaster: bool = False
    filters: Mapping[str, str] = field(default_factory=dict)


def verdict(
    comparison: Comparison | None,
    evaluations: Sequence[Evaluated],
    series: Sequence[Series],
    runs: Sequence[LoadedRun],
) -> list[Sentence]:
    """All sentences. Of a series, only the last evaluation is searched for disasters."""
    in_series = {evaluation.name for one_series in series for evaluation, _ in one_series.points}
    alone = [point for point in evaluations if point[0].name not in in_series]
    sentences = []
    for evaluation, _ in [*alone, *(one_series.points[-1] for one_series in series)]:
        sentences += disasters(evaluation.name, evaluation.samples)
    for run in runs:
        sentences += disasters(run.name, [rollout for group in run.groups for rollout in group.rollouts])
        sentences += _without_signal(run)
    described = []
    if comparison is None:
        described = [(evaluation.name, results, best_and_worst(results)) for evaluation, results in alone]
    template = templates().get_template("verdict.txt.j2")
    text = template.render(
        comparison=comparison,
        evaluations=described,
        series=[_change_in(one_series) for one_series in series],
        runs=[(run, change_of(run.groups)) for run in runs],
        disaster_share=DISASTER_SHARE,
    )
    return sentences + [Sentence(line) for line in text.split("\n") if line.strip()]


# --- disasters


def disasters(name: str, samples: Samples) -> list[Sentence]:
    """The faults that most of these samples have."""
    if len(samples) < FEWEST_COMPLETIONS:
        return []
    found = [rule(name, samples) for rule in (_unscored, _unreadable, _cut_off, _one_answer)]
    return [sentence for sentence in found if sentence is not None]


def _unscored(name: str, samples: Samples) -> Sentence | None:
    reasons = Counter(str(sample.get("unscored_reason")) for sample in samples if sample["score"] is None)
    if reasons.total() < DISASTER_SHARE * len(samples):
        return None
    text = f"{_of(reasons.total(), samples)} of “{name}” could not be scored: {_counted(reasons)}."
    return Sentence(text, True, {"source": name, "outcome": UNSCORED})


def _unreadable(name: str, samples: Samples) -> Sentence | None:
    unreadable = [sample for sample in samples if sample.get("outcome") == FORMAT_FAILURE]
    if len(unreadable) < DISASTER_SHARE * len(samples):
        return None
    reasons = Counter(str(sample.get("format_failure") or "unknown").replace("_", " ") for sample in unreadable)
    text = (
        f"No answer could be read in {_of(len(unreadable), samples)} of “{name}”: {_counted(reasons)}. "
        "Compare a reply with the form that the prompt asks for (answer_format)."
    )
    return Sentence(text, True, {"source": name, "outcome": FORMAT_FAILURE})


def _cut_off(name: str, samples: Samples) -> Sentence | None:
    count = sum(sample.get("finish_reason") == "length" for sample in samples)
    if count < DISASTER_SHARE * len(samples):
        return None
    text = f"The token limit cut off {_of(count, samples)} of “{name}” (max_token_length)."
    return Sentence(text, True, {"source": name, "failure": "cut off"})


def _one_answer(name: str, samples: Samples) -> Sentence | None:
    """One answer to most of the questions, although it is wrong for most of them."""
    asked = by_question(samples)
    questions: Counter[str] = Counter()
    for members in asked.values():
        questions.update({str(sample["model_parsed"]) for sample in members if sample.get("model_parsed") is not None})
    if len(asked) < FEWEST_COMPLETIONS / 2 or not questions:
        return None
    [(answer, count)] = questions.most_common(1)
    given = [sample for sample in samples if str(sample.get("model_parsed")) == answer]
    right = sum(correct(sample) for sample in given if sample["score"] is not None)
    if len(given) < DISASTER_SHARE * len(samples) or right > DISASTER_SHARE * len(given):
        return None
    text = (
        f"“{name}” gives one answer, “{printable(answer, 44)}”, to {count:,} of {len(asked):,} questions: "
        f"in {_of(len(given), samples)}, of which {right:,.0f} are right."
    )
    return Sentence(text, True, {"source": name, "answer": answer})


def _without_signal(run: LoadedRun) -> list[Sentence]:
    """No group of the run can teach anything, so that nothing was sent."""
    count = len(run.groups)
    if count < FEWEST_COMPLETIONS / 2 or any(group.has_signal for group in run.groups):
        return []
    if run.kinds == {FAILED}:
        text = (
            f"All {count:,} dumped groups of “{run.name}” are without any credit, and there is no file of other "
            "groups: nothing was sent to the trainer, or dump_rollouts is off."
        )
    else:
        text = (
            f"No group of “{run.name}” has a signal: the rewards of each of its {count:,} groups are equal, "
            "so training learns nothing from them."
        )
    return [Sentence(text, True, {"source": run.name})]


def _of(count: int, samples: Samples) -> str:
    total = len(samples)
    if count == total:
        return f"all {total:,} completions"
    return f"{count:,} of {total:,} completions ({count / total:.0%})"


def _counted(reasons: Counter[str]) -> str:
    return ", ".join(f"{printable(reason, 44)} {count:,}" for reason, count in reasons.most_common(3))


# --- results


def best_and_worst(results: EvalResults) -> list[tuple[float, str]]:
    """The lowest and the highest accuracy with their names, among categories, or among tasks if there are under three.

    Empty if there are fewer than two, or if all are equal.
    """
    ranked = _ranked(results.categories)
    if len(ranked) < 3:
        ranked = _ranked(results.tasks)
    if len(ranked) < 2 or ranked[0][0] == ranked[-1][0]:
        return []
    return [ranked[0], ranked[-1]]


def _ranked(scopes: Iterable[ScopeResult]) -> list[tuple[float, str]]:
    """Accuracies in rising order, of scopes with at least FEW questions."""
    accuracies = []
    for scope in scopes:
        if scope.accuracy and scope.accuracy.questions >= FEW:
            accuracies.append((scope.accuracy.value, scope.name))
    return sorted(accuracies)


def _change_in(series: Series) -> tuple[Series, DifferenceRow | None]:
    """The series, and its last evaluation minus its first in accuracy, paired by question."""
    (first, _), *_, (last, _) = series.points
    return series, difference_of("accuracy", first.samples, last.samples, correct)


def change_of(groups: Sequence[DumpedGroup]) -> dict[str, Any]:
    """The share of right answers of a run, and the change of its reward from its first quarter of groups to its last.

    `groups` are in order. `change` is None if a quarter has fewer than ten groups, which are too few to show a change.
    `constant` is the reward that all completions have, or None if their rewards differ.
    """
    scores = []
    rewards: set[float] = set()
    for group in groups:
        scores += [correct(rollout) for rollout in group.rollouts if rollout["score"] is not None]
        rewards.update(group.rewards)
    right = fmean(scores) if scores else None
    constant = rewards.pop() if len(rewards) == 1 else None
    size = len(groups) // 4
    if size < 10:
        return {"right": right, "constant": constant, "change": None}
    first = _mean_reward(groups[:size])
    last = _mean_reward(groups[-size:])
    levels = [_mean_level(groups[:size]), _mean_level(groups[-size:])]
    return {
        "right": right,
        "constant": constant,
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
