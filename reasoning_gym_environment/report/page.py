"""Sources -> one HTML page. Our script is the only one that may run: the page's policy names its hash."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from ..evaluation.results import ScopeResult
from . import sections
from .comparison import Comparison, PublishedTable
from .load import Sources, select

TEMPLATES = Path(__file__).resolve().parent / "templates"


def render(
    sources: Sources,
    *,
    title: str,
    max_rollouts: int,
    comparison: Comparison | None = None,
    published: list[PublishedTable] | None = None,
) -> str:
    """The whole page. Raises EnvironmentSetupError for an evaluation of which nothing was scored."""
    script = (TEMPLATES / "report.js").read_text(encoding="utf-8")
    selection = select(sources, max_rollouts)
    dumped = sections.dumped_scopes(sources)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    environment.filters["estimate"] = sections.percent
    environment.filters["interval"] = sections.interval
    environment.filters["tokens"] = sections.tokens
    environment.filters["token_interval"] = sections.token_interval
    values: dict[str, Any] = {
        "title": title,
        # These are ours: the style, the script, Matplotlib's SVG and JSON without any markup character.
        "style": Markup((TEMPLATES / "report.css").read_text(encoding="utf-8")),
        "script": Markup(script),
        "payload": Markup(selection.payload),
        "svg": Markup,
        "policy": policy(script),
        "selection": selection,
        "evaluations": [sections.evaluation_section(one) for one in sources.evaluations],
        "comparison": comparison,
        "published": published or [],
        "dumped": dumped,
        "dump_chart": _dump_chart(dumped),
        "groups": len(sources.groups),
        "files": sorted({name for name, _ in sources.groups}),
        "time_charts": _time_charts(sources),
        "details": sections.details(sources),
        "malformed": sources.malformed,
    }
    return environment.get_template("report.html.j2").render(values)


def policy(script: str) -> str:
    """The content security policy of a page whose only script is `script`: no network, no other script."""
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _dump_chart(dumped: list[ScopeResult]) -> str:
    return sections.accuracy_chart(dumped, "accuracy of dumped completions by task") if dumped else ""


def _time_charts(sources: Sources) -> list[tuple[str, str]]:
    runs: dict[str, list[Any]] = {}
    for name, group in sources.groups:
        runs.setdefault(_run_of(name), []).append(group)
    charts = [(name, sections.time_chart(groups)) for name, groups in sorted(runs.items())]
    return [(name, chart) for name, chart in charts if chart]


def _run_of(file: str) -> str:
    """What the dumps of one run share: `..._rollouts_{run}_{batch}.jsonl` and `..._FAILED_rollouts_{run}_...` do."""
    stem = file.removesuffix(".part").removesuffix(".jsonl").rstrip("0123456789").strip("_")
    _, is_dump, run = stem.partition("_rollouts_")
    return f"run {run}" if is_dump and run else stem or "groups"
