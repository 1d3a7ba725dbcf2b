"""Results by task, category and overall come from the sample lines alone."""

from __future__ import annotations

from typing import Any

import pytest

from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.evaluation.results import EvalResults, result_line, summarise
from reasoning_gym_environment.evaluation.statistics import pass_at_k, wilson


def sample(task: str, index: int, score: float | None, **fields: Any) -> dict[str, Any]:
    category = "games" if task == "sudoku" else "arithmetic"
    named = {"task": task, "category": category, "index": index, "seed": index, "question_digest": f"{task}{index}"}
    outcome, reason = ("unscored", "timeout") if score is None else ("correct", None)
    scored = {"score": score, "outcome": outcome, "unscored_reason": reason}
    return {**named, **scored, "finish_reason": "stop", "num_completion_tokens": 100, **fields}


@pytest.fixture
def results() -> EvalResults:
    """Two questions asked three times each, and one of another category that was not scored every time."""
    gcd = [sample("gcd", index, score) for index, score in zip((0, 0, 0, 1, 1, 1), (1.0, 0.6, 0, 0, 0, 0), strict=True)]
    cut_off = sample("sudoku", 0, 1.0, finish_reason="length", num_completion_tokens=400)
    return summarise([*gcd, cut_off, sample("sudoku", 0, 0.0, outcome="format_failure"), sample("sudoku", 0, None)])


def test_shares_are_of_scored_completions(results: EvalResults) -> None:
    metrics = results.metrics()
    assert metrics["eval/mean_score"] == pytest.approx(2.6 / 8)
    for limit in ("", "_low", "_high"):
        assert metrics[f"eval/percent_correct{limit}"] == metrics[f"eval/mean_score{limit}"]
    assert metrics["eval/accuracy"] == pytest.approx(3 / 8)
    assert metrics["eval/exact"] == pytest.approx(2 / 8)
    assert metrics["eval/truncated"] == metrics["eval/format_failures"] == 1 / 8
    assert metrics["eval/completion_tokens"] == pytest.approx(1100 / 8)
    assert (metrics["eval/unscored"], metrics["eval/completions"]) == (1.0, 8.0)
    assert (metrics["eval/arithmetic/accuracy"], metrics["eval/games/unscored"]) == (pytest.approx(1 / 3), 1.0)
    assert "eval/games/sudoku/accuracy" not in metrics, "tasks have keys of their own if asked for"
    assert results.metrics(with_tasks=True)["eval/games/sudoku/accuracy"] == 0.5


def test_intervals_stand_beside_every_share_and_length(results: EvalResults) -> None:
    metrics = results.metrics()
    # The questions have 3, 3 and 2 completions.
    effective = 8**2 / (3**2 + 3**2 + 2**2)
    for name, mean in {"accuracy": 3 / 8, "truncated": 1 / 8, "format_failures": 1 / 8}.items():
        assert (metrics[f"eval/{name}_low"], metrics[f"eval/{name}_high"]) == wilson(mean, effective)
    lengths = results.overall.estimates["completion_tokens"]
    assert lengths.questions == 3
    assert metrics["eval/completion_tokens_low"] == lengths.low <= 1100 / 8 <= lengths.high
    assert (metrics["eval/games/completion_tokens"], metrics["eval/games/completion_tokens_low"]) == (250.0, 0.0)
    assert "eval/games/completion_tokens_high" not in metrics, "the length of one question has no upper limit"


def test_pass_at_k_is_over_questions_with_enough_scored_completions(results: EvalResults) -> None:
    overall = results.overall.estimates
    assert [overall[f"pass@{k}"].questions for k in (1, 2, 3)] == [3, 3, 2]
    assert overall["pass@2"].value == pytest.approx((pass_at_k(3, 2, 2) + 0.0 + pass_at_k(2, 1, 2)) / 3)
    assert overall["pass@3"].value == 0.5
    assert "pass@1" not in summarise([sample("gcd", 0, 1.0)]).overall.estimates


def test_what_is_unscored_is_reported_with_its_reason_and_nothing_else_is_an_error() -> None:
    found = summarise([sample("gcd", 0, 1.0), sample("gcd", 1, None), sample("lcm", 0, None)])
    assert found.overall.estimates["mean_score"].value == 1.0
    assert found.tasks[1].estimates == {}
    line = result_line(found, "0123")
    assert line.startswith("Evaluation 0123, 1 completions of 3 questions: mean_score = accuracy = exact 100.0% [")
    assert line.endswith("; 2 unscored: timeout (2).")
    with pytest.raises(EnvironmentSetupError, match=r"none of 1 completions: timeout \(1\)"):
        summarise([sample("gcd", 0, None)])
    with pytest.raises(EnvironmentSetupError, match="none was requested"):
        summarise([])
