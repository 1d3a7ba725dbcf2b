"""An append-only file of JSON lines with one writer.

    AppendLog(path) ── lock ── read the lines of an earlier start ── drop a torn last line ──> `done`
          append(record) ──> a whole line in the operating system's hands, or an OSError and no line

A line survives kill -9 as soon as `append` returns. Two processes never write the same file: the lock ends with the
process, however the process ends. A resumed file must have the identity of the run that resumes it. A header line holds
the identity, or every line does in files that other programs read.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import IO, Any

from ..errors import EnvironmentSetupError

logger = logging.getLogger(__name__)


class BrokenLineError(ValueError):
    """A line has the wrong content; the message says in a few words what is wrong."""


class AppendLog:
    """A file of JSON lines that this object alone writes until `close`.

    `identity` holds the settings that the records depend on. The constructor compares it, name by name, with the
    identity in the file. That has the key `identity_key`: in a header line if `has_header`, otherwise in every record,
    where the caller puts it. `done` maps `key(record)` to `keep(record)` for the records of earlier starts, without the
    records whose key is None. `count` is the number of records in the file, and `size` the number of bytes.

    The constructor creates the file, and `close` removes it if it has no record. Raises OSError, and
    EnvironmentSetupError if another process holds the file, if the file has another identity (the message names the
    differences), or if a line cannot be read. `remedy` is the last sentence of these messages: what the user can do.
    """

    def __init__(
        self,
        path: Path,
        identity: Mapping[str, Any] | None = None,
        *,
        identity_key: str = "identity",
        has_header: bool = False,
        key: Callable[[dict[str, Any]], Hashable] = lambda record: None,
        keep: Callable[[dict[str, Any]], Any] = lambda record: record,
        remedy: str = "Name another file.",
    ) -> None:
        self.path = path
        self.done: dict[Hashable, Any] = {}
        self.size = 0
        self.count = 0
        self.identity = identity
        self._identity_key = identity_key
        self._header = line_of({identity_key: dict(identity or {})}) if has_header else b""
        self._key = key
        self._keep = keep
        self._remedy = remedy
        self._is_torn = False
        """Whether the file may have a part of a line after its first `size` bytes."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] | None = _open_locked(path)
        try:
            self._resume()
        except BaseException:
            self._file.close()
            raise

    def append(self, record: dict[str, Any]) -> None:
        """Add a record of plain JSON data. Raises OSError; the file then ends with the previous line.

        A FileNotFoundError means that the file was removed or moved away, with the `count` records it has.
        """
        file = self._file
        if file is None:
            raise OSError(errno.EBADF, "it is closed", str(self.path))
        if _is_removed(file, self.path):
            raise FileNotFoundError(errno.ENOENT, "it was removed or moved away while it was written", str(self.path))
        self._cut_torn_line(file)
        data = (b"" if self.size else self._header) + line_of(record)
        written = 0
        # An interrupt can end this call anywhere. The next call, or `close`, then removes what was written.
        self._is_torn = True
        try:
            while written < len(data):
                written += file.write(data[written:])
        except OSError:
            self._cut_torn_line(file)
            raise
        self.count += 1
        self.size += len(data)
        self._is_torn = False

    def close(self) -> None:
        """Release the file. Raises OSError. Safe to call twice."""
        if self._file is None:
            return
        file = self._file
        self._file = None
        with file:
            if _is_removed(file, self.path):
                return
            if not self.count:
                self.path.unlink()
                return
            self._cut_torn_line(file)
            os.fsync(file.fileno())

    def _cut_torn_line(self, file: IO[bytes]) -> None:
        if self._is_torn:
            os.ftruncate(file.fileno(), self.size)
        self._is_torn = False

    def _resume(self) -> None:
        assert self._file is not None
        broken = ""
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if broken:
                    # Only the last line can be torn.
                    raise self._refusal(broken)
                try:
                    if not line.endswith(b"\n"):
                        raise BrokenLineError("it does not end")
                    record = read_object(line)
                except BrokenLineError as error:
                    broken = f"line {number}: {error}"
                    continue
                try:
                    self._take(record, is_header=bool(self._header) and number == 1)
                except (KeyError, TypeError, ValueError, AttributeError) as error:
                    why = f"line {number} does not say how it was made ({type(error).__name__}: {error})"
                    raise self._refusal(why) from error
                self.size += len(line)
        if broken:
            if not self.size and not line.startswith((b"{", b"\0")):
                # A writer of this class has begun no such line. It is the content of another program's file.
                raise self._refusal(broken)
            logger.warning(
                "%s, %s. This last line is torn because its writer was killed. It is dropped.", self.path, broken
            )
            os.ftruncate(self._file.fileno(), self.size)

    def _take(self, record: dict[str, Any], *, is_header: bool) -> None:
        if is_header or not self._header:
            changes = differences(record[self._identity_key], self.identity) if self.identity is not None else ""
            if changes:
                raise EnvironmentSetupError(f"{self.path} was made with other settings: {changes}. {self._remedy}")
        if is_header:
            return
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


def _is_removed(file: IO[bytes], path: Path) -> bool:
    """Whether `path` no longer leads to an open file. Raises OSError."""
    try:
        return not os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except (FileNotFoundError, NotADirectoryError):
        return True


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


# --- locks


def _open_locked(path: Path) -> IO[bytes]:
    """The file at `path`, locked, to append to. Raises OSError, and EnvironmentSetupError if it is locked already."""
    if path.exists() and not path.is_file():
        raise EnvironmentSetupError(f"Expected the name of a file, but {path} is no regular file. Name another file.")
    while True:
        file = path.open("ab", buffering=0)
        try:
            lock(file.fileno(), path)
            if not _is_removed(file, path):
                return file
        except BaseException:
            file.close()
            raise
        # The previous writer replaced or removed the file after this process opened it.
        file.close()


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
