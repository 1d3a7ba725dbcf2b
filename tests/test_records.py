"""Records are immutable, count their tokens by mask, and know whether a group can teach anything."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from reasoning_gym_environment.records import MASKED, Completion, Outcome, Score


def test_completion_tokens_are_those_not_masked() -> None:
    completion = Completion("x", [1, 2, 3, 0], [MASKED, MASKED, 3, 0], None, "stop")
    assert (completion.num_tokens, completion.num_completion_tokens) == (4, 2)


def test_records_cannot_be_changed(make_problem: Any, make_completion: Any) -> None:
    made = (make_problem(), "task"), (make_completion(), "text"), (Score(1.0, Outcome.CORRECT), "value")
    for record, field in made:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(record, field, "other")


def test_group_has_signal_only_if_rewards_differ(make_group: Any) -> None:
    for rewards, has_signal in [([], False), ([0.5], False), ([1.0, 1.0], False), ([0.0, 0.01], True)]:
        group = make_group(rewards)
        assert (group.rewards, group.has_signal) == (rewards, has_signal)


def test_only_timeout_memory_crash_and_bad_replies_are_unscored() -> None:
    unscored = {Outcome.TIMEOUT, Outcome.MEMORY, Outcome.CRASHED, Outcome.BAD_REPLY}
    assert {o for o in Outcome if not o.is_scored} == unscored


def test_question_is_text_even_if_the_entry_has_something_else(make_problem: Any) -> None:
    assert make_problem(entry={"question": 12}).question == "12"
