"""What is written on the command line is what Atropos reads."""

from __future__ import annotations

import sys

import pytest
from atroposlib.utils.cli import get_double_dash_flags
from pydantic import ValidationError

from reasoning_gym_environment.atropos.command_line import joined
from reasoning_gym_environment.config import ReasoningGymEnvConfig


def is_legal(name: str) -> bool:
    try:
        ReasoningGymEnvConfig(**{name: "-1"})
    except ValidationError:
        return False
    return True


MAY_BE_NEGATIVE = [name for name in ReasoningGymEnvConfig.model_fields if is_legal(name)]


@pytest.mark.parametrize("name", MAY_BE_NEGATIVE)
def test_a_negative_value_is_that_value(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["program", *joined(["serve", f"--env.{name}", "-1", "--config", "x.yaml"])])
    assert get_double_dash_flags() == {f"env.{name}": "-1", "config": "x.yaml"}


def test_the_settings_for_which_minus_one_means_something_are_among_them() -> None:
    meaning = {"max_staleness_steps", "worker_timeout", "num_rollouts_per_group_for_logging", "max_num_workers"}
    assert meaning | {"seed", "eval_seed", "total_steps", "batch_size"} <= set(MAY_BE_NEGATIVE)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--a", "1", "--b=2"], ["--a=1", "--b=2"]),
        (["--a", ""], ["--a="]),
        (["--a", "x=y", "z"], ["--a=x=y", "z"]),
        (["--a", "--b", "1"], ["--a", "--b=1"]),
        (["serve", "--a"], ["serve", "--a"]),
        (["--a", "-h"], ["--a", "-h"]),
        (["--help", "serve"], ["--help", "serve"]),
    ],
)
def test_a_flag_takes_the_word_after_it_unless_that_is_a_flag(given: list[str], expected: list[str]) -> None:
    assert joined(given) == expected
    assert joined(expected) == expected
