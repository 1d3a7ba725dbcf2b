"""Every group has one fate, and the summary says where the inference went."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from reasoning_gym_environment.records import Outcome, RolloutGroup, Score
from reasoning_gym_environment.training_log.group_outcomes import GroupOutcome, GroupOutcomes, outcome_without_signal


def test_fates_are_counted_by_task_and_summed() -> None:
    funnel = GroupOutcomes()
    for fate, task in [
        (GroupOutcome.SENT, "gcd"),
        (GroupOutcome.ALL_ZERO, "maze"),
        (GroupOutcome.ALL_ZERO, "maze"),
        (GroupOutcome.SENT, "maze"),
    ]:
        funnel.note(fate, task)
    assert funnel.by_task() == {"gcd": {"sent": 1}, "maze": {"sent": 1, "all_zero": 2}}
    assert funnel.metrics() == {"funnel/sent": 2.0, "funnel/all_zero": 2.0}
    assert funnel.summary() == "Of 4 groups: 2 sent (50%), 2 all zero (50%). Most of no use: maze 2 of 3."


def test_the_summary_is_logged_when_there_is_something_new(caplog: pytest.LogCaptureFixture) -> None:
    funnel = GroupOutcomes()
    with caplog.at_level(logging.INFO):
        funnel.summarise()
        assert not caplog.records
        funnel.note(GroupOutcome.SENT, "gcd")
        funnel.summarise()
        funnel.summarise()
    summary, table = [record.getMessage() for record in caplog.records]
    assert summary == "Of 1 groups: 1 sent (100%)."
    assert table.split() == ["Groups", "by", "task:", "sent", "gcd", "1"]


def test_the_table_has_a_row_for_each_task_and_a_column_for_each_fate_that_occurred() -> None:
    funnel = GroupOutcomes()
    for fate, task in [(GroupOutcome.SENT, "gcd"), (GroupOutcome.SEND_FAILED, "maze"), (GroupOutcome.SENT, "maze")]:
        funnel.note(fate, task)
    assert [row.split() for row in funnel.table().splitlines()] == [
        ["sent", "send", "failed"],
        ["maze", "1", "1"],
        ["gcd", "1", "0"],
    ]


def with_outcome(group: RolloutGroup, outcome: Outcome) -> RolloutGroup:
    return replace(group, rollouts=[replace(rollout, score=Score(0.0, outcome)) for rollout in group.rollouts])


def cut_off(group: RolloutGroup) -> RolloutGroup:
    return replace(
        group, rollouts=[replace(r, completion=replace(r.completion, finish_reason="length")) for r in group.rollouts]
    )


def masked(group: RolloutGroup, *are_masked: bool) -> RolloutGroup:
    rollouts = zip(group.rollouts, are_masked, strict=True)
    return replace(group, rollouts=[replace(r, mask_reason="too_short" if masked else None) for r, masked in rollouts])


def test_a_signal_needs_a_rollout_off_the_mean_that_is_trained_on(make_group: Any) -> None:
    assert masked(make_group([1.0, 0.0]), False, True).has_signal
    assert not masked(make_group([1.0, 0.0]), True, True).has_signal
    assert not masked(make_group([1.0, 0.5, 0.0]), True, False, True).has_signal, "the mean has no advantage"


def test_a_group_without_signal_has_the_first_reason_that_holds(make_group: Any) -> None:
    assert outcome_without_signal(make_group([0.0, 0.0])) is GroupOutcome.ALL_ZERO
    assert outcome_without_signal(make_group([1.0, 1.0])) is GroupOutcome.EQUAL_SCORES
    assert outcome_without_signal(make_group([0.3, 0.3])) is GroupOutcome.EQUAL_SCORES
    assert outcome_without_signal(cut_off(make_group([0.0, 0.0]))) is GroupOutcome.TOO_LONG
    assert outcome_without_signal(with_outcome(make_group([0.0, 0.0]), Outcome.TIMEOUT)) is GroupOutcome.TIMED_OUT
    assert outcome_without_signal(masked(make_group([1.0, 0.0]), True, True)) is GroupOutcome.MASKED
    assert (
        outcome_without_signal(with_outcome(cut_off(make_group([0.0, 0.0])), Outcome.CRASHED)) is GroupOutcome.TIMED_OUT
    )
