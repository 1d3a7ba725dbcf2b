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

import math
import os
import pickle
import signal
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..records import Outcome, Verdict
from ..tasks import reasoning_gym_source as library
from .confinement import die_with_parent


@dataclass(frozen=True)
class Imports:
    """The code that a worker imports: the same reasoning-gym and the same task modules as its parent."""

    sys_path: tuple[str, ...]
    task_modules: tuple[str, ...] = ()

    @classmethod
    def as_here(cls, task_modules: Sequence[str]) -> Imports:
        """The imports of this process. Paths become absolute, because the worker runs in another folder."""
        search_path = tuple(os.path.realpath(path or os.curdir) for path in sys.path)
        modules = []
        for module in task_modules:
            if module.endswith(".py"):
                module = str(Path(module).expanduser().resolve())
            modules.append(module)
        return cls(search_path, tuple(modules))

    def perform(self) -> None:
        """Import reasoning-gym and the task modules. Raises EnvironmentSetupError, which names a missing module."""
        # The parent's folders come first, in its order, so that the worker finds the same modules.
        sys.path[:] = dict.fromkeys([*self.sys_path, *sys.path])
        library.import_modules(self.task_modules)


# --- the verdict that a child sends ---

DETAIL_BYTES = 200
_RECORD = struct.Struct(f"<Bxxxdd{DETAIL_BYTES}s")
RECORD_SIZE = _RECORD.size
_FAILURES = (None, Outcome.VERIFIER_ERROR, Outcome.TIMEOUT, Outcome.MEMORY, Outcome.CRASHED)


class UnreadableMessageError(Exception):
    """A worker cannot unpickle a message."""


class ProtocolError(Exception):
    """The sender wrote bytes that break the protocol."""


def pack_record(verdict: Verdict) -> bytes:
    """The verdict in RECORD_SIZE bytes: less than PIPE_BUF, so a pipe takes them in one piece."""
    native = math.nan if verdict.native is None else verdict.native
    detail = verdict.detail.encode("utf-8", "replace")[:DETAIL_BYTES]
    return _RECORD.pack(_FAILURES.index(verdict.failure), verdict.value, native, detail)


def unpack_record(data: bytes) -> Verdict:
    """The verdict in RECORD_SIZE bytes. Raises ProtocolError if a field is out of range."""
    failure, value, native, detail = _RECORD.unpack(data)
    has_native = not math.isnan(native)
    # This form of the check also refuses NaN, for which every comparison is false.
    is_in_range = 0.0 <= value <= 1.0 and (0.0 <= native <= 1.0 or not has_native)
    if failure >= len(_FAILURES) or not is_in_range:
        raise ProtocolError(f"not a record: failure {failure}, scores {value} and {native}")
    # The cut to DETAIL_BYTES may have split a character.
    text = detail.rstrip(b"\0").decode("utf-8", "ignore")
    return Verdict(value, _FAILURES[failure], native if has_native else None, text)


HEADER_SIZE = 8
"""The bytes before a reply of a worker. They hold its size, and LAST_REPLY if the worker ends after it."""
LAST_REPLY = 1 << 63


# --- a worker's end of the socket ---


def open_channel(parent: int) -> Channel:
    """The channel of a new worker, which from now on dies with its parent and ignores requests to end."""
    die_with_parent(parent)
    # A terminal's Ctrl-C and SLURM's SIGTERM reach every process. The parent decides when its workers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return Channel()


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

    def receive_bytes(self) -> bytes:
        """The next message, which `read` reads. Raises EOFError if the parent has closed the socket."""
        message: bytes = pickle.load(self._messages)
        return message

    def receive(self) -> Any:
        """The next message. Raises EOFError if the parent has closed the socket, and UnreadableMessageError."""
        return self.read(self.receive_bytes())

    def read(self, message: bytes) -> Any:
        """The content of a message. Raises UnreadableMessageError."""
        # Unpickling imports the modules of the classes in the message, and these modules may raise anything.
        try:
            return pickle.loads(message)
        except Exception as error:
            raise UnreadableMessageError(
                f"a worker cannot read it: {library.explain(error)}; the classes of its values must be in a module "
                "that workers can import"
            ) from error

    def send(self, reply: bytes, *, is_last: bool = False) -> None:
        """Send a reply. Raises BrokenPipeError if the parent has closed the socket."""
        header = len(reply) | (LAST_REPLY if is_last else 0)
        data = header.to_bytes(HEADER_SIZE, "little") + reply
        while data:
            data = data[os.write(self._socket, data) :]
