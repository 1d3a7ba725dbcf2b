"""The rows that a person reads in wandb."""

from __future__ import annotations

from typing import Any

from reasoning_gym_environment.training_log.metrics import (
    ALL,
    COLUMNS,
    CONVERSATIONS,
    ConversationLog,
    build_table,
    table_rows,
)

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
