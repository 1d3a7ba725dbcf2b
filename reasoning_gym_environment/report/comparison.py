"""Two evaluations question by question, one beside the published results, and what all of it comes to in words."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import EnvironmentSetupError
from ..evaluation.questions import PRESETS, changed_verifiers, preset_configs, published_scores
from ..evaluation.results import EvalResults, Measure, as_questions, by_question, correct, exact, is_correct, score_of
from ..evaluation.statistics import Estimate, Question, mean_of, paired_difference, share
from .load import ASKED, GRADED, PROCESS, Evaluation, Group, Run

CLEAR_FROM = 3
"""Questions that a clear difference takes: two that flip the same way by chance look like one, at any width."""
FEW = 20
"""Questions below which the result of one task says little: its interval is some 40 points wide."""
QUARTER = 10
"""Groups in a quarter of a run from which on its last is compared with its first."""
NAMED = 5
"""Tasks named in one sentence."""
NOTABLE = 0.1
"""Share of completions without an answer that is told beside the accuracy."""


@dataclass(frozen=True)
class DifferenceRow:
    """Second less first, in one measure or one task; `is_clear` when the interval leaves 0 out."""

    name: str
    first: Estimate
    second: Estimate
    difference: Estimate

    @property
    def is_clear(self) -> bool:
        leaves_zero_out = self.difference.low > 0 or self.difference.high < 0
        return leaves_zero_out and self.difference.questions >= CLEAR_FROM


@dataclass(frozen=True)
class Comparison:
    """A paired comparison; `unpaired` questions were scored on one side only, `notes` say what else differs.

    `tasks` differ by that in accuracy, and by `exact`, by name, in the exact rate.
    """

    first: str
    second: str
    measures: list[DifferenceRow]
    tasks: list[DifferenceRow]
    exact: dict[str, float]
    unpaired: int
    notes: list[str]


def compare(first: Evaluation, second: Evaluation) -> Comparison:
    """Raises EnvironmentSetupError unless both answered the same questions and were graded in the same way."""
    _refuse_what_cannot_be_compared(first, second)
    measures = (("accuracy", correct), ("exact", exact), ("mean score", score_of))
    rows = [row for name, value in measures if (row := _difference(name, first, second, value)) is not None]
    if not rows:
        raise EnvironmentSetupError(f"{first.name} and {second.name} have no scored question in common.")
    tasks = sorted({str(sample["task"]) for sample in first.samples})
    by_task = [row for task in tasks if (row := _difference(task, first, second, correct, task)) is not None]
    by_task.sort(key=lambda row: (-row.difference.value, row.name))
    scored = [_scored(evaluation, correct) for evaluation in (first, second)]
    return Comparison(
        first=first.name,
        second=second.name,
        measures=rows,
        tasks=by_task,
        exact={
            row.name: row.difference.value for task in tasks if (row := _difference(task, first, second, exact, task))
        },
        unpaired=len(scored[0].keys() ^ scored[1].keys()),
        notes=_notes(first, second),
    )


def _refuse_what_cannot_be_compared(first: Evaluation, second: Evaluation) -> None:
    if not first.manifest or first.manifest != second.manifest:
        raise EnvironmentSetupError(
            f"{first.name} and {second.name} did not answer the same questions: manifest {first.manifest or 'none'} "
            f"against {second.manifest or 'none'}. Evaluate both with the same eval_tasks, eval_seed, eval_complexity, "
            f"num_eval_samples_per_task and release of reasoning-gym.{_left_out_apart(first, second)}"
        )
    told = [name for name in GRADED if name in first.parameters and name in second.parameters]
    if differing := _differing(first, second, {name: name for name in told}):
        raise EnvironmentSetupError(
            f"{first.name} and {second.name} were graded differently: {differing}. Evaluate both with the same grading."
        )


def _differing(first: Evaluation, second: Evaluation, names: Mapping[str, str]) -> str:
    sides = [{name: evaluation.parameters.get(name, "unknown") for name in names} for evaluation in (first, second)]
    return ", ".join(
        f"{label} {sides[0][name]} against {sides[1][name]}"
        for name, label in names.items()
        if sides[0][name] != sides[1][name]
    )


def _notes(first: Evaluation, second: Evaluation) -> list[str]:
    """Reasons beside the models for which the two may differ."""
    notes = [
        f"{evaluation.name} does not say how it was graded ({', '.join(unknown)}): the two may differ by that alone."
        for evaluation in (first, second)
        if (unknown := [label for name, label in GRADED.items() if name not in evaluation.parameters])
    ]
    differing = _differing(first, second, ASKED)
    return [*notes, f"Not asked alike: {differing}."] if differing else notes


def _left_out_apart(first: Evaluation, second: Evaluation) -> str:
    """What only one of the two had to leave out, such as items that were not made in time."""
    sides = [evaluation.parameters.get("left_out") for evaluation in (first, second)]
    reasons = [
        {(str(task), str(reason)) for task, reason in side.items()} if isinstance(side, Mapping) else set()
        for side in sides
    ]
    apart = sorted(f"{task} ({reason})" for task, reason in reasons[0] ^ reasons[1])
    return f" Left out on one side only: {', '.join(apart)}." if apart else ""


def _scored(evaluation: Evaluation, value: Measure, task: str | None = None) -> dict[Hashable, Question]:
    asked = by_question(one for one in evaluation.samples if task is None or one["task"] == task)
    pairs = zip(asked, as_questions(asked, value), strict=True)
    return {key: question for key, question in pairs if question.values}


def _difference(
    name: str, first: Evaluation, second: Evaluation, value: Measure, task: str | None = None
) -> DifferenceRow | None:
    sides = [_scored(evaluation, value, task) for evaluation in (first, second)]
    difference, one, other = paired_difference(*sides), share(sides[0].values()), share(sides[1].values())
    if difference is None or one is None or other is None:
        return None
    return DifferenceRow(name, one, other, difference)


@dataclass(frozen=True)
class PublishedRow:
    """One model over the tasks that all have in common; `categories` in the order of PublishedTable.categories."""

    model: str
    accuracy: Estimate
    mean_score: float
    categories: list[float | None]
    is_yours: bool = False


@dataclass(frozen=True)
class PublishedTable:
    """Yours among the published models, best first."""

    preset: str
    tasks: int
    categories: list[str]
    rows: list[PublishedRow]
    not_compared: list[str]


def beside_published(evaluation: Evaluation) -> PublishedTable:
    """Raises EnvironmentSetupError, saying why, if its questions are not those of a preset.

    By reasoning-gym's own scores, over tasks that every model was asked and whose verifier has not changed since.
    """
    preset: Any = evaluation.parameters.get("eval_complexity", "unknown")
    if preset not in PRESETS:
        raise EnvironmentSetupError(
            f"{evaluation.name} cannot stand beside the published results: it was asked at difficulty {preset!r}, they "
            f"were at the presets {' and '.join(PRESETS)}. Evaluate with env.eval_complexity easy or hard."
        )
    published = published_scores(preset)
    scored = [one for one in evaluation.samples if one.get("score") is not None and one.get("native_score") is not None]
    mine = {str(one["task"]) for one in scored}
    common = mine.intersection(*published.values()) - changed_verifiers()
    if not common:
        raise EnvironmentSetupError(f"{evaluation.name} has no scored task in common with the published results.")
    kept = [one for one in scored if one["task"] in common]
    category = {str(one["task"]): str(one.get("category")) for one in kept}
    categories = sorted(set(category.values()))

    def row(model: str, questions: Sequence[Question], mean_score: float, is_yours: bool = False) -> PublishedRow:
        accuracy = share(questions)
        assert accuracy is not None  # there is a common task, and each has questions
        parts = [share(one for one in questions if category[str(one.stratum)] == name) for name in categories]
        return PublishedRow(model, accuracy, mean_score, [part.value if part else None for part in parts], is_yours)

    yours = as_questions(by_question(kept), lambda sample: is_correct(float(sample["native_score"])))
    mean = math.fsum(float(one["native_score"]) for one in kept) / len(kept)
    rows = [row(f"{evaluation.model or evaluation.name} (yours)", yours, mean, is_yours=True)]
    for model, scores in published.items():
        questions = [
            Question(task, (1.0,) * right + (0.0,) * (len(scores[task].counts) - 1 - right))
            for task in sorted(common)
            for right, items in enumerate(scores[task].counts)
            for _ in range(items)
        ]
        rows.append(row(model, questions, math.fsum(scores[task].mean_score for task in common) / len(common)))
    rows.sort(key=lambda row: -row.accuracy.value)
    not_compared = sorted((mine | set(preset_configs(preset))) - common)
    return PublishedTable(str(preset), len(common), categories, rows, not_compared)


# --- in words


def verdicts(
    comparison: Comparison | None,
    published: Sequence[PublishedTable],
    evaluations: Sequence[tuple[Evaluation, EvalResults]],
    runs: Sequence[tuple[Run, Sequence[Group]]],
) -> list[str]:
    """The sentences on top of the page, what was asked for first."""
    found = list(verdict_of_comparison(comparison)) if comparison else []
    found += [verdict_of_published(table) for table in published]
    for evaluation, results in () if comparison else evaluations:
        found += verdict_of_evaluation(evaluation.name, results)
    return found + [verdict_of_run(run, groups) for run, groups in runs]


def verdict_of_comparison(comparison: Comparison) -> Iterator[str]:
    """What changed from the first to the second, or that no difference is shown."""
    first, second = f"“{comparison.first}”", f"“{comparison.second}”"

    def told(row: DifferenceRow) -> str:
        d = row.difference
        return (
            f"{first} {row.first.value:.1%}, {second} {row.second.value:.1%}, difference {100 * d.value:+.1f} points "
            f"(95 % interval {100 * d.low:+.1f} to {100 * d.high:+.1f})"
        )

    accuracy, *others = comparison.measures
    found = accuracy.difference
    if accuracy.is_clear:
        lead = f"{second} answers {'more' if found.value > 0 else 'fewer'} questions right than {first}"
    else:
        lead = f"No difference is shown between {first} and {second}"
    yield f"{lead}: accuracy of {told(accuracy)}, over {_count(found.questions, 'question')} that both answered."
    if not accuracy.is_clear:
        size = max(abs(found.value), 0.01)
        takes = math.ceil(found.questions * ((found.high - found.low) / 2 / size) ** 2)
        if takes > found.questions:
            yield f"A difference of {100 * size:.1f} points would take about {takes:,} questions to show."
    for row in others:
        if row.name == "exact" and row.difference != found:
            clear = "" if row.is_clear else "; no difference is shown"
            yield f"Exact answers of {told(row)}{clear}."
    better = [row.name for row in comparison.tasks if row.is_clear and row.difference.value > 0]
    worse = [row.name for row in reversed(comparison.tasks) if row.is_clear and row.difference.value < 0]
    parts = [f"{word} in {_named(names)}" for word, names in (("better", better), ("worse", worse)) if names]
    if parts:
        yield f"{second} is {', '.join(parts)}, each task by itself. Of 20 tasks chance alone makes one look so."
    else:
        yield "No single task differs by more than chance would."


def verdict_of_evaluation(name: str, results: EvalResults) -> list[str]:
    """How much of it is right, what of that is exact, where it is best and worst, and what hides answers."""
    overall = results.overall
    # summarise refuses a set without scores.
    assert overall.accuracy is not None and overall.exact is not None
    low, high = overall.accuracy.low, overall.accuracy.high
    told = (
        f"“{name}” answers {overall.accuracy.value:.1%} of {_count(overall.questions, 'question')} right "
        f"(95 % interval {low:.1%} to {high:.1%}), {overall.exact.value:.1%} with full credit"
    )
    ranked = [
        [(one.accuracy.value, one.name) for one in scopes if one.accuracy and one.questions >= FEW]
        for scopes in (results.categories, results.tasks)
    ]
    known = ranked[0] if len(ranked[0]) >= 3 else ranked[1]
    if len(known) > 1:
        (worst, last), (best, first) = min(known), max(known)
        told += f"; best at {first} ({best:.0%}), worst at {last} ({worst:.0%})"
    hidden = ((overall.truncated, "were cut off by the token budget"), (overall.format_failures, "held no answer"))
    lost = [f"{share.value:.0%} {what}" for share, what in hidden if share and share.value >= NOTABLE]
    return [f"{told}.", *([f"Of the completions of “{name}” {' and '.join(lost)}."] if lost else [])]


def verdict_of_published(table: PublishedTable) -> str:
    """The place among the published models."""
    [(place, row)] = [(place, row) for place, row in enumerate(table.rows, start=1) if row.is_yours]
    return (
        f"{row.model} takes place {place} of {len(table.rows)} beside the published models, with "
        f"{row.accuracy.value:.1%} over {_count(table.tasks, 'task')} of preset {table.preset}."
    )


def verdict_of_run(run: Run, groups: Sequence[Group]) -> str:
    """Whether the reward of a run rose, by its last quarter of groups against its first; `groups` in their order."""
    size = len(groups) // 4
    scores = [correct(one) for group in groups for one in group.rollouts if one["score"] is not None]
    right = f", {sum(scores) / len(scores):.1%} right" if scores else ""
    if run.kinds == {PROCESS}:
        return f"{run.name}: {_count(len(groups), 'group')} of process{right}."
    if size < QUARTER:
        return f"{run.name}: {_count(len(groups), 'dumped group')}{right}. For a change over the run they are too few."
    parts = (groups[:size], groups[-size:])
    first, last = (
        mean_of([Question(None, (math.fsum(group.rewards) / len(group.rewards),)) for group in part]) for part in parts
    )
    assert first is not None and last is not None
    value, half = last.value - first.value, math.hypot(first.high - first.value, last.high - last.value)
    change = (
        "the reward rose"
        if value > half
        else "the reward fell"
        if value < -half
        else "no change is shown of the reward,"
    )
    levels = [[group.level for group in part if group.level is not None] for part in parts]
    means = [f"{sum(part) / len(part):.1f}" for part in levels if part]
    return (
        f"{run.name}: {change} from {first.value:.2f} to {last.value:.2f} ({value:+.2f}, 95 % interval "
        f"{value - half:+.2f} to {value + half:+.2f}), last quarter of {len(groups):,} dumped groups against the first"
        + (f", the mean level from {means[0]} to {means[1]}." if len(means) == 2 else ".")
    )


def _named(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' if number != 1 else ''}"
