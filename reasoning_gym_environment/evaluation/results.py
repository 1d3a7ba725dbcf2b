"""Results of an evaluation: per task, per category and overall, each number with its interval.

    samples.jsonl (see runner.py) ── summarise ──> EvalResults ──> metrics, log line, tables

All results are computed from the lines of samples. Therefore a run, a report on its files, and a comparison of two runs
cannot disagree.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from rich.table import Table

from ..errors import EnvironmentSetupError
from ..records import CORRECT_THRESHOLD, UNREADABLE, Outcome
from ..storage.lines import UNKNOWN
from ..utils import terminal
from .statistics import Estimate, Question, mean_of, paired_difference, pass_at_k, pass_ks, share

EvalSample: TypeAlias = Mapping[str, Any]
Measure: TypeAlias = Callable[[EvalSample], "float | None"]
"""A function that returns the number to average for a scored sample, or None if the sample lacks it."""

QuestionKey: TypeAlias = tuple[str, str]
"""A task, and one of its items."""

MEAN_SCORE = "mean_score"
"""Name of the mean score. The original calls it percent_correct, so metrics have it under both names."""

RIGHT_ANSWERS = (MEAN_SCORE, "accuracy", "exact", "pass@1")
"""Rates of right answers, which are often equal. A sentence names equal rates together."""


NO_VERDICT = (Outcome.TIMEOUT, Outcome.MEMORY)
"""Outcomes that score 0 in an evaluation because the answer was too much for its verifier."""

PROMPT_TOO_LONG = "prompt_too_long"
OWN = "own"
"""The difficulty of the questions of a subclass, which need not be held out."""

MORE_ROOM = "raise env.max_token_length, or the server's context length"
"""The remedy for questions whose prompt leaves no room for a completion."""

SCORED_OUTCOMES = [outcome for outcome in Outcome if outcome.is_scored or outcome in NO_VERDICT]


@dataclass(frozen=True)
class ScopeResult:
    """The result of one task, of one category, or of everything.

    `estimates` covers scored completions, by metric name. `mean_score` is the mean credit, which follows
    `partial_credit`. `accuracy` is the share of scores of at least 0.5 (pass@2, pass@4 and so on use the same
    threshold), and `exact` the share of full scores. Estimates without any value are missing.
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
        """Plain numbers by name: `{prefix}accuracy`, `{prefix}accuracy_low`, and so on, without infinite limits."""
        estimates = dict(self.estimates)
        if MEAN_SCORE in estimates:
            estimates["percent_correct"] = estimates[MEAN_SCORE]
        values = {
            "unscored": float(self.unscored),
            "completions": float(self.completions),
        }
        for name, estimate in estimates.items():
            values[name] = estimate.value
            values[f"{name}_low"] = estimate.low
            values[f"{name}_high"] = estimate.high
        return {f"{prefix}{name}": value for name, value in values.items() if math.isfinite(value)}


@dataclass(frozen=True)
class EvalResults:
    """The results of an evaluation. `categories` and `tasks` are sorted by name."""

    overall: ScopeResult
    categories: tuple[ScopeResult, ...]
    tasks: tuple[ScopeResult, ...]
    unscored_reasons: Mapping[str, int]
    outcomes: Mapping[str, int]
    """Scored completions by outcome. `timeout` and `memory` are wrong answers that no verifier could finish."""

    @property
    def without_verdict(self) -> dict[str, int]:
        """Number of completions, by outcome, that count as wrong because no verifier could finish their answer."""
        counts = {outcome.value: self.outcomes.get(outcome.value, 0) for outcome in NO_VERDICT}
        return {outcome: count for outcome, count in counts.items() if count}

    def metrics(self, *, with_tasks: bool = False) -> dict[str, float]:
        """`eval/...`, `eval/outcome/...` and `eval/<category>/...`, and with tasks `eval/<category>/<task>/...`."""
        values = self.overall.flat("eval/")
        for outcome in SCORED_OUTCOMES:
            values[f"eval/outcome/{outcome.value}"] = float(self.outcomes.get(outcome.value, 0))
        for category in self.categories:
            values.update(category.flat(f"eval/{category.name}/"))
        if with_tasks:
            for task in self.tasks:
                values.update(task.flat(f"eval/{task.category}/{task.name}/"))
        return values


def summarise(samples: Sequence[EvalSample]) -> EvalResults:
    """Raises EnvironmentSetupError if no completion has a score."""
    scored = [sample for sample in samples if _is_scored(sample)]
    reasons = Counter(str(sample.get("unscored_reason")) for sample in samples if not _is_scored(sample))
    if not scored:
        detail = _reasons_in_words(reasons) or "none was requested"
        raise EnvironmentSetupError(f"Evaluation scored none of {len(samples)} completions: {detail}.")
    categories = []
    for name, members in grouped(samples, "category"):
        categories.append(scope(name, name, members))
    tasks = []
    for name, members in grouped(samples, "task"):
        category = str(members[0].get("category"))
        tasks.append(scope(name, category, members))
    return EvalResults(
        overall=scope("overall", "", samples),
        categories=tuple(categories),
        tasks=tuple(tasks),
        unscored_reasons=dict(reasons.most_common()),
        outcomes=Counter(str(sample.get("outcome")) for sample in scored),
    )


def scope(name: str, category: str, samples: Sequence[EvalSample]) -> ScopeResult:
    """The result of these samples."""
    groups = by_question(samples)
    scored = sum(_is_scored(sample) for sample in samples)
    accuracies = as_questions(groups, correct)
    estimates = {
        MEAN_SCORE: share(as_questions(groups, credit_of)),
        "accuracy": share(accuracies),
        "exact": share(as_questions(groups, exact)),
        **_pass_at(accuracies),
        "truncated": share(as_questions(groups, _truncated)),
        "format_failures": share(as_questions(groups, _format_failed)),
        "completion_tokens": mean_of(as_questions(groups, _completion_tokens)),
    }
    known = {metric: estimate for metric, estimate in estimates.items() if estimate is not None}
    return ScopeResult(
        name=name,
        category=category,
        questions=len(groups),
        completions=scored,
        unscored=len(samples) - scored,
        estimates=known,
    )


# --- measures of a scored sample


def is_correct(value: float) -> float:
    return float(value >= CORRECT_THRESHOLD)


def score_of(sample: EvalSample) -> float:
    return float(sample["score"])


def credit_of(sample: EvalSample) -> float:
    """The contribution of the completion to the mean score. Results of other programs have only a score."""
    credit = sample.get("credit")
    return score_of(sample) if credit is None else float(credit)


def correct(sample: EvalSample) -> float:
    return is_correct(score_of(sample))


def exact(sample: EvalSample) -> float:
    return float(score_of(sample) >= 1.0)


def _truncated(sample: EvalSample) -> float | None:
    reason = sample.get("finish_reason")
    return None if reason is None else float(reason == "length")


def _format_failed(sample: EvalSample) -> float | None:
    """None for a sample of another program, which has no outcome."""
    outcome = sample.get("outcome")
    return None if outcome in (None, UNKNOWN) else float(outcome == UNREADABLE)


def _completion_tokens(sample: EvalSample) -> float | None:
    return sample.get("num_completion_tokens")


# --- samples by question


def _is_scored(sample: EvalSample) -> bool:
    return sample.get("score") is not None


def by_question(samples: Iterable[EvalSample]) -> dict[QuestionKey, list[EvalSample]]:
    """The samples of each question, including unscored samples. The index, the seed and the text identify an item."""
    groups: dict[QuestionKey, list[EvalSample]] = {}
    for sample in samples:
        task = str(sample.get("task"))
        parts = [str(sample.get(name)) for name in ("index", "seed", "question_digest")]
        item = "/".join(parts)
        groups.setdefault((task, item), []).append(sample)
    return groups


def as_questions(groups: Mapping[QuestionKey, Sequence[EvalSample]], measure: Measure) -> list[Question]:
    """The `measure` of the scored completions of each question, stratified by task, without missing values."""
    questions = []
    for (task, _), members in groups.items():
        values = [measure(sample) for sample in members if _is_scored(sample)]
        known = tuple(value for value in values if value is not None)
        questions.append(Question(task, known))
    return questions


def values_by_question(samples: Iterable[EvalSample], measure: Measure) -> dict[QuestionKey, Question]:
    """The questions that have a value of the measure, by their key."""
    groups = by_question(samples)
    questions = as_questions(groups, measure)
    return {key: question for key, question in zip(groups, questions, strict=True) if question.values}


def _pass_at(questions: Sequence[Question]) -> dict[str, Estimate | None]:
    """pass@k over the questions with at least k scored completions. Empty if no question has two."""
    most = max((len(question.values) for question in questions), default=0)
    if most < 2:
        return {}
    estimates = {}
    for k in pass_ks(most):
        chances = []
        for question in questions:
            completions = len(question.values)
            if completions >= k:
                chance = pass_at_k(completions, int(sum(question.values)), k)
                chances.append(Question(question.stratum, (chance,)))
        estimates[f"pass@{k}"] = share(chances)
    return estimates


def grouped(samples: Iterable[EvalSample], field: str) -> list[tuple[str, list[EvalSample]]]:
    """The samples by the text of this field, sorted by it."""
    groups: dict[str, list[EvalSample]] = {}
    for sample in samples:
        groups.setdefault(str(sample.get(field)), []).append(sample)
    return sorted(groups.items())


# --- text and tables


def difference_words(step: int, before: Mapping[Any, Question], after: Mapping[Any, Question]) -> str:
    """How an evaluation differs from the evaluation at `step`, such as `exact +3.1 points [0.4, 5.8] since step 0`."""
    difference = paired_difference(before, after)
    if difference is None:
        return f"no question in common with step {step}"
    mean, low, high = (f"{100 * value:+.1f}" for value in (difference.value, difference.low, difference.high))
    return f"exact {mean} points [{low}, {high}] since step {step}"


def result_line(results: EvalResults, manifest: str) -> str:
    """The log line of an evaluation."""
    overall = results.overall
    names_of_equal: dict[tuple[bool | str, str], list[str]] = {}
    for name, estimate in overall.estimates.items():
        value = _shown(name, estimate, has_limits=True)
        names_of_equal.setdefault((name in RIGHT_ANSWERS or name, value), []).append(name)
    measures = [f"{' = '.join(names)} {value}" for (_, value), names in names_of_equal.items()]
    line = f"Evaluation {manifest}, {overall.completions} completions of {overall.questions} questions"
    line += f": {', '.join(measures)}; {overall.unscored} unscored"
    if overall.unscored:
        line += f": {_reasons_in_words(results.unscored_reasons)}"
    if results.without_verdict:
        counts = [f"{count} ({outcome})" for outcome, count in results.without_verdict.items()]
        line += f", {' and '.join(counts)} wrong because no verifier could finish the answer"
    verifier_errors = results.outcomes.get(Outcome.VERIFIER_ERROR.value, 0)
    if verifier_errors:
        line += f", {verifier_errors} wrong because their verifier raised an error"
    return f"{line}."


def _reasons_in_words(reasons: Mapping[str, int]) -> str:
    """The most frequent reasons of unscored completions, with a remedy if they have one."""
    most_frequent = [f"{reason} ({count})" for reason, count in Counter(reasons).most_common(3)]
    words = "; ".join(most_frequent)
    if PROMPT_TOO_LONG in reasons:
        words += f". For {PROMPT_TOO_LONG}, {MORE_ROOM}"
    return words


def print_table(results: EvalResults, described: Mapping[str, Any]) -> None:
    """Print tasks by category, categories and overall to standard output."""
    title = (
        "Evaluation {manifest}: reasoning-gym {reasoning_gym_version}, difficulty {eval_complexity}, seed {eval_seed}"
    )
    table = Table("", title=title.format(**described), padding=(0, 1, 0, 0))
    names = list(results.overall.estimates)
    for name in [*names, "questions", "unscored"]:
        table.add_column(name, justify="right")
    for category in results.categories:
        table.add_row(*_cells(category, category.name, names), style="bold")
        for task in results.tasks:
            if task.category == category.name:
                table.add_row(*_cells(task, f"  {task.name}", names))
        table.add_section()
    table.add_row(*_cells(results.overall, "overall", names), style="bold")
    console = terminal.Output()
    terminal.print_table(console, table)
    console.print(
        "mean_score: the mean score; accuracy: a score of 0.5 or more; exact: full credit; format_failures: no "
        "answer could be read. Intervals: 95%, clustered by question; Wilson's if there are few questions."
    )
    if described.get("eval_complexity") == OWN:
        console.print("These are questions of a subclass. Training may have seen some.")
    for task_name, reason in (described.get("left_out") or {}).items():
        console.print(f"Left out: {task_name} ({reason}).")


def _cells(result: ScopeResult, head: str, names: Sequence[str]) -> list[str]:
    """A row of the printed table."""
    cells = [head]
    for name in names:
        cells.append(_shown(name, result.estimates.get(name), has_limits=name == "accuracy"))
    cells.append(str(result.questions))
    cells.append(str(result.unscored or ""))
    return cells


def _shown(name: str, estimate: Estimate | None, *, has_limits: bool) -> str:
    if estimate is None:
        return "-"
    form = ".0f" if name == "completion_tokens" else ".1%"
    text = f"{estimate.value:{form}}"
    if has_limits:
        text += f" [{estimate.low:{form}}, {estimate.high:{form}}]"
    return text
