"""Every scored group is counted, logged and dumped where it belongs; one `drain` has all of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment.records import Group, GroupOutcome, MaskReason, Outcome, Score, outcome_without_signal
from reasoning_gym_environment.settings.environment import ReasoningGymEnvConfig
from reasoning_gym_environment.telemetry.telemetry import GroupOutcomes, Telemetry, TrainMetrics
from reasoning_gym_environment.utils.saved_state import load_into
from testing.env_support import dumped

LOST, RIGHT = Score(0.0, Outcome.TIMEOUT), Score(1.0, Outcome.CORRECT)
NO_ANSWER = Score(0.0, Outcome.NO_ANSWER)


def with_scores(group: Group, *scores: Score) -> Group:
    rollouts = [replace(r, score=s, reward=s.value) for r, s in zip(group.rollouts, scores, strict=True)]
    return replace(group, rollouts=rollouts)


async def test_a_group_is_dumped_by_its_rewards_and_as_failed_by_its_credit(tmp_path: Path, make_group: Any) -> None:
    settings = {"dump_rollouts": True, "dump_failed_rollouts": True, "rollout_save_score_threshold": 0.5}
    telemetry = Telemetry(ReasoningGymEnvConfig(data_dumps_dir=str(tmp_path), **settings), "run", "0.1.25")
    too_long = make_group([1.0], index=3)
    too_long = replace(too_long, rollouts=[replace(too_long.rollouts[0], reward=0.0)])
    groups = [make_group([0.0, 0.0], index=0), make_group([0.5], index=1), make_group([0.0, 0.6], index=2), too_long]
    for group in groups:
        await telemetry.dump(group)
        await telemetry.dump_if_failed(group)
    await telemetry.dumps.close()
    assert [line["index"] for line in dumped(tmp_path, "*_environment_rollouts_run_0000.jsonl")] == [2]
    [failed] = dumped(tmp_path, "*_FAILED_rollouts_run_0000.jsonl")
    assert (failed["index"], failed["reasoning_gym_version"]) == (0, "0.1.25")


# --- outcomes


def test_outcomes_are_counted_and_counting_continues_after_a_restart() -> None:
    lost, sent = GroupOutcome.ALL_WRONG, GroupOutcome.SENT
    counts = GroupOutcomes()
    for outcome in (sent, lost, lost, sent):
        counts.add(outcome)
    assert counts.metrics() == {"groups/sent": 2.0, "groups/all_wrong": 2.0}
    resumed = GroupOutcomes()
    load_into({"group_outcomes": resumed}, json.loads(json.dumps({"group_outcomes": counts.state_dict()})))
    resumed.add(sent)
    assert resumed.metrics() == {"groups/sent": 3.0, "groups/all_wrong": 2.0}


def test_a_group_without_signal_has_the_first_reason_that_holds(make_group: Any) -> None:
    def changed(group: Group, **fields: Any) -> Group:
        return replace(group, rollouts=[replace(rollout, **fields) for rollout in group.rollouts])

    zero, mixed = make_group([0.0, 0.0]), make_group([1.0, 0.0])
    cut_off = changed(zero, completion=replace(zero.rollouts[0].completion, finish_reason="length"))
    for outcome, group in (
        (GroupOutcome.ALL_WRONG, zero),
        (GroupOutcome.ALL_RIGHT, make_group([1.0, 1.0])),
        (GroupOutcome.UNREADABLE, changed(zero, score=NO_ANSWER)),
        (GroupOutcome.EQUAL_SCORES, make_group([0.3, 0.3])),
        (GroupOutcome.TOO_LONG, cut_off),
        (GroupOutcome.TIMED_OUT, changed(cut_off, score=LOST)),
        (GroupOutcome.MASKED, changed(mixed, mask_reason=MaskReason.EMPTY)),
    ):
        assert outcome_without_signal(group) == outcome and not group.has_signal


# --- metrics


def test_values_are_shares_in_total_by_category_and_by_task_and_start_over(make_group: Any) -> None:
    metrics = TrainMetrics()
    assert metrics.drain() == {}
    metrics.observe(make_group([0.0, 1.0], task="gcd", category="arithmetic", level=2))
    lcm = make_group([1.0, 1.0], task="lcm", category="arithmetic")
    metrics.observe(replace(lcm, rollouts=[replace(lcm.rollouts[0], mask_reason=MaskReason.TOO_LONG), lcm.rollouts[1]]))
    metrics.observe(make_group([0.0, 0.49, 0.5, 0.0], task="maze", category="games"))
    assert metrics.percent_correct == [0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0]
    values = metrics.drain()
    found = {name: value for name, value in values.items() if not name.startswith("train_reward/")}
    assert found == pytest.approx(json.loads(Path(__file__).with_name("metrics.json").read_text()))
    assert metrics.drain() == {}
    assert metrics.percent_correct == []


def test_what_we_failed_to_score_is_not_counted_as_wrong_and_has_no_part_of_a_reward(make_group: Any) -> None:
    metrics = TrainMetrics()
    metrics.observe(with_scores(make_group([0.0, 1.0], task="gcd"), LOST, RIGHT))
    metrics.observe(with_scores(make_group([0.0], task="maze", category="games"), LOST))
    values = metrics.drain()
    assert values["train/outcome_timeout"] == 2 / 3
    for name in (
        "train/percent_correct",
        "train/percent_exact",
        "train_task/gcd/percent_correct",
        "train_reward/total",
    ):
        assert values[name] == 1.0
    assert not [name for name in values if "maze" in name or name.startswith("train_category/games/percent_")]
    assert not [name for name in values if name.startswith("train_reward/category/games")]


def test_the_parts_of_a_reward_add_up_to_it_and_rewards_stand_by_category(make_group: Any) -> None:
    group = make_group([1.0, 0.2, 0.0], category="games", level=2)
    first, second, third = group.rollouts
    metrics = TrainMetrics()
    metrics.observe(
        replace(group, rollouts=[replace(first, reward=0.4), replace(second, base_reward=0.0, reward=0.0), third]),
    )
    values = metrics.drain()
    parts = {"score": 0.4, "partial_credit": -0.2 / 3, "length_penalty": -0.2, "total": 0.4 / 3}
    parts["category/games"] = 0.4 / 3
    assert {name: values[f"train_reward/{name}"] for name in parts} == pytest.approx(parts)


async def test_the_sample_has_what_no_other_dump_has(tmp_path: Path, make_group: Any) -> None:
    config = ReasoningGymEnvConfig(data_dumps_dir=str(tmp_path), keep_for_report=True, dump_failed_rollouts=True)
    telemetry = Telemetry(config, "run", "0")
    for index in range(41):
        await telemetry.dump(make_group([1.0, 0.0], index=index))
        failed = make_group([0.0, 0.0], index=100 + index)
        await telemetry.dump_if_failed(failed)
        await telemetry.dump(failed)
    await telemetry.dumps.close()
    sample = dumped(tmp_path, "*_sample_run_0000.jsonl")
    assert [line["index"] for line in sample] == [0, 20, 40]
    assert len(dumped(tmp_path, "*_FAILED_rollouts_run_0000.jsonl")) == 41
