"""The append-only log under any order of appends, restarts, kills, full disks and rival writers.

The model is the list of records whose `append` returned. After each step the file holds exactly these records, in
order, and at most one torn line behind them. A log that is opened finds exactly these records done.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from unittest.mock import patch

import pytest
from hypothesis import settings as tries
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.storage import append_log
from reasoning_gym_environment.storage.append_log import AppendLog, line_of

SETTINGS = {"model": "a", "seed": 1}

KEYS = st.integers(0, 3)
"""Few keys, so that many records have the key of an earlier record."""

VALUES = st.one_of(st.none(), st.text(max_size=12), st.sampled_from(["line\nbreak\u2028", "}\n{", "\ud800"]))

SHARES = st.floats(0, 1, exclude_max=True)
"""How much of a line is written before a fault."""


class FaultyFile:
    """An unbuffered file that takes a number of bytes and then raises `error`."""

    def __init__(self, file: IO[bytes], room: int, error: BaseException) -> None:
        self._file = file
        self._room = room
        self._error = error

    def fileno(self) -> int:
        return self._file.fileno()

    def write(self, data: bytes) -> int:
        if self._room == 0:
            raise self._error
        written = self._file.write(data[: self._room])
        self._room -= written
        return written


class LogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.path = self.folder / "log.jsonl"
        self.log: AppendLog | None = None
        self.accepted: list[dict[str, Any]] = []
        self.may_be_torn = False

    def teardown(self) -> None:
        if self.log is not None:
            self.log.close()
        shutil.rmtree(self.folder)

    # --- what the rules share

    def opened(self, settings: dict[str, Any] = SETTINGS) -> AppendLog:
        return AppendLog(
            self.path,
            settings,
            key=lambda record: record["n"],
            keep=lambda record: record["v"],
        )

    def record(self, n: int, v: Any) -> dict[str, Any]:
        return {"n": n, "v": v, "settings": SETTINGS}

    @contextmanager
    def fault(self, room: int, error: BaseException, *, truncate_fails: bool) -> Iterator[AppendLog]:
        """The log on a file that takes `room` more bytes, and whose torn line perhaps cannot be cut."""
        assert self.log is not None
        sound = self.log._file
        assert sound is not None
        self.log._file = FaultyFile(sound, room, error)  # type: ignore[assignment]
        failure = OSError(errno.EIO, "cannot truncate") if truncate_fails else None
        try:
            with patch.object(append_log.os, "ftruncate", side_effect=failure, wraps=os.ftruncate):
                yield self.log
        finally:
            self.log._file = sound

    # --- one process

    @precondition(lambda self: self.log is None)
    @rule()
    def open(self) -> None:
        self.log = self.opened()
        self.may_be_torn = False
        assert self.log.done == {record["n"]: record["v"] for record in self.accepted}
        assert self.log.count == len(self.accepted)
        assert self.log.size == self.path.stat().st_size

    @precondition(lambda self: self.log is not None)
    @rule(n=KEYS, v=VALUES)
    def append(self, n: int, v: Any) -> None:
        assert self.log is not None
        record = self.record(n, v)
        self.log.append(record)
        self.accepted.append(record)
        self.may_be_torn = False
        assert self.log.count == len(self.accepted)
        assert self.log.size == self.path.stat().st_size

    @precondition(lambda self: self.log is not None)
    @rule(n=KEYS, v=VALUES, share=SHARES, truncate_fails=st.booleans())
    def append_to_a_full_disk(self, n: int, v: Any, share: float, truncate_fails: bool) -> None:
        record = self.record(n, v)
        room = int(share * len(line_of(record)))
        error = OSError(errno.ENOSPC, "no space left")
        with self.fault(room, error, truncate_fails=truncate_fails) as log, pytest.raises(OSError):
            log.append(record)
        self.may_be_torn = True

    @precondition(lambda self: self.log is not None)
    @rule(n=KEYS, v=VALUES, share=SHARES)
    def append_until_interrupted(self, n: int, v: Any, share: float) -> None:
        record = self.record(n, v)
        room = int(share * len(line_of(record)))
        with self.fault(room, KeyboardInterrupt(), truncate_fails=False) as log, pytest.raises(KeyboardInterrupt):
            log.append(record)
        self.may_be_torn = True

    @precondition(lambda self: self.log is not None)
    @rule()
    def close(self) -> None:
        assert self.log is not None
        self.log.close()
        self.log.close()
        with pytest.raises(ValueError, match="closed"):
            self.log.append(self.record(0, "late"))
        self.log = None
        self.may_be_torn = False

    @precondition(lambda self: self.log is not None)
    @rule(n=KEYS, v=VALUES, share=st.floats(0, 1))
    def kill_while_a_line_is_written(self, n: int, v: Any, share: float) -> None:
        assert self.log is not None
        # A line that could not be cut at once is cut before the next line is written.
        self.append(n, v)
        line = line_of(self.accepted[-1])
        before = self.path.stat().st_size - len(line)
        self.die()
        whole = self.path.stat().st_size
        kept = before + round(share * (whole - before))
        os.truncate(self.path, kept)
        if kept < whole:
            self.accepted.pop()
            self.may_be_torn = True

    @precondition(lambda self: self.log is not None)
    @rule()
    def kill_between_lines(self) -> None:
        self.die()

    def die(self) -> None:
        """The end of the process: the operating system closes the file, and the log does nothing more."""
        assert self.log is not None and self.log._file is not None
        self.log._file.close()
        self.log = None

    # --- other processes

    @precondition(lambda self: self.log is not None)
    @rule()
    def open_beside_the_writer(self) -> None:
        before = self.path.read_bytes()
        with pytest.raises(EnvironmentSetupError, match="another run writes there"):
            self.opened()
        assert self.path.read_bytes() == before

    @precondition(lambda self: self.log is None and self.accepted)
    @rule()
    def open_with_other_settings(self) -> None:
        before = self.path.read_bytes()
        with pytest.raises(EnvironmentSetupError, match="model a"):
            self.opened({"model": "b"})
        assert self.path.read_bytes() == before

    # --- what always holds

    @invariant()
    def the_file_holds_what_was_accepted(self) -> None:
        if not self.path.exists():
            return
        content = self.path.read_bytes()
        expected = b"".join(line_of(record) for record in self.accepted)
        rest = content.removeprefix(expected)
        assert content.startswith(expected)
        assert b"\n" not in rest
        assert self.may_be_torn or not rest
        assert [path.name for path in self.folder.iterdir()] == [self.path.name]

    @invariant()
    def the_lines_are_json(self) -> None:
        if self.path.exists() and not self.may_be_torn:
            lines = self.path.read_bytes().splitlines()
            records = [json.loads(line) for line in lines]
            assert records == self.accepted


TestLog = LogMachine.TestCase
TestLog.settings = tries(max_examples=60, stateful_step_count=30, deadline=None)
