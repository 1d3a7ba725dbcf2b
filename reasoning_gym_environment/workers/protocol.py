"""What the environment and its workers send each other.

    environment ── frames (pickle) ──> grading worker ── memory (fork) ──> child that runs the verifier
    environment <── records ────────── grading worker <── records ──────── child
    environment <── frames (pickle) ─> generation worker

Values that go to a worker are trusted and must arrive intact, so they are pickled. So is what a generation worker
sends, which sees no model output. What a grading worker or its child sends is never unpickled: the child has read a
hostile answer. It may only send records of a fixed size, whose every field is checked; a bad one raises ProtocolError.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from ..records import Status, Verdict
from ..tasks import reasoning_gym_source as library

_PLOTTING = (
    *("matplotlib", "matplotlib.pyplot", "matplotlib.animation", "matplotlib.collections"),
    *("mpl_toolkits", "mpl_toolkits.mplot3d"),
)

# --- messages ---


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
        """Import reasoning-gym and the task modules. Raises EnvironmentSetupError, naming what cannot be imported."""
        if self.library_path is not None:
            path = Path(self.library_path)
            # A checkout's root is what to import from, an installed package lies in it.
            is_package = path.name == "reasoning_gym" and (path / "__init__.py").is_file()
            sys.path.insert(0, str(path.parent if is_package else path))
        sys.path.extend(path for path in self.sys_path if path not in sys.path)
        with _without_plotting():
            library.load()
        library.import_modules(self.task_modules)


class _NeverUsed(ModuleType):
    __path__: ClassVar[list[str]] = []  # type: ignore[misc]

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


@contextlib.contextmanager
def _without_plotting() -> Iterator[None]:
    """cellpylib, which makes game_of_life's boards, imports matplotlib to draw them: 27 MB in each worker."""
    names = [name for name in _PLOTTING if name not in sys.modules]
    sys.modules.update({name: _NeverUsed(name) for name in names})
    try:
        yield
    finally:
        # For task modules that do plot.
        for name in names:
            del sys.modules[name]


@dataclass(frozen=True)
class ItemJob:
    """One item for a generation worker to make."""

    task: str
    seed: int
    config: Mapping[str, Any]


@dataclass(frozen=True)
class ItemReply:
    """The result of a generation worker's start, or of a job: `failure` is empty if all went well.

    `item` is a pickle of its own, so that an item which cannot be read spoils no reply. After a reply that `is_last`
    the worker ends.
    """

    item: bytes = b""
    failure: str = ""
    is_last: bool = False


@dataclass(frozen=True)
class GradingStart:
    """The first message to a grading worker; `strict`: answers are right or wrong by the forms and solvers."""

    confined: bool
    imports: Imports
    strict: bool = False


@dataclass(frozen=True)
class GroupRequest:
    """One group to grade. With `isolate`, every answer gets its own child."""

    task: str
    config: Mapping[str, Any]
    entry: dict[str, Any]
    answers: tuple[str, ...]
    timeout_s: float
    isolate: bool = False


class RecordKind(IntEnum):
    """What a record says. A child may send only VERDICT."""

    READY = 1
    """A worker is ready (detail: its layers; index: whether system calls are filtered)."""
    FAILED = 2
    """A worker cannot start, or cannot build the dataset asked for (detail: why)."""
    UNGUARDED = 3
    """A task whose verifier evaluates text that no guard covers (detail: task, tab, reason)."""
    VERDICT = 4
    """The verdict on one answer."""


@dataclass(frozen=True)
class Record:
    """One message of a grading worker. `index` is the answer's within its group."""

    kind: RecordKind
    index: int
    verdict: Verdict

    @classmethod
    def note(cls, kind: RecordKind, detail: str, index: int = 0) -> Record:
        """A record that carries a text instead of a verdict."""
        return cls(kind, index, Verdict(0.0, detail=detail))


# --- bytes ---

_LENGTH = struct.Struct("<Q")
HEADER_SIZE = _LENGTH.size
MAX_FRAME_BYTES = 1 << 30
DETAIL_BYTES = 200
_RECORD = struct.Struct(f"<BBBxIdddH{DETAIL_BYTES}s")
RECORD_SIZE = _RECORD.size
_KINDS = frozenset(RecordKind)
_STATUSES = tuple(Status)
_HAS_BARE, _HAS_TAGGED = 1, 2


class ProtocolError(Exception):
    """Bytes that no well-behaved sender writes."""


def pack_frame(message: Any) -> bytes:
    """A message to a worker. Raises what pickle raises if it cannot be pickled."""
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
        *(record.kind, _STATUSES.index(verdict.status), flags, record.index),
        *(verdict.value, verdict.bare or 0.0, verdict.tagged or 0.0, len(detail), detail),
    )


def unpack_record(data: bytes) -> Record:
    """The record in these RECORD_SIZE bytes. Raises ProtocolError if any field is out of its range."""
    kind, status, flags, index, value, bare, tagged, length, detail = _RECORD.unpack(data)
    if kind not in _KINDS or status >= len(_STATUSES) or flags > 3 or length > DETAIL_BYTES:
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
    return Record(RecordKind(kind), index, verdict)


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


# --- a worker's end of the socket ---


class Channel:
    """Frames in, bytes out, out of reach of whatever else uses stdin and stdout in a worker.

    Takes the socket away from descriptors 0 and 1: stdin, stdout and stderr lead nowhere from then on.
    """

    def __init__(self) -> None:
        self._socket = os.dup(0)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        os.close(null)

    def receive(self) -> Any:
        """The next message. Raises EOFError when the parent has hung up."""
        return pickle.loads(self._read(frame_length(self._read(HEADER_SIZE))))

    def write(self, data: bytes) -> None:
        """Send all of `data`. Raises BrokenPipeError when the parent has hung up."""
        while data:
            data = data[os.write(self._socket, data) :]

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            chunk = os.read(self._socket, min(size - len(data), 1 << 20))
            if not chunk:
                raise EOFError
            data += chunk
        return bytes(data)
