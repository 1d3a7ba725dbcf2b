"""Sources -> one HTML page: what each section says as plain values, charts as SVG, and the template filled with both.

Our script is the only one that may run: the page's policy names its hash. Nothing of a label is read as markup either:
Matplotlib escapes text in SVG, and its own formula language is switched off. Ink and accents of charts take the page's
colours, light or dark.
"""

from __future__ import annotations

import base64
import hashlib
import io
import math
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import matplotlib
import matplotlib.ticker
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..evaluation.results import CUT_OFF, EvalResults, ScopeResult, correct, exact, scope, summarise
from ..evaluation.statistics import Estimate
from ..records import Outcome
from ..training_log.hacking_watch import EXCESS, PAID, RARE, Given, Repeated, given_answers, repeated
from .comparison import Comparison, PublishedTable
from .load import ASKED, GRADED, UNKNOWN, Evaluation, Group, Sources, answer_of, select

TEMPLATES = Path(__file__).resolve().parent / "templates"
TIME_BINS = 40
FACTS = {
    "eval_complexity": "difficulty",
    "eval_seed": "seed",
    **ASKED,
    **GRADED,
    "reasoning_gym_version": "reasoning-gym",
}
"""What of an evaluation's parameters stands above its results."""

REPEATED_ROWS = 3
REPEATED_QUESTIONS = 3
"""Different questions from which on an answer counts as repeated, if it is REPEATED_SHARE of its task's answers."""
REPEATED_SHARE = 0.1

LABEL_LENGTH = 44
_INK, _ACCENT, _SECOND, _GRID, _QUIET = "#010203", "#010204", "#010205", "#010206", "#010207"
_PAGE_COLOURS = {
    _INK: "currentColor",
    _ACCENT: "var(--accent)",
    _SECOND: "var(--second)",
    _GRID: "var(--grid)",
    _QUIET: "var(--quiet)",
}
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 9.5,
    "axes.edgecolor": _GRID,
    "axes.labelcolor": _INK,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": _GRID,
    "grid.linewidth": 0.6,
}


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
    dumped = dumped_scopes(sources)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    environment.filters.update(estimate=percent, interval=interval, tokens=tokens, token_interval=token_interval)
    values: dict[str, Any] = {
        "title": title,
        # These are ours: the style, the script, Matplotlib's SVG and JSON without any markup character.
        "style": Markup((TEMPLATES / "report.css").read_text(encoding="utf-8")),
        "script": Markup(script),
        "payload": Markup(selection.payload),
        "svg": Markup,
        "policy": policy(script),
        "selection": selection,
        "evaluations": [evaluation_section(one) for one in sources.evaluations],
        "comparison": comparison,
        "comparison_chart": _comparison_chart(comparison) if comparison else "",
        "published": [(table, _published_chart(table)) for table in published or []],
        "dumped": dumped,
        "dump_chart": accuracy_chart(dumped, "accuracy of dumped completions by task") if dumped else "",
        "groups": len(sources.groups),
        # A file of `process` has every group, and names no task.
        "has_dumps": any(group.task != UNKNOWN for _, group in sources.groups),
        "files": sorted({name for name, _ in sources.groups}),
        "time_charts": _time_charts(sources),
        "repeated": (found := repeated_answers(sources)),
        "unrepeated": sorted({group.task for _, group in sources.groups} - {row.task for row in found}),
        "details": details(sources),
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


def _comparison_chart(comparison: Comparison) -> str:
    rows = [
        Bar(r.name, r.difference.value, r.difference.low, r.difference.high, r.is_clear, comparison.exact[r.name])
        for r in comparison.tasks
    ]
    axis = f"accuracy of {comparison.second} less {comparison.first}; diamond: exact"
    return bars(rows, axis=axis, limits=(-1.0, 1.0))


def _published_chart(table: PublishedTable) -> str:
    rows = [Bar(r.model, r.accuracy.value, r.accuracy.low, r.accuracy.high, r.is_yours) for r in table.rows]
    return bars(rows, axis=f"accuracy over {table.tasks} tasks, preset {table.preset}")


def _time_charts(sources: Sources) -> list[tuple[str, str]]:
    runs: dict[str, list[Any]] = {}
    for name, group in sources.groups:
        runs.setdefault(_run_of(name), []).append(group)
    charts = [(name, time_chart(groups)) for name, groups in sorted(runs.items())]
    return [(name, chart) for name, chart in charts if chart]


def _run_of(file: str) -> str:
    """What the dumps of one run share: `..._rollouts_{run}_{batch}.jsonl` and `..._FAILED_rollouts_{run}_...` do."""
    stem = file.removesuffix(".part").removesuffix(".jsonl").rstrip("0123456789").strip("_")
    _, is_dump, run = stem.partition("_rollouts_")
    return f"run {run}" if is_dump and run else stem or "groups"


# --- what the sections say


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
    cards.append(Card("exact", percent(overall.exact), interval(overall.exact)))
    cards.append(Card("mean score", percent(overall.score), interval(overall.score)))
    cards += [Card(f"pass@{k}", percent(one), interval(one)) for k, one in overall.pass_at.items() if k > 1]
    failures, cut_off = overall.format_failures, overall.truncated
    cards.append(Card("format failures", percent(failures), interval(failures)))
    cards.append(Card("cut off", percent(cut_off), interval(cut_off)))
    cards.append(Card("tokens", tokens(overall.mean_tokens), token_interval(overall.mean_tokens)))
    cards.append(Card("questions", str(overall.questions), f"{overall.completions} completions scored"))
    cards.append(Card("unscored", str(overall.unscored), "not counted as wrong"))
    return cards


def accuracy_chart(scopes: Iterable[ScopeResult], axis: str) -> str:
    """Bars with intervals, highest on top, and the exact rate as a mark; what has no score is left out."""
    known = [(one, one.accuracy) for one in scopes if one.accuracy is not None]
    rows = [
        Bar(
            f"{one.name} ({one.questions})",
            found.value,
            found.low,
            found.high,
            mark=one.exact.value if one.exact else None,
        )
        for one, found in sorted(known, key=lambda pair: (-pair[1].value, pair[0].name))
    ]
    return bars(rows, axis=f"{axis}; diamond: exact")


@dataclass(frozen=True)
class Heatmap:
    """Accuracy over task and level: rows of (task, cells), a cell is (accuracy, exact, completions) or None."""

    levels: list[int]
    rows: list[tuple[str, list[tuple[float, float, int] | None]]]


def heatmap(rollouts: Iterable[Mapping[str, Any]]) -> Heatmap:
    """Of all scored completions that have a level."""
    cells: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for rollout in rollouts:
        level = rollout.get("level")
        if isinstance(level, int) and rollout.get("score") is not None:
            cells.setdefault((str(rollout["task"]), level), []).append(rollout)
    levels = sorted({level for _, level in cells})
    rows: list[tuple[str, list[tuple[float, float, int] | None]]] = []
    for task in sorted({task for task, _ in cells}):
        found = [cells.get((task, level)) for level in levels]
        rows.append(
            (task, [(_mean(map(correct, one)), _mean(map(exact, one)), len(one)) if one else None for one in found])
        )
    return Heatmap(levels, rows)


def time_chart(groups: Sequence[Group]) -> str:
    """Difficulty, share of groups with a signal, accuracy and exact rate by item index; "" for fewer than two bins."""
    ordered = sorted(groups, key=lambda group: group.index)
    size = max(4, -(-len(ordered) // TIME_BINS))
    bins = [ordered[start : start + size] for start in range(0, len(ordered), size)]
    if len(bins) < 2:
        return ""
    x = [float(part[len(part) // 2].index) for part in bins]
    series = [
        ("groups with a signal", [_mean(float(group.has_signal) for group in part) for part in bins]),
        ("accuracy", [_mean(map(correct, _scored(part))) for part in bins]),
        ("exact", [_mean(map(exact, _scored(part))) for part in bins]),
    ]
    if all(any(group.complexity is not None for group in part) for part in bins):
        levels = [_mean(g.complexity for g in part if g.complexity is not None) for part in bins]
        series.insert(0, ("mean difficulty (0 to 1)", levels))
    return lines(x, series, x_label="item index")


def length_chart(rollouts: Sequence[Mapping[str, Any]]) -> str:
    """Completion tokens by score, and of cut-off completions; "" if no length is known."""
    above, below = "score of 0.5 or more", "below 0.5"
    kinds: dict[str, list[float]] = {above: [], below: [], "cut off": []}
    for rollout in rollouts:
        length = rollout.get("num_completion_tokens")
        if length is None or rollout.get("score") is None:
            continue
        cut_off = rollout.get("finish_reason") == CUT_OFF
        kind = "cut off" if cut_off else above if correct(rollout) else below
        kinds[kind].append(float(length))
    return histogram(list(kinds.items()), x_label="tokens of a completion") if any(kinds.values()) else ""


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


@dataclass(frozen=True)
class RepeatedRow:
    """One answer, or a shape of answers that are hardly ever right, of one task: what its uses earned."""

    task: str
    answer: str
    shape: str
    uses: Repeated
    questions: int
    """Of the task, different ones."""
    share: float
    """Of the task's answers."""

    @property
    def stands_out(self) -> bool:
        """Whether training paid it, though wrong, as often as a run would warn of."""
        return self.uses.paid_wrong >= PAID and self.share >= EXCESS


def repeated_answers(sources: Sources) -> list[RepeatedRow]:
    """Up to REPEATED_ROWS a task of the most repeated answers in dumps; tasks first that paid most for wrong ones."""
    tasks: dict[str, list[tuple[str, list[Given]]]] = {}
    for _, group in sources.groups:
        answers = [
            (answer, float(rollout["reward"]), _is_right(rollout))
            for rollout in group.rollouts
            if rollout["score"] is not None and (answer := answer_of(rollout)) is not None
        ]
        if answers:
            tasks.setdefault(group.task, []).append((group.rollouts[0]["question_digest"], given_answers(answers)))
    found = [rows for task, groups in sorted(tasks.items()) if (rows := _repeated_rows(task, groups))]
    found.sort(key=lambda rows: -max(row.share * row.uses.paid_wrong for row in rows))
    return [row for rows in found for row in rows]


def _repeated_rows(task: str, groups: Sequence[tuple[str, Sequence[Given]]]) -> list[RepeatedRow]:
    questions = len({question for question, _ in groups})
    total = sum(given.times for _, answers in groups for given in answers)
    shapes = [
        one
        for one in repeated(groups, lambda given: given.shape)
        if one.right_share <= RARE and one.paid_wrong >= PAID and len({given.key for given in one.uses.values()}) > 1
    ]
    return [
        RepeatedRow(task, shown(first.text), shown(first.shape) if one in shapes else "", one, questions, share)
        for kind in (shapes[:1], repeated(groups)[:REPEATED_ROWS])
        for one in kind
        if one.questions >= REPEATED_QUESTIONS and (share := one.count / total) >= REPEATED_SHARE
        for first in one.examples[:1]
    ]


def _is_right(rollout: Mapping[str, Any]) -> bool:
    outcome = rollout["outcome"]
    return bool(float(rollout["score"]) >= 1.0 if outcome == UNKNOWN else outcome == Outcome.CORRECT.value)


def percent(estimate: Estimate | None) -> str:
    return "–" if estimate is None else f"{estimate.value:.1%}"


def interval(estimate: Estimate | None) -> str:
    return "" if estimate is None else f"{estimate.low:.1%} to {estimate.high:.1%}"


def tokens(estimate: Estimate | None) -> str:
    return "–" if estimate is None else f"{estimate.value:.0f}"


def token_interval(estimate: Estimate | None) -> str:
    """Nothing where one question leaves the upper limit open."""
    return "" if estimate is None or math.isinf(estimate.high) else f"{estimate.low:.0f} to {estimate.high:.0f}"


def _scored(groups: Iterable[Group]) -> list[Mapping[str, Any]]:
    """Their rollouts that have a score."""
    return [rollout for group in groups for rollout in group.rollouts if rollout["score"] is not None]


def _mean(values: Iterable[float]) -> float:
    """NaN of nothing: a gap in a curve."""
    found = list(values)
    return sum(found) / len(found) if found else math.nan


# --- charts


@dataclass(frozen=True)
class Bar:
    """One bar with its interval; `stands_out` gives it the second colour, `mark` puts a diamond on its line."""

    label: str
    value: float
    low: float
    high: float
    stands_out: bool = False
    mark: float | None = None


def bars(rows: Sequence[Bar], *, axis: str, limits: tuple[float, float] = (0.0, 1.0)) -> str:
    """Horizontal bars in the order given, first on top, values as percentages."""
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": axis}):
        figure = Figure(figsize=(8.2, 0.7 + 0.24 * len(rows)), layout="constrained")
        axes = figure.add_subplot()
        places = list(range(len(rows)))
        colours = [_SECOND if row.stands_out else _ACCENT for row in rows]
        values = [row.value for row in rows]
        below = [max(0.0, row.value - row.low) for row in rows]
        above = [max(0.0, row.high - row.value) for row in rows]
        axes.barh(places, values, height=0.68, color=colours)
        axes.errorbar(values, places, xerr=[below, above], fmt="none", ecolor=_INK, elinewidth=1.0, capsize=2.5)
        marks = [math.nan if row.mark is None else row.mark for row in rows]
        axes.plot(marks, places, "D", color=_SECOND, markeredgecolor=_INK, markersize=5.0, clip_on=False, zorder=3)
        axes.set_yticks(places, [shown(row.label) for row in rows])
        axes.invert_yaxis()
        axes.set_ylim(len(rows) - 0.4, -0.6)
        _percent(axes, axis, limits)
        return _svg(figure)


def lines(x: Sequence[float], series: Sequence[tuple[str, Sequence[float]]], *, x_label: str) -> str:
    """Up to four curves of shares over the run."""
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": x_label}):
        figure = Figure(figsize=(8.2, 2.9), layout="constrained")
        axes = figure.add_subplot()
        looks = ((_ACCENT, "-"), (_SECOND, "-"), (_INK, ":"), (_INK, "-"))
        for (name, values), (colour, style) in zip(series, looks, strict=False):
            axes.plot(x, values, style, color=colour, label=name, linewidth=1.8)
        axes.set_ylim(-0.02, 1.02)
        axes.set_xlabel(x_label)
        axes.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1.0))
        axes.grid(axis="y")
        axes.legend(frameon=False, ncols=4, loc="lower left", bbox_to_anchor=(0.0, 1.0))
        return _svg(figure)


def histogram(groups: Sequence[tuple[str, Sequence[float]]], *, x_label: str) -> str:
    """Stacked counts of lengths, up to three kinds."""
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": x_label}):
        figure = Figure(figsize=(8.2, 2.7), layout="constrained")
        axes = figure.add_subplot()
        axes.hist(
            [list(values) for _, values in groups],
            bins=40,
            stacked=True,
            color=[_ACCENT, _SECOND, _QUIET][: len(groups)],
            label=[name for name, _ in groups],
        )
        axes.set_xlabel(x_label)
        axes.set_ylabel("completions")
        axes.grid(axis="y")
        axes.set_axisbelow(True)
        axes.legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0.0, 1.0))
        return _svg(figure)


def shown(label: str) -> str:
    """A label that any font can draw and XML can hold."""
    text = "".join(character if character.isprintable() else "?" for character in label)
    return text if len(text) <= LABEL_LENGTH else f"{text[: LABEL_LENGTH - 1]}…"


def _percent(axes: Axes, label: str, limits: tuple[float, float]) -> None:
    axes.set_xlim(*limits)
    axes.set_xlabel(label)
    axes.xaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1.0))
    axes.grid(axis="x")
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    axes.spines["left"].set_visible(limits[0] == 0.0)
    if limits[0] < 0:
        axes.axvline(0.0, color=_INK, linewidth=0.8)


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    with warnings.catch_warnings():
        # The browser's fonts have what Matplotlib's may miss.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    for ours, of_page in _PAGE_COLOURS.items():
        text = text.replace(ours, of_page)
    return text
