"""Several environments at one run-api under random faults, in simulated time: testing/cluster.py."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings

from testing.cluster import EndProcess, Fault, LoseRequests, RestartApi, Schedule, run_cluster, schedules


@pytest.mark.slow
@settings(max_examples=20, deadline=None, derandomize=True, database=None)
@given(schedule=schedules)
def test_no_member_is_signed_off_and_no_item_is_lost_whatever_happens(schedule: Schedule) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run_cluster(schedule, Path(folder))


def restarts(gap_s: float) -> list[Fault]:
    """Three restarts of run-api, after which the members register in any order."""
    return [RestartApi(gap_s, down_s, trainer_s=0.5, steps_back=3) for down_s in (1.0, 5.0, 30.0)]


KILL = EndProcess(after_s=3.0, member=1, is_killed=True, down_s=2.0)


@pytest.mark.parametrize("gateway_code", [None, 404, 502])
def test_after_restarts_of_run_api_every_member_has_its_share_as_at_the_start(
    gateway_code: int | None, tmp_path: Path
) -> None:
    schedule = Schedule(4, are_named=False, latency_s=0.5, gateway_code=gateway_code, faults=restarts(20.0))
    cluster = run_cluster(schedule, tmp_path)
    assert cluster.figures["phantoms"] == 0
    assert sum(member.doubts for member in cluster.members) == 0


@pytest.mark.slow
@pytest.mark.parametrize("before", [[], restarts(20.0), [LoseRequests(after_s=20.0, refused=5, lost=0)]])
def test_the_share_of_a_process_that_was_killed_is_free_again(before: list[Fault], tmp_path: Path) -> None:
    settled = EndProcess(after_s=60.0, member=0, is_killed=True, down_s=0.01)
    schedule = Schedule(4, are_named=True, latency_s=0.05, gateway_code=502, faults=[*before, settled, KILL])
    cluster = run_cluster(schedule, tmp_path)
    assert cluster.figures["phantoms"] == 0
    assert len(cluster.api.signed_off) == 2 + len(cluster.members), "two by their successors, and all at the end"
