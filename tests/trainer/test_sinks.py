"""The file of groups of `serve`: a disk that hangs or refuses groups costs lines of this file, and nothing else."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from reasoning_gym_environment.records import GroupOutcome
from reasoning_gym_environment.storage import disk_queue
from reasoning_gym_environment.storage.append_log import AppendLog
from reasoning_gym_environment.storage.disk_queue import MOST_WAITING
from reasoning_gym_environment.trainer.sinks import NOT_WRITTEN, TrainerSink
from reasoning_gym_environment.utils.resilience import RepeatedEvents
from testing.process_table import until


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_queue, "PATIENCE_S", 0.05)
    monkeypatch.setattr(disk_queue, "RETRY_S", 0.01)


@pytest.fixture
def failures() -> RepeatedEvents:
    return RepeatedEvents(logging.getLogger(__name__))


def sink_of(path: Path | None, failures: RepeatedEvents) -> TrainerSink:
    """A sink whose run-api takes every group immediately."""
    api: Any = SimpleNamespace(put=AsyncMock(return_value=GroupOutcome.SENT))
    return TrainerSink(api, None if path is None else str(path), failures)


async def put(sink: TrainerSink, number: int) -> None:
    assert await sink.put({"number": number}, None, sampled_at=None, to_api=True) is GroupOutcome.SENT


def numbers_in(path: Path) -> list[int]:
    return [json.loads(line)["number"] for line in path.read_text().splitlines()]


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
    sink = sink_of(path, failures)
    for number in range(MOST_WAITING + 3):
        await put(sink, number)
    assert failures.counts[NOT_WRITTEN] == 3
    hangs.set()
    await until(lambda: path.read_bytes().count(b"\n") == MOST_WAITING)
    await sink.close()
    assert numbers_in(path) == list(range(MOST_WAITING))
    await sink.close()
