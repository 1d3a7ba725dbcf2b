"""Sources -> one HTML page: what each section says as plain values and charts as places in percent, for the templates.

Our script is the only one that may run: the page's policy names its hash. Nothing of a label is read as markup either:
the templates escape every text. Charts are HTML that is as wide as the page is, with text of a fixed size; only curves
are SVG, stretched to their box, without any text. Colours are the page's, light or dark.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

from ..evaluation.results import FORMAT_FAILURE, ScopeResult, correct, exact, scope, summarise
from ..evaluation.statistics import Estimate
from ..utils.terminal import printable
from .comparison import FEW, TEMPLATES, Comparison, PublishedTable, templates, verdicts
from .load import GRADED, SAMPLED, UNKNOWN, Evaluation, Group, Run, Sources, answer_of, as_inert_json, select

FACTS = {
    "eval_complexity": "difficulty",
    "eval_seed": "seed",
    **SAMPLED,
    **GRADED,
    "reasoning_gym_version": "reasoning-gym",
}
"""What of an evaluation's parameters stands above its results."""


def render(
    sources: Sources,
    *,
    title: str,
    max_rollouts: int,
    comparison: Comparison | None = None,
    published: Sequence[PublishedTable] = (),
) -> str:
    """The whole page. Raises EnvironmentSetupError for an evaluation of which nothing was scored."""
    environment = templates()
    environment.filters.update(estimate=estimate, interval=interval, known=known, label=label)
    script = (TEMPLATES / "report.js").read_text(encoding="utf-8")
    evaluations = [(one, summarise(one.samples)) for one in sources.evaluations]
    rollouts, of_rollouts = select(sources, max_rollouts)
    return environment.get_template("report.html.j2").render(
        title=title,
        # These are ours: the style, the script, and JSON without any markup character.
        style=Markup((TEMPLATES / "report.css").read_text(encoding="utf-8")),
        script=Markup(script),
        payload=Markup(as_inert_json(rollouts)),
        policy=policy(script),
        verdict=verdicts(comparison, published, evaluations, sources.runs),
        shown_rollouts=len(rollouts),
        of_rollouts=of_rollouts,
        evaluations=[
            {"about": one, "facts": facts(one), "results": results, "failures": unreadable(one)}
            for one, results in evaluations
        ],
        comparison=comparison,
        comparison_chart=_comparison_chart(comparison) if comparison else None,
        published=[
            (table, Bars([Bar.of(row.model, row.accuracy, row.is_yours) for row in table.rows])) for table in published
        ],
        accuracy_chart=accuracy_chart,
        dump_chart=accuracy_chart([one for one in dumped_scopes(sources) if one.name != UNKNOWN]),
        runs=[run_section(run) for run in sources.runs],
        kinds=set().union(*(run.kinds for run in sources.runs)),
        repeated=repeated_answers(sources),
        few=FEW,
        malformed=sources.malformed,
    )


def policy(script: str) -> str:
    """The content security policy of a page whose only script is `script`: no network, no other script."""
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


# --- evaluations, and the comparison of two


def facts(evaluation: Evaluation) -> dict[str, str]:
    """What it asked, and how."""
    parameters, left_out = evaluation.parameters, evaluation.parameters.get("left_out")
    found = {"model": evaluation.model, "manifest": evaluation.manifest}
    found |= {label: str(parameters.get(key, "")) for key, label in FACTS.items()}
    if isinstance(left_out, Mapping):
        found["left out"] = "; ".join(f"{task}: {reason}" for task, reason in left_out.items())
    return {label: value for label, value in found.items() if value}


def unreadable(evaluation: Evaluation) -> list[tuple[str, int]]:
    """Why no answer could be read, and how often."""
    found = (sample.get("format_failure") for sample in evaluation.samples)
    return Counter(str(one) for one in found if one).most_common()


def accuracy_chart(scopes: Iterable[ScopeResult]) -> Bars:
    """Bars with intervals, highest on top, and the exact rate as a mark; what has no score is left out."""
    known = [(one, one.accuracy, one.exact) for one in scopes if one.accuracy and one.exact]
    known.sort(key=lambda row: (-row[1].value, row[0].name))
    return Bars([Bar.of(f"{one.name} ({one.questions})", found, mark=full.value) for one, found, full in known])


def _comparison_chart(comparison: Comparison) -> Bars:
    rows = [Bar.of(r.name, r.difference, r.is_clear, comparison.exact[r.name]) for r in comparison.tasks]
    ends = [abs(value) for bar in rows for value in (bar.low, bar.high, bar.mark or 0.0)]
    limit = next((one for one in (0.1, 0.2, 0.4, 0.6, 0.8) if one >= max(ends, default=1.0)), 1.0)
    return Bars(rows, limits=(-limit, limit))


# --- runs


COLUMNS = {
    "reward": "reward",
    "accuracy": "accuracy",
    "exact": "exact",
    "signal": "with a signal",
    "level": "mean level",
    "staleness": "staleness, mean",
    "stalest": "at most",
    "refused": "paid less than natively",
    "no_answer": "no readable answer",
    "tokens": "tokens",
}
"""What is told of some groups that follow each other in a run, with its head in the table below the charts."""
CHARTS = (
    ("Reward, accuracy and exact answers", ("reward", "exact", "accuracy"), True),
    ("Groups with a signal", ("signal",), True),
    ("Mean level", ("level",), False),
    ("Completions without a readable answer", ("no_answer",), True),
    ("Tokens of a completion", ("tokens",), False),
    ("Staleness: steps from sampling to score", ("staleness", "stalest"), False),
    ("Completions that reasoning-gym alone pays more", ("refused",), True),
)


def run_section(run: Run) -> dict[str, Any]:
    """One run over its items, in up to 40 bins of four groups or more, without charts for fewer than two bins."""
    groups = run.groups
    size = max(4, -(-len(groups) // 40))
    bins = [bin_of(groups[start : start + size]) for start in range(0, len(groups), size)]
    told = {name: head for name, head in COLUMNS.items() if any(not math.isnan(one[name]) for one in bins)}
    across = [(one["first"] + one["last"]) / 2 for one in bins]
    items = {(group.task, seed) for group in groups if (seed := group.rollouts[0]["seed"]) is not None}
    counts = {
        "groups": len(groups),
        "without any credit": sum(not any(group.rewards) for group in groups),
        "rollouts": sum(len(group.rollouts) for group in groups),
        "tasks": len({group.task for group in groups}),
        "mean reward": known(_mean(reward for group in groups for reward in group.rewards)),
        "different items": len(items),
    }
    charts = [
        lines(title, across, [(told[name], [one[name] for one in bins]) for name in names if name in told], is_share)
        for title, names, is_share in CHARTS
        if len(bins) > 1 and told.keys() & set(names)
    ]
    return {"run": run, "counts": counts, "charts": charts, "bins": bins, "columns": told}


def bin_of(groups: Sequence[Group]) -> dict[str, float]:
    """By the names of COLUMNS, NaN where the lines do not tell; `refused` is the share of scored completions that
    reasoning-gym's own verifier pays more than the check does."""
    scored = [rollout for group in groups for rollout in group.rollouts if rollout["score"] is not None]
    stale = [float(group.staleness) for group in groups if group.staleness is not None]
    natively = [one for one in scored if one["native_score"] is not None]
    return {
        "first": groups[0].index,
        "last": groups[-1].index,
        "groups": len(groups),
        "reward": _mean(reward for group in groups for reward in group.rewards),
        "accuracy": _mean(map(correct, scored)),
        "exact": _mean(map(exact, scored)),
        "signal": _mean(float(group.has_signal) for group in groups),
        "level": _mean(float(group.level) for group in groups if group.level is not None),
        "staleness": _mean(stale),
        "stalest": max(stale, default=math.nan),
        "refused": _mean(float(one["score"] < one["native_score"]) for one in natively),
        "no_answer": _mean(float(one["outcome"] == FORMAT_FAILURE) for one in scored if one["outcome"] != UNKNOWN),
        "tokens": _mean(float(count) for one in scored if (count := one["num_completion_tokens"]) is not None),
    }


def dumped_scopes(sources: Sources) -> list[ScopeResult]:
    """Dumped completions by task."""
    by_task: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for group in sources.groups:
        by_task.setdefault((group.category, group.task), []).extend(group.rollouts)
    return [scope(task, category, members) for (category, task), members in sorted(by_task.items())]


def repeated_answers(sources: Sources) -> list[dict[str, Any]]:
    """Up to three answers of a task, given to three questions or more and a tenth of all; what was paid wrong first."""
    tasks: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for group in sources.groups:
        for one in group.rollouts:
            if one["score"] is not None and (answer := answer_of(one)) is not None:
                tasks.setdefault(group.task, {}).setdefault(answer.strip(), []).append(one)
    rows = []
    for task, answers in tasks.items():
        given = sum(map(len, answers.values()))
        for answer, uses in sorted(answers.items(), key=lambda pair: -len(pair[1]))[:3]:
            asked = len({one["question_digest"] for one in uses})
            if asked >= 3 and len(uses) >= 0.1 * given:
                wrong = [float(one["reward"]) for one in uses if not exact(one)]
                row = {"task": task, "answer": shown(answer), "questions": asked, "share": len(uses) / given}
                row |= {"paid_wrong": sum(wrong) / len(uses), "right": 1 - len(wrong) / len(uses)}
                rows.append(row)
    return sorted(rows, key=lambda row: (-row["share"] * row["paid_wrong"], row["task"]))


# --- numbers in words


def estimate(found: Estimate | None, form: str = ".1%") -> str:
    return "–" if found is None else format(found.value, form)


def interval(found: Estimate | None, form: str = ".1%") -> str:
    """Nothing where one question leaves the upper limit open."""
    return "" if found is None or math.isinf(found.high) else f"{found.low:{form}} to {found.high:{form}}"


def known(value: float) -> str:
    """A number of a table; nothing where it is not known."""
    return "–" if math.isnan(value) else f"{value:.2f}"


def shown(label: str) -> str:
    """A label that any font can draw and that has an end."""
    return printable(label, 44)


def label(text: str) -> Markup:
    """The label as markup that may be broken where its words end, as names of tasks have no blanks."""
    return escape(shown(text)).replace("_", Markup("_<wbr>"))


def _mean(values: Iterable[float]) -> float:
    """NaN of nothing: a gap in a curve."""
    found = list(values)
    return sum(found) / len(found) if found else math.nan


# --- charts


@dataclass(frozen=True)
class Bar:
    """One bar with its interval; `stands_out` gives it the second colour, `mark` puts a diamond on its line.

    `is_few`: it rests on fewer than FEW questions, and is folded unless it stands out.
    """

    label: str
    value: float
    low: float
    high: float
    stands_out: bool
    mark: float | None
    is_few: bool

    @classmethod
    def of(cls, label: str, found: Estimate, stands_out: bool = False, mark: float | None = None) -> Bar:
        is_few = found.questions < FEW and not stands_out
        return cls(label, found.value, found.low, found.high, stands_out, mark, is_few)


@dataclass(frozen=True)
class Bars:
    """Horizontal bars in the order given, first on top, of shares or, where `limits` begin below 0, of differences."""

    rows: list[Bar]
    limits: tuple[float, float] = (0.0, 1.0)

    def place(self, value: float) -> str:
        """From the left, in percent of the width."""
        low, high = self.limits
        return f"{100 * (min(high, max(low, value)) - low) / (high - low):.2f}%"

    def width(self, low: float, high: float) -> str:
        return f"{100 * abs(high - low) / (self.limits[1] - self.limits[0]):.2f}%"

    def words(self, value: float) -> str:
        return f"{value:.0%}" if self.limits[0] == 0 else f"{100 * value:+.0f}" if round(100 * value) else "0"


def lines(
    title: str, x: Sequence[float], series: Sequence[tuple[str, Sequence[float]]], is_share: bool
) -> dict[str, Any]:
    """Up to three curves: (name, SVG path in a square of 100), ticks (place in percent, text). NaN is a gap."""
    highest = max(value for _, values in series for value in values if not math.isnan(value))
    # What is rare, such as refusals, would be a line on the ground.
    top = max(1.0, highest) if highest >= 0.25 or not is_share else max(0.1, highest)
    across, up = _scale(x[0], x[-1]), _scale(0.0, top)
    drawn, ends = [], []
    for name, values in series:
        path, pen = "", "M"
        for one, value in zip(x, values, strict=True):
            if not math.isnan(value):
                # A point between two gaps is seen by its round end.
                path += f"{pen}{across(one):.2f},{100 - up(value):.2f}" + ("h0" if pen == "M" else "")
            pen = "M" if math.isnan(value) else "L"
        found = [value for value in values if not math.isnan(value)]
        drawn.append((name, path))
        ends.append(f"{name} from {found[0]:.2f} to {found[-1]:.2f}")
    return {
        "title": title,
        "series": drawn,
        "x_ticks": [(across(one), f"{one:,.10g}") for one in ticks(x[0], x[-1])],
        "y_ticks": [(up(one), f"{100 * one:g}%" if is_share else f"{one:,.10g}") for one in ticks(0.0, top)],
        "summary": f"{title}, by item: {'; '.join(ends)}.",
    }


def ticks(low: float, high: float) -> list[float]:
    """Up to six round numbers from `low` to `high`."""
    step = max(high - low, 1e-9) / 5
    power = 10.0 ** math.floor(math.log10(step))
    step = next(power * one for one in (1, 2, 2.5, 5, 10) if power * one >= step * 0.999)
    return [round(step * place, 9) for place in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _scale(low: float, high: float) -> Callable[[float], float]:
    """To percent of the way from `low` to `high`."""
    return lambda value: 100 * (value - low) / ((high - low) or 1.0)
