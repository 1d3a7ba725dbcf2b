"""Builds the page of a report from its sources.

The content of all sources is untrusted. The content security policy of the page has the hashes of our scripts and of
uPlot, so that the browser runs no other. The templates escape every text, so no label is read as markup. The numbers
behind curves are JSON, and the texts of samples are compressed JSON, which our scripts show as text only. Bars and
small curves are HTML and SVG, and uPlot draws large curves.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from ..evaluation.results import ScopeResult, summarise
from ..evaluation.statistics import Estimate
from ..utils.terminal import printable
from .comparison import Comparison, templates
from .curves import run_curves, series_curves, series_of, task_rows
from .load import GRADED, SAMPLED, Evaluation, Sources
from .samples import encode
from .verdict import verdict

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

COLUMNS = {
    "exact": "exact",
    "mean_score": "mean score",
    "format_failures": "unreadable",
    "truncated": "cut off",
    "completion_tokens": "tokens",
}
"""Estimates of a task that have a column beside its accuracy, with its title."""


def render(
    sources: Sources,
    *,
    title: str,
    max_rollouts: int,
    comparison: Comparison | None = None,
) -> str:
    """The whole page. Raises EnvironmentSetupError for an evaluation without any score."""
    environment = templates()
    for function in (estimate, interval, label, points, place, change_class):
        environment.filters[function.__name__] = function
    scripts = [file.read_text(encoding="utf-8") for file in SCRIPTS]
    evaluations = [(evaluation, summarise(evaluation.samples)) for evaluation in sources.evaluations]
    series = series_of(evaluations)
    in_series = {evaluation.name for one_series in series for evaluation, _ in one_series.points}
    curves = {
        "series": [series_curves(one_series) for one_series in series],
        "runs": [run_curves(run) for run in sources.runs],
        "compared": [comparison.first, comparison.second] if comparison else [],
    }
    return environment.get_template("report.html.j2").render(
        title=title or ", ".join(run.name for run in sources.runs) or "reasoning-gym report",
        # None of these needs escaping. We wrote styles and scripts, or uPlot's author did; the rest has no markup.
        styles=[Markup(file.read_text(encoding="utf-8")) for file in STYLES],
        scripts=[Markup(script) for script in scripts],
        curves=Markup(as_inert_json(curves)),
        blocks=encode(sources, max_rollouts),
        policy=policy(scripts),
        verdict=verdict(comparison, evaluations, series, sources.runs),
        evaluations=[
            {
                "about": evaluation,
                "facts": facts(evaluation),
                "results": results,
                "failures": format_failures(evaluation),
                "is_folded": comparison is not None or evaluation.name in in_series,
                "columns": columns_of_results(results.tasks),
            }
            for evaluation, results in evaluations
        ],
        series=series,
        comparison=comparison,
        limit=axis_limit(comparison) if comparison else 1.0,
        tasks=task_rows(sources.runs, series),
        runs=sources.runs,
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


# --- what stands above the numbers


def facts(evaluation: Evaluation) -> dict[str, str]:
    """The description of an evaluation: label -> text, without empty texts."""
    parameters = evaluation.parameters
    texts = {"model": evaluation.model, "manifest": evaluation.manifest}
    for name, label_of_name in FACTS.items():
        texts[label_of_name] = str(parameters.get(name, ""))
    left_out = parameters.get("left_out")
    if isinstance(left_out, Mapping):
        texts["left out"] = "; ".join(f"{task}: {reason}" for task, reason in left_out.items())
    return {label_of_text: text for label_of_text, text in texts.items() if text}


def format_failures(evaluation: Evaluation) -> list[tuple[str, int]]:
    """The reasons for which answers could not be read, with counts, the most frequent first."""
    reasons = [sample.get("format_failure") for sample in evaluation.samples]
    return Counter(str(reason) for reason in reasons if reason).most_common()


def columns_of_results(scopes: Sequence[ScopeResult]) -> dict[str, str]:
    """The estimates that have a column in the table of these scopes. Rates that equal the accuracy have none."""
    columns = dict(COLUMNS)
    for rate in ("exact", "mean_score"):
        if all(scope.estimates.get(rate) == scope.accuracy for scope in scopes):
            del columns[rate]
    return columns


def axis_limit(comparison: Comparison) -> float:
    """The end of the axis of differences, on which all intervals of the tasks have a place."""
    limits = [abs(limit) for row in comparison.tasks for limit in (row.difference.low, row.difference.high)]
    largest = max(limits, default=1.0)
    return next((limit for limit in (0.1, 0.2, 0.4, 0.6, 0.8) if limit >= largest), 1.0)


# --- numbers and names as text


def estimate(found: Estimate | None, name: str = "") -> str:
    """An estimate of this name."""
    return "–" if found is None else format(found.value, _form(name))


def interval(found: Estimate | None, name: str = "") -> str:
    """The limits of an estimate, such as `3.1% to 5.8%`; "" without limits, as the tokens of a single question have."""
    if found is None or math.isinf(found.high):
        return ""
    return f"{found.low:{_form(name)}} to {found.high:{_form(name)}}"


def _form(name: str) -> str:
    return ",.0f" if name == "completion_tokens" else ".1%"


def points(difference: float) -> str:
    """A difference of shares in points, such as `+3.1`."""
    found = round(100 * difference, 1)
    return f"{found:+.1f}" if found else "0.0"


def change_class(difference: float | None) -> str:
    """The class of a change: improvements are green, and what is shown as 0.0 has no colour."""
    if difference is None or abs(difference) < 0.0005:
        return ""
    return "up" if difference > 0 else "down"


def place(value: float, low: float = 0.0, high: float = 1.0) -> str:
    """The place of a value on an axis from `low` to `high`, in percent of its width."""
    inside = min(high, max(low, value))
    return f"{100 * (inside - low) / (high - low):.2f}%"


def shown(text: str) -> str:
    """A label of limited length with printable characters only."""
    return printable(text, 44)


def label(text: str) -> Markup:
    """A label as markup that may break after underscores, because names of tasks have no blanks."""
    return escape(shown(text)).replace("_", Markup("_<wbr>"))
