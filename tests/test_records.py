"""Records count their tokens by mask, and know whether a group can teach anything."""

from __future__ import annotations

from typing import Any

from reasoning_gym_environment.records import MASKED, Completion


def test_completion_tokens_are_those_not_masked() -> None:
    completion = Completion("x", [1, 2, 3, 0], [MASKED, MASKED, 3, 0], None, "stop")
    assert completion.num_completion_tokens == 2


def test_group_has_signal_only_if_rewards_differ(make_group: Any) -> None:
    for rewards, has_signal in [([], False), ([0.5], False), ([1.0, 1.0], False), ([0.0, 0.01], True)]:
        group = make_group(rewards)
        assert (group.rewards, group.has_signal) == (rewards, has_signal)
