"""Rollouts reach the disk whole, under the names that others look for; a disk that refuses or hangs costs no group
that memory has room for, and holds up neither the groups nor the end.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment.atropos import shutdown as lifecycle
from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.training_log import dumps as rollout_dumps
from reasoning_gym_environment.training_log.dump_files import FAILED, ROLLOUTS, line_of, recover_parts
from reasoning_gym_environment.training_log.dumps import MAX_UNFINISHED, RolloutDumps, RolloutWriter

from ..env_support import RIGHT, WRONG, dumped, rollout


@pytest.fixture
def make_writer(tmp_path: Path) -> Callable[..., RolloutWriter]:
    def make(threshold: int = 2, kind: str = ROLLOUTS, directory: Path | None = None, **options: int) -> RolloutWriter:
        return RolloutWriter(directory or tmp_path / "dumps", "RUN", kind=kind, threshold=threshold, **options)

    return make


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def indices(*paths: Path) -> list[list[int]]:
    """Of each file, the indices of its groups."""
    return [[json.loads(line)["index"] for line in path.read_text().split("\n")[:-1]] for path in paths]


def add(writer: RolloutWriter, make_group: Any, *numbers: int) -> None:
    for number in numbers:
        writer.add(make_group([1.0], index=number))


def test_a_file_gets_its_final_name_when_it_is_full(tmp_path: Path, make_writer: Any, make_group: Any) -> None:
    writer, folder = make_writer(threshold=2), tmp_path / "dumps"
    assert not folder.exists()
    add(writer, make_group, 0)
    assert names(folder) == ["reasoning_gym_environment_rollouts_RUN_0000.jsonl.part"]
    assert indices(*folder.iterdir()) == [[0]], "each group can be read as soon as it is added"
    add(writer, make_group, 1)
    assert names(folder) == ["reasoning_gym_environment_rollouts_RUN_0000.jsonl"]
    add(writer, make_group, 2)
    assert names(folder)[1] == "reasoning_gym_environment_rollouts_RUN_0001.jsonl.part"
    failed = make_writer(kind=FAILED)
    add(failed, make_group, 3)
    for one in (writer, failed):
        one.close()
        one.close()
    assert indices(*writer.files) == [[0, 1], [2]] and indices(*failed.files) == [[3]]
    assert names(folder) == sorted(path.name for path in (*writer.files, *failed.files))
    assert failed.files[0].name == "reasoning_gym_environment_FAILED_rollouts_RUN_0000.jsonl"
    assert writer.groups_written == 3


def test_close_without_groups_writes_nothing_and_what_comes_after_it_goes_to_the_next_file(
    tmp_path: Path, make_writer: Any, make_group: Any
) -> None:
    writer = make_writer()
    writer.close()
    assert not (tmp_path / "dumps").exists() and writer.files == []
    for number in range(2):
        add(writer, make_group, number)
        writer.close()
    assert indices(*writer.files) == [[0], [1]]


def test_a_disk_that_refuses_is_reported_once_and_counted(
    tmp_path: Path, make_writer: Any, make_group: Any, caplog: pytest.LogCaptureFixture
) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    writer = make_writer(directory=blocker / "dumps")
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            writer.add(make_group([1.0]))
        assert len(caplog.records) == 1
        assert str(blocker) in caplog.text
        writer.close()
    assert "3 groups of rollouts could not be written" in caplog.text
    assert (writer.groups_written, writer.groups_dropped) == (0, 3)


def test_writing_goes_on_when_the_disk_is_back(
    tmp_path: Path, make_writer: Any, make_group: Any, caplog: pytest.LogCaptureFixture
) -> None:
    blocker = tmp_path / "dumps"
    blocker.write_text("")
    writer = make_writer(threshold=1)
    add(writer, make_group, 0)
    blocker.unlink()
    assert writer.groups_waiting == 1
    add(writer, make_group, 1)
    assert indices(*writer.files) == [[0], [1]]
    assert (writer.groups_waiting, writer.groups_written, writer.groups_dropped) == (0, 2, 0)
    assert caplog.text.count("Cannot write") == caplog.text.count("those that waited are written") == 1


def test_what_waits_is_written_at_the_close_too(tmp_path: Path, make_writer: Any, make_group: Any) -> None:
    blocker = tmp_path / "dumps"
    blocker.write_text("")
    writer = make_writer()
    add(writer, make_group, 0)
    blocker.unlink()
    writer.close()
    assert indices(*writer.files) == [[0]]


def test_memory_for_waiting_groups_is_bounded(
    tmp_path: Path, make_writer: Any, make_group: Any, caplog: pytest.LogCaptureFixture
) -> None:
    blocker = tmp_path / "dumps"
    blocker.write_text("")
    size = len(line_of(make_group([1.0], index=0), ""))
    writer = make_writer(threshold=100, max_waiting_bytes=3 * size + size // 2)
    for index in range(9):
        writer.add(make_group([1.0], index=index))
    assert (writer.groups_waiting, writer.groups_dropped) == (3, 6)
    assert caplog.text.count("No more room") == 1
    blocker.unlink()
    add(writer, make_group, 9)
    writer.close()
    assert indices(*writer.files) == [[0, 1, 2, 9]]
    assert "6 groups of rollouts could not be written" in caplog.text


def test_a_continued_dump_goes_on_behind_what_is_there(tmp_path: Path, make_writer: Any, make_group: Any) -> None:
    first = make_writer(threshold=2)
    for index in range(3):
        first.add(make_group([1.0], index=index))
    state = json.loads(json.dumps(first.state_dict()))
    first.add(make_group([1.0], index=3))
    second = make_writer(threshold=2)
    second.load_state_dict(state)
    second.add(make_group([1.0], index=4))
    second.close()
    assert [path.name[-10:] for path in second.files] == ["0002.jsonl"]
    assert second.groups_written == 4


@pytest.mark.parametrize("state", [{}, {"batch": -1, "groups_written": 0, "groups_dropped": 0}, {"batch": "1"}])
def test_a_malformed_state_is_refused(make_writer: Any, state: dict[str, Any]) -> None:
    with pytest.raises(EnvironmentSetupError, match="three counts"):
        make_writer().load_state_dict(state)


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """A limit on the size of files stands in for a disk that is full for a while."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_line_that_the_disk_takes_only_in_part_is_taken_back(
    tmp_path: Path, make_writer: Any, make_group: Any
) -> None:
    writer = make_writer(threshold=100)
    add(writer, make_group, 0)
    [part] = (tmp_path / "dumps").iterdir()
    before = part.read_bytes()
    with file_size_limit(len(before) + 50):
        add(writer, make_group, 1)
    assert part.read_bytes() == before
    add(writer, make_group, 2)
    writer.close()
    assert indices(*writer.files) == [[0, 1, 2]]
    assert (writer.groups_written, writer.groups_dropped) == (3, 0)


@pytest.mark.parametrize("trouble", ["part file deleted", "final name taken by a folder"])
def test_a_file_that_cannot_be_finished_is_reported_and_the_next_one_is_written(
    tmp_path: Path, make_writer: Any, make_group: Any, caplog: pytest.LogCaptureFixture, trouble: str
) -> None:
    writer = make_writer(threshold=2)
    add(writer, make_group, 0)
    [part] = (tmp_path / "dumps").iterdir()
    if trouble == "part file deleted":
        part.unlink()
    else:
        part.with_suffix("").mkdir()
    add(writer, make_group, 1)
    assert [message for message in caplog.messages if message.startswith("Cannot finish")] == caplog.messages
    assert len(caplog.messages) == 1
    assert "0000.jsonl with 2 groups of rollouts" in caplog.text
    add(writer, make_group, 2)
    writer.close()
    [finished] = writer.files
    assert finished.name.endswith("_0001.jsonl")
    assert indices(finished) == [[2]]


def refuse(*arguments: Any, **options: Any) -> Any:
    raise OSError(errno.EIO, "Input/output error")


def test_what_follows_a_line_that_cannot_be_taken_back_is_whole(
    tmp_path: Path, make_writer: Any, make_group: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = make_writer(threshold=100)
    add(writer, make_group, 0)
    [part] = (tmp_path / "dumps").iterdir()
    with monkeypatch.context() as patch, file_size_limit(part.stat().st_size + 50):
        patch.setattr(os, "ftruncate", refuse)
        add(writer, make_group, 1)
    add(writer, make_group, 2)
    writer.close()
    assert indices(*writer.files) == [[0], [1, 2]]
    assert sorted(path.name for path in writer.files) == names(tmp_path / "dumps")
    assert (writer.groups_written, writer.groups_dropped) == (3, 0)


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_file_that_could_not_be_finished_is_finished_later(
    tmp_path: Path,
    make_writer: Any,
    make_group: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    function: str,
) -> None:
    writer = make_writer(threshold=2)
    with monkeypatch.context() as patch:
        patch.setattr(os if function == "fsync" else Path, function, refuse)
        for index in range(5):
            writer.add(make_group([1.0], index=index))
        assert recover_parts(tmp_path / "dumps") == [], "it is still this writer's"
    assert caplog.text.count("Cannot finish") == 2
    add(writer, make_group, 5)
    assert indices(*writer.files) == [[0, 1], [2, 3], [4, 5]]
    writer.close()
    assert sorted(path.name for path in writer.files) == names(tmp_path / "dumps")


def test_parts_that_can_never_be_finished_are_left_to_the_next_start(
    tmp_path: Path, make_writer: Any, make_group: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = make_writer(threshold=1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        for index in range(MAX_UNFINISHED + 3):
            writer.add(make_group([1.0], index=index))
        completed = recover_parts(tmp_path / "dumps")
        assert len(completed) == 3, "only so many are held open"
        writer.close()
    assert writer.files == []
    completed += recover_parts(tmp_path / "dumps")
    assert indices(*completed) == [[number] for number in range(MAX_UNFINISHED + 3)]


def test_close_raises_nothing_when_an_empty_part_cannot_be_removed(
    tmp_path: Path, make_writer: Any, make_group: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = make_writer()
    with monkeypatch.context() as patch, file_size_limit(0):
        patch.setattr(Path, "unlink", refuse)
        writer.add(make_group([1.0]))
        writer.close()
    assert writer.groups_dropped == 1 and writer.files == []


def test_close_raises_nothing_when_the_last_file_cannot_be_finished(
    tmp_path: Path, make_writer: Any, make_group: Any, caplog: pytest.LogCaptureFixture
) -> None:
    writer = make_writer(threshold=100)
    writer.add(make_group([1.0]))
    next((tmp_path / "dumps").iterdir()).unlink()
    writer.close()
    assert writer.files == []
    assert "Cannot finish" in caplog.text


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
        await asyncio.wait_for(dumps.add(make_group([1.0], index=index), (ROLLOUTS, FAILED)[index % 2]), 30)
    metrics = dumps.metrics()
    assert (metrics["dumps/rollouts_waiting"], metrics["dumps/FAILED_rollouts_waiting"]) == (3.0, 3.0)
    assert metrics["dumps/disk_outages"] == 1.0
    goes_on.set()
    await dumps.add(make_group([1.0], index=6), ROLLOUTS)
    await dumps.close()
    assert [line["index"] for line in dumped(tmp_path, "*_rollouts_run_*.jsonl") if line["index"] % 2 == 0] == [
        0,
        2,
        4,
        6,
    ]
    assert [line["index"] for line in dumped(tmp_path, "*_FAILED_*.jsonl")] == [1, 3, 5]
    assert caplog.text.count("The disk of the dumps is away") == caplog.text.count("The disk of the dumps is back") == 1


@pytest.mark.parametrize("most", [10, 2000])
async def test_what_waits_for_a_disk_that_hangs_is_bounded(
    tmp_path: Path, make_group: Any, goes_on: threading.Event, most: int
) -> None:
    dumps = RolloutDumps(tmp_path, "run", kinds=[ROLLOUTS])
    dumps._writers[ROLLOUTS]._max_waiting_bytes = most
    for index in range(20):
        await dumps.add(make_group([1.0], index=index), ROLLOUTS)
    metrics = dumps.metrics()
    assert 1 <= metrics["dumps/rollouts_waiting"] <= 4
    assert metrics["dumps/rollouts_waiting"] + metrics["dumps/rollouts_dropped"] == 20
    goes_on.set()
    await dumps.close()
    assert len(dumped(tmp_path, "*.jsonl")) == metrics["dumps/rollouts_waiting"]


async def test_training_and_its_end_do_not_wait_for_a_disk_that_hangs(
    make_env: Any, goes_on: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    env = make_env(num_eval_samples_per_task=0, dump_rollouts=True)
    await env.setup()
    item = await env.get_next_item()
    group = await asyncio.wait_for(env.score([rollout(item, text) for text in (RIGHT, WRONG, RIGHT, WRONG)]), 30)
    assert group is not None
    await asyncio.wait_for(env.close(), 30)
    assert "At the end, finishing the dumps was left" in caplog.text
