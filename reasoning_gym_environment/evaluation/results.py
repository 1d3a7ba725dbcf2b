"""What an evaluation found: per task, per category and overall, each number with its interval.

    samples.jsonl (see runner) ── summarise ──> EvalResults ──> log line, table, wandb table, metrics

Everything is computed from the sample lines, so that a run, a report made from its files, and a comparison of two runs
cannot disagree.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import EnvironmentSetupError
from ..records import CORRECT_THRESHOLD, Outcome
from .statistics import Estimate, Question, mean_of, pass_at_k, pass_ks, share

if TYPE_CHECKING:
    import wandb

logger = logging.getLogger(__name__)

Sample: TypeAlias = Mapping[str, Any]
Measure: TypeAlias = Callable[[Sample], "float | None"]
"""What of a scored sample is averaged; None where it is not known."""

TASK_TABLE = "eval/tasks"
"""Where wandb has the table of `task_table`."""

WIDE = 118
"""Columns of text that the whole table needs; a narrower terminal gets the main numbers."""

CUT_OFF = "length"
"""The finish_reason of a completion that the token budget ended."""

FORMAT_FAILURE = Outcome.FORMAT_FAILURE.value

NO_VERDICT = (Outcome.TIMEOUT, Outcome.MEMORY)
"""Outcomes that score 0 in an evaluation because the answer was too much for its verifier."""

SCORED_OUTCOMES = tuple(outcome for outcome in Outcome if outcome.is_scored) + NO_VERDICT


@dataclass(frozen=True)
class ScopeResult:
    """One task, one category, or everything. Shares are of scored completions; `pass_at` has k -> estimate."""

    name: str
    category: str
    questions: int
    completions: int
    unscored: int
    score: Estimate | None
    accuracy: Estimate | None
    exact: Estimate | None
    """Of full credit; `accuracy` and `pass_at` count a score of 0.5 and more."""
    pass_at: Mapping[int, Estimate]
    truncated: Estimate | None
    format_failures: Estimate | None
    mean_tokens: Estimate | None

    def flat(self, prefix: str) -> dict[str, float]:
        """Plain numbers by key: `{prefix}accuracy`, `{prefix}accuracy_low`, ...; an infinite limit is left out."""
        values = {f"{prefix}unscored": float(self.unscored), f"{prefix}completions": float(self.completions)}
        estimates = {
            "percent_correct": self.score,
            "accuracy": self.accuracy,
            "exact": self.exact,
            **{f"pass@{k}": estimate for k, estimate in self.pass_at.items()},
            "truncated": self.truncated,
            "format_failures": self.format_failures,
            "completion_tokens": self.mean_tokens,
        }
        for name, estimate in estimates.items():
            if estimate is not None:
                values[f"{prefix}{name}"] = estimate.value
                values[f"{prefix}{name}_low"], values[f"{prefix}{name}_high"] = estimate.low, estimate.high
        return {key: value for key, value in values.items() if math.isfinite(value)}


@dataclass(frozen=True)
class EvalResults:
    """All of an evaluation, tasks sorted by name."""

    overall: ScopeResult
    categories: tuple[ScopeResult, ...]
    tasks: tuple[ScopeResult, ...]
    unscored_reasons: Mapping[str, int]
    outcomes: Mapping[str, int]
    """How many scored completions came to what; `timeout` and `memory` are wrong ones that no verifier could finish."""

    @property
    def without_verdict(self) -> dict[str, int]:
        """Outcome -> completions that count as wrong because no verifier could finish their answer."""
        return {one.value: self.outcomes[one.value] for one in NO_VERDICT if self.outcomes.get(one.value)}

    def metrics(self, *, with_tasks: bool = False) -> dict[str, float]:
        """`eval/...`, `eval/outcome/...` and `eval/<category>/...`; with tasks also `eval/<category>/<task>/...`."""
        values = self.overall.flat("eval/")
        values.update({f"eval/outcome/{one.value}": float(self.outcomes.get(one.value, 0)) for one in SCORED_OUTCOMES})
        for category in self.categories:
            values.update(category.flat(f"eval/{category.name}/"))
        for task in self.tasks if with_tasks else ():
            values.update(task.flat(f"eval/{task.category}/{task.name}/"))
        return values


def summarise(samples: Sequence[Sample]) -> EvalResults:
    """Raises EnvironmentSetupError if no completion could be scored at all."""
    reasons = Counter(str(sample.get("unscored_reason")) for sample in samples if sample.get("score") is None)
    if reasons:
        logger.warning(
            "%d of %d evaluation completions are unscored: %s.",
            sum(reasons.values()),
            len(samples),
            "; ".join(f"{reason} ({count})" for reason, count in reasons.most_common(3)),
        )
    if sum(reasons.values()) == len(samples):
        raise EnvironmentSetupError(
            f"Evaluation scored none of {len(samples)} completions"
            + (f" ({reasons.most_common(1)[0][0]})." if reasons else ": the evaluation set is empty.")
        )
    return EvalResults(
        overall=scope("overall", "", samples),
        categories=tuple(scope(name, name, members) for name, members in _grouped(samples, "category")),
        tasks=tuple(
            scope(name, str(members[0].get("category")), members) for name, members in _grouped(samples, "task")
        ),
        unscored_reasons=dict(reasons),
        outcomes=Counter(str(sample.get("outcome")) for sample in samples if sample.get("score") is not None),
    )


def scope(name: str, category: str, samples: Sequence[Sample]) -> ScopeResult:
    """The result of some samples."""
    asked = by_question(samples)
    scored = sum(sample.get("score") is not None for sample in samples)
    return ScopeResult(
        name=name,
        category=category,
        questions=len(asked),
        completions=scored,
        unscored=len(samples) - scored,
        score=share(as_questions(asked, score_of)),
        accuracy=share(as_questions(asked, correct)),
        exact=share(as_questions(asked, exact)),
        pass_at=_pass_at(asked),
        truncated=share(as_questions(asked, _truncated)),
        format_failures=share(as_questions(asked, lambda sample: float(sample.get("outcome") == FORMAT_FAILURE))),
        mean_tokens=mean_of(as_questions(asked, _tokens)),
    )


def is_correct(value: float) -> float:
    return float(value >= CORRECT_THRESHOLD)


def score_of(sample: Sample) -> float:
    return float(sample["score"])


def correct(sample: Sample) -> float:
    return is_correct(score_of(sample))


def exact(sample: Sample) -> float:
    return float(score_of(sample) >= 1.0)


def _truncated(sample: Sample) -> float | None:
    reason = sample.get("finish_reason")
    return None if reason is None else float(reason == CUT_OFF)


def _tokens(sample: Sample) -> float | None:
    tokens = sample.get("num_completion_tokens")
    return None if tokens is None else float(tokens)


def by_question(samples: Iterable[Sample]) -> dict[tuple[str, str], list[Sample]]:
    """The samples of each question, unscored ones included, by task and item, which is its index, seed and text."""
    asked: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        item = f"{sample.get('index')}/{sample.get('seed')}/{sample.get('question_digest')}"
        asked.setdefault((str(sample.get("task")), item), []).append(sample)
    return asked


def as_questions(asked: Mapping[tuple[str, str], Sequence[Sample]], value: Measure) -> list[Question]:
    """The `value` of each question's scored completions, where there is one; stratified by task."""
    scored = {key: [one for one in members if one.get("score") is not None] for key, members in asked.items()}
    return [
        Question(task, tuple(found for one in members if (found := value(one)) is not None))
        for (task, _), members in scored.items()
    ]


def _pass_at(asked: Mapping[tuple[str, str], Sequence[Sample]]) -> dict[int, Estimate]:
    """pass@k over the questions that have at least k scored completions; nothing if none was asked more than once."""
    questions = [question for question in as_questions(asked, correct) if question.values]
    most = max((len(question.values) for question in questions), default=0)
    found: dict[int, Estimate] = {}
    for k in pass_ks(most) if most > 1 else ():
        chances = [
            Question(question.stratum, (pass_at_k(len(question.values), int(sum(question.values)), k),))
            for question in questions
            if len(question.values) >= k
        ]
        estimate = share(chances)
        if estimate is not None:
            found[k] = estimate
    return found


def _grouped(samples: Iterable[Sample], field: str) -> list[tuple[str, list[Sample]]]:
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(str(sample.get(field)), []).append(sample)
    return sorted(groups.items())


# --- for a person


def result_line(results: EvalResults, manifest: str) -> str:
    """The log line of an evaluation."""
    overall = results.overall
    lost = " and ".join(f"{count} ({name})" for name, count in results.without_verdict.items())
    # summarise refuses a set without scores.
    assert overall.score is not None and overall.accuracy is not None and overall.exact is not None
    return (
        f"Evaluation {manifest}, {overall.completions} completions of {overall.questions} questions: mean score "
        f"{overall.score.value:.4f}, accuracy {_with_interval(overall.accuracy)}, "
        f"exact {_with_interval(overall.exact)}"
        f"{f', {overall.unscored} unscored' if overall.unscored else ''}"
        f"{f', {lost} wrong because no verifier could finish the answer' if lost else ''}."
    )


def print_table(results: EvalResults, described: Mapping[str, Any]) -> None:
    """Tasks by category, categories and overall, on standard output."""
    console = Console()
    if not console.is_terminal:
        # A redirected table keeps its columns, whatever width the terminal would have.
        console = Console(width=WIDE + 22)
    console.print(results_table(results, described, narrow=console.width < WIDE))


def results_table(results: EvalResults, described: Mapping[str, Any], *, narrow: bool = False) -> Table:
    """The same as a Rich table; a narrow one leaves out pass@k, lengths and failures."""
    ks = [] if narrow else [k for k in sorted(results.overall.pass_at) if k > 1]
    table = Table(
        title=f"Evaluation {described['manifest']}: reasoning-gym {described['reasoning_gym_version']}, difficulty "
        f"{described['eval_complexity']}, seed {described['eval_seed']}",
        caption=_caption(described),
        caption_justify="left",
        padding=(0, 0 if narrow else 1),
    )
    middle = [] if narrow else [*(f"pass@{k}" for k in ks), "no format", "cut off", "tokens"]
    for number, column in enumerate(["", "score", "accuracy (95%)", "exact", *middle, "questions", "unscored"]):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)

    def add(scope: ScopeResult, style: str = "", indent: str = "") -> None:
        shown = [indent + scope.name, *_cells(scope), *([] if narrow else _more_cells(scope, ks))]
        shown += [str(scope.questions), str(scope.unscored or "")]
        table.add_row(*(Text(cell, style=style) for cell in shown))

    for category in results.categories:
        add(category, "bold")
        for task in results.tasks:
            if task.category == category.name:
                add(task, indent="  ")
        table.add_section()
    add(results.overall, "bold")
    return table


def _caption(described: Mapping[str, Any]) -> str:
    note = (
        "Accuracy: a score of 0.5 or more; exact: full credit. Intervals: 95%, clustered by question; "
        "Wilson's where there are few. No format: no answer could be read."
    )
    if described.get("hold_out") == "published":
        note += " The questions are those that come, as the published results had them: training may have drawn some."
    left_out = described.get("left_out") or {}
    reasons = "; ".join(f"{task} ({reason})" for task, reason in left_out.items())
    return f"{note} Left out: {reasons}." if reasons else note


def _cells(scope: ScopeResult) -> list[str]:
    if scope.score is None or scope.accuracy is None:
        return ["-", "-", "-"]
    return [f"{scope.score.value:.3f}", _with_interval(scope.accuracy), _share(scope.exact)]


def _more_cells(scope: ScopeResult, ks: list[int]) -> list[str]:
    passed = [_share(scope.pass_at.get(k)) for k in ks]
    failures, cut_off = _share(scope.format_failures), _share(scope.truncated)
    return [*passed, failures, cut_off, f"{scope.mean_tokens.value:.0f}" if scope.mean_tokens else "-"]


def _share(estimate: Estimate | None) -> str:
    return "-" if estimate is None else f"{estimate.value:.1%}"


def _with_interval(estimate: Estimate) -> str:
    return f"{estimate.value:.1%} [{estimate.low:.1%}, {estimate.high:.1%}]"


def task_table(results: EvalResults, manifest: str) -> wandb.Table:
    """One row per task; numbers that do not exist are None."""
    # Here, for it takes a second to import, and results are also read where nothing is logged.
    import wandb

    rows = [_row(task, manifest) for task in results.tasks]
    return wandb.Table(columns=list(rows[0]), data=[list(row.values()) for row in rows])


def _row(task: ScopeResult, manifest: str) -> dict[str, Any]:
    values = task.flat("")
    shares = ("accuracy", "accuracy_low", "accuracy_high", "exact", "truncated", "format_failures")
    return {
        "task": task.name,
        "category": task.category,
        "questions": task.questions,
        "completions": task.completions,
        "unscored": task.unscored,
        "mean_score": values.get("percent_correct"),
        **{name: values.get(name) for name in (*shares, "completion_tokens")},
        "manifest": manifest,
    }
