"""What an evaluation found: per task, per category and overall, each number with its interval.

Everything is computed from the lines of samples.jsonl (evaluation.sample_record), so that a run, a report made from its
files, and a comparison of two runs cannot disagree.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import EnvironmentSetupError
from .estimates import Estimate, Question, pass_at_k, pass_ks, share
from .records import CORRECT_THRESHOLD

logger = logging.getLogger(__name__)

Sample = Mapping[str, Any]

CUT_OFF = "length"
"""The finish_reason of a completion that the token budget ended."""


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
    pass_at: Mapping[int, Estimate]
    truncated: float
    format_failures: float
    mean_tokens: float

    def flat(self, prefix: str) -> dict[str, float]:
        """Plain numbers by key: `{prefix}accuracy`, `{prefix}accuracy_low`, ..."""
        values = {f"{prefix}unscored": float(self.unscored), f"{prefix}completions": float(self.completions)}
        estimates = {"percent_correct": self.score, "accuracy": self.accuracy, "exact": self.exact}
        estimates.update({f"pass@{k}": estimate for k, estimate in self.pass_at.items()})
        for name, estimate in estimates.items():
            if estimate is not None:
                values[f"{prefix}{name}"] = estimate.value
                values[f"{prefix}{name}_low"], values[f"{prefix}{name}_high"] = estimate.low, estimate.high
        if self.score is not None:
            values[f"{prefix}truncated"] = self.truncated
            values[f"{prefix}format_failures"] = self.format_failures
            values[f"{prefix}completion_tokens"] = self.mean_tokens
        return values


@dataclass(frozen=True)
class EvalResults:
    """All of an evaluation, tasks sorted by name."""

    overall: ScopeResult
    categories: tuple[ScopeResult, ...]
    tasks: tuple[ScopeResult, ...]
    unscored_reasons: Mapping[str, int]

    def metrics(self, *, with_tasks: bool = False) -> dict[str, float]:
        """`eval/...` and `eval/<category>/...`; with tasks also `eval/<category>/<task>/...`."""
        values = self.overall.flat("eval/")
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
    )


def scope(name: str, category: str, samples: Sequence[Sample]) -> ScopeResult:
    """The result of some samples."""
    asked = by_question(samples)
    scored = [sample for sample in samples if sample.get("score") is not None]
    count = max(1, len(scored))
    tokens = [float(sample["num_completion_tokens"]) for sample in scored if sample.get("num_completion_tokens")]
    return ScopeResult(
        name=name,
        category=category,
        questions=len(asked),
        completions=len(scored),
        unscored=len(samples) - len(scored),
        score=share(as_questions(asked, lambda value: value)),
        accuracy=share(as_questions(asked, is_correct)),
        exact=share(as_questions(asked, lambda value: float(value >= 1.0))),
        pass_at=_pass_at(asked),
        truncated=sum(sample.get("finish_reason") == CUT_OFF for sample in scored) / count,
        format_failures=sum(sample.get("outcome") == "format_failure" for sample in scored) / count,
        mean_tokens=sum(tokens) / len(tokens) if tokens else 0.0,
    )


def is_correct(value: float) -> float:
    return float(value >= CORRECT_THRESHOLD)


def question_key(sample: Sample) -> tuple[str, str]:
    """What makes two samples answers to one question: the task and the item, by index, seed and text."""
    return str(sample.get("task")), f"{sample.get('index')}/{sample.get('seed')}/{sample.get('question_digest')}"


def by_question(samples: Iterable[Sample]) -> dict[tuple[str, str], list[Sample]]:
    """The samples of each question, unscored ones included."""
    asked: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        asked.setdefault(question_key(sample), []).append(sample)
    return asked


def as_questions(
    asked: Mapping[tuple[str, str], Sequence[Sample]], value: Callable[[float], float], field: str = "score"
) -> list[Question]:
    """The scored completions of each question, mapped by `value`; stratified by task."""
    return [
        Question(key[0], tuple(value(float(sample[field])) for sample in members if sample.get("score") is not None))
        for key, members in asked.items()
    ]


def _pass_at(asked: Mapping[tuple[str, str], Sequence[Sample]]) -> dict[int, Estimate]:
    """pass@k over the questions that have at least k scored completions; nothing if none was asked more than once."""
    questions = [question for question in as_questions(asked, is_correct) if question.values]
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
