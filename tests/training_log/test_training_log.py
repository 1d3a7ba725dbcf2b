"""The door of the room: a group is counted, told, and dumped where it belongs; all of it comes out of one `drain`."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.records import Outcome, RolloutGroup, Score
from reasoning_gym_environment.training_log.training_log import (
    GroupOutcome,
    GroupOutcomes,
    TrainingLog,
    TrainingLogSettings,
    outcome_without_signal,
)

from ..env_support import dumped

EVERYTHING = {"dump_rollouts": True, "dump_failed_rollouts": True, "conversations": 2, "conversations_per_group": 1}


async def opened(folder: Path, **settings: Any) -> TrainingLog:
    log = TrainingLog(TrainingLogSettings(folder, "run", **settings))
    await log.open("0.1.25")
    return log


async def test_a_group_is_dumped_by_its_rewards_and_as_failed_by_its_credit(tmp_path: Path, make_group: Any) -> None:
    log = await opened(tmp_path, save_threshold=0.5, **EVERYTHING)
    too_long = make_group([1.0], index=3)
    too_long = replace(too_long, rollouts=[replace(too_long.rollouts[0], reward=0.0)])
    groups = [make_group([0.0, 0.0], index=0), make_group([0.5], index=1), make_group([0.0, 0.6], index=2), too_long]
    for group in groups:
        await log.dump(group)
    await log.close()
    assert [line["index"] for line in dumped(tmp_path, "*_rollouts_run_0000.jsonl") if line["index"] != 0] == [2]
    [failed] = dumped(tmp_path, "*_FAILED_rollouts_run_0000.jsonl")
    assert (failed["index"], failed["reasoning_gym_version"]) == (0, "0.1.25")


async def test_one_drain_has_everything_counted_and_totals_stay(
    tmp_path: Path, make_group: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    log = await opened(tmp_path, save_threshold=0.5, **EVERYTHING)
    log.observe(make_group([1.0, 0.0]))
    await log.dump(make_group([1.0, 0.0]))
    log.outcomes.add(GroupOutcome.SENT, "chain_sum")
    assert log.percent_correct == [1.0, 0.0]
    totals = {"funnel/sent": 1.0, "dumps/rollouts_written": 1.0, "dumps/FAILED_rollouts_written": 0.0}
    values = log.drain()
    assert {"train/percent_correct", "train/percent_exact", "train/conversations", "train_reward/total"} < values.keys()
    assert values["hacking/tasks_warned"] == 0.0
    assert totals.items() <= values.items()
    assert totals.items() <= log.drain().items() and log.percent_correct == []
    log.summarise()
    await log.close()
    assert "chain_sum: group average 0.50, 1/2 at least 0.5, 1/2 exact." in caplog.messages
    assert "Of 1 groups: 1 sent (100%)." in caplog.messages


async def test_what_is_not_wanted_is_not_kept_and_touches_no_disk(tmp_path: Path, make_group: Any) -> None:
    log = await opened(tmp_path / "dumps")
    log.observe(make_group([1.0, 0.0]))
    await log.dump(make_group([1.0, 0.0]))
    await log.dump(make_group([0.0, 0.0]))
    assert "train/conversations" not in log.drain()
    await log.close()
    assert not (tmp_path / "dumps").exists()


async def test_conversations_wait_for_a_log_step_that_has_tables(tmp_path: Path, make_group: Any) -> None:
    log = await opened(tmp_path, conversations=2, conversations_per_group=1)
    for task in ("old", "gcd", "lcm"):
        log.observe(make_group([1.0], task=task))
        assert "train/conversations" not in log.drain(has_tables=False)
    assert [row[0] for row in log.drain()["train/conversations"].data] == ["gcd", "lcm"]


async def test_a_start_completes_what_a_killed_run_left(tmp_path: Path) -> None:
    part = tmp_path / "reasoning_gym_environment_rollouts_old_0000.jsonl.part"
    for wanted, found in ((False, part), (True, part.with_suffix(""))):
        part.write_bytes(b"{}\n")
        await opened(tmp_path, dump_rollouts=wanted)
        assert [found.exists(), part.exists()] == [True, not wanted], "only a run that dumps looks into the folder"


# --- every group has one outcome, and the summary says where the inference went


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
