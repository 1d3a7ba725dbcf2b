"""Sources -> what the page shows, as plain values: summaries, charts, heatmap, format failures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..evaluation.results import CUT_OFF, EvalResults, ScopeResult, is_correct, scope, summarise
from ..evaluation.statistics import Estimate
from . import charts
from .load import ASKED, GRADED, UNKNOWN, Evaluation, Group, Sources

TIME_BINS = 40
FACTS = {
    "eval_complexity": "difficulty",
    "eval_seed": "seed",
    **ASKED,
    **GRADED,
    "reasoning_gym_version": "reasoning-gym",
}
"""What of an evaluation's parameters stands above its results."""


@dataclass(frozen=True)
class Card:
    """One number on top of a section."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class EvaluationSection:
    """Everything about one evaluation."""

    name: str
    facts: list[tuple[str, str]]
    cards: list[Card]
    category_chart: str
    task_chart: str
    tasks: list[ScopeResult]
    unscored: Mapping[str, int]
    without_verdict: Mapping[str, int]


def evaluation_section(evaluation: Evaluation) -> EvaluationSection:
    """Raises EnvironmentSetupError if nothing of it was scored."""
    results = summarise(evaluation.samples)
    parameters = evaluation.parameters
    facts = [("model", evaluation.model), ("manifest", evaluation.manifest)]
    facts += [(label, str(parameters.get(key, ""))) for key, label in FACTS.items()]
    left_out = parameters.get("left_out")
    if isinstance(left_out, Mapping) and left_out:
        facts.append(("left out", "; ".join(f"{task}: {reason}" for task, reason in left_out.items())))
    return EvaluationSection(
        name=evaluation.name,
        facts=[(label, value) for label, value in facts if value],
        cards=_cards(results),
        category_chart=accuracy_chart(results.categories, f"accuracy by category, {evaluation.name}"),
        task_chart=accuracy_chart(results.tasks, f"accuracy by task, {evaluation.name}"),
        tasks=sorted(results.tasks, key=lambda task: (task.category, task.name)),
        unscored=results.unscored_reasons,
        without_verdict=results.without_verdict,
    )


def _cards(results: EvalResults) -> list[Card]:
    overall = results.overall
    cards = [Card("accuracy", percent(overall.accuracy), interval(overall.accuracy))]
    cards.append(Card("mean score", percent(overall.score), interval(overall.score)))
    cards.append(Card("exact", percent(overall.exact), interval(overall.exact)))
    cards += [Card(f"pass@{k}", percent(one), interval(one)) for k, one in overall.pass_at.items() if k > 1]
    failures, cut_off = overall.format_failures, overall.truncated
    cards.append(Card("format failures", percent(failures), interval(failures)))
    cards.append(Card("cut off", percent(cut_off), interval(cut_off)))
    cards.append(Card("tokens", tokens(overall.mean_tokens), token_interval(overall.mean_tokens)))
    cards.append(Card("questions", str(overall.questions), f"{overall.completions} completions scored"))
    cards.append(Card("unscored", str(overall.unscored), "not counted as wrong"))
    return cards


def accuracy_chart(scopes: Iterable[ScopeResult], axis: str) -> str:
    """Bars with intervals, highest on top; what has no score is left out."""
    known = [(one, one.accuracy) for one in scopes if one.accuracy is not None]
    rows = [
        charts.Bar(f"{one.name} ({one.questions})", found.value, found.low, found.high)
        for one, found in sorted(known, key=lambda pair: (-pair[1].value, pair[0].name))
    ]
    return charts.bars(rows, axis=axis)


@dataclass(frozen=True)
class Heatmap:
    """Accuracy over task and level: rows of (task, cells), a cell is (accuracy, completions) or None."""

    levels: list[int]
    rows: list[tuple[str, list[tuple[float, int] | None]]]


def heatmap(rollouts: Iterable[Mapping[str, Any]]) -> Heatmap:
    """Of all scored completions that have a level."""
    cells: dict[tuple[str, int], list[float]] = {}
    for rollout in rollouts:
        level = rollout.get("level")
        if isinstance(level, int) and rollout.get("score") is not None:
            cells.setdefault((str(rollout["task"]), level), []).append(is_correct(float(rollout["score"])))
    levels = sorted({level for _, level in cells})
    rows: list[tuple[str, list[tuple[float, int] | None]]] = []
    for task in sorted({task for task, _ in cells}):
        found = [cells.get((task, level)) for level in levels]
        rows.append((task, [(sum(values) / len(values), len(values)) if values else None for values in found]))
    return Heatmap(levels, rows)


def time_chart(groups: Sequence[Group]) -> str:
    """Difficulty, share of groups with a signal and accuracy over the item index; "" with fewer than two bins."""
    ordered = sorted(groups, key=lambda group: group.index)
    size = max(4, -(-len(ordered) // TIME_BINS))
    bins = [ordered[start : start + size] for start in range(0, len(ordered), size)]
    if len(bins) < 2:
        return ""
    x = [float(part[len(part) // 2].index) for part in bins]
    series = [
        ("groups with a signal", [_mean(float(group.has_signal) for group in part) for part in bins]),
        ("accuracy", [_mean(_scored(rollout for group in part for rollout in group.rollouts)) for part in bins]),
    ]
    if all(any(group.complexity is not None for group in part) for part in bins):
        levels = [_mean(g.complexity for g in part if g.complexity is not None) for part in bins]
        series.insert(0, ("mean difficulty (0 to 1)", levels))
    return charts.lines(x, series, x_label="item index")


def length_chart(rollouts: Sequence[Mapping[str, Any]]) -> str:
    """Completion tokens of correct, wrong and cut-off completions; "" if no length is known."""
    kinds: dict[str, list[float]] = {"correct": [], "not correct": [], "cut off": []}
    for rollout in rollouts:
        tokens = rollout.get("num_completion_tokens")
        if tokens is None or rollout.get("score") is None:
            continue
        cut_off = rollout.get("finish_reason") == CUT_OFF
        kind = "cut off" if cut_off else "correct" if is_correct(float(rollout["score"])) else "not correct"
        kinds[kind].append(float(tokens))
    return charts.histogram(list(kinds.items()), x_label="tokens of a completion") if any(kinds.values()) else ""


def format_failures(rollouts: Sequence[Mapping[str, Any]]) -> list[tuple[str, int, float]]:
    """(kind, count, share of the completions whose format is known), most frequent first."""
    known = _of_known_format(rollouts)
    kinds = Counter(str(r.get("format_failure") or "unnamed") for r in known if r["outcome"] == "format_failure")
    return [(kind, count, count / len(known)) for kind, count in kinds.most_common()]


def _of_known_format(rollouts: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those with an outcome: files of `process` do not tell any."""
    return [rollout for rollout in rollouts if rollout.get("outcome") not in (None, UNKNOWN)]


def failing_tasks(rollouts: Sequence[Mapping[str, Any]], limit: int = 10) -> list[tuple[str, float, int]]:
    """The tasks with the largest share of format failures: (task, share, completions)."""
    by_task: dict[str, list[Mapping[str, Any]]] = {}
    for rollout in _of_known_format(rollouts):
        by_task.setdefault(str(rollout["task"]), []).append(rollout)
    shares = [
        (task, sum(one.get("outcome") == "format_failure" for one in members) / len(members), len(members))
        for task, members in by_task.items()
    ]
    return sorted((row for row in shares if row[1] > 0), key=lambda row: (-row[1], row[0]))[:limit]


@dataclass(frozen=True)
class Details:
    """Levels, lengths and formats of all evaluations, or of all training groups, whose choice depends on the scores."""

    name: str
    is_training: bool
    heatmap: Heatmap
    length_chart: str
    failures: list[tuple[str, int, float]]
    failing_tasks: list[tuple[str, float, int]]


def details(sources: Sources) -> list[Details]:
    """One for each kind that there is."""
    evaluated = [sample for evaluation in sources.evaluations for sample in evaluation.samples]
    dumped = [rollout for _, group in sources.groups for rollout in group.rollouts]
    return [
        Details(
            name="Training" if is_training else "Evaluation",
            is_training=is_training,
            heatmap=heatmap(rollouts),
            length_chart=length_chart(rollouts),
            failures=format_failures(rollouts),
            failing_tasks=failing_tasks(rollouts),
        )
        for is_training, rollouts in ((False, evaluated), (True, dumped))
        if rollouts
    ]


def dumped_scopes(sources: Sources) -> list[ScopeResult]:
    """Dumped completions by task."""
    by_task: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for _, group in sources.groups:
        by_task.setdefault((group.category, group.task), []).extend(group.rollouts)
    return [scope(task, category, members) for (category, task), members in sorted(by_task.items())]


def percent(estimate: Estimate | None) -> str:
    return "–" if estimate is None else f"{estimate.value:.1%}"


def interval(estimate: Estimate | None) -> str:
    return "" if estimate is None else f"{estimate.low:.1%} to {estimate.high:.1%}"


def tokens(estimate: Estimate | None) -> str:
    return "–" if estimate is None else f"{estimate.value:.0f}"


def token_interval(estimate: Estimate | None) -> str:
    """Nothing where one question leaves the upper limit open."""
    return "" if estimate is None or math.isinf(estimate.high) else f"{estimate.low:.0f} to {estimate.high:.0f}"


def _scored(rollouts: Iterable[Mapping[str, Any]]) -> list[float]:
    """1.0 or 0.0 of each that has a score."""
    return [is_correct(float(rollout["score"])) for rollout in rollouts if rollout["score"] is not None]


def _mean(values: Iterable[float]) -> float:
    """NaN of nothing: a gap in a curve."""
    found = list(values)
    return sum(found) / len(found) if found else math.nan
