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
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.table import Table

from ..errors import EnvironmentSetupError
from ..records import CORRECT_THRESHOLD, Outcome
from ..utils import terminal
from .statistics import Estimate, Question, mean_of, pass_at_k, pass_ks, share

if TYPE_CHECKING:
    import wandb

logger = logging.getLogger(__name__)

Sample: TypeAlias = Mapping[str, Any]
Measure: TypeAlias = Callable[[Sample], "float | None"]
"""What of a scored sample is averaged; None where it is not known."""

TASK_TABLE = "eval/tasks"
"""Where wandb has the table of `task_table`."""

FORMAT_FAILURE = Outcome.FORMAT_FAILURE.value

NO_VERDICT = (Outcome.TIMEOUT, Outcome.MEMORY)
"""Outcomes that score 0 in an evaluation because the answer was too much for its verifier."""

SCORED_OUTCOMES = tuple(outcome for outcome in Outcome if outcome.is_scored) + NO_VERDICT


@dataclass(frozen=True)
class ScopeResult:
    """One task, one category, or everything; `estimates` are of scored completions, by the names of their metrics.

    percent_correct is the mean score, accuracy the share of scores of 0.5 and more (so do pass@2, pass@4 ... count),
    exact that of full credit. What is not known is missing.
    """

    name: str
    category: str
    questions: int
    completions: int
    unscored: int
    estimates: Mapping[str, Estimate]

    @property
    def accuracy(self) -> Estimate | None:
        return self.estimates.get("accuracy")

    @property
    def exact(self) -> Estimate | None:
        return self.estimates.get("exact")

    def flat(self, prefix: str) -> dict[str, float]:
        """Plain numbers by key: `{prefix}accuracy`, `{prefix}accuracy_low`, ...; an infinite limit is left out."""
        values = {f"{prefix}unscored": float(self.unscored), f"{prefix}completions": float(self.completions)}
        for name, one in self.estimates.items():
            values[f"{prefix}{name}"] = one.value
            values |= {f"{prefix}{name}_low": one.low, f"{prefix}{name}_high": one.high}
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
    most = "; ".join(f"{reason} ({count})" for reason, count in reasons.most_common(3))
    if reasons.total() == len(samples):
        raise EnvironmentSetupError(
            f"Evaluation scored none of {len(samples)} completions: {most or 'none was asked'}."
        )
    if reasons:
        logger.warning("%d of %d evaluation completions are unscored: %s.", reasons.total(), len(samples), most)
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
    estimates = {
        "percent_correct": share(as_questions(asked, score_of)),
        "accuracy": share(as_questions(asked, correct)),
        "exact": share(as_questions(asked, exact)),
        **_pass_at(as_questions(asked, correct)),
        "truncated": share(as_questions(asked, _truncated)),
        "format_failures": share(as_questions(asked, lambda sample: float(sample.get("outcome") == FORMAT_FAILURE))),
        "completion_tokens": mean_of(as_questions(asked, lambda sample: sample.get("num_completion_tokens"))),
    }
    known = {name: one for name, one in estimates.items() if one is not None}
    return ScopeResult(name, category, len(asked), scored, len(samples) - scored, known)


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
    return None if reason is None else float(reason == "length")


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


def _pass_at(questions: Sequence[Question]) -> dict[str, Estimate | None]:
    """Over the questions that have at least k scored completions; nothing if none was asked more than once."""
    most = max((len(question.values) for question in questions), default=0)
    found = {}
    for k in pass_ks(most) if most > 1 else ():
        enough = [(one.stratum, len(one.values), int(sum(one.values))) for one in questions if len(one.values) >= k]
        found[f"pass@{k}"] = share(Question(stratum, (pass_at_k(n, right, k),)) for stratum, n, right in enough)
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
    shares = ", ".join(f"{name} {_shown(name, one, has_limits=True)}" for name, one in overall.estimates.items())
    lost = " and ".join(f"{count} ({name})" for name, count in results.without_verdict.items())
    return (
        f"Evaluation {manifest}, {overall.completions} completions of {overall.questions} questions: {shares}; "
        f"{overall.unscored} unscored{f', {lost} wrong because no verifier could finish the answer' if lost else ''}."
    )


def print_table(results: EvalResults, described: Mapping[str, Any]) -> None:
    """Tasks by category, categories and overall, on standard output."""
    title = (
        "Evaluation {manifest}: reasoning-gym {reasoning_gym_version}, difficulty {eval_complexity}, seed {eval_seed}"
    )
    table = Table("", title=title.format(**described), padding=(0, 1, 0, 0))
    names = list(results.overall.estimates)
    for name in (*names, "questions", "unscored"):
        table.add_column(name, justify="right")

    def add(one: ScopeResult, head: str, style: str | None = None) -> None:
        cells = [_shown(name, one.estimates.get(name), has_limits=name == "accuracy") for name in names]
        table.add_row(head, *cells, str(one.questions), str(one.unscored or ""), style=style)

    for category in results.categories:
        add(category, category.name, "bold")
        for task in results.tasks:
            if task.category == category.name:
                add(task, f"  {task.name}")
        table.add_section()
    add(results.overall, "overall", "bold")
    terminal.print_table(console := terminal.Output(), table)
    console.print(
        "percent_correct: the mean score; accuracy: a score of 0.5 or more; exact: full credit; format_failures: no "
        "answer could be read. Intervals: 95%, clustered by question; Wilson's where there are few."
    )
    if described.get("hold_out") == "published":
        console.print("The questions are those of the published results: training may have drawn some.")
    for task, reason in (described.get("left_out") or {}).items():
        console.print(f"Left out: {task} ({reason}).")


def _shown(name: str, estimate: Estimate | None, *, has_limits: bool) -> str:
    if estimate is None:
        return "-"
    form = ".0f" if name == "completion_tokens" else ".1%"
    limits = f" [{estimate.low:{form}}, {estimate.high:{form}}]" if has_limits else ""
    return f"{estimate.value:{form}}{limits}"


def task_table(results: EvalResults, manifest: str) -> wandb.Table:
    """The numbers of `ScopeResult.flat`, one row per task; those that do not exist are None."""
    # Here, for it takes a second to import, and results are also read where nothing is logged.
    import wandb

    about = [{"task": one.name, "category": one.category, "questions": one.questions} for one in results.tasks]
    rows = [{**row, **one.flat(""), "manifest": manifest} for row, one in zip(about, results.tasks, strict=True)]
    columns = list({name: None for row in rows for name in row})
    return wandb.Table(columns=columns, data=[[row.get(name) for name in columns] for row in rows])
