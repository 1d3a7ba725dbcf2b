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

from reasoning_gym_environment.storage import patient_writer
from reasoning_gym_environment.storage.append_log import AppendLog
from reasoning_gym_environment.storage.patient_writer import PatientWriter
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
    monkeypatch.setattr(patient_writer, "RETRY_S", 0.01)
    path = small_disk / "records.jsonl"
    other = small_disk / "other"
    other.write_bytes(bytes(20_000))
    log = AppendLog(path)
    writer = PatientWriter(log.append, name="records", remedy="Free some space")
    # More than fits, in records that are no divisor of the size of a page.
    writes = [asyncio.create_task(writer.write({"number": number, "text": "x" * 3000})) for number in range(18)]
    await until(lambda: writer.is_waiting)
    assert 0 < path.read_bytes().count(b"\n") < 18
    assert not all(write.done() for write in writes)
    other.unlink()
    await asyncio.gather(*writes)
    await writer.finish(log.close)
    numbers = [json.loads(line)["number"] for line in path.read_bytes().splitlines()]
    assert numbers == list(range(18))
    assert writer.lost == 0 and not writer.is_waiting
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


async def end_during_the_first_attempt(disk: SlowDisk) -> PatientWriter:
    writer = PatientWriter(disk.append, name="groups", remedy="free some space")
    writing = asyncio.ensure_future(writer.write({}))
    await asyncio.to_thread(disk.begun.wait, 60)
    writer.stop_waiting()
    disk.answers.set()
    await writing
    return writer


async def test_an_attempt_that_began_before_the_end_is_not_the_last() -> None:
    disk = SlowDisk()
    writer = await end_during_the_first_attempt(disk)
    assert (disk.calls, writer.lost) == (2, 0)


async def test_a_disk_that_stays_full_is_tried_once_more_and_no_longer() -> None:
    disk = SlowDisk()
    disk.stays_full = True
    with pytest.raises(OSError, match="No space left"):
        await end_during_the_first_attempt(disk)
    assert disk.calls == 2
