"""Records are immutable, count their tokens by mask, and know whether a group can teach anything."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import pytest

from reasoning_gym_environment.records import MASKED, Completion, Outcome, RolloutGroup, Score


def test_completion_tokens_are_those_not_masked() -> None:
    completion = Completion("x", [1, 2, 3, 0], [MASKED, MASKED, 3, 0], None, "stop")
    assert completion.num_tokens == 4
    assert completion.num_completion_tokens == 2


def test_records_cannot_be_changed(make_problem: Any, make_completion: Any) -> None:
    for record, field in (
        (make_problem(), "task"),
        (make_completion(), "text"),
        (Score(1.0, Outcome.CORRECT), "value"),
    ):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(record, field, "other")


@pytest.mark.parametrize(
    ("rewards", "has_signal"), [([], False), ([0.5], False), ([1.0, 1.0], False), ([0.0, 0.01], True)]
)
def test_group_has_signal_only_if_rewards_differ(make_group: Any, rewards: list[float], has_signal: bool) -> None:
    group = make_group(rewards)
    assert group.rewards == rewards
    assert group.has_signal is has_signal


def test_groups_do_not_share_their_default_rollouts(make_problem: Any) -> None:
    one, other = RolloutGroup(make_problem(), []), RolloutGroup(make_problem(), [])
    assert one.rollouts is not other.rollouts


def test_only_timeout_memory_and_crash_are_unscored() -> None:
    assert {o for o in Outcome if not o.is_scored} == {Outcome.TIMEOUT, Outcome.MEMORY, Outcome.CRASHED}


def test_question_is_text_even_if_the_entry_has_something_else(make_problem: Any) -> None:
    assert make_problem(entry={"question": 12}).question == "12"


def test_records_import_the_standard_library_only() -> None:
    code = (
        "import sys; import reasoning_gym_environment.records;"
        "top = {name.partition('.')[0] for name in sys.modules};"
        "print(sorted(name for name in ('atroposlib', 'pydantic', 'reasoning_gym', 'transformers') if name in top))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
