"""Dumps have the names and sizes that others know. A disk that refuses groups or hangs does not hold up training."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.storage import disk_queue
from reasoning_gym_environment.storage.append_log import AppendLog
from reasoning_gym_environment.storage.lines import FAILED, ROLLOUTS
from reasoning_gym_environment.telemetry import telemetry
from reasoning_gym_environment.telemetry.telemetry import RolloutDumps
from reasoning_gym_environment.utils.saved_state import load_into
from testing.process_table import until

NAME = "reasoning_gym_environment_rollouts_RUN_{:04d}.jsonl"


@pytest.fixture(autouse=True)
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(telemetry.GROUPS_PER_FILE, ROLLOUTS, 2)
    monkeypatch.setattr(disk_queue, "RETRY_S", 0.01)


@pytest.fixture
def add(make_group: Any) -> Any:
    async def add(dumps: RolloutDumps, *indices: int, kind: str = ROLLOUTS) -> None:
        for index in indices:
            await asyncio.wait_for(dumps.add(make_group([1.0], index=index), kind), 60)

    return add


async def written(dumps: RolloutDumps, count: int) -> None:
    """Wait until so many groups are written. On a busy machine, a write may take longer than the short waits here."""
    await until(lambda: dumps.metrics()["dumps/rollouts_written"] == count)


def indices(folder: Path) -> dict[str, list[int]]:
    """Of each file, the indices of its groups."""
    paths = sorted(folder.iterdir())
    return {path.name: [json.loads(line)["index"] for line in path.read_text().split("\n")[:-1]] for path in paths}


async def test_a_group_is_on_disk_at_once_and_a_full_file_is_followed_by_the_next(tmp_path: Path, add: Any) -> None:
    folder = tmp_path / "dumps"
    dumps = RolloutDumps(folder, "RUN", "0.1.25", kinds=[ROLLOUTS, FAILED])
    await add(dumps, 0)
    assert indices(folder) == {NAME.format(0): [0]}
    await add(dumps, 1, 2)
    await add(dumps, 3, kind=FAILED)
    for _ in range(2):
        await dumps.close()
    failed = NAME.format(0).replace(ROLLOUTS, FAILED)
    assert indices(folder) == {failed: [3], NAME.format(0): [0, 1], NAME.format(1): [2]}
    counts = {name: count for name, count in dumps.metrics().items() if count}
    assert counts == {"dumps/rollouts_written": 3.0, "dumps/FAILED_rollouts_written": 1.0}
    await add(RolloutDumps(folder, "RUN", "0.1.25", kinds=[FAILED]), 4)
    assert len(indices(folder)) == 3, "a kind that is not wanted is not written"


async def test_a_resumed_run_goes_on_in_the_file_where_it_was_killed(
    tmp_path: Path, add: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = RolloutDumps(tmp_path, "RUN", "0.1.25", kinds=[ROLLOUTS])
    await add(first, 0)
    state = json.loads(json.dumps(first.state_dict()))
    await add(first, 1, 2)
    second = RolloutDumps(tmp_path, "other", "0.1.25", kinds=[ROLLOUTS])
    load_into({"dumps": second}, {"dumps": state})
    monkeypatch.setattr(disk_queue, "PATIENCE_S", 0.05)
    await add(second, 3)
    assert second.metrics()["dumps/disk_outages"] == 1.0, "the first still writes there"
    await first.close()
    await add(second, 4, 5)
    await written(second, 4)
    await second.close()
    assert indices(tmp_path) == {NAME.format(0): [0, 1], NAME.format(1): [2, 3], NAME.format(2): [4, 5]}
    with pytest.raises(EnvironmentSetupError, match="state of dumps is missing or malformed"):
        load_into({"dumps": second}, {"dumps": {"run_id": "a", "kinds": {ROLLOUTS: {"batch": "x"}}}})


async def test_a_disk_that_hangs_costs_only_the_groups_that_do_not_fit_into_memory(
    tmp_path: Path, add: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers, append = threading.Event(), AppendLog.append
    monkeypatch.setattr(AppendLog, "append", lambda *arguments: (answers.wait(60), append(*arguments)))
    monkeypatch.setattr(disk_queue, "MOST_WAITING", 3)
    monkeypatch.setattr(disk_queue, "PATIENCE_S", 0.05)
    dumps = RolloutDumps(tmp_path, "RUN", "0.1.25", kinds=[ROLLOUTS])
    await add(dumps, *range(5))
    assert dumps.metrics()["dumps/rollouts_dropped"] == 2.0
    assert caplog.text.count("Until it takes them, all others are lost.") == 1, "the loss is said while it happens"
    answers.set()
    await written(dumps, 3)
    await dumps.close()
    assert indices(tmp_path) == {NAME.format(0): [0, 1], NAME.format(1): [2]}
    assert caplog.text.count("The disk of the dumps is back") == 1
    assert "The disk did not take 2 dumps, which are lost." in caplog.text
