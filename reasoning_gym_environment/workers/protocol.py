"""The two languages between the environment and its scoring workers.

    environment ── frames (pickle) ──> worker ── memory (fork) ──> child that runs the verifier
    environment <── records ────────── worker <── records ──────── child

Down the chain values are trusted and must arrive intact, so they are pickled. Up the chain nothing is:
the child has read a hostile answer, so it may only say things that fit a record of fixed size, whose every
field is checked, and which is never unpickled. A record that breaks a rule raises `ProtocolError`.

A child's end of the pipes to its parent, out of reach of whatever else uses stdin and stdout there.
"""

from __future__ import annotations

import os
import pickle
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar

from ..verification.grade import Status, Verdict

_LENGTH = struct.Struct("<Q")
MAX_FRAME_BYTES = 1 << 30
DETAIL_BYTES = 200
_RECORD = struct.Struct(f"<BBBxIQdddH{DETAIL_BYTES}s")
RECORD_SIZE = _RECORD.size
_STATUSES = tuple(Status)
_HAS_BARE, _HAS_TAGGED, _LATE_IMPORT = 1, 2, 4


_NO_VERDICT = Verdict(value=0.0)


class ProtocolError(Exception):
    """Bytes that no well-behaved sender writes."""


class Kind(IntEnum):
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


@dataclass(frozen=True)
class Record:
    """One message up the chain. `group` numbers the request, `index` the answer within it."""

    kind: Kind
    group: int = 0
    index: int = 0
    verdict: Verdict = _NO_VERDICT
    late_import: bool = False

    @property
    def detail(self) -> str:
        return self.verdict.detail

    @classmethod
    def note(cls, kind: Kind, detail: str = "", group: int = 0) -> Record:
        """A record that carries a text instead of a verdict."""
        return cls(kind, group=group, verdict=Verdict(value=0.0, detail=detail))


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


HEADER_SIZE = _LENGTH.size


def pack_record(record: Record) -> bytes:
    """Exactly RECORD_SIZE bytes: less than PIPE_BUF, so a pipe takes them in one piece."""
    verdict = record.verdict
    detail = _clip(verdict.detail)
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
    return Record(Kind(kind), group, index, verdict, bool(flags & _LATE_IMPORT))


_KINDS = frozenset(Kind)


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


def _clip(text: str) -> bytes:
    data = text.encode("utf-8", "replace")
    return data[:DETAIL_BYTES].decode("utf-8", "ignore").encode("utf-8")


AnyChannel = TypeVar("AnyChannel", bound="Channel")


class Channel:
    """Frames in, bytes out, on descriptors that nothing else in this process knows."""

    def __init__(self, requests: int, replies: int) -> None:
        self.requests = requests
        self._replies = replies

    @classmethod
    def take_over_stdio(cls: type[AnyChannel]) -> AnyChannel:
        """Move the pipes away from descriptors 0 and 1; stdin, stdout and stderr lead nowhere from here on."""
        channel = cls(os.dup(0), os.dup(1))
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        os.close(null)
        return channel

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
