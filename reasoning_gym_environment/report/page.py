"""Builds the page of a report from its sources.

The content of all sources is untrusted. The page contains one script, and its content security policy has the hash of
this script, so that the browser runs no other. The templates escape every text, so no label is read as markup. Charts
are HTML and use the width of the page with text of a fixed size. Only curves are SVG, which is stretched to its box and
contains no text. The page defines the colours, light and dark.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from markupsafe import Markup, escape

from ..evaluation.published import PublishedTable
from ..evaluation.results import (
    FORMAT_FAILURE,
    EvalResults,
    EvalSample,
    ScopeResult,
    correct,
    exact,
    scope,
    summarise,
)
from ..evaluation.statistics import Estimate
from ..storage.lines import UNKNOWN, DumpedGroup
from ..utils.terminal import printable
from .comparison import TEMPLATES, Comparison, templates, verdicts
from .load import GRADED, SAMPLED, Evaluation, LoadedRun, Sources, as_inert_json, select

FACTS = {
    "eval_complexity": "difficulty",
    "eval_seed": "seed",
    **SAMPLED,
    **GRADED,
    "reasoning_gym_version": "reasoning-gym",
}
"""Parameters of an evaluation that the page shows above its results, with their labels."""


def render(
    sources: Sources,
    *,
    title: str,
    max_rollouts: int,
    comparison: Comparison | None = None,
    published: Sequence[PublishedTable] = (),
) -> str:
    """The whole page. Raises EnvironmentSetupError for an evaluation without any score."""
    environment = templates()
    environment.filters.update(estimate=estimate, interval=interval, label=label)
    # Style, script and payload need no escaping. We wrote the first two, and the payload has no markup character.
    style = (TEMPLATES / "report.css").read_text(encoding="utf-8")
    script = (TEMPLATES / "report.js").read_text(encoding="utf-8")
    evaluations = [(evaluation, summarise(evaluation.samples)) for evaluation in sources.evaluations]
    rollouts, of_rollouts = select(sources, max_rollouts)
    named_scopes = [result for result in dumped_scopes(sources) if result.name != UNKNOWN]
    kinds: set[str] = set()
    for run in sources.runs:
        kinds |= run.kinds
    return environment.get_template("report.html.j2").render(
        title=title,
        style=Markup(style),
        script=Markup(script),
        payload=Markup(as_inert_json(rollouts)),
        policy=policy(script),
        verdict=verdicts(comparison, published, evaluations, sources.runs),
        shown_rollouts=len(rollouts),
        of_rollouts=of_rollouts,
        evaluations=[_evaluation_section(evaluation, results) for evaluation, results in evaluations],
        comparison=comparison,
        comparison_chart=_comparison_chart(comparison) if comparison else None,
        published=[(table, _published_chart(table)) for table in published],
        accuracy_chart=accuracy_chart,
        dump_chart=accuracy_chart(named_scopes),
        runs=[run_section(run) for run in sources.runs],
        kinds=kinds,
        malformed=sources.malformed,
    )


def policy(script: str) -> str:
    """The content security policy of a page whose only script is `script`. It allows no network and no other script."""
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


# --- evaluations, and the comparison of two


def _evaluation_section(evaluation: Evaluation, results: EvalResults) -> dict[str, Any]:
    return {
        "about": evaluation,
        "facts": facts(evaluation),
        "results": results,
        "failures": format_failures(evaluation),
    }


def facts(evaluation: Evaluation) -> dict[str, str]:
    """The description of an evaluation: label -> text, without empty texts."""
    parameters = evaluation.parameters
    texts = {"model": evaluation.model, "manifest": evaluation.manifest}
    for name, label_of_name in FACTS.items():
        texts[label_of_name] = str(parameters.get(name, ""))
    left_out = parameters.get("left_out")
    if isinstance(left_out, Mapping):
        reasons = [f"{task}: {reason}" for task, reason in left_out.items()]
        texts["left out"] = "; ".join(reasons)
    return {label_of_text: text for label_of_text, text in texts.items() if text}


def format_failures(evaluation: Evaluation) -> list[tuple[str, int]]:
    """The reasons for which answers could not be read, with counts, the most frequent first."""
    reasons = [sample.get("format_failure") for sample in evaluation.samples]
    return Counter(str(reason) for reason in reasons if reason).most_common()


def accuracy_chart(scopes: Iterable[ScopeResult]) -> Bars:
    """Bars of accuracies with intervals, the highest on top, without unscored scopes."""
    bars = []
    for result in scopes:
        if result.accuracy:
            bars.append(Bar.of(f"{result.name} ({result.accuracy.questions})", result.accuracy))
    return Bars(sorted(bars, key=lambda bar: (-bar.value, bar.label)))


def _comparison_chart(comparison: Comparison) -> Bars:
    bars = []
    largest = 0.0
    for row in comparison.tasks:
        bars.append(Bar.of(row.name, row.difference, row.is_clear))
        largest = max(largest, abs(row.difference.low), abs(row.difference.high))
    limit = 1.0
    for narrower in (0.8, 0.6, 0.4, 0.2, 0.1):
        if narrower >= largest:
            limit = narrower
    return Bars(bars, limits=(-limit, limit))


def _published_chart(table: PublishedTable) -> Bars:
    return Bars([Bar.of(row.model, row.accuracy, row.is_yours) for row in table.rows])


# --- runs


CHARTS = (
    ("Reward, accuracy and exact answers", ("reward", "exact", "accuracy"), True),
    ("Groups with a signal", ("signal",), True),
    ("Mean level", ("level",), False),
    ("Completions without a readable answer", ("no_answer",), True),
    ("Tokens of a completion", ("tokens",), False),
    ("Staleness: steps from sampling to score", ("staleness",), False),
)
"""Title of each chart, the values of a bin that it shows, and whether they are shares."""

MOST_BINS = 40
"""The curves of a run have at most this many points."""

SMALLEST_BIN = 4
"""Each point of a curve covers at least this many groups."""


def run_section(run: LoadedRun) -> dict[str, Any]:
    """One run over its items, in at most 40 bins. A single bin has no charts, and may have fewer than four groups."""
    groups = run.groups
    count = max(1, min(MOST_BINS, len(groups) // SMALLEST_BIN))
    edges = [number * len(groups) // count for number in range(count + 1)]
    bins = [bin_of(groups[start:end]) for start, end in pairwise(edges)]
    middles = [(values["first"] + values["last"]) / 2 for values in bins]
    charts = []
    for title, names, is_share in CHARTS:
        series = []
        for name in names:
            values = [values_of_bin[name] for values_of_bin in bins]
            if not all(map(math.isnan, values)):
                series.append((name, values))
        if series and count > 1:
            charts.append(lines(title, middles, series, is_share))
    return {
        "run": run,
        "counts": _counts_of(groups),
        "charts": charts,
        "bins": bins,
    }


def _counts_of(groups: Sequence[DumpedGroup]) -> dict[str, Any]:
    """The numbers above the charts of a run, by label."""
    questions = set()
    for group in groups:
        questions.add((group.task, group.rollouts[0]["question_digest"]))
    return {
        "groups": len(groups),
        "without any credit": sum(not any(group.rewards) for group in groups),
        "rollouts": sum(len(group.rollouts) for group in groups),
        "tasks": len({group.task for group in groups}),
        "mean reward": f"{_mean_reward(groups):.2f}",
        "different questions": len(questions),
    }


def bin_of(groups: Sequence[DumpedGroup]) -> dict[str, float]:
    """The values of the charts for these groups, NaN if unknown."""
    staleness = [group.staleness for group in groups if group.staleness is not None]
    levels = [group.level for group in groups if group.level is not None]
    scored: list[EvalSample] = []
    for group in groups:
        scored += [rollout for rollout in group.rollouts if rollout["score"] is not None]
    with_outcome = [rollout for rollout in scored if rollout["outcome"] != UNKNOWN]
    tokens = [rollout["num_completion_tokens"] for rollout in scored]
    return {
        "first": groups[0].index,
        "last": groups[-1].index,
        "groups": len(groups),
        "reward": _mean_reward(groups),
        "accuracy": _mean(map(correct, scored)),
        "exact": _mean(map(exact, scored)),
        "signal": _mean(group.has_signal for group in groups),
        "level": _mean(levels),
        "staleness": _mean(staleness),
        "no_answer": _mean(rollout["outcome"] == FORMAT_FAILURE for rollout in with_outcome),
        "tokens": _mean(count for count in tokens if count is not None),
    }


def _mean_reward(groups: Sequence[DumpedGroup]) -> float:
    rewards: list[float] = []
    for group in groups:
        rewards += group.rewards
    return _mean(rewards)


def dumped_scopes(sources: Sources) -> list[ScopeResult]:
    """The results of dumped completions by task."""
    by_task: dict[tuple[str, str], list[EvalSample]] = {}
    for group in sources.groups:
        by_task.setdefault((group.category, group.task), []).extend(group.rollouts)
    return [scope(task, category, rollouts) for (category, task), rollouts in sorted(by_task.items())]


# --- numbers as text


def estimate(found: Estimate | None, form: str = ".1%") -> str:
    return "–" if found is None else format(found.value, form)


def interval(found: Estimate | None, form: str = ".1%") -> str:
    """The limits, or "" if the upper limit is infinite, as it is for a single question."""
    if found is None or math.isinf(found.high):
        return ""
    return f"{found.low:{form}} to {found.high:{form}}"


def shown(text: str) -> str:
    """A label of limited length with printable characters only."""
    return printable(text, 44)


def label(text: str) -> Markup:
    """A label as markup that may break after underscores, because names of tasks have no blanks."""
    return escape(shown(text)).replace("_", Markup("_<wbr>"))


def _mean(values: Iterable[float]) -> float:
    """The mean, or NaN without values, which is a gap in a curve."""
    found = list(values)
    return sum(found) / len(found) if found else math.nan


# --- charts


@dataclass(frozen=True)
class Bar:
    """One bar with its interval. `stands_out` gives it the second colour."""

    label: str
    value: float
    low: float
    high: float
    stands_out: bool

    @classmethod
    def of(cls, label: str, found: Estimate, stands_out: bool = False) -> Bar:
        return cls(label, found.value, found.low, found.high, stands_out)


@dataclass(frozen=True)
class Bars:
    """Horizontal bars from top to bottom, of shares, or of differences if `limits` begin below 0."""

    rows: list[Bar]
    limits: tuple[float, float] = (0.0, 1.0)

    def place(self, value: float) -> str:
        """Distance from the left in percent of the width."""
        low, high = self.limits
        inside = min(high, max(low, value))
        return f"{100 * (inside - low) / (high - low):.2f}%"

    def width(self, low: float, high: float) -> str:
        total = self.limits[1] - self.limits[0]
        return f"{100 * abs(high - low) / total:.2f}%"

    def words(self, value: float) -> str:
        if self.limits[0] == 0:
            return f"{value:.0%}"
        points = round(100 * value)
        return f"{100 * value:+.0f}" if points else "0"


def lines(
    title: str,
    x: Sequence[float],
    series: Sequence[tuple[str, Sequence[float]]],
    is_share: bool,
) -> dict[str, Any]:
    """A chart of at most three curves, which are SVG paths in a square of 100. NaN is a gap in a curve."""
    known_values = []
    ends = []
    for name, values in series:
        numbers = [value for value in values if not math.isnan(value)]
        known_values += numbers
        ends.append(f"{name} from {numbers[0]:.2f} to {numbers[-1]:.2f}")
    top = _top(max(known_values), is_share)
    # Other environments have negative rewards.
    bottom = min(0.0, *known_values)
    y_ticks = []
    for value in ticks(bottom, top):
        text = f"{100 * value:g}%" if is_share else f"{value:,.10g}"
        y_ticks.append((percent(value, bottom, top), text))
    return {
        "title": title,
        "series": [(name, _path(x, values, bottom, top)) for name, values in series],
        "x_ticks": [(percent(value, x[0], x[-1]), f"{value:,.10g}") for value in ticks(x[0], x[-1])],
        "y_ticks": y_ticks,
        "summary": f"{title}, by item: {'; '.join(ends)}.",
    }


def _top(highest: float, is_share: bool) -> float:
    """The upper end of the vertical axis. Small shares, such as refusals, have a shorter axis."""
    if is_share and highest < 0.25:
        return max(0.1, highest)
    return max(1.0, highest)


def _path(x: Sequence[float], values: Sequence[float], bottom: float, top: float) -> str:
    path = ""
    is_pen_down = False
    for place, value in zip(x, values, strict=True):
        if math.isnan(value):
            is_pen_down = False
            continue
        across = percent(place, x[0], x[-1])
        up = percent(value, bottom, top)
        point = f"{across:.2f},{100 - up:.2f}"
        # The line of no length makes a point between two gaps visible.
        path += f"L{point}" if is_pen_down else f"M{point}h0"
        is_pen_down = True
    return path


def percent(value: float, low: float, high: float) -> float:
    """The place of a value on an axis from `low` to `high`."""
    return 100 * (value - low) / ((high - low) or 1.0)


def ticks(low: float, high: float) -> list[float]:
    """At most six round numbers from `low` to `high`."""
    least_step = max(high - low, 1e-9) / 5
    power = 10.0 ** math.floor(math.log10(least_step))
    step = 10 * power
    for factor in (5, 2.5, 2, 1):
        # Rounding errors of the logarithm must not skip a round step.
        if factor * power >= least_step * 0.999:
            step = factor * power
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(step * place, 9) for place in range(first, last + 1)]
