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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from ..evaluation.results import EvalResults
from ..evaluation.statistics import Estimate
from ..utils.terminal import printable
from .comparison import Comparison, templates
from .curves import curves_of, series_of, task_rows
from .load import GRADED, RELEASES, SAMPLED, Evaluation, Sources
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

FACTS = ("eval_complexity", "eval_seed", *SAMPLED, *GRADED, *RELEASES, "left_out")
"""Parameters of an evaluation that the page shows above its results."""

COLUMNS = {
    "exact": "exact",
    "mean_score": "mean score",
    "format_failures": "unreadable",
    "truncated": "cut off",
    "completion_tokens": "tokens",
}
"""Estimates that have a column beside the accuracy, with its title."""


def render(
    sources: Sources,
    *,
    title: str,
    max_rollouts: int,
    comparison: Comparison | None = None,
) -> str:
    """The whole page. Raises EnvironmentSetupError for an evaluation without any score."""
    environment = templates()
    for function in (estimate, interval, label, points, place, change_class, facts, columns):
        environment.filters[function.__name__] = function
    scripts = [file.read_text(encoding="utf-8") for file in SCRIPTS]
    series, alone = series_of(sources.evaluations)
    curves = curves_of(sources.runs, series)
    data = {
        "curves": [curve.as_json() for curve in curves],
        "compared": [comparison.first, comparison.second] if comparison else [],
    }
    names = [source.name for source in sources.runs or sources.evaluations]
    return environment.get_template("report.html.j2").render(
        title=title or ", ".join(names[:3]),
        # None of these needs escaping. We wrote styles and scripts, or uPlot's author did; the rest has no markup.
        styles=[Markup(file.read_text(encoding="utf-8")) for file in STYLES],
        scripts=[Markup(script) for script in scripts],
        data=Markup(as_inert_json(data)),
        blocks=encode(sources, max_rollouts),
        policy=policy(scripts),
        verdict=verdict(comparison, alone, series, sources.runs),
        evaluations=sources.evaluations,
        unfolded=[] if comparison else [evaluation.name for evaluation in alone],
        has_series=bool(series),
        comparison=comparison,
        tasks=task_rows(curves),
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
    """The description of an evaluation: name -> text, without empty texts."""
    texts = {"model": evaluation.model, "manifest": evaluation.manifest}
    for name in FACTS:
        value = evaluation.parameters.get(name, "")
        parts = [f"{task}: {reason}" for task, reason in value.items()] if isinstance(value, Mapping) else [str(value)]
        texts[name] = "; ".join(parts)
    return {name: text for name, text in texts.items() if text}


def columns(results: EvalResults) -> dict[str, str]:
    """The estimates that have a column in the tables of an evaluation. Rates that equal the accuracy have none."""
    found = {}
    for name, title in COLUMNS.items():
        estimate_of_all = results.overall.estimates.get(name)
        if estimate_of_all not in (None, results.overall.accuracy):
            found[name] = title
    return found


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
