"""An append-only file of JSON lines with one writer.

    AppendLog(path) ── lock ── read the lines of an earlier start ── drop a torn last line ──> `done`
          append(record) ──> a whole line in the operating system's hands, or an OSError

A line survives kill -9 as soon as `append` returns. Two processes never write the same file: the lock ends with the
process, however the process ends. A resumed file must have the settings of the run that resumes it.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any

from ..errors import EnvironmentSetupError

logger = logging.getLogger(__name__)


class BrokenLineError(ValueError):
    """A line has the wrong content; the message says in a few words what is wrong."""


TORN_STARTS = (b"{", b"\0")
"""How the rest of a line begins that a kill or a power failure has cut. Any other unfinished line is not ours."""


class AppendLog:
    """A file of JSON lines that this object alone writes until `close`.

    `settings` are those that the records depend on. The caller puts them into each record, under the key `settings`,
    and the constructor compares them name by name. `done` maps `key(record)` to `keep(record)` for the records of
    earlier starts, without the records whose key is None. `count` is the number of records in the file, and `size` the
    number of bytes.

    Raises OSError, and EnvironmentSetupError if another process holds the file, if the file has other settings (the
    message names the differences), or if a line cannot be read. `remedy` is the last sentence of these messages: what
    the user can do.
    """

    def __init__(
        self,
        path: Path,
        settings: Mapping[str, Any] | None = None,
        *,
        key: Callable[[dict[str, Any]], Hashable] = lambda record: None,
        keep: Callable[[dict[str, Any]], Any] = lambda record: record,
        remedy: str = "Name another file.",
    ) -> None:
        self.path = path
        self.done: dict[Hashable, Any] = {}
        self.size = 0
        self.count = 0
        self.settings = settings
        self._key = key
        self._keep = keep
        self._remedy = remedy
        if path.exists() and not path.is_file():
            raise EnvironmentSetupError(f"Expected the name of a file, but {path} is no regular file. {remedy}")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)
        try:
            lock(self._file.fileno(), path)
            self._read_earlier_records()
            self._cut_torn_line()
        except BaseException:
            self._file.close()
            raise

    def append(self, record: dict[str, Any]) -> None:
        """Add a record of plain JSON data. Raises OSError if the disk refuses it; the record can be appended again."""
        data = line_of(record)
        self._cut_torn_line()
        written = 0
        while written < len(data):
            written += self._file.write(data[written:])
        self.count += 1
        self.size += len(data)

    def close(self) -> None:
        """Release the file. Raises OSError. Safe to call twice."""
        if self._file.closed:
            return
        with self._file:
            self._cut_torn_line()
            os.fsync(self._file.fileno())

    def _cut_torn_line(self) -> None:
        """Remove what an append has written that a full disk or an interrupt has ended."""
        os.ftruncate(self._file.fileno(), self.size)

    def _read_earlier_records(self) -> None:
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n") and line.startswith(TORN_STARTS):
                    logger.warning(
                        "%s: line %d is torn because its writer was killed. It is dropped.", self.path, number
                    )
                    return
                try:
                    record = read_object(line)
                except BrokenLineError as error:
                    raise self._refusal(f"line {number}: {error}") from None
                try:
                    self._take(record)
                except (KeyError, TypeError, ValueError, AttributeError) as error:
                    why = f"line {number} does not say how it was made ({type(error).__name__}: {error})"
                    raise self._refusal(why) from error
                self.size += len(line)

    def _take(self, record: dict[str, Any]) -> None:
        changes = "" if self.settings is None else differences(record["settings"], self.settings)
        if changes:
            raise EnvironmentSetupError(f"{self.path} was made with other settings: {changes}. {self._remedy}")
        self.count += 1
        key = self._key(record)
        if key is not None:
            self.done[key] = self._keep(record)

    def _refusal(self, why: str) -> EnvironmentSetupError:
        return EnvironmentSetupError(f"{self.path} cannot be resumed: {why}. {self._remedy}")


def line_of(record: dict[str, Any]) -> bytes:
    """The record as a line: JSON in ASCII, with a newline."""
    return json.dumps(record).encode("ascii") + b"\n"


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The names in `new` whose value in `old` differs, with both values, as text; empty if there are none."""
    changed = [name for name in new if old.get(name) != new[name]]
    return ", ".join(f"{name} {old.get(name, 'unknown')} (now {new[name]})" for name in changed)


def read_object(line: bytes) -> dict[str, Any]:
    """The JSON object in a line. Raises BrokenLineError."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        # The bytes may not be UTF-8, be nested too deeply, or hold a number with more digits than Python reads.
        raise BrokenLineError("no JSON") from None
    if not isinstance(found, dict):
        raise BrokenLineError("no JSON object")
    return found


def lock(descriptor: int, place: Path, *, waits: bool = False) -> None:
    """Lock this open file or folder, which is `place`, until it is closed or the process ends.

    If another process holds the lock, waits for it if `waits` is true, and otherwise raises EnvironmentSetupError. Has
    no effect on a file system without locks.
    """
    operation = fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB
    try:
        fcntl.flock(descriptor, operation)
    except BlockingIOError:
        raise EnvironmentSetupError(
            f"{place}: another run writes there. Wait for its end, or name another place."
        ) from None
    except OSError as error:
        logger.warning("Cannot lock %s (%s): do not start a second run that writes there.", place, error)
