"""Rollouts on disk: JSON lines in numbered files, each complete before it gets its final name.

    group accepted ──> one line appended to <final name>.part ──(threshold groups, or close)──> <final name>
                  └──(the disk refuses)──> waits in memory, up to a limit ──(the disk takes it again)──> ...

A line is in the operating system's hands when `add` returns, so killing the process loses none. A line that the
disk refuses is taken back and waits; it never stays half written.
"""

from __future__ import annotations

import json
import logging
import os
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from .errors import EnvironmentSetupError
from .part_recovery import PART_SUFFIX, hold
from .records import RolloutGroup
from .rollout_records import group_record, plain

logger = logging.getLogger(__name__)

FILE_STEM = "reasoning_gym_environment"
PROGRESS_LINES = 4
"""Log lines on the way to a full file."""

MAX_WAITING_BYTES = 64 * 2**20
"""Lines that wait for the disk; at some 10 kB to 1 MB a group, hundreds of groups at least."""


class RolloutWriter:
    """Appends groups to `{stem}_{kind}_{run_id}_{batch:04d}.jsonl` under `directory`, `threshold` a file.

    Not for more than one thread at a time.
    """

    def __init__(
        self,
        directory: Path,
        run_id: str,
        *,
        kind: str,
        threshold: int,
        version: str,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
    ) -> None:
        self._directory = directory
        self.run_id = run_id
        self._kind = kind
        self._threshold = threshold
        self._version = version
        self._max_waiting_bytes = max_waiting_bytes
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._is_refused = False
        self._part: IO[bytes] | None = None
        self._in_part = 0
        self.batch = 0
        self.groups_written = 0
        self.groups_dropped = 0
        self.files: list[Path] = []

    @property
    def groups_waiting(self) -> int:
        """Groups in memory that the disk has refused so far."""
        return len(self._waiting)

    def add(self, group: RolloutGroup) -> None:
        """Append one group, after those that wait. Raises nothing for a disk that refuses; training goes on."""
        text = json.dumps(plain(group_record(group, self._version)), allow_nan=False)
        line = f"{text}\n".encode("ascii")
        self._waiting.append(line)
        self._waiting_bytes += len(line)
        self._write_waiting()
        if self._waiting_bytes > self._max_waiting_bytes:
            self._waiting_bytes -= len(self._waiting.pop())
            self.groups_dropped += 1
            if self.groups_dropped == 1:
                logger.error("No more room for waiting %s: groups are dropped from here on, and counted.", self._kind)

    def _write_waiting(self) -> None:
        try:
            while self._waiting:
                self._append(self._waiting[0])
                self._waiting_bytes -= len(self._waiting.popleft())
                self._note_written()
        except OSError as error:
            if not self._is_refused:
                self._is_refused = True
                logger.error(
                    "Cannot write %s to %s (%s): groups wait in memory, up to %.0f MB, until it takes them.",
                    *(self._kind, self._directory, error, self._max_waiting_bytes / 2**20),
                )
            return
        if self._is_refused:
            self._is_refused = False
            logger.warning("%s takes %s again; those that waited are written.", self._directory, self._kind)

    def _note_written(self) -> None:
        self._in_part += 1
        self.groups_written += 1
        if self._in_part >= self._threshold:
            self.flush()
        elif self._in_part % max(1, self._threshold // PROGRESS_LINES) == 0:
            logger.info("%d of %d groups of %s for the next file.", self._in_part, self._threshold, self._kind)

    def flush(self) -> None:
        """Give the current part its final name; does nothing when there is none. Reports a disk that refuses."""
        if self._part is None:
            return
        part, self._part = self._part, None
        count, self._in_part = self._in_part, 0
        final = Path(part.name.removesuffix(PART_SUFFIX))
        self.batch += 1
        try:
            # In this order, so that a part without a writer that holds it is never there.
            with part:
                os.fsync(part.fileno())
                Path(part.name).replace(final)
        except OSError as error:
            logger.error("Cannot finish %s with %d groups of %s: %s", final, count, self._kind, error)
            return
        if not count:
            # Opened for a line that the disk refused.
            final.unlink()
            return
        logger.info("Wrote %d groups of %s to %s.", count, self._kind, final)
        self.files.append(final)

    def close(self) -> None:
        """Write what waits, flush, and report what could not be written. Raises nothing."""
        if self._waiting:
            self._write_waiting()
        self.flush()
        self.groups_dropped += len(self._waiting)
        self._waiting.clear()
        if self.groups_dropped:
            logger.error("%d groups of %s could not be written.", self.groups_dropped, self._kind)

    def _append(self, data: bytes) -> None:
        part = self._part = self._part or self._open_part()
        start = os.fstat(part.fileno()).st_size
        try:
            if part.write(data) != len(data):
                raise OSError("the disk took only part of a line")
        except OSError:
            os.ftruncate(part.fileno(), start)
            raise

    def _open_part(self) -> IO[bytes]:
        """The part of the next batch whose name nobody has used: a run that is continued may have left some."""
        self._directory.mkdir(parents=True, exist_ok=True)
        while True:
            final = self._directory / f"{FILE_STEM}_{self._kind}_{self.run_id}_{self.batch:04d}.jsonl"
            if not final.exists():
                path = final.with_name(final.name + PART_SUFFIX)
                try:
                    part = open(path, "xb", buffering=0, opener=_append_only)  # noqa: SIM115
                except FileExistsError:
                    pass
                else:
                    hold(part)
                    return part
            self.batch += 1

    def state_dict(self) -> dict[str, Any]:
        """Where the dump stands, to go on with the same names and counts."""
        return {"batch": self.batch, "groups_written": self.groups_written, "groups_dropped": self.groups_dropped}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`. Raises EnvironmentSetupError if it is malformed."""
        numbers = [state.get(name) for name in ("batch", "groups_written", "groups_dropped")]
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise EnvironmentSetupError(f"A dump's state has three counts, got {dict(state)!r:.200}.")
        self.batch, self.groups_written, self.groups_dropped = (int(number or 0) for number in numbers)


def _append_only(path: str, flags: int) -> int:
    """Writes go to the end of the file, also after it was cut."""
    return os.open(path, flags | os.O_APPEND, 0o666)
