"""The file of groups of `serve`: a disk that hangs or refuses groups costs lines of this file, and nothing else."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment.storage.append_log import AppendLog
from reasoning_gym_environment.trainer.group_file import MOST_WAITING, GroupFile
from reasoning_gym_environment.utils.resilience import RepeatedEvents

KIND = "group_not_written_to_data_path_to_save_groups"


@pytest.fixture
def failures() -> RepeatedEvents:
    return RepeatedEvents(logging.getLogger(__name__))


async def test_a_disk_that_hangs_stops_nothing(
    tmp_path: Path, failures: RepeatedEvents, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = threading.Event()
    append = AppendLog.append

    def append_later(log: AppendLog, record: dict[str, Any]) -> None:
        hangs.wait()
        append(log, record)

    monkeypatch.setattr(AppendLog, "append", append_later)
    path = tmp_path / "groups.jsonl"
    file = GroupFile(str(path), failures)
    for number in range(MOST_WAITING + 3):
        file.write({"number": number})
    assert failures.counts[KIND] == 3
    hangs.set()
    await file.close()
    numbers = [json.loads(line)["number"] for line in path.read_text().splitlines()]
    assert numbers == list(range(MOST_WAITING))
    await file.close()


async def test_a_disk_that_refuses_a_group_is_reported_and_the_next_group_is_tried(
    tmp_path: Path, failures: RepeatedEvents
) -> None:
    folder = tmp_path / "folder"
    folder.write_text("a file is in the way")
    file = GroupFile(str(folder / "groups.jsonl"), failures)
    file.write({"number": 0})
    await file.close()
    await asyncio.sleep(0)
    assert failures.counts[KIND] == 1 and "groups.jsonl" in failures.last_detail
    folder.unlink()
    file.write({"number": 1})
    await file.close()
    assert json.loads((folder / "groups.jsonl").read_text()) == {"number": 1}


async def test_without_a_path_nothing_is_written(failures: RepeatedEvents) -> None:
    file = GroupFile(None, failures)
    file.write({})
    await file.close()
    assert not failures.counts
