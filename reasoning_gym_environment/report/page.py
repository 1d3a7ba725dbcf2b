"""Sources -> one HTML page: what each section says as plain values and charts as places in percent, for the templates.

Our script is the only one that may run: the page's policy names its hash. Nothing of a label is read as markup either:
the templates escape every text. Charts are HTML that is as wide as the page is, with text of a fixed size; only curves
and areas are SVG, stretched to their box, without any text. Colours are the page's, light or dark.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from ..evaluation.results import CUT_OFF, EvalResults, ScopeResult, correct, exact, scope, summarise
from ..evaluation.statistics import Estimate
from ..records import Outcome
from ..training_log.dump_files import FAILED, ROLLOUTS
from ..training_log.hacking_watch import EXCESS, PAID, RARE, Given, Repeated, given_answers, repeated
from ..utils.terminal import printable
from .comparison import (
    FEW,
    POINTS,
    Comparison,
    DifferenceRow,
    PublishedTable,
    needed,
    verdict_of_comparison,
    verdict_of_evaluation,
    verdict_of_published,
    verdict_of_run,
)
from .load import ASKED, GRADED, PROCESS, UNKNOWN, Evaluation, Group, Run, Sources, answer_of, select

TEMPLATES = Path(__file__).resolve().parent / "templates"
TIME_BINS = 40
LENGTH_BINS = 40
SHARED = 5
"""Tasks that have an area of their own among the shares; the others have one together."""
HEAT_STEPS = 10
"""Colours of the heatmap less one: `h0` to `h10` in report.css."""
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
    environment.filters.update(
        estimate=percent, interval=interval, tokens=tokens, token_interval=token_interval, known=known, label=label
    )
    evaluations = [evaluation_section(one) for one in sources.evaluations]
    runs = [run_section(run, groups) for run, groups in sources.by_run()]
    values: dict[str, Any] = {
        "title": title,
        # These are ours: the style, the script, and JSON without any markup character.
        "style": Markup((TEMPLATES / "report.css").read_text(encoding="utf-8")),
        "script": Markup(script),
        "payload": Markup(selection.payload),
        "policy": policy(script),
        "verdict": [
            *(verdict_of_comparison(comparison) if comparison else ()),
            *(verdict_of_published(table) for table in published or ()),
            *(sentence for one in evaluations for sentence in one.verdict if not comparison),
            *(one.verdict for one in runs),
        ],
        "selection": selection,
        "evaluations": evaluations,
        "comparison": comparison,
        "comparison_charts": _comparison_charts(comparison) if comparison else (),
        "published": [(table, _published_chart(table)) for table in published or []],
        "dump_charts": task_charts([one for one in dumped if one.name != UNKNOWN], "groups"),
        "runs": runs,
        "kinds": {kind for run in sources.runs.values() for kind in run.kinds},
        "choice": choice_note({kind for run in sources.runs.values() for kind in run.kinds}),
        "repeated": (found := repeated_answers(sources)),
        "unrepeated": sorted({group.task for _, group in sources.groups} - {row.task for row in found}),
        "details": details(sources),
        "columns": columns,
        "few": FEW,
        "heat_step": lambda share: round(HEAT_STEPS * share),
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


def choice_note(kinds: set[str]) -> str:
    """What files of these kinds leave out, and what that means for every number made of them."""
    if {ROLLOUTS, FAILED} <= kinds:
        return (
            "Dumps keep groups with a rollout above the threshold, or without any score at all: their accuracy is not "
            "that of the model."
        )
    if ROLLOUTS in kinds:
        return (
            "These dumps keep only groups with a rollout above the threshold (dump_failed_rollouts is off or its files "
            "are not here): their accuracy is higher than that of the model."
        )
    if FAILED in kinds:
        return "These dumps keep only groups without any credit: their accuracy says nothing of the model."
    return "A file of process holds every group, whatever it scored." if kinds else ""


@dataclass(frozen=True)
class TaskCharts:
    """Bars of the tasks with FEW questions or more, and of the others, folded, with what more would need."""

    enough: Bars
    few: Bars
    need: str = ""


def task_charts(scopes: Sequence[ScopeResult], what: str = "questions", setting: str = "") -> TaskCharts:
    """`what` is what an interval rests on, `setting` makes more of it."""
    few = [one for one in scopes if one.accuracy and one.accuracy.questions < FEW]
    told = ""
    if few:
        # The share that varies most, at the usual width.
        for_points = math.ceil((1.96 * 0.5 / POINTS) ** 2)
        widest = max((one.accuracy.high - one.accuracy.low) / 2 for one in few if one.accuracy)
        told = (
            f"Intervals of up to ±{100 * widest:.0f} points: too wide to rank by. One of ±{100 * POINTS:.0f} takes "
            f"about {for_points} {what} of a task{f' ({setting} {for_points})' if setting else ''}, half of that width "
            "four times as many."
        )
    return TaskCharts(accuracy_chart([one for one in scopes if one not in few]), accuracy_chart(few), told)


def _comparison_charts(comparison: Comparison) -> TaskCharts:
    few = [row for row in comparison.tasks if row.difference.questions < FEW and not row.is_clear]

    def chart(rows: Sequence[DifferenceRow]) -> Bars:
        found = [
            Bar(r.name, r.difference.value, r.difference.low, r.difference.high, r.is_clear, comparison.exact[r.name])
            for r in rows
        ]
        ends = [abs(value) for bar in found for value in (bar.low, bar.high, bar.mark or 0.0)]
        limit = next((one for one in (0.1, 0.2, 0.4, 0.6, 0.8) if one >= max(ends, default=1.0)), 1.0)
        return Bars(found, limits=(-limit, limit))

    [overall] = [row.difference for row in comparison.measures if row.name == "accuracy"]
    return TaskCharts(
        chart([row for row in comparison.tasks if row not in few]),
        chart(few),
        f"None of them differs by more than chance would. An interval of ±{100 * POINTS:.0f} points takes about "
        f"{needed(overall, POINTS):,} questions of a task, at the "
        "spread over all (env.num_eval_samples_per_task).",
    )


def _published_chart(table: PublishedTable) -> Bars:
    return Bars([Bar(r.model, r.accuracy.value, r.accuracy.low, r.accuracy.high, r.is_yours) for r in table.rows])


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
    date: str
    verdict: list[str]
    facts: list[tuple[str, str]]
    cards: list[Card]
    category_chart: Bars
    task_charts: TaskCharts
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
        date=evaluation.date,
        verdict=verdict_of_evaluation(evaluation.name, results),
        facts=[(label, value) for label, value in facts if value],
        cards=_cards(results),
        category_chart=accuracy_chart(results.categories),
        task_charts=task_charts(results.tasks, setting="env.num_eval_samples_per_task"),
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


def columns(tiles: int, most: int) -> int:
    """How many columns, `most` or a bit fewer, leave no tile alone in its row; best are those that fill every row."""
    counts = [*range(most, 2, -1), most + 1]
    return next(iter([one for one in counts if tiles % one == 0] + [one for one in counts if tiles % one != 1]))


def accuracy_chart(scopes: Iterable[ScopeResult]) -> Bars:
    """Bars with intervals, highest on top, and the exact rate as a mark; what has no score is left out."""
    known = [(one, one.accuracy) for one in scopes if one.accuracy is not None]
    return Bars(
        [
            Bar(
                f"{one.name} ({one.questions})",
                found.value,
                found.low,
                found.high,
                mark=one.exact.value if one.exact else None,
            )
            for one, found in sorted(known, key=lambda pair: (-pair[1].value, pair[0].name))
        ]
    )


@dataclass(frozen=True)
class Heatmap:
    """Accuracy over task and level: rows of (task, cells), a cell is (accuracy, exact, completions) or None.

    Level None, the last, has what was asked without a level; there is no row if nothing has one.
    """

    levels: list[int | None]
    rows: list[tuple[str, list[tuple[float, float, int] | None]]]


def heatmap(rollouts: Iterable[Mapping[str, Any]]) -> Heatmap:
    """Of all scored completions, if any of them has a level."""
    cells: dict[tuple[str, int | None], list[Mapping[str, Any]]] = {}
    for rollout in rollouts:
        level = rollout.get("level")
        if rollout.get("score") is not None:
            cells.setdefault((str(rollout["task"]), level if isinstance(level, int) else None), []).append(rollout)
    found = {level for _, level in cells}
    levels: list[int | None] = [*sorted(level for level in found if level is not None)]
    if not levels:
        return Heatmap([], [])
    levels += [None] if None in found else []
    rows: list[tuple[str, list[tuple[float, float, int] | None]]] = []
    for task in sorted({task for task, _ in cells}):
        of_task = [cells.get((task, level)) for level in levels]
        rows.append(
            (task, [(_mean(map(correct, one)), _mean(map(exact, one)), len(one)) if one else None for one in of_task])
        )
    return Heatmap(levels, rows)


COLUMNS = {
    "reward": "reward",
    "accuracy": "accuracy",
    "exact": "exact",
    "signal": "with a signal",
    "level": "mean level",
    "difficulty": "difficulty, 0 to 1",
    "staleness": "staleness, mean",
    "stalest": "at most",
    "refused": "refused",
}
"""What is told of some groups that follow each other in a run, with its head in the table below the charts."""


@dataclass(frozen=True)
class RunSection:
    """One run over its items."""

    run: Run
    verdict: str
    note: str
    charts: list[Chart]
    bins: list[dict[str, float]]
    columns: dict[str, str]
    untold: list[str]
    """What its lines do not tell."""


def run_section(run: Run, groups: Sequence[Group]) -> RunSection:
    """`groups` in the order of their items, in bins of four or more; without charts for fewer than two bins."""
    size = max(4, -(-len(groups) // TIME_BINS))
    parts = [groups[start : start + size] for start in range(0, len(groups), size)]
    bins = [bin_of(part) for part in parts]
    told = {name: head for name, head in COLUMNS.items() if any(not math.isnan(one[name]) for one in bins)}
    told_of = {
        "level": "levels",
        "refused": "refusals",
        **({} if run.kinds == {PROCESS} else {"staleness": "staleness"}),
    }
    untold = [head for name, head in told_of.items() if name not in told]
    charts = run_charts(parts, bins, told) if len(bins) > 1 else []
    return RunSection(run, verdict_of_run(run, groups), choice_note(run.kinds), charts, bins, told, untold)


def bin_of(groups: Sequence[Group]) -> dict[str, float]:
    """By the names of COLUMNS, NaN where the lines do not tell; `refused` is the share of scored completions that a
    strict check pays less than the task's own verifier does."""
    scored = _scored(groups)
    judged = [one for one in scored if one.get("native_score") is not None]
    stale = [float(group.staleness) for group in groups if group.staleness is not None]
    return {
        "first": groups[0].index,
        "last": groups[-1].index,
        "groups": len(groups),
        "reward": _mean(reward for group in groups for reward in group.rewards),
        "accuracy": _mean(map(correct, scored)),
        "exact": _mean(map(exact, scored)),
        "signal": _mean(float(group.has_signal) for group in groups),
        "level": _mean(float(group.level) for group in groups if group.level is not None),
        "difficulty": _mean(group.complexity for group in groups if group.complexity is not None),
        "staleness": _mean(stale),
        "stalest": max(stale, default=math.nan),
        "refused": _mean(float(one["score"] < one["native_score"]) for one in judged),
    }


def run_charts(
    parts: Sequence[Sequence[Group]], bins: Sequence[Mapping[str, float]], told: Mapping[str, str]
) -> list[Chart]:
    """Reward, signal, level, the tasks' shares, staleness and refusals over the items."""
    x = [(one["first"] + one["last"]) / 2 for one in bins]

    def drawn(title: str, names: Sequence[str], *, is_share: bool = True) -> list[Chart]:
        series = [(told[name], [one[name] for one in bins]) for name in names if name in told]
        return [lines(title, x, series, is_share=is_share)] if series else []

    return [
        *drawn("Reward, accuracy and exact answers", ("reward", "exact", "accuracy")),
        *drawn("Groups with a signal", ("signal",)),
        *drawn("Mean level", ("level",), is_share=False),
        *([areas("Share of each task", x, shares)] if len(shares := task_shares(parts)) > 1 else []),
        *drawn("Staleness: steps from sampling to score", ("staleness", "stalest"), is_share=False),
        *drawn("Completions that a strict check refused", ("refused",)),
    ]


def task_shares(parts: Sequence[Sequence[Group]]) -> list[tuple[str, list[float]]]:
    """(task, its share of each part's groups), the most frequent SHARED first, then all others together."""
    counts = [Counter(group.task for group in part) for part in parts]
    names = [task for task, _ in sum(counts, Counter()).most_common()]
    shares = [(task, [one[task] / one.total() for one in counts]) for task in names[:SHARED]]
    if len(names) > SHARED:
        rest = [1.0 - sum(values[place] for _, values in shares) for place in range(len(parts))]
        shares.append((f"{len(names) - SHARED} others", rest))
    return shares


def length_chart(rollouts: Sequence[Mapping[str, Any]]) -> Chart | None:
    """Completion tokens by score, and of cut-off completions; None if no length is known."""
    above, below = "score of 0.5 or more", "below 0.5"
    kinds: dict[str, list[float]] = {above: [], below: [], "cut off": []}
    for rollout in rollouts:
        length = rollout.get("num_completion_tokens")
        if length is None or rollout.get("score") is None:
            continue
        cut_off = rollout.get("finish_reason") == CUT_OFF
        kind = "cut off" if cut_off else above if correct(rollout) else below
        kinds[kind].append(float(length))
    return histogram("Completions by length", list(kinds.items()), "tokens") if any(kinds.values()) else None


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
    length_chart: Chart | None
    knows_formats: bool
    failures: list[tuple[str, int, float]]
    failing_tasks: list[tuple[str, float, int]]


def details(sources: Sources) -> list[Details]:
    """One for each kind that there is."""
    evaluated = [sample for evaluation in sources.evaluations for sample in evaluation.samples]
    dumped = [rollout for _, group in sources.groups for rollout in group.rollouts]
    training = "Groups of process" if all(run.kinds == {PROCESS} for run in sources.runs.values()) else "Training"
    return [
        Details(
            name=name,
            is_training=is_training,
            heatmap=heatmap(rollouts),
            length_chart=length_chart(rollouts),
            knows_formats=bool(_of_known_format(rollouts)),
            failures=format_failures(rollouts),
            failing_tasks=failing_tasks(rollouts),
        )
        for name, is_training, rollouts in (("Evaluation", False, evaluated), (training, True, dumped))
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


def known(value: float) -> str:
    """A number of a table; nothing where it is not known."""
    return "–" if math.isnan(value) else f"{value:.2f}"


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


@dataclass(frozen=True)
class Chart:
    """Curves or areas in a box: `series` are (name, SVG path) in a square of 100, ticks (place in percent, text)."""

    title: str
    series: list[tuple[str, str]]
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    x_label: str
    summary: str
    is_filled: bool = True


def lines(title: str, x: Sequence[float], series: Sequence[tuple[str, Sequence[float]]], *, is_share: bool) -> Chart:
    """Up to three curves; NaN is a gap."""
    highest = max(value for _, values in series for value in values if not math.isnan(value))
    # What is rare, such as refusals, would be a line on the ground.
    top = max(1.0, highest) if highest >= 0.25 or not is_share else max(0.1, highest)
    across, up = _scale(x[0], x[-1]), _scale(0.0, top)
    drawn, told = [], []
    for name, values in series:
        path, pen = "", "M"
        for one, value in zip(x, values, strict=True):
            if not math.isnan(value):
                # A point between two gaps is seen by its round end.
                path += f"{pen}{across(one):.2f},{100 - up(value):.2f}" + ("h0" if pen == "M" else "")
            pen = "M" if math.isnan(value) else "L"
        known = [value for value in values if not math.isnan(value)]
        drawn.append((name, path))
        told.append(f"{name} from {known[0]:.2f} to {known[-1]:.2f}")
    return _chart(title, drawn, (x[0], x[-1]), top, told, is_share=is_share, is_filled=False)


def areas(title: str, x: Sequence[float], shares: Sequence[tuple[str, Sequence[float]]]) -> Chart:
    """Areas on top of each other, which make up all of the height."""
    across = _scale(x[0], x[-1])
    below = [0.0] * len(x)
    drawn = []
    for name, values in shares:
        above = [low + value for low, value in zip(below, values, strict=True)]
        edge = [*zip(x, above, strict=True), *reversed([*zip(x, below, strict=True)])]
        drawn.append((name, "M" + "L".join(f"{across(one):.2f},{100 - 100 * y:.2f}" for one, y in edge) + "Z"))
        below = above
    told = [f"{name} from {values[0]:.0%} to {values[-1]:.0%}" for name, values in shares]
    return _chart(title, drawn, (x[0], x[-1]), 1.0, told, is_share=True)


def histogram(title: str, groups: Sequence[tuple[str, Sequence[float]]], x_label: str) -> Chart:
    """Stacked counts, up to three kinds."""
    every = [value for _, values in groups for value in values]
    low, high = min(every), max(max(every), min(every) + 1)
    # Whole numbers: no bin may hold one more of them than its neighbour does.
    size = max(1, math.ceil((high - low + 1) / LENGTH_BINS))
    high = low + size * math.ceil((high - low + 1) / size)
    counts = [Counter((value - low) // size for value in values) for _, values in groups]
    top = max(sum(counts, Counter()).values())
    across, up = _scale(low, high), _scale(0.0, top)
    below: Counter[float] = Counter()
    drawn = []
    for (name, _), count in zip(groups, counts, strict=True):
        path = ""
        for place, number in sorted(count.items()):
            left, right = across(low + place * size), across(low + (place + 1) * size)
            path += (
                f"M{left + 0.2:.2f},{100 - up(below[place]):.2f}v{-up(number):.2f}H{right - 0.2:.2f}v{up(number):.2f}Z"
            )
        below += count
        drawn.append((name, path))
    told = [f"{len(values)} {name}, mean {sum(values) / len(values):.0f}" for name, values in groups if values]
    return _chart(title, drawn, (low, high), top, told, x_label)


def _chart(
    title: str,
    series: list[tuple[str, str]],
    across: tuple[float, float],
    top: float,
    told: Sequence[str],
    x_label: str = "item",
    *,
    is_share: bool = False,
    is_filled: bool = True,
) -> Chart:
    """With round numbers at its axes, the one across and the one from 0 to `top`."""
    return Chart(
        title,
        series,
        [(_scale(*across)(one), f"{one:,.10g}") for one in ticks(*across)],
        [(100 * one / top, f"{100 * one:g}%" if is_share else f"{one:,.10g}") for one in ticks(0.0, top)],
        x_label,
        f"{title}, by {x_label}: {'; '.join(told)}.",
        is_filled,
    )


def ticks(low: float, high: float) -> list[float]:
    """Up to six round numbers from `low` to `high`."""
    step = max(high - low, 1e-9) / 5
    power = 10.0 ** math.floor(math.log10(step))
    step = next(power * one for one in (1, 2, 2.5, 5, 10) if power * one >= step * 0.999)
    return [round(step * place, 9) for place in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _scale(low: float, high: float) -> Callable[[float], float]:
    """To percent of the way from `low` to `high`."""
    return lambda value: 100 * (value - low) / ((high - low) or 1.0)


def shown(label: str) -> str:
    """A label that any font can draw and that has an end."""
    return printable(label, LABEL_LENGTH)


def label(text: str) -> Markup:
    """The label as markup that may be broken where its words end, as names of tasks have no blanks."""
    return escape(shown(text)).replace("_", Markup("_<wbr>"))
