"""Comparisons of what can be compared: two evaluations of the same questions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.html_report.comparison import compare
from reasoning_gym_environment.html_report.load import load
from reasoning_gym_environment.html_report.main import main
from testing.report_samples import Page, evaluation, write_everything, write_results


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_everything(tmp_path_factory.mktemp("report"))


def test_two_evaluations_are_paired_question_by_question(folder: Path) -> None:
    output = folder / "compare.html"
    assert main(["--compare", str(folder / "before"), str(folder / "after"), "-o", str(output)]) == 0
    text = Page(output.read_text(encoding="utf-8")).text
    assert "Differences are after minus before" in text
    first, second = (load([folder / name]).evaluations[0] for name in ("before", "after"))
    accuracy = compare(first, second).measures[0]
    assert accuracy.difference.value > 0.05
    assert compare(second, first).measures[0].difference.value == pytest.approx(-accuracy.difference.value)
    assert accuracy.difference.low < accuracy.difference.value < accuracy.difference.high


@pytest.mark.parametrize(("questions", "is_clear"), [(2, False), (5, False), (6, True)])
def test_a_difference_of_five_questions_is_never_clear(tmp_path: Path, questions: int, is_clear: bool) -> None:
    sides = []
    for name, score in (("a", 0.0), ("b", 1.0)):
        [side] = load([write_results(tmp_path / name, tasks=1, per_task=questions, attacks=False)]).evaluations
        sides.append(replace(side, samples=[{**sample, "score": score} for sample in side.samples]))
    [row] = compare(*sides).tasks
    assert row.difference.value == 1.0
    assert row.is_clear == is_clear


def test_answers_to_different_questions_or_graded_differently_are_not_compared(tmp_path: Path) -> None:
    first, other = evaluation(tmp_path / "a"), evaluation(tmp_path / "b", manifest="ffff")
    native = replace(first, parameters={**first.parameters, "verification": "native"})
    unknown = evaluation(tmp_path / "c", manifest="")
    with pytest.raises(EnvironmentSetupError, match=r"manifest 0123456789abcdef against ffff.*same eval_tasks"):
        compare(first, other)
    with pytest.raises(EnvironmentSetupError, match="manifest none against none"):
        compare(unknown, unknown)
    expected = "graded differently: verification strict against native. Evaluate both with"
    with pytest.raises(EnvironmentSetupError, match=expected):
        compare(first, native)


def test_a_comparison_says_what_else_differs_and_what_is_not_known(tmp_path: Path) -> None:
    first, second = evaluation(tmp_path / "a"), evaluation(tmp_path / "b")
    assert compare(first, second).differing == ""
    warmer = replace(second, parameters={**second.parameters, "temperature": 0.1, "max_new_tokens": 512})
    assert compare(first, warmer).differing == "temperature 0.6 against 0.1, max_new_tokens unknown against 512"
    newer = replace(second, parameters={**second.parameters, "reasoning_gym_version": "0.1.26"})
    assert compare(first, newer).differing == "reasoning_gym_version 0.1.25 against 0.1.26"
