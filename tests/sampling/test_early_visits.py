"""The log names the tasks that the first groups of a run have hardly visited."""

from __future__ import annotations

import json
import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.sampling.early_visits import ENOUGH_COMPLETIONS, FIRST_GROUPS, EarlyVisits
from reasoning_gym_environment.sampling.weighted import WeightedTasks

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


def test_a_run_of_all_tasks_visits_each_of_them_enough() -> None:
    policy = WeightedTasks(dict.fromkeys(TASKS, 1.0), 42)
    visits = EarlyVisits(TASKS)
    for index in range(FIRST_GROUPS):
        visits.note(policy.choose(index, "0"), 8)
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
