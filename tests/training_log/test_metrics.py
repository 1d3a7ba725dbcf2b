"""What is counted between two log steps, and the lines about it."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from reasoning_gym_environment.records import FormatFailure, Outcome, RolloutGroup, Score
from reasoning_gym_environment.training_log.metrics import SUMMARY_EVERY, TrainMetrics, group_line, group_remark


def with_scores(group: RolloutGroup, *scores: Score) -> RolloutGroup:
    rollouts = [replace(r, score=s, reward=s.value) for r, s in zip(group.rollouts, scores, strict=True)]
    return replace(group, rollouts=rollouts)


NO_ANSWER = Score(0.0, Outcome.FORMAT_FAILURE, failure=FormatFailure.NO_ANSWER)
EMPTY = Score(0.0, Outcome.FORMAT_FAILURE, failure=FormatFailure.EMPTY_ANSWER)


def test_percent_correct_is_the_share_of_scores_of_at_least_half(make_group: Any) -> None:
    metrics = TrainMetrics()
    metrics.observe(make_group([0.0, 0.49, 0.5, 1.0]))
    assert metrics.percent_correct == [0.0, 0.0, 1.0, 1.0]
    assert metrics.drain()["train/percent_correct"] == 0.5


def test_what_we_failed_to_score_is_not_counted_as_wrong(make_group: Any) -> None:
    metrics = TrainMetrics()
    metrics.observe(with_scores(make_group([0.0, 0.0]), Score(0.0, Outcome.TIMEOUT), Score(1.0, Outcome.CORRECT)))
    assert metrics.percent_correct == [1.0]
    assert metrics.drain()["train/outcome_timeout"] == 0.5


def test_drain_gives_shares_and_starts_over(make_group: Any) -> None:
    metrics = TrainMetrics()
    metrics.observe(make_group([0.0, 1.0]))
    group = make_group([1.0, 1.0])
    metrics.observe(replace(group, rollouts=[replace(group.rollouts[0], mask_reason="too_long"), group.rollouts[1]]))
    values = metrics.drain()
    assert values["train/signal_share"] == 0.5
    assert values["train/outcome_correct"] == 0.75
    assert values["train/outcome_wrong"] == 0.25
    assert values["train/outcome_timeout"] == 0.0
    assert values["train/masked_too_long"] == 0.25
    assert {name for name in values if "outcome" in name} == {f"train/outcome_{o.value}" for o in Outcome}
    assert metrics.drain() == {}
    assert metrics.percent_correct == []


def test_nothing_observed_gives_no_values() -> None:
    assert TrainMetrics().drain() == {}


def test_violations_are_one_line_per_fifty_groups(make_group: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    metrics = TrainMetrics()
    group = with_scores(make_group([0.0, 0.0, 0.0]), NO_ANSWER, NO_ANSWER, EMPTY)
    for _ in range(SUMMARY_EVERY - 1):
        metrics.observe(group)
    assert caplog.messages == []
    metrics.observe(group)
    assert caplog.messages == [
        "Format violations in the last 50 groups (150 completions): no_answer 100, empty_answer 50."
    ]
    metrics.summarise_violations()
    assert len(caplog.messages) == 1


def test_violations_of_a_short_run_are_told_at_its_end(make_group: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    metrics = TrainMetrics()
    metrics.observe(with_scores(make_group([0.0, 1.0]), NO_ANSWER, Score(1.0, Outcome.CORRECT)))
    metrics.drain()
    metrics.summarise_violations()
    assert caplog.messages == ["Format violations in the last 1 groups (2 completions): no_answer 1."]


def test_no_violations_are_no_line(make_group: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    metrics = TrainMetrics()
    for _ in range(SUMMARY_EVERY):
        metrics.observe(make_group([1.0]))
    metrics.summarise_violations()
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("values", "remark"),
    [
        ([1.0, 1.0], "all correct"),
        ([0.0, 0.0], "all failed"),
        ([0.2, 0.9], "partial credit only"),
        ([0.0, 0.9], "partial credit only"),
        ([0.0, 1.0], ""),
    ],
)
def test_remark_names_groups_that_teach_little(make_group: Any, values: list[float], remark: str) -> None:
    assert group_remark(make_group(values)) == remark


def test_remark_tells_format_failures_from_wrong_answers(make_group: Any) -> None:
    group = make_group([0.0, 0.0])
    assert group_remark(with_scores(group, NO_ANSWER, EMPTY)) == "all failed: no usable answer"
    assert group_remark(with_scores(group, NO_ANSWER, Score(0.0, Outcome.WRONG))) == "all failed"


def test_group_line_has_task_level_average_and_remark(make_group: Any) -> None:
    assert group_line(make_group([1.0, 0.0, 0.5])) == "chain_sum: group average 0.50, 1/3 correct."
    assert (
        group_line(make_group([1.0, 1.0], level=0))
        == "chain_sum level 0: group average 1.00, 2/2 correct (all correct)."
    )
