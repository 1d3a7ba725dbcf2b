"""What both kinds of workers do: start, confine themselves, and reply to one request after the other.

    run(parent, GradingWork)      a first message ── load, confine ──> ready ── a request ── reply ──> ...
    run(parent, GenerationWork)

A request holds data that a client of a server may have chosen. Any exception that such data raises becomes a reply with
the reason, in `run` and nowhere else. A worker that runs out of memory, or that keeps too much memory after a reply,
ends with this reply. The pool starts another worker.
"""

from __future__ import annotations

import contextlib
import gc
import json
import sys
import sysconfig
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from ..errors import EnvironmentSetupError
from ..tasks import reasoning_gym_source as library
from . import confinement
from .confinement import WORKER_MEMORY_BYTES, Layers, MemoryMeter
from .protocol import Channel, Imports, UnreadableMessageError, open_channel

KEPT_MEMORY_BYTES = WORKER_MEMORY_BYTES // 2
"""A worker ends when it keeps this much more memory after a reply than it had at its start."""
_SYSTEM_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")

Sandbox: TypeAlias = Literal["auto", "require", "off"]


@dataclass(frozen=True)
class Start:
    """The first message to a worker."""

    sandbox: Sandbox
    imports: Imports


class Work(ABC):
    """One kind of work. The constructor gets the first message, and loads all that the work needs."""

    writable: tuple[str, ...] = ()
    """The folders in which this work may write files."""

    def confined(self, layers: Layers, memory: MemoryMeter) -> None:
        """Called once, when the process is confined. The default does nothing."""
        return

    @abstractmethod
    def reply(self, request: Any) -> bytes:
        """The reply to a request. May raise any exception."""

    @abstractmethod
    def unanswered(self, reason: str) -> bytes:
        """The reply to a request for which `reply` has raised an exception."""


def run(parent: int, make_work: Callable[[Any], Work]) -> None:
    """Work until the parent closes the socket. pool.py starts a module whose `main` calls this function."""
    channel = open_channel(parent)
    try:
        start: Start = channel.receive()
        confinement.volunteer_for_oom_kill()
        # This call forks, so it comes before anything that starts threads.
        layers = _layers(start.sandbox)
        start.imports.perform()
        work = make_work(start)
        gc.collect()
        gc.freeze()
        memory = MemoryMeter()
        confinement.confine_worker(layers, memory, _readable_folders(start.imports), work.writable)
        work.confined(layers, memory)
    # A task module may raise any exception. The parent reports it.
    except Exception as error:  # noqa: BLE001
        reason = str(error) if isinstance(error, EnvironmentSetupError) else library.explain(error)
        channel.send(json.dumps({"failure": reason}).encode())
        return
    most_bytes = memory.mapped() + KEPT_MEMORY_BYTES
    # The environment closes the socket when it ends.
    with contextlib.suppress(EOFError, BrokenPipeError):
        channel.send(json.dumps({"layers": layers.describe()}).encode())
        is_last = False
        while not is_last:
            reply, is_last = _reply(channel, work)
            is_last = is_last or memory.mapped() > most_bytes
            channel.send(reply, is_last=is_last)


def _reply(channel: Channel, work: Work) -> tuple[bytes, bool]:
    """The reply to the next message, and whether it is the last reply of this worker. Raises EOFError."""
    message = channel.receive_bytes()
    # The library's generators, constructors and verifiers run here, on data of a client. They may even exit.
    try:
        return work.reply(channel.read(message)), False
    except MemoryError:
        return work.unanswered(f"MemoryError: more than {WORKER_MEMORY_BYTES >> 20} MiB"), True
    except UnreadableMessageError as error:
        return work.unanswered(str(error)), False
    except (Exception, SystemExit) as error:  # noqa: BLE001
        return work.unanswered(library.explain(error)), False


def _layers(sandbox: Sandbox) -> Layers:
    """The layers to use. Raises EnvironmentSetupError if the sandbox is required and system calls are not filtered."""
    layers = Layers() if sandbox == "off" else confinement.detect()
    if sandbox == "require" and not layers.seccomp:
        raise EnvironmentSetupError(
            "sandbox: require needs seccomp (Linux on x86-64 or arm64, permitted by the container), "
            f"got {layers.describe()}. Use sandbox: auto to run with less"
        )
    return layers


def _readable_folders(imports: Imports) -> list[str]:
    """The folders of Python's libraries and of the user's task modules, which may read files beside them."""
    paths = sysconfig.get_paths()
    folders = [paths["stdlib"], paths["platstdlib"], *sys.path, *_SYSTEM_LIBRARIES]
    # The generation of codeio starts Python, whose program may need the library libpython.
    folders += [paths["scripts"], str(Path(sys.executable).resolve().parent)]
    folders += filter(None, [sysconfig.get_config_var("LIBDIR")])
    folders += [str(Path(module).parent) for module in imports.task_modules if module.endswith(".py")]
    return [folder for folder in folders if folder not in ("", "/")]
