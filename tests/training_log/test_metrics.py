"""What is counted between two log steps: in all, by category and task, by part of the reward; the lines about it."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from reasoning_gym_environment.records import FormatFailure, Outcome, RolloutGroup, Score
from reasoning_gym_environment.training_log.training_log import (
    ALL,
    COLUMNS,
    CONVERSATIONS,
    DIVERSITY_WINDOW,
    SUMMARY_EVERY,
    ConversationLog,
    TrainMetrics,
    build_table,
    group_line,
    group_remark,
    table_rows,
)

NO_ANSWER = Score(0.0, Outcome.FORMAT_FAILURE, failure=FormatFailure.NO_ANSWER)
EMPTY = Score(0.0, Outcome.FORMAT_FAILURE, failure=FormatFailure.EMPTY_ANSWER)


def with_scores(group: RolloutGroup, *scores: Score) -> RolloutGroup:
    rollouts = [replace(r, score=s, reward=s.value) for r, s in zip(group.rollouts, scores, strict=True)]
    return replace(group, rollouts=rollouts)


def test_values_are_shares_in_all_by_category_and_by_task_and_start_over(make_group: Any) -> None:
    metrics = TrainMetrics()
    assert metrics.drain() == {}
    metrics.observe(make_group([0.0, 1.0], task="gcd", category="arithmetic", level=2))
    lcm = make_group([1.0, 1.0], task="lcm", category="arithmetic")
    metrics.observe(replace(lcm, rollouts=[replace(lcm.rollouts[0], mask_reason="too_long"), lcm.rollouts[1]]))
    metrics.observe(make_group([0.0, 0.49, 0.5, 0.0], task="maze", category="games"))
    assert metrics.percent_correct == [0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0]
    values = metrics.drain()
    found = {name: value for name, value in values.items() if not name.startswith("train_reward/")}
    assert found == {
        "train/percent_correct": 0.5,
        "train/percent_exact": 3 / 8,
        "train/signal_share": 2 / 3,
        "train/effective_tasks": pytest.approx(3.0),
        **{f"train/outcome_{outcome.value}": 0.0 for outcome in Outcome},
        "train/outcome_correct": 3 / 8,
        "train/outcome_partial": 2 / 8,
        "train/outcome_wrong": 3 / 8,
        "train/masked_too_long": 1 / 8,
        "train_category/arithmetic/groups": 2.0,
        "train_category/arithmetic/signal_share": 0.5,
        "train_category/arithmetic/percent_correct": 0.75,
        "train_category/arithmetic/percent_exact": 0.75,
        "train_category/games/groups": 1.0,
        "train_category/games/signal_share": 1.0,
        "train_category/games/percent_correct": 0.25,
        "train_category/games/percent_exact": 0.0,
        "train_task/gcd/percent_correct": 0.5,
        "train_task/gcd/percent_exact": 0.5,
        "train_task/gcd/level": 2.0,
        "train_task/lcm/percent_correct": 1.0,
        "train_task/lcm/percent_exact": 1.0,
        "train_task/maze/percent_correct": 0.25,
        "train_task/maze/percent_exact": 0.0,
    }
    assert metrics.drain().keys() == {"train/effective_tasks"}
    assert metrics.percent_correct == []


def test_what_we_failed_to_score_is_not_counted_as_wrong_and_has_no_part_of_a_reward(make_group: Any) -> None:
    metrics = TrainMetrics()
    lost, right = Score(0.0, Outcome.TIMEOUT), Score(1.0, Outcome.CORRECT)
    metrics.observe(with_scores(make_group([0.0, 1.0], task="gcd"), lost, right))
    metrics.observe(with_scores(make_group([0.0], task="maze", category="games"), lost))
    values = metrics.drain()
    assert (values["train/percent_correct"], values["train/outcome_timeout"]) == (1.0, 2 / 3)
    assert values["train/percent_exact"] == values["train_task/gcd/percent_exact"] == 1.0
    assert values["train_task/gcd/percent_correct"] == values["train_reward/total"] == 1.0
    assert not [name for name in values if "maze" in name or name.startswith("train_category/games/percent_")]
    assert not [name for name in values if name.startswith(("train_reward/category/games", "train_reward/outcome/t"))]


def test_the_parts_of_a_reward_add_up_to_it_and_rewards_stand_by_category_level_and_outcome(make_group: Any) -> None:
    group = make_group([1.0, 0.2, 0.0])
    penalised = replace(group.rollouts[0], reward=0.4)
    lowered = replace(group.rollouts[1], credit=0.0, reward=0.0)
    metrics = TrainMetrics()
    metrics.observe(replace(group, rollouts=[penalised, lowered, group.rollouts[2]]))
    values = metrics.drain()
    assert values["train_reward/score"] == pytest.approx(0.4)
    assert values["train_reward/partial_credit"] == pytest.approx(-0.2 / 3)
    assert values["train_reward/length_penalty"] == pytest.approx(-0.2)
    assert values["train_reward/total"] == pytest.approx(0.4 / 3)
    metrics.observe(make_group([1.0, 0.0], level=2))
    metrics.observe(make_group([1.0, 1.0], category="games"))
    values = metrics.drain()
    assert values["train_reward/category/arithmetic"] == 0.5
    assert values["train_reward/category/games"] == 1.0
    assert (values["train_reward/outcome/correct"], values["train_reward/outcome/wrong"]) == (1.0, 0.0)
    assert {key: value for key, value in values.items() if "/level/" in key} == {"train_reward/level/2": 0.5}


def test_the_effective_number_of_tasks_is_of_the_last_groups(make_group: Any) -> None:
    metrics = TrainMetrics()
    for number in range(4):
        metrics.observe(make_group([1.0], task=f"task_{number}"))
    assert metrics.drain()["train/effective_tasks"] == pytest.approx(4.0)
    group = make_group([1.0], task="gcd")
    for _ in range(DIVERSITY_WINDOW):
        metrics.observe(group)
    assert metrics.drain()["train/effective_tasks"] == pytest.approx(1.0)


def test_violations_are_one_line_per_fifty_groups_and_one_at_the_end(
    make_group: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    metrics = TrainMetrics()
    group = with_scores(make_group([0.0, 0.0, 0.0]), NO_ANSWER, NO_ANSWER, EMPTY)
    for _ in range(SUMMARY_EVERY - 1):
        metrics.observe(group)
    assert caplog.messages == []
    metrics.observe(group)
    first = "Format violations in the last 50 groups (150 completions): no_answer 100, empty_answer 50."
    assert caplog.messages == [first]
    metrics.summarise_violations()
    metrics.observe(make_group([1.0]))
    metrics.summarise_violations()
    assert caplog.messages == [first], "no line without violations"
    metrics.observe(with_scores(make_group([0.0, 1.0]), NO_ANSWER, Score(1.0, Outcome.CORRECT)))
    metrics.summarise_violations()
    assert caplog.messages == [first, "Format violations in the last 1 groups (2 completions): no_answer 1."]


def test_a_right_answer_is_exact_whatever_it_earned_and_partial_credit_never_is(
    make_group: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    metrics = TrainMetrics()
    group = make_group([1.0, 1.0, 0.96, 0.0])
    too_long, lost = replace(group.rollouts[0], reward=0.2), Score(0.0, Outcome.TIMEOUT)
    group = replace(group, rollouts=[too_long, *group.rollouts[1:3], replace(group.rollouts[3], score=lost)])
    assert group_line(group) == "chain_sum: group average 0.54, 2/3 at least 0.5, 2/3 exact, 1 unscored."
    metrics.observe(group)
    metrics.drain()
    metrics.drain()
    metrics.observe(make_group([0.5, 0.0, 0.0]))
    for _ in range(2):
        metrics.summarise()
    assert caplog.messages == [
        "Since the last log step: 1 groups, 3 scored completions, 66.7% at least 0.5, 66.7% exact.",
        "In all: 2 groups, 6 scored completions, 50.0% at least 0.5, 33.3% exact.",
    ]


def test_a_groups_line_has_level_average_and_what_makes_it_teach_little(make_group: Any) -> None:
    assert group_line(make_group([1.0, 0.0, 0.5])) == "chain_sum: group average 0.50, 2/3 at least 0.5, 1/3 exact."
    right = "chain_sum level 0: group average 1.00, 2/2 at least 0.5, 2/2 exact (all exact)."
    assert group_line(make_group([1.0, 1.0], level=0)) == right
    lost = with_scores(make_group([0.0]), Score(0.0, Outcome.CRASHED))
    assert group_line(lost).endswith("0/0 at least 0.5, 0/0 exact, 1 unscored (none could be scored).")
    remarks = {(0.0, 0.0): "all failed", (0.2, 0.9): "partial credit only", (0.0, 0.9): "partial credit only"}
    assert {values: group_remark(make_group(list(values))) for values in remarks} == remarks
    group = make_group([0.0, 0.0])
    assert group_remark(with_scores(group, NO_ANSWER, EMPTY)) == "all failed: no usable answer"
    assert group_remark(with_scores(group, NO_ANSWER, Score(0.0, Outcome.WRONG))) == "all failed"


# --- the rows that a person reads in wandb


GROUP = {"tokens": [[1], [2, 2], [3]], "scores": [1.0, 0.5, 0.0]}
ROWS = [("t[1]", 1.0, "5", "gcd"), ("t[2, 2]", 0.5, "5", "gcd"), ("t[3]", 0.0, "5", "gcd")]


def rows(keep: int, expected: Any = 5) -> list[tuple[str, float, str, str]]:
    return table_rows(GROUP, decode=lambda ids: f"t{ids}", keep=keep, expected_answer=expected, task="gcd")


def test_the_table_has_the_first_rollouts_of_all_groups_each_with_its_score() -> None:
    for keep, count in ((ALL, 3), (0, 0), (1, 1), (3, 3), (9, 3)):
        assert rows(keep) == ROWS[:count]
    assert {row[2] for row in rows(ALL, expected=None)} == {"None"}
    table = build_table([rows(2), [], rows(1)])
    assert table.columns == COLUMNS == ["full_text", "score", "expected_answer", "task_name"]
    assert table.data == [list(row) for row in [*ROWS[:2], *ROWS[:1]]]


def test_conversations_are_kept_as_they_were_the_last_groups_only(make_group: Any) -> None:
    log = ConversationLog(groups=2, per_group=2)
    for task in ("old", "gcd", "lcm"):
        log.observe(make_group([1.0, 0.0, 1.0], task=task, level=3))
    table = log.drain()[CONVERSATIONS]
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.data]
    assert [(row["task"], row["reply"]) for row in rows] == [
        (task, f"text {number}") for task in ("gcd", "lcm") for number in (0, 1)
    ]
    assert rows[1] == {
        "task": "gcd",
        "category": "arithmetic",
        "level": 3,
        "question": "What is 2 + 3?",
        "reply": "text 1",
        "answer_read": "0.0",
        "expected_answer": "5",
        "score": 0.0,
        "reward": 0.0,
        "outcome": "wrong",
        "finish_reason": "stop",
        "completion_tokens": 20,
    }
    assert log.drain() == {}


def test_no_conversation_is_kept_when_none_is_asked_for(make_group: Any) -> None:
    for groups, per_group in ((0, 4), (4, 0)):
        log = ConversationLog(groups=groups, per_group=per_group)
        log.observe(make_group([1.0]))
        assert log.drain() == {}
