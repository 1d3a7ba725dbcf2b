"""Every group has one outcome, and the summary says where the inference went."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import Any

import pytest

from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.records import Outcome, RolloutGroup, Score
from reasoning_gym_environment.training_log.training_log import GroupOutcome, GroupOutcomes, outcome_without_signal


def test_outcomes_are_counted_by_task_and_summed_and_counted_on_after_a_restart() -> None:
    lost, sent = GroupOutcome.ALL_ZERO, GroupOutcome.SENT
    counts = GroupOutcomes()
    for outcome, task in ((sent, "gcd"), (lost, "maze"), (lost, "maze"), (sent, "maze")):
        counts.add(outcome, task)
    assert counts.by_task() == {"gcd": {"sent": 1}, "maze": {"sent": 1, "all_zero": 2}}
    assert counts.metrics() == {"funnel/sent": 2.0, "funnel/all_zero": 2.0}
    assert counts.summary() == "Of 4 groups: 2 sent (50%), 2 all zero (50%). Most of no use: maze 2 of 3."
    resumed = GroupOutcomes()
    resumed.load_state_dict(json.loads(json.dumps(counts.state_dict())))
    resumed.add(sent, "gcd")
    assert resumed.by_task() == {"gcd": {"sent": 2}, "maze": {"sent": 1, "all_zero": 2}}
    for state in ({}, {"counts": {"gcd": {"eaten": 1}}}, {"counts": {"gcd": 1}}):
        with pytest.raises(EnvironmentSetupError, match="counts outcomes by task"):
            resumed.load_state_dict(state)


def test_summary_and_table_are_logged_when_there_is_something_new(caplog: pytest.LogCaptureFixture) -> None:
    counts = GroupOutcomes()
    with caplog.at_level(logging.INFO):
        counts.summarise()
        assert not caplog.records
        counts.add(GroupOutcome.SENT, "gcd")
        counts.add(GroupOutcome.SEND_FAILED, "maze")
        counts.add(GroupOutcome.SENT, "maze")
        counts.summarise()
        counts.summarise()
    summary, table = [record.getMessage() for record in caplog.records]
    assert summary.startswith("Of 3 groups: 2 sent (67%), 1 send failed (33%).")
    assert [row.split() for row in table.splitlines()] == [
        ["Groups", "by", "task:"],
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
    zero = make_group([0.0, 0.0])
    assert outcome_without_signal(zero) is GroupOutcome.ALL_ZERO
    assert outcome_without_signal(make_group([1.0, 1.0])) is GroupOutcome.EQUAL_SCORES
    assert outcome_without_signal(make_group([0.3, 0.3])) is GroupOutcome.EQUAL_SCORES
    assert outcome_without_signal(cut_off(zero)) is GroupOutcome.TOO_LONG
    assert outcome_without_signal(with_outcome(zero, Outcome.TIMEOUT)) is GroupOutcome.TIMED_OUT
    assert outcome_without_signal(masked(make_group([1.0, 0.0]), True, True)) is GroupOutcome.MASKED
    assert outcome_without_signal(with_outcome(cut_off(zero), Outcome.CRASHED)) is GroupOutcome.TIMED_OUT
