"""The messages between the environment and its workers.

    environment ── pickle ──> grading worker ── memory (fork) ──> child that runs the verifier
    environment <── JSON ──── grading worker <── records ──────── child
    environment <── pickle ─> generation worker

Messages to a worker are trusted and must arrive intact, so they are pickled. A generation worker sees no model output,
so its replies are pickled too. The environment never unpickles data from a grading worker or its child, because the
child has read a hostile answer. A child may only send records of a fixed size. The worker checks every field, and a bad
record raises ProtocolError.
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
    """The code that a worker imports: the same reasoning-gym and the same task modules as its parent.

    `library_path` goes to the front of sys.path, `sys_path` to its end; then `task_modules` are imported.
    """

    library_path: str | None = None
    sys_path: tuple[str, ...] = ()
    task_modules: tuple[str, ...] = ()

    @classmethod
    def as_here(cls, library_path: str | None, task_modules: Sequence[str]) -> Imports:
        """The imports of this process. Paths become absolute, because the worker runs in another folder."""
        search_path = tuple(os.path.realpath(path or os.curdir) for path in sys.path)
        modules = []
        for module in task_modules:
            if module.endswith(".py"):
                module = str(Path(module).expanduser().resolve())
            modules.append(module)
        return cls(library_path and os.path.realpath(library_path), search_path, tuple(modules))

    def perform(self) -> None:
        """Import reasoning-gym and the task modules, and read the registry.

        Raises EnvironmentSetupError, with the name of a missing module.
        """
        if self.library_path is not None:
            path = Path(self.library_path)
            # The path is a checkout's root or an installed package. sys.path needs the folder that holds the package.
            if path.name == "reasoning_gym" and (path / "__init__.py").is_file():
                path = path.parent
            sys.path.insert(0, str(path))
        sys.path.extend(path for path in self.sys_path if path not in sys.path)
        library.load()
        library.import_modules(self.task_modules)
        # If the registry cannot be read, this call builds all tasks. An item has too little time and memory for that.
        library.registry()


# --- the verdict that a child sends ---

DETAIL_BYTES = 200
_RECORD = struct.Struct(f"<BBxxIdddH{DETAIL_BYTES}s")
RECORD_SIZE = _RECORD.size
_STATUSES = tuple(Status)
_HAS_BARE = 1
_HAS_TAGGED = 2


class UnreadableMessageError(Exception):
    """A worker cannot unpickle a message."""


class ProtocolError(Exception):
    """The sender wrote bytes that break the protocol."""


def pack_record(index: int, verdict: Verdict) -> bytes:
    """The verdict on answer `index` in RECORD_SIZE bytes: less than PIPE_BUF, so a pipe takes them in one piece."""
    cut = verdict.detail.encode("utf-8", "replace")[:DETAIL_BYTES]
    # The cut may split a character. Drop its first part.
    detail = cut.decode("utf-8", "ignore").encode("utf-8")
    flags = _HAS_BARE * (verdict.bare is not None) | _HAS_TAGGED * (verdict.tagged is not None)
    return _RECORD.pack(
        _STATUSES.index(verdict.status),
        flags,
        index,
        verdict.value,
        verdict.bare or 0.0,
        verdict.tagged or 0.0,
        len(detail),
        detail,
    )


def unpack_record(data: bytes) -> tuple[int, Verdict]:
    """The index and the verdict in RECORD_SIZE bytes. Raises ProtocolError if a field is out of range."""
    status, flags, index, value, bare, tagged, length, detail = _RECORD.unpack(data)
    if status >= len(_STATUSES) or flags > 3 or length > DETAIL_BYTES:
        raise ProtocolError(f"not a record: status {status}, flags {flags}, length {length}")
    # This form of the check also refuses NaN, for which every comparison is false.
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
    """The HEADER_SIZE bytes before a reply of `size` bytes."""
    return (size | _LAST_REPLY * is_last).to_bytes(HEADER_SIZE, "little")


def unpack_header(header: bytes) -> tuple[int, bool]:
    """The size of the reply that follows, and whether the worker ends after it."""
    number = int.from_bytes(header, "little")
    return number & ~_LAST_REPLY, bool(number & _LAST_REPLY)


# --- a worker's end of the socket ---


class Channel:
    """Receives messages and sends replies. Other code in the worker cannot disturb it through stdin or stdout.

    The constructor moves the socket away from descriptors 0 and 1, and connects stdin, stdout and stderr to /dev/null.
    """

    def __init__(self) -> None:
        self._socket = os.dup(0)
        self._messages = os.fdopen(self._socket, "rb")
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        os.close(null)

    def receive(self) -> Any:
        """The next message. Raises EOFError if the parent has closed the socket, and UnreadableMessageError."""
        message = pickle.load(self._messages)
        # Unpickling imports the modules of the classes in the message, and these modules may raise anything.
        try:
            return pickle.loads(message)
        except Exception as error:
            raise UnreadableMessageError(
                f"a worker cannot read it: {library.explain(error)}; the classes of its values must be in a module "
                "that workers can import"
            ) from error

    def send(self, reply: bytes, *, is_last: bool = False) -> None:
        """Send a reply. Raises BrokenPipeError if the parent has closed the socket.

        A worker that ends after a reply must set `is_last`. The parent then sends no further message.
        """
        data = pack_header(len(reply), is_last=is_last) + reply
        while data:
            data = data[os.write(self._socket, data) :]
