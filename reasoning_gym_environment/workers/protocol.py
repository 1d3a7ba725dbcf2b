"""What the environment and its workers say to each other.

    environment ── frames (pickle) ──> grading worker ── memory (fork) ──> child that runs the verifier
    environment <── records ────────── grading worker <── records ──────── child
    environment <── frames (pickle) ─> generation worker

Down the chain values are trusted and must arrive intact, so they are pickled; so is what a generation worker sends,
which sees no model output. Up the chain of grading nothing is: the child has read a hostile answer, so it may only
say things that fit a record of fixed size, whose every field is checked, and which is never unpickled. A record that
breaks a rule raises `ProtocolError`.
"""

from __future__ import annotations

import math
import os
import pickle
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from ..records import Status, Verdict
from ..tasks import reasoning_gym_source as library

# --- what is said ---


@dataclass(frozen=True)
class Imports:
    """Which code a worker imports: the same reasoning-gym and the same task modules as its parent.

    `library_path` goes to the front of sys.path, `sys_path` to its end; then `task_modules` are imported.
    """

    library_path: str | None = None
    sys_path: tuple[str, ...] = ()
    task_modules: tuple[str, ...] = ()

    @classmethod
    def as_here(cls, library_path: str | None, task_modules: Sequence[str]) -> Imports:
        """What this process would import. Paths become absolute: the worker runs in another folder."""
        search_path = tuple(os.path.realpath(path or os.curdir) for path in sys.path)
        modules = tuple(
            str(Path(module).expanduser().resolve()) if module.endswith(".py") else module for module in task_modules
        )
        return cls(library_path and os.path.realpath(library_path), search_path, modules)

    def perform(self) -> None:
        """Import reasoning-gym and the task modules. Raises EnvironmentSetupError, naming what cannot be."""
        if self.library_path is not None:
            path = Path(self.library_path)
            # A checkout's root is what to import from, an installed package lies in it.
            is_package = path.name == "reasoning_gym" and (path / "__init__.py").is_file()
            sys.path.insert(0, str(path.parent if is_package else path))
        sys.path.extend(path for path in self.sys_path if path not in sys.path)
        library.load()
        library.import_modules(self.task_modules)


@dataclass(frozen=True)
class ItemJob:
    """One item for a generation worker to make."""

    task: str
    seed: int
    config: Mapping[str, Any]
    cpu_s: float = math.inf
    """Processor time that making it may take: unlike time on the clock, it does not grow with the machine's load."""
    number: int = 0
    """By which its worker's owner knows the reply."""


@dataclass(frozen=True)
class ItemReply:
    """What became of a generation worker's start or of a job: `failure` is empty if all went well.

    `item` is a pickle by itself, so that one which cannot be read spoils no reply. `is_late` means that the job ran
    out of processor time.
    """

    item: bytes = b""
    failure: str = ""
    is_late: bool = False
    number: int = 0


@dataclass(frozen=True)
class GradingStart:
    """What a grading worker is told first; `strict` and `lossless` choose the standards of every group."""

    confined: bool
    imports: Imports
    strict: bool = False
    lossless: bool = False


@dataclass(frozen=True)
class GroupRequest:
    """One group to grade, numbered `group` by the worker's owner. With `isolate`, every answer gets its own child."""

    task: str
    config: Mapping[str, Any]
    entry: dict[str, Any]
    answers: tuple[str, ...]
    timeout_s: float
    isolate: bool = False
    group: int = 0


@dataclass(frozen=True)
class Withdrawal:
    """Nobody waits for this group any more."""

    group: int


class RecordKind(IntEnum):
    """What a record says. A child may send only READY and VERDICT."""

    READY = 1
    """Start answered: a worker is ready (detail: its layers), or a child has shut itself in."""
    FAILED = 2
    """A worker cannot start, or cannot build the dataset asked for (detail: why)."""
    UNGUARDED = 3
    """A task whose verifier evaluates text that no guard covers (detail: task, tab, reason)."""
    BUILT = 4
    """The dataset is there; grading begins."""
    VERDICT = 5
    """What one answer got."""


_NO_VERDICT = Verdict(value=0.0)


@dataclass(frozen=True)
class Record:
    """One message up the chain of grading. `group` is its request's number, `index` the answer's within it."""

    kind: RecordKind
    group: int = 0
    index: int = 0
    verdict: Verdict = _NO_VERDICT
    late_import: bool = False

    @property
    def detail(self) -> str:
        return self.verdict.detail

    @classmethod
    def note(cls, kind: RecordKind, detail: str = "", group: int = 0) -> Record:
        """A record that carries a text instead of a verdict."""
        return cls(kind, group=group, verdict=Verdict(value=0.0, detail=detail))


# --- how it is written ---

_LENGTH = struct.Struct("<Q")
HEADER_SIZE = _LENGTH.size
MAX_FRAME_BYTES = 1 << 30
DETAIL_BYTES = 200
_RECORD = struct.Struct(f"<BBBxIQdddH{DETAIL_BYTES}s")
RECORD_SIZE = _RECORD.size
_KINDS = frozenset(RecordKind)
_STATUSES = tuple(Status)
_HAS_BARE, _HAS_TAGGED, _LATE_IMPORT = 1, 2, 4


class ProtocolError(Exception):
    """Bytes that no well-behaved sender writes."""


def pack_frame(message: Any) -> bytes:
    """A message down the chain. Raises what pickle raises if it cannot be pickled."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


def frame_length(header: bytes) -> int:
    """The body's length in bytes from a frame's header. Raises ProtocolError beyond MAX_FRAME_BYTES."""
    length: int = _LENGTH.unpack(header)[0]
    if length > MAX_FRAME_BYTES:
        raise ProtocolError(f"expected a frame of at most {MAX_FRAME_BYTES} bytes, got {length}")
    return length


def pack_record(record: Record) -> bytes:
    """Exactly RECORD_SIZE bytes: less than PIPE_BUF, so a pipe takes them in one piece."""
    verdict = record.verdict
    # Cut between characters.
    detail = verdict.detail.encode("utf-8", "replace")[:DETAIL_BYTES].decode("utf-8", "ignore").encode("utf-8")
    flags = _HAS_BARE * (verdict.bare is not None) | _HAS_TAGGED * (verdict.tagged is not None)
    return _RECORD.pack(
        record.kind,
        _STATUSES.index(verdict.status),
        flags | _LATE_IMPORT * record.late_import,
        record.index,
        record.group,
        verdict.value,
        verdict.bare or 0.0,
        verdict.tagged or 0.0,
        len(detail),
        detail,
    )


def unpack_record(data: bytes) -> Record:
    """The record in these RECORD_SIZE bytes. Raises ProtocolError if any field is out of its range."""
    kind, status, flags, index, group, value, bare, tagged, length, detail = _RECORD.unpack(data)
    if kind not in _KINDS or status >= len(_STATUSES) or flags > 7 or length > DETAIL_BYTES:
        raise ProtocolError(f"not a record: kind {kind}, status {status}, flags {flags}, length {length}")
    # Written so that NaN, which no comparison accepts, is refused as well.
    if not all(0.0 <= score <= 1.0 for score in (value, bare, tagged)):
        raise ProtocolError(f"expected scores in [0, 1], got {value}, {bare}, {tagged}")
    verdict = Verdict(
        value=value,
        status=_STATUSES[status],
        bare=bare if flags & _HAS_BARE else None,
        tagged=tagged if flags & _HAS_TAGGED else None,
        detail=detail[:length].decode("utf-8", "replace"),
    )
    return Record(RecordKind(kind), group, index, verdict, bool(flags & _LATE_IMPORT))


class RecordReader:
    """Cuts a stream of bytes into records."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> Iterator[Record]:
        """The records that `data` completes, in order. Raises ProtocolError at the first bad one."""
        self._pending += data
        while len(self._pending) >= RECORD_SIZE:
            head, self._pending = self._pending[:RECORD_SIZE], self._pending[RECORD_SIZE:]
            yield unpack_record(head)


# --- a worker's end of the pipes ---


class Channel:
    """Frames in, bytes out, out of reach of whatever else uses stdin and stdout in a worker.

    Takes the pipes away from descriptors 0 and 1: stdin, stdout and stderr lead nowhere from then on.
    """

    def __init__(self) -> None:
        self.requests, self._replies = os.dup(0), os.dup(1)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        os.close(null)

    def receive(self) -> Any:
        """The next message. Raises EOFError when the parent has hung up."""
        return pickle.loads(self._read(frame_length(self._read(HEADER_SIZE))))

    def write(self, data: bytes) -> None:
        """Hand over all of `data`. Raises BrokenPipeError when the parent has hung up."""
        while data:
            data = data[os.write(self._replies, data) :]

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            chunk = os.read(self.requests, min(size - len(data), 1 << 20))
            if not chunk:
                raise EOFError
            data += chunk
        return bytes(data)
