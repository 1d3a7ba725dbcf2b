"""The published results of nine models (reasoning-gym-eval), and a comparison with them.

The presets easy and hard are the configs of these results. The models were sampled at temperature 0.6 with another
prompt, and scored by the verifiers of several releases of reasoning-gym. Therefore the comparison uses the scores of
reasoning-gym's own verifiers, and covers the tasks that every model answered and whose verifier has not changed since.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from ..errors import EnvironmentSetupError
from ..tasks.measured_data import packaged
from .results import EvalSample, as_questions, by_question, is_correct
from .statistics import Estimate, Question, share

Preset: TypeAlias = Literal["easy", "hard"]
PRESETS: tuple[Preset, ...] = get_args(Preset)

PAYS_ANY_TEXT = frozenset({"game_of_life_halting"})
"""Tasks whose own verifier accepts any text that is not empty. They are compared, because every model has them."""


class PublishedScore(NamedTuple):
    """The result of one model in one task at one preset. `counts[k]` is how many items have k right completions."""

    counts: Sequence[int]
    mean_score: float


@functools.cache
def published_presets() -> Any:
    """Preset -> task -> config fields. Other fields have the defaults of reasoning-gym.

    `verifier_changed_since` lists the tasks whose present scores are not comparable with the published scores.
    """
    return packaged("published_presets.json")


@functools.cache
def published_scores(preset: Preset) -> Mapping[str, Mapping[str, PublishedScore]]:
    """Model -> task -> score. Models without results at this preset are missing."""
    place = PRESETS.index(preset)
    scores: dict[str, dict[str, PublishedScore]] = {}
    for key, tasks in packaged("published_students.json").items():
        if not key.startswith("models/"):
            continue
        by_task = {}
        for task, by_preset in tasks.items():
            if len(by_preset) > place and by_preset[place]:
                by_task[task] = PublishedScore(*by_preset[place])
        if by_task:
            model = key.removeprefix("models/").replace("_", "/", 1)
            scores[model] = by_task
    return scores


class PublishedRow(NamedTuple):
    """The accuracy of one model over the tasks that all models have."""

    model: str
    accuracy: Estimate
    is_yours: bool


@dataclass(frozen=True)
class PublishedTable:
    """Your model among the published models, the best model first."""

    preset: str
    tasks: int
    rows: list[PublishedRow]
    not_compared: list[str]
    pays_any_text: list[str]
    """The compared tasks in which every answer counts as right."""


def beside_published(name: str, samples: Iterable[EvalSample], preset: Any) -> PublishedTable:
    """Compare an evaluation with the published results. Raises EnvironmentSetupError unless it asked a preset."""
    if preset not in PRESETS:
        raise EnvironmentSetupError(
            f"{name} is not comparable with the published results, whose difficulty is one of {', '.join(PRESETS)}: it "
            f"has difficulty {preset!r}. Evaluate with env.eval_complexity easy or hard."
        )
    published = published_scores(preset)
    scored = [sample for sample in samples if sample.get("native_score") is not None]
    answered = {str(sample["task"]) for sample in scored}
    common = answered.intersection(*published.values())
    common.difference_update(published_presets()["verifier_changed_since"])
    if not common:
        raise EnvironmentSetupError(f"{name} has no scored task in common with the published results.")
    yours = by_question(sample for sample in scored if sample["task"] in common)
    rows = [_row(f"{name} (yours)", as_questions(yours, _natively_correct), is_yours=True)]
    for model, scores in published.items():
        rows.append(_row(model, _questions(scores, sorted(common))))
    rows.sort(key=lambda row: -row.accuracy.value)
    not_compared = sorted((answered | published_presets()[preset].keys()) - common)
    return PublishedTable(preset, len(common), rows, not_compared, sorted(common & PAYS_ANY_TEXT))


def _natively_correct(sample: EvalSample) -> float:
    return is_correct(float(sample["native_score"]))


def _questions(scores: Mapping[str, PublishedScore], tasks: Iterable[str]) -> list[Question]:
    questions = []
    for task in tasks:
        counts = scores[task].counts
        completions = len(counts) - 1
        for right, items in enumerate(counts):
            values = (1.0,) * right + (0.0,) * (completions - right)
            questions += [Question(task, values)] * items
    return questions


def _row(model: str, questions: Sequence[Question], *, is_yours: bool = False) -> PublishedRow:
    accuracy = share(questions)
    assert accuracy is not None, "every common task has questions"
    return PublishedRow(model, accuracy, is_yours)
