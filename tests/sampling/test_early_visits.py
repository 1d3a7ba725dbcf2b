"""The log names the tasks that the first groups of a run have hardly visited."""

from __future__ import annotations

import json
import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.sampling.early_visits import ENOUGH_COMPLETIONS, FIRST_GROUPS, EarlyVisits
from reasoning_gym_environment.sampling.policies import build_task_policy
from reasoning_gym_environment.sampling.task_policy import GroupResult
from reasoning_gym_environment.settings import SamplingSettings

from .test_task_policies import curriculum_of_ladders

TASKS = [f"task_{number}" for number in range(105)]


def test_enough_completions_show_a_success_rate_of_a_tenth() -> None:
    assert 0.9**ENOUGH_COMPLETIONS <= 0.1 < 0.9 ** (ENOUGH_COMPLETIONS - 1)


def test_a_task_that_is_hardly_visited_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    visits = EarlyVisits(["often", "rarely", "never"])
    visits.note("rarely", 8)
    for _ in range(2 * FIRST_GROUPS):
        visits.note("often", 8)
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().endswith("never (0), rarely (8).")


@pytest.mark.parametrize("sampling", ["weighted", "learnability"])
@pytest.mark.parametrize("num_informative", [1, 104])
def test_every_task_is_visited_enough_when_others_look_better(sampling: str, num_informative: int) -> None:
    """The groups of some tasks have a signal, and those of the other tasks have none."""
    settings = SamplingSettings(task_sampling=sampling, seed=42)
    policy = build_task_policy(settings, dict.fromkeys(TASKS, 1.0), curriculum_of_ladders())
    visits = EarlyVisits(TASKS)
    informative = set(TASKS[:num_informative])
    for index in range(FIRST_GROUPS):
        task = policy.choose(index, "0")
        right = float(task in informative)
        policy.observe(GroupResult(task, None, (right, *[0.0] * 7), has_signal=right > 0))
        visits.note(task, 8)
    assert visits.rarely_visited == []


@settings(deadline=None)
@given(groups=st.lists(st.tuples(st.sampled_from(TASKS[:3]), st.integers(0, 8)), max_size=30), cut=st.integers(0, 30))
def test_a_resumed_run_counts_on(groups: list[tuple[str, int]], cut: int) -> None:
    whole = EarlyVisits(TASKS[:3])
    for task, completions in groups:
        whole.note(task, completions)
    first = EarlyVisits(TASKS[:3])
    for task, completions in groups[:cut]:
        first.note(task, completions)
    resumed = EarlyVisits(TASKS[:3])
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for task, completions in groups[cut:]:
        resumed.note(task, completions)
    assert resumed.state_dict() == whole.state_dict()


@pytest.mark.parametrize("state", [{"groups": -1}, {"completions": {"a": "x"}}, {"completions": []}])
def test_a_malformed_state_is_refused(state: dict[str, object]) -> None:
    with pytest.raises(EnvironmentSetupError, match="early visits"):
        EarlyVisits(TASKS).load_state_dict(state)
