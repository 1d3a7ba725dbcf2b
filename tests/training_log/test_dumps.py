"""Rollouts reach the disk whole, under the names that others look for; a disk that refuses or hangs costs no group
that memory has room for, and holds up neither the groups nor the end.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import resource
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment.atropos import shutdown as lifecycle
from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.training_log import dumps as rollout_dumps
from reasoning_gym_environment.training_log.dump_files import FAILED, ROLLOUTS, recover_parts
from reasoning_gym_environment.training_log.dumps import MAX_UNFINISHED, RolloutDumps, RolloutWriter, line_of

from ..env_support import RIGHT, WRONG, ReadyEnv, rollout


class Disk:
    """A folder of dumps, writers to it, and what can happen to it."""

    def __init__(self, folder: Path, make_group: Any) -> None:
        self.folder = folder
        self._make_group = make_group

    def writer(self, threshold: int = 2, kind: str = ROLLOUTS) -> RolloutWriter:
        return RolloutWriter(self.folder, "RUN", kind=kind, threshold=threshold)

    def add(self, writer: RolloutWriter, *indices: int) -> None:
        for index in indices:
            writer.take(self._make_group([1.0], index=index))
            writer.write()

    @property
    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())

    @property
    def part(self) -> Path:
        [part] = self.folder.iterdir()
        return part

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """While a file stands where the folder should, nothing can be written."""
        self.folder.write_text("")
        yield
        self.folder.unlink()

    @contextmanager
    def full_after(self, size: int) -> Iterator[None]:
        """A limit on the size of files stands in for a disk that is full for a while."""
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        yield
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def disk(tmp_path: Path, make_group: Any) -> Disk:
    return Disk(tmp_path / "dumps", make_group)


def indices(*paths: Path) -> list[list[int]]:
    """Of each file, the indices of its groups."""
    return [[json.loads(line)["index"] for line in path.read_text().split("\n")[:-1]] for path in paths]


def refuse(*arguments: Any, **options: Any) -> Any:
    raise OSError(errno.EIO, "Input/output error")


def test_a_file_gets_its_final_name_when_it_is_full(disk: Disk) -> None:
    writer = disk.writer()
    writer.close()
    assert not disk.folder.exists() and writer.files == [], "nothing is written before the first group"
    disk.add(writer, 0)
    assert disk.names == ["reasoning_gym_environment_rollouts_RUN_0000.jsonl.part"]
    assert indices(disk.part) == [[0]], "each group can be read as soon as it is added"
    disk.add(writer, 1)
    assert disk.names == ["reasoning_gym_environment_rollouts_RUN_0000.jsonl"]
    disk.add(writer, 2)
    assert disk.names[1] == "reasoning_gym_environment_rollouts_RUN_0001.jsonl.part"
    failed = disk.writer(kind=FAILED)
    disk.add(failed, 3)
    for one in (writer, failed):
        one.close()
        one.close()
    disk.add(writer, 4)
    writer.close()
    assert indices(*writer.files) == [[0, 1], [2], [4]] and indices(*failed.files) == [[3]]
    assert disk.names == sorted(path.name for path in (*writer.files, *failed.files))
    assert failed.files[0].name == "reasoning_gym_environment_FAILED_rollouts_RUN_0000.jsonl"
    assert writer.groups_written == 4


@pytest.mark.parametrize("comes_back", ["never", "for the close", "for the next group"])
def test_groups_wait_for_a_disk_that_refuses_which_is_reported_once(
    disk: Disk, caplog: pytest.LogCaptureFixture, comes_back: str
) -> None:
    writer = disk.writer(threshold=100)
    with disk.refusing():
        disk.add(writer, 0, 1, 2)
        assert writer.groups_waiting == 3
        assert [record.levelname for record in caplog.records] == ["ERROR"] and str(disk.folder) in caplog.text
        if comes_back == "never":
            writer.close()
            assert (writer.groups_written, writer.groups_dropped, writer.files) == (0, 3, [])
            assert "3 groups of rollouts could not be written" in caplog.text
            return
    last = [3] if comes_back == "for the next group" else []
    disk.add(writer, *last)
    writer.close()
    assert indices(*writer.files) == [[0, 1, 2, *last]]
    assert (writer.groups_waiting, writer.groups_written, writer.groups_dropped) == (0, 3 + len(last), 0)
    assert caplog.text.count("Cannot write") == caplog.text.count("those that waited are written") == 1


def test_memory_for_waiting_groups_is_bounded(
    disk: Disk, make_group: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rollout_dumps, "MAX_WAITING_BYTES", 3.5 * len(line_of(make_group([1.0], index=0), "")))
    writer = disk.writer(threshold=100)
    with disk.refusing():
        disk.add(writer, *range(9))
        assert (writer.groups_waiting, writer.groups_dropped) == (3, 6)
        assert caplog.text.count("No more room") == 1
    disk.add(writer, 9)
    writer.close()
    assert indices(*writer.files) == [[0, 1, 2, 9]]
    assert "6 groups of rollouts could not be written" in caplog.text


def test_a_continued_dump_goes_on_behind_what_is_there(disk: Disk) -> None:
    first = disk.writer()
    disk.add(first, 0, 1, 2)
    state = json.loads(json.dumps(first.state_dict()))
    disk.add(first, 3)
    second = disk.writer()
    second.load_state_dict(state)
    disk.add(second, 4)
    second.close()
    assert [path.name[-10:] for path in second.files] == ["0002.jsonl"]
    assert second.groups_written == 4
    for malformed in ({}, {"batch": -1, "groups_written": 0, "groups_dropped": 0}, {"batch": "1"}):
        with pytest.raises(EnvironmentSetupError, match="three counts"):
            second.load_state_dict(malformed)


@pytest.mark.parametrize("can_be_taken_back", [True, False])
def test_a_line_that_the_disk_takes_only_in_part_never_stays_in_a_file(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, can_be_taken_back: bool
) -> None:
    writer = disk.writer(threshold=100)
    disk.add(writer, 0)
    part, before = disk.part, disk.part.read_bytes()
    with monkeypatch.context() as patch, disk.full_after(len(before) + 50):
        if not can_be_taken_back:
            patch.setattr(os, "ftruncate", refuse)
        disk.add(writer, 1)
    assert not can_be_taken_back or part.read_bytes() == before
    disk.add(writer, 2)
    writer.close()
    # The next line never stands behind a torn one.
    assert indices(*writer.files) == ([[0, 1, 2]] if can_be_taken_back else [[0], [1, 2]])
    assert sorted(path.name for path in writer.files) == disk.names
    assert (writer.groups_written, writer.groups_dropped) == (3, 0)


def test_a_file_that_cannot_be_finished_is_reported_and_the_next_one_is_written(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    writer = disk.writer()
    disk.add(writer, 0)
    disk.part.with_suffix("").mkdir()
    disk.add(writer, 1)
    [message] = caplog.messages
    assert message.startswith("Cannot finish") and "0000.jsonl with 2 groups of rollouts" in message
    disk.add(writer, 2)
    writer.close()
    assert indices(*writer.files) == [[2]] and writer.files[0].name.endswith("_0001.jsonl")


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_file_that_could_not_be_finished_is_finished_later(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, function: str
) -> None:
    writer = disk.writer()
    with monkeypatch.context() as patch:
        patch.setattr(os if function == "fsync" else Path, function, refuse)
        disk.add(writer, *range(5))
        assert recover_parts(disk.folder) == [], "it is still this writer's"
    assert caplog.text.count("Cannot finish") == 2
    disk.add(writer, 5)
    assert indices(*writer.files) == [[0, 1], [2, 3], [4, 5]]
    writer.close()
    assert sorted(path.name for path in writer.files) == disk.names


def test_parts_that_can_never_be_finished_are_left_to_the_next_start(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = disk.writer(threshold=1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        disk.add(writer, *range(MAX_UNFINISHED + 3))
        completed = recover_parts(disk.folder)
        assert len(completed) == 3, "only so many are held open"
        writer.close()
    assert writer.files == []
    completed += recover_parts(disk.folder)
    assert indices(*completed) == [[number] for number in range(MAX_UNFINISHED + 3)]


@pytest.mark.parametrize("how", ["removed", "moved"])
def test_a_folder_that_went_away_is_made_again_and_what_went_with_it_is_counted(
    disk: Disk, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    writer = disk.writer(threshold=3)

    def lose_it() -> None:
        shutil.rmtree(disk.folder) if how == "removed" else disk.folder.rename(disk.folder.with_name("elsewhere"))

    disk.add(writer, 0, 1)
    lose_it()
    disk.add(writer, 2, 3)
    assert (writer.groups_removed, writer.groups_written) == (2, 4)
    assert [message for message in caplog.messages if "2 groups of rollouts are not where they were written" in message]
    disk.add(writer, 4, 5)
    [full] = writer.files
    assert indices(full) == [[2, 3, 4]]
    if how == "removed":
        # And once more, with nothing to come.
        lose_it()
        writer.close()
        assert writer.groups_removed == 3 and not disk.folder.exists()
        assert not [message for message in caplog.messages if "completes it" in message]


def test_close_raises_nothing(disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    writer = disk.writer(threshold=100)
    with monkeypatch.context() as patch, disk.full_after(0):
        patch.setattr(Path, "unlink", refuse)
        disk.add(writer, 0)
        writer.close()
    assert (writer.groups_dropped, writer.files) == (1, []), "an empty part that cannot be removed"
    other = disk.writer(threshold=100, kind=FAILED)
    disk.add(other, 0)
    next(disk.folder.glob("*FAILED*")).unlink()
    other.close()
    assert other.files == [] and "Cannot finish" in caplog.text, "a last file that cannot be finished"


# --- a disk that hangs


@pytest.fixture
def goes_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Until it is set, no line is taken and none refused."""
    goes_on = threading.Event()
    append = RolloutWriter._append

    def hang(writer: RolloutWriter, line: bytes) -> None:
        goes_on.wait(60)
        append(writer, line)

    monkeypatch.setattr(RolloutWriter, "_append", hang)
    monkeypatch.setattr(rollout_dumps, "PATIENCE_S", 0.02)
    monkeypatch.setattr(lifecycle, "STEP_S", 0.2)
    yield goes_on
    goes_on.set()


async def test_groups_go_on_and_are_written_in_order_when_the_disk_does(
    tmp_path: Path, make_group: Any, goes_on: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    dumps = RolloutDumps(tmp_path, "run", kinds=[ROLLOUTS, FAILED])
    for index in range(6):
        await asyncio.wait_for(dumps.add(make_group([1.0], index=index), (ROLLOUTS, FAILED)[index % 2]), 60)
    metrics = dumps.metrics()
    assert (metrics["dumps/rollouts_waiting"], metrics["dumps/FAILED_rollouts_waiting"]) == (3.0, 3.0)
    assert metrics["dumps/disk_outages"] == 1.0
    goes_on.set()
    await dumps.add(make_group([1.0], index=6), ROLLOUTS)
    await dumps.close()
    assert indices(*dumps.files) == [[0, 2, 4, 6], [1, 3, 5]]
    assert caplog.text.count("The disk of the dumps is away") == caplog.text.count("The disk of the dumps is back") == 1


@pytest.mark.parametrize("most", [10, 2000])
async def test_what_waits_for_a_disk_that_hangs_is_bounded(
    tmp_path: Path, make_group: Any, goes_on: threading.Event, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(rollout_dumps, "MAX_WAITING_BYTES", most)
    dumps = RolloutDumps(tmp_path, "run", kinds=[ROLLOUTS])
    for index in range(20):
        await dumps.add(make_group([1.0], index=index), ROLLOUTS)
    metrics = dumps.metrics()
    assert 1 <= metrics["dumps/rollouts_waiting"] <= 4
    assert metrics["dumps/rollouts_waiting"] + metrics["dumps/rollouts_dropped"] == 20
    goes_on.set()
    await dumps.close()
    assert sum(map(len, indices(*dumps.files))) == metrics["dumps/rollouts_waiting"]


async def test_training_and_its_end_do_not_wait_for_a_disk_that_hangs(
    ready_env: ReadyEnv, goes_on: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    env = await ready_env(num_eval_samples_per_task=0, dump_rollouts=True)
    item = await env.get_next_item()
    group = await asyncio.wait_for(env.score([rollout(item, text) for text in (RIGHT, WRONG, RIGHT, WRONG)]), 60)
    assert group is not None
    await asyncio.wait_for(env.close(), 60)
    assert "At the end, finishing the dumps was left" in caplog.text
