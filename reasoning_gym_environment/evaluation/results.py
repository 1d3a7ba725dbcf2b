"""What an evaluation found: per task, per category and overall, each number with its interval.

    samples.jsonl (see runner) ── summarise ──> EvalResults ──> metrics, log line, tables

Everything is computed from the sample lines, so that a run, a report made from its files, and a comparison of two runs
cannot disagree.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.console import Console
from rich.table import Table

from ..errors import EnvironmentSetupError
from ..records import CORRECT_THRESHOLD, Outcome
from .statistics import Estimate, Question, mean_of, pass_at_k, pass_ks, share

if TYPE_CHECKING:
    import wandb

logger = logging.getLogger(__name__)

Sample: TypeAlias = Mapping[str, Any]
Measure: TypeAlias = Callable[[Sample], "float | None"]
"""What of a scored sample is averaged; None where it is not known."""

Columns: TypeAlias = "dict[str, Callable[[ScopeResult], str]]"
"""Heading -> what stands below it, for one row."""

TASK_TABLE = "eval/tasks"
"""Where wandb has the table of `task_table`."""

WIDE = 140
"""Columns of text that one table of all numbers needs."""

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
        estimates = {
            "percent_correct": self.score,
            "accuracy": self.accuracy,
            "exact": self.exact,
            **{f"pass@{k}": estimate for k, estimate in self.pass_at.items()},
            "truncated": self.truncated,
            "format_failures": self.format_failures,
            "completion_tokens": self.mean_tokens,
        }
        values = {f"{prefix}unscored": float(self.unscored), f"{prefix}completions": float(self.completions)}
        for name, one in estimates.items():
            if one is not None:
                values |= {
                    f"{prefix}{name}": one.value,
                    f"{prefix}{name}_low": one.low,
                    f"{prefix}{name}_high": one.high,
                }
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
    return (
        f"Evaluation {manifest}, {overall.completions} completions of {overall.questions} questions: mean score "
        f"{_cell(overall.score, '.4f')}, accuracy {_cell(overall.accuracy, has_limits=True)}, "
        f"exact {_cell(overall.exact, has_limits=True)}"
        f"{f', {overall.unscored} unscored' if overall.unscored else ''}"
        f"{f', {lost} wrong because no verifier could finish the answer' if lost else ''}."
    )


def print_table(results: EvalResults, described: Mapping[str, Any]) -> None:
    """Tasks by category, categories and overall, on standard output; as two tables if the terminal is narrow."""
    console = Console()
    if not console.is_terminal:
        # Redirected output is as wide as it needs to be.
        console = Console(width=WIDE)
    main: Columns = {
        "score": lambda one: _cell(one.score, ".3f"),
        "accuracy (95%)": lambda one: _cell(one.accuracy, has_limits=True),
        "exact": lambda one: _cell(one.exact),
        "questions": lambda one: str(one.questions),
        "unscored": lambda one: str(one.unscored or ""),
    }
    more: Columns = {
        **{f"pass@{k}": partial(_pass_cell, k) for k in results.overall.pass_at if k > 1},
        "no format": lambda one: _cell(one.format_failures),
        "cut off": lambda one: _cell(one.truncated),
        "tokens": lambda one: _cell(one.mean_tokens, ".0f"),
    }
    for columns in [{**main, **more}] if console.width >= WIDE else [main, more]:
        console.print(_table(results, described, columns))
    console.print(_caption(described))


def _table(results: EvalResults, described: Mapping[str, Any], columns: Columns) -> Table:
    title = (
        "Evaluation {manifest}: reasoning-gym {reasoning_gym_version}, difficulty {eval_complexity}, seed {eval_seed}"
    )
    table = Table("", title=title.format(**described), padding=(0, 1, 0, 0))
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for category in results.categories:
        table.add_row(category.name, *(cell(category) for cell in columns.values()), style="bold")
        for task in results.tasks:
            if task.category == category.name:
                table.add_row(f"  {task.name}", *(cell(task) for cell in columns.values()))
        table.add_section()
    table.add_row("overall", *(cell(results.overall) for cell in columns.values()), style="bold")
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


def _cell(estimate: Estimate | None, form: str = ".1%", *, has_limits: bool = False) -> str:
    if estimate is None:
        return "-"
    limits = f" [{estimate.low:{form}}, {estimate.high:{form}}]" if has_limits else ""
    return f"{estimate.value:{form}}{limits}"


def _pass_cell(k: int, one: ScopeResult) -> str:
    return _cell(one.pass_at.get(k))


def task_table(results: EvalResults, manifest: str) -> wandb.Table:
    """The numbers of `ScopeResult.flat`, one row per task; those that do not exist are None."""
    # Here, for it takes a second to import, and results are also read where nothing is logged.
    import wandb

    about = [{"task": one.name, "category": one.category, "questions": one.questions} for one in results.tasks]
    rows = [{**row, **one.flat(""), "manifest": manifest} for row, one in zip(about, results.tasks, strict=True)]
    columns = list({name: None for row in rows for name in row})
    return wandb.Table(columns=columns, data=[[row.get(name) for name in columns] for row in rows])
