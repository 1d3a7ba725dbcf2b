"""Your model among the published models, by what can be compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.evaluation.published import (
    PublishedTable,
    beside_published,
    published_presets,
    published_scores,
)
from reasoning_gym_environment.report.load import Evaluation
from testing.report_samples import evaluation


def compared(found: Evaluation) -> PublishedTable:
    return beside_published(found.model, found.samples, found.parameters["eval_complexity"])


def test_yours_stands_among_the_nine_published_models(tmp_path: Path) -> None:
    table = compared(evaluation(tmp_path))
    accuracies = [row.accuracy.value for row in table.rows]
    assert len(accuracies) == 10 and accuracies == sorted(accuracies, reverse=True)
    assert [row.model for row in table.rows if row.is_yours] == ["qwen_qwq-32b (yours)"]


def test_yours_is_compared_by_the_librarys_own_scores(tmp_path: Path) -> None:
    found = evaluation(tmp_path, attacks=False)
    for sample in found.samples:
        sample.update(score=0.0, native_score=float(sample["index"] == 0))
    [yours] = [row for row in compared(found).rows if row.is_yours]
    assert yours.accuracy.value == pytest.approx(1 / 5)


def test_a_task_whose_verifier_has_changed_since_is_not_compared(tmp_path: Path) -> None:
    found = evaluation(tmp_path, attacks=False)
    changed = min(set(published_presets()["verifier_changed_since"]) & published_scores("easy")["qwen/qwq-32b"].keys())
    kept = compared(found)
    more = [{**sample, "task": changed, "native_score": 1.0} for sample in found.samples if sample["index"] == 0]
    table = beside_published(found.model, [*found.samples, *more], "easy")
    assert changed in table.not_compared
    assert (table.tasks, table.rows) == (kept.tasks, kept.rows)


def test_a_task_whose_verifier_accepts_any_text_is_compared_and_marked(tmp_path: Path) -> None:
    found = evaluation(tmp_path, attacks=False)
    plain = compared(found)
    task = "game_of_life_halting"
    more = [{**sample, "task": task, "native_score": 1.0} for sample in found.samples if sample["index"] == 0]
    table = beside_published(found.model, [*found.samples, *more], "easy")
    assert (plain.pays_any_text, table.pays_any_text) == ([], [task])
    assert table.tasks == plain.tasks + 1 and task not in table.not_compared


def test_published_results_are_for_their_presets_only(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentSetupError, match=r"it has difficulty 'default'.*eval_complexity easy or hard"):
        compared(evaluation(tmp_path / "a", complexity="default"))
