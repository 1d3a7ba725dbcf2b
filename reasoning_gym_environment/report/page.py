"""Builds the page of a report from its sources.

The content of all sources is untrusted. The content security policy of the page has the hashes of our scripts and of
uPlot, so that the browser runs no other. The templates escape every text, so no label is read as markup. The numbers
behind curves are JSON, and the texts of samples are compressed JSON, which our scripts show as text only. Bars are
HTML, and uPlot draws curves.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from markupsafe import Markup, escape

from ..evaluation.results import EvalSample, ScopeResult, scope, summarise
from ..evaluation.statistics import Estimate
from ..storage.lines import UNKNOWN, DumpedGroup
from ..utils.terminal import printable
from .comparison import Comparison, DifferenceRow, templates
from .curves import run_curves, series_curves, series_of
from .load import GRADED, SAMPLED, Evaluation, Sources
from .samples import encode
from .verdict import verdict

Measured = TypeVar("Measured", Estimate, DifferenceRow)

STATIC = Path(__file__).resolve().parent / "static"
VENDOR = Path(__file__).resolve().parent / "vendor"
STYLES = (VENDOR / "uPlot.min.css", STATIC / "page.css")
SCRIPTS = (
    VENDOR / "uPlot.iife.min.js",
    STATIC / "page.js",
    STATIC / "charts.js",
    STATIC / "runs.js",
    STATIC / "store.js",
    STATIC / "detail.js",
    STATIC / "samples.js",
)
"""In the order in which the page runs them. Each file of ours uses names of the earlier files."""

FACTS = {
    "eval_complexity": "difficulty",
    "eval_seed": "seed",
    **SAMPLED,
    **GRADED,
    "reasoning_gym_version": "reasoning-gym",
}
"""Parameters of an evaluation that the page shows above its results, with their labels."""

RATES = ("exact", "mean score")
"""Measures that often equal the accuracy, by their labels."""


def render(
    sources: Sources,
    *,
    title: str,
    max_rollouts: int,
    comparison: Comparison | None = None,
) -> str:
    """The whole page. Raises EnvironmentSetupError for an evaluation without any score."""
    environment = templates()
    for function in (estimate, interval, label, merged, differs, measures_of):
        environment.filters[function.__name__] = function
    scripts = [file.read_text(encoding="utf-8") for file in SCRIPTS]
    evaluations = [(evaluation, summarise(evaluation.samples)) for evaluation in sources.evaluations]
    series = series_of(evaluations)
    in_series = {evaluation.name for one_series in series for evaluation, _ in one_series.points}
    blocks = encode(sources, max_rollouts)
    curves = {
        "series": [series_curves(one_series) for one_series in series],
        "runs": [run_curves(run) for run in sources.runs],
        "compared": [comparison.first, comparison.second] if comparison else [],
    }
    named_scopes = [result for result in dumped_scopes(sources) if result.name != UNKNOWN]
    kinds: set[str] = set()
    for run in sources.runs:
        kinds |= run.kinds
    return environment.get_template("report.html.j2").render(
        title=title,
        # None of these needs escaping. We wrote styles and scripts, or uPlot's author did; the rest has no markup.
        styles=[Markup(file.read_text(encoding="utf-8")) for file in STYLES],
        scripts=[Markup(script) for script in scripts],
        curves=Markup(as_inert_json(curves)),
        blocks=blocks,
        policy=policy(scripts),
        verdict=verdict(comparison, evaluations, series, sources.runs),
        evaluations=[
            {
                "about": evaluation,
                "facts": facts(evaluation),
                "results": results,
                "failures": format_failures(evaluation),
                "is_folded": evaluation.name in in_series,
            }
            for evaluation, results in evaluations
        ],
        series=series,
        comparison=comparison,
        comparison_chart=_comparison_chart(comparison) if comparison else None,
        accuracy_chart=accuracy_chart,
        dump_chart=accuracy_chart(named_scopes),
        runs=[(run, counts_of(run.groups)) for run in sources.runs],
        kinds=kinds,
        malformed=sources.malformed,
    )


def policy(scripts: Sequence[str]) -> str:
    """The content security policy of a page with these scripts. It allows no other script, and no network."""
    hashes = []
    for script in scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
        hashes.append(f"'sha256-{digest}'")
    return (
        f"default-src 'none'; script-src {' '.join(hashes)}; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def as_inert_json(value: Any) -> str:
    """JSON in ASCII without `<`, `>` and `&`, so that it can neither end a script element nor start a comment."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# --- evaluations, and the comparison of two


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


# --- runs


def counts_of(groups: Sequence[DumpedGroup]) -> dict[str, Any]:
    """The numbers above the charts of a run, by label."""
    questions = set()
    rewards: list[float] = []
    for group in groups:
        questions.add((group.task, group.rollouts[0]["question_digest"]))
        rewards += group.rewards
    return {
        "groups": len(groups),
        "without any credit": sum(not any(group.rewards) for group in groups),
        "completions": len(rewards),
        "tasks": len({group.task for group in groups}),
        "mean reward": f"{fmean(rewards):.2f}",
        "different questions": len(questions),
    }


def dumped_scopes(sources: Sources) -> list[ScopeResult]:
    """The results of dumped completions by task."""
    by_task: dict[tuple[str, str], list[EvalSample]] = {}
    for group in sources.groups:
        by_task.setdefault((group.category, group.task), []).extend(group.rollouts)
    return [scope(task, category, rollouts) for (category, task), rollouts in sorted(by_task.items())]


# --- numbers as text


def estimate(found: Estimate | None, form: str = ".1%") -> str:
    return "–" if found is None else format(found.value, form)


def merged(measures: Mapping[str, Measured]) -> list[tuple[list[str], Measured]]:
    """The measures with their names. Equal rates of right answers are one measure with several names."""
    found: list[tuple[list[str], Measured]] = []
    for name, measured in measures.items():
        same = [names for names, known in found if name in RATES and known == measured]
        if same:
            same[0].append(name)
        else:
            found.append(([name], measured))
    return found


def measures_of(comparison: Comparison) -> dict[str, DifferenceRow]:
    """The rows of a comparison by name, without the name, so that rows with equal figures are equal."""
    return {row.name: replace(row, name="") for row in comparison.measures}


def differs(scopes: Iterable[ScopeResult], name: str) -> bool:
    """Whether an estimate of any scope differs from its accuracy."""
    return any(result.estimates.get(name) != result.accuracy for result in scopes)


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
