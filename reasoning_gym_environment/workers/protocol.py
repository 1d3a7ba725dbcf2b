"""What the environment and its workers send each other.

    environment ── pickle ──> grading worker ── memory (fork) ──> child that runs the verifier
    environment <── JSON ──── grading worker <── records ──────── child
    environment <── pickle ─> generation worker

Values that go to a worker are trusted and must arrive intact, so they are pickled. So is what a generation worker
sends, which sees no model output. What a grading worker or its child sends is never unpickled: the child has read a
hostile answer. A child may only send records of a fixed size, whose every field is checked; a bad one raises
ProtocolError.
"""

from __future__ import annotations

import os
import pickle
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..records import Status, Verdict
from ..tasks import reasoning_gym_source as library


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
        library.load()
        library.import_modules(self.task_modules)


# --- a verdict on its way from the child ---

DETAIL_BYTES = 200
_RECORD = struct.Struct(f"<BBxxIdddH{DETAIL_BYTES}s")
RECORD_SIZE = _RECORD.size
_STATUSES = tuple(Status)
_HAS_BARE, _HAS_TAGGED = 1, 2


class ProtocolError(Exception):
    """Bytes that no well-behaved sender writes."""


def pack_record(index: int, verdict: Verdict) -> bytes:
    """The verdict on answer `index` in RECORD_SIZE bytes: less than PIPE_BUF, so a pipe takes them in one piece."""
    # Cut between characters.
    detail = verdict.detail.encode("utf-8", "replace")[:DETAIL_BYTES].decode("utf-8", "ignore").encode("utf-8")
    flags = _HAS_BARE * (verdict.bare is not None) | _HAS_TAGGED * (verdict.tagged is not None)
    scores = (verdict.value, verdict.bare or 0.0, verdict.tagged or 0.0)
    return _RECORD.pack(_STATUSES.index(verdict.status), flags, index, *scores, len(detail), detail)


def unpack_record(data: bytes) -> tuple[int, Verdict]:
    """Index and verdict of these RECORD_SIZE bytes. Raises ProtocolError if any field is out of its range."""
    status, flags, index, value, bare, tagged, length, detail = _RECORD.unpack(data)
    if status >= len(_STATUSES) or flags > 3 or length > DETAIL_BYTES:
        raise ProtocolError(f"not a record: status {status}, flags {flags}, length {length}")
    # Written so that NaN, which no comparison accepts, is refused as well.
    if not all(0.0 <= score <= 1.0 for score in (value, bare, tagged)):
        raise ProtocolError(f"expected scores in [0, 1], got {value}, {bare}, {tagged}")
    return index, Verdict(
        value=value,
        status=_STATUSES[status],
        bare=bare if flags & _HAS_BARE else None,
        tagged=tagged if flags & _HAS_TAGGED else None,
        detail=detail[:length].decode("utf-8", "replace"),
    )


# --- a reply of a worker ---

HEADER_SIZE = 8
_LAST_REPLY = 1 << 63


def pack_header(size: int, *, is_last: bool) -> bytes:
    """What precedes a reply of `size` bytes: HEADER_SIZE bytes."""
    return (size | _LAST_REPLY * is_last).to_bytes(HEADER_SIZE, "little")


def unpack_header(header: bytes) -> tuple[int, bool]:
    """The size of the reply that follows, and whether the worker ends after it."""
    number = int.from_bytes(header, "little")
    return number & ~_LAST_REPLY, bool(number & _LAST_REPLY)


# --- a worker's end of the socket ---


class Channel:
    """Messages in, replies out, out of reach of whatever else uses stdin and stdout in a worker.

    Takes the socket away from descriptors 0 and 1: stdin, stdout and stderr lead nowhere from then on.
    """

    def __init__(self) -> None:
        self._socket = os.dup(0)
        self._messages = os.fdopen(self._socket, "rb")
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        os.close(null)

    def receive(self) -> Any:
        """The next message. Raises EOFError when the parent has hung up."""
        return pickle.load(self._messages)

    def send(self, reply: bytes, *, is_last: bool = False) -> None:
        """Send a reply. Raises BrokenPipeError when the parent has hung up.

        A worker that ends after a reply must say so by `is_last`: it gets no further message then.
        """
        data = pack_header(len(reply), is_last=is_last) + reply
        while data:
            data = data[os.write(self._socket, data) :]
