"""A full disk delays records and loses none. One test needs root, to mount a small file system that is really full."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment.storage import disk_queue
from reasoning_gym_environment.storage.append_log import AppendLog
from reasoning_gym_environment.storage.disk_queue import DiskQueue
from testing.process_table import until


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder with space for 64 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("cannot mount a file system here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


async def test_records_wait_for_space_and_each_is_in_the_file_once_and_whole(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(disk_queue, "RETRY_S", 0.01)
    path = small_disk / "records.jsonl"
    other = small_disk / "other"
    other.write_bytes(bytes(20_000))
    log = AppendLog(path)
    writer = DiskQueue(log.append, name="records", remedy="Free some space")
    # More than fits, in records that are no divisor of the size of a page.
    writes = [asyncio.create_task(writer.put({"number": number, "text": "x" * 3000})) for number in range(18)]
    await until(lambda: writer.is_stuck)
    assert 0 < path.read_bytes().count(b"\n") < 18
    assert not all(write.done() for write in writes)
    other.unlink()
    await asyncio.gather(*writes)
    await writer.close(log.close)
    numbers = [json.loads(line)["number"] for line in path.read_bytes().splitlines()]
    assert numbers == list(range(18))
    assert writer.lost == 0 and not writer.is_stuck
    assert (
        "The disk of the records is unavailable ([Errno 28] No space left on device); Free some space." in caplog.text
    )


# --- the last attempt, when the command ends


class SlowDisk:
    """Its first call fails once `answers` is set, as long as it is full."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.answers = threading.Event()
        self.calls = 0
        self.stays_full = False

    def append(self, record: dict[str, Any]) -> None:
        self.calls += 1
        self.begun.set()
        self.answers.wait(60)
        if self.calls == 1 or self.stays_full:
            raise OSError(errno.ENOSPC, "No space left on device")


async def end_during_the_first_attempt(disk: SlowDisk) -> tuple[DiskQueue, bool]:
    writer = DiskQueue(disk.append, name="groups", remedy="free some space")
    writing = asyncio.ensure_future(writer.put({}))
    await asyncio.to_thread(disk.begun.wait, 60)
    writer.stop()
    disk.answers.set()
    return writer, await writing


async def test_an_attempt_that_began_before_the_end_is_not_the_last() -> None:
    disk = SlowDisk()
    writer, is_written = await end_during_the_first_attempt(disk)
    assert (disk.calls, writer.lost, is_written) == (2, 0, True)


async def test_a_disk_that_stays_full_is_tried_once_more_and_no_longer() -> None:
    disk = SlowDisk()
    disk.stays_full = True
    writer, is_written = await end_during_the_first_attempt(disk)
    assert (disk.calls, writer.lost, is_written) == (2, 1, False)


async def test_a_record_that_is_no_json_is_an_error_of_its_caller_and_others_are_written(tmp_path: Path) -> None:
    log = AppendLog(tmp_path / "records.jsonl")
    queue = DiskQueue(log.append, name="records", remedy="")
    wrong = asyncio.ensure_future(queue.put({"number": object()}))
    assert await queue.put({"number": 1})
    with pytest.raises(TypeError):
        await wrong
    await queue.close(log.close)
    assert json.loads(log.path.read_text()) == {"number": 1}
