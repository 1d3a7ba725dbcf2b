"""Things break, and nothing is lost: real processes, real HTTP, atroposlib's own run-api."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from testing.faults.scenarios import SCENARIOS
from testing.process_table import linux_only

pytestmark = [linux_only, pytest.mark.slow, pytest.mark.timeout(3600)]


def happened(name: str, tmp_path: Path, **settings: Any) -> dict[str, Any]:
    """The report of a scenario, in which nothing is lost and every process ends as it should."""
    report = asyncio.run(SCENARIOS[name](tmp_path, **settings))
    for loss in ("lost_items", "lost_groups", "lines_that_are_not_json", "tracebacks"):
        assert report[loss] == 0, f"{loss} in {report}"
    assert report["groups_received"] > 0
    for end in report.get("ends") or [report["end"]]:
        assert (end["exit_code"], end["left_running"]) == (128 + signal.SIGTERM, 0)
    return report


def test_kill_9_at_random_moments(tmp_path: Path) -> None:
    report = happened("kill_9", tmp_path, kills=8, seed=int.from_bytes(tmp_path.name.encode(), "little"))
    assert (report["kills"], report["orphans"]) == (8, 0)
    assert report["groups_before_the_last_start"] > 0


def test_a_full_disk(tmp_path: Path) -> None:
    report = asyncio.run(SCENARIOS["disk_full"](tmp_path))
    assert report["lines_that_are_not_json"] == 0 and report["end"]["exit_code"] == 128 + signal.SIGTERM
    assert report["groups_received"] >= 80
    assert report["groups_dumped"] + report["groups_dropped"] >= report["groups_received"]


def test_an_inference_server_that_is_gone_fails_cuts_and_hangs(tmp_path: Path) -> None:
    report = happened("inference", tmp_path, for_s=3.0)
    assert len(report["seconds_to_ten_groups_after"]) == 5
    assert report["items_given_up"] == 0


def test_a_restarted_and_a_hanging_trajectory_api_and_a_late_trainer(tmp_path: Path) -> None:
    report = happened("api_restart", tmp_path, for_s=2.0)
    assert report["registered_again"] == report["restarts"] == 2
    assert report["registered_again_after_a_hang"] == 0
