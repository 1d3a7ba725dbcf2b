"""One scoring worker as the environment sees it: start it, give it a group, kill it. asyncio only.

The worker (zygote.py) holds every answer to its deadline by itself. The limits here are for a worker that
does not answer at all: then `WorkerDiedError` is raised, and whoever owns the worker starts it anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from ..errors import EnvironmentSetupError
from .protocol import Kind, ProtocolError, Record, RecordReader, pack_frame
from .zygote import Request, Start

START_ALLOWANCE_S = 120.0
BUILD_ALLOWANCE_S = 60.0
SILENCE_ALLOWANCE_S = 5.0
"""How long beyond an answer's deadline a worker may stay silent before it counts as dead."""

_ROOT = Path(__file__).resolve().parents[len(__package__.split("."))]
"""Where the worker imports this package from, under the name that it has here; it may lie inside others."""
_BOOTSTRAP = (
    "import sys; root = sys.argv[1]; root in sys.path or sys.path.insert(0, root); "
    "import importlib; importlib.import_module(sys.argv[2]).main(int(sys.argv[3]))"
)
_KEPT_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""Some Python builds cannot start without these; no other variable reaches a worker."""


class WorkerDiedError(Exception):
    """The worker ended, went silent or broke the protocol before its group was finished."""


class WorkerProcess:
    """At most one running process and one group at a time; may be started again after it died."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._process: Process | None = None
        self._reader = RecordReader()
        self._group = 0
        self.description = ""
        self.is_confined = False
        self.unguarded: dict[str, str] = {}

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start the process and wait until it can score. Raises EnvironmentSetupError with its reason."""
        await self.kill()
        self._reader = RecordReader()
        self.unguarded = {}
        try:
            await self._spawn()
            async for record in self._records(START_ALLOWANCE_S):
                if record.kind is Kind.UNGUARDED:
                    task, _, reason = record.detail.partition("\t")
                    self.unguarded[task] = reason
                elif record.kind is Kind.READY:
                    self.description, self.is_confined = record.detail, bool(record.group)
                    return
                else:
                    raise WorkerDiedError(record.detail)
        except (OSError, WorkerDiedError) as error:
            await self.kill()
            raise EnvironmentSetupError(
                f"A scoring worker could not start: {error}. It runs {sys.executable} with an empty "
                "environment; `sandbox: off` shows whether the sandbox is the cause."
            ) from error
        except BaseException:
            await self.kill()
            raise

    async def _spawn(self) -> None:
        module = f"{__package__}.zygote"
        environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        # One thread: a process with more must not fork. And the parent-death signal follows the thread
        # that spawns, which here is the event loop's own.
        environment |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        environment |= {"LC_ALL": "C.UTF-8", "PATH": os.defpath}
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-B", "-c", _BOOTSTRAP, str(_ROOT), module, str(os.getpid())),
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            env=environment,
            cwd="/",
            start_new_session=True,
        )
        await self._send(self._start)

    async def grade(self, make: Callable[[int], Request], on_verdict: Callable[[Record], None]) -> None:
        """Have one group graded. `make` gets the group's number, `on_verdict` each record, in order.

        Raises EnvironmentSetupError if the dataset cannot be built, and WorkerDiedError, after which the
        verdicts seen so far hold and the process is gone. Cancelling kills the process.
        """
        self._group += 1
        request = make(self._group)
        try:
            await self._send(request)
            await self._follow(request, on_verdict)
        except (WorkerDiedError, asyncio.CancelledError):
            await self.kill()
            raise

    async def _follow(self, request: Request, on_verdict: Callable[[Record], None]) -> None:
        due = 0
        silence = request.timeout_s + SILENCE_ALLOWANCE_S
        async for record in self._records(BUILD_ALLOWANCE_S, silence):
            if record.group != request.group:
                raise WorkerDiedError(f"expected records of group {request.group}, got {record.group}")
            if record.kind is Kind.FAILED:
                raise EnvironmentSetupError(f"The dataset of {record.detail}. Scoring needs a valid config.")
            if record.kind is Kind.VERDICT:
                if record.index != due:
                    raise WorkerDiedError(f"expected a verdict on answer {due}, got one on {record.index}")
                on_verdict(record)
                due += 1
                if due == len(request.answers):
                    return

    async def _records(self, first_s: float, then_s: float | None = None) -> AsyncIterator[Record]:
        """Records as they come. Raises WorkerDiedError at the end of the stream, or after silence."""
        process = self._process
        assert process is not None and process.stdout is not None
        allowance = first_s
        while True:
            try:
                data = await asyncio.wait_for(process.stdout.read(1 << 16), allowance)
                if not data:
                    raise WorkerDiedError(f"it ended with exit status {await process.wait()}")
                for record in self._reader.feed(data):
                    yield record
            except asyncio.TimeoutError:
                raise WorkerDiedError(f"it was silent for {allowance:g} s") from None
            except ProtocolError as error:
                raise WorkerDiedError(str(error)) from error
            allowance = then_s or first_s

    async def _send(self, message: object) -> None:
        assert self._process is not None and self._process.stdin is not None
        frame = pack_frame(message)
        try:
            self._process.stdin.write(frame)
            await self._process.stdin.drain()
        except ConnectionError as error:
            raise WorkerDiedError("it no longer reads requests") from error

    async def kill(self) -> None:
        """End the process and the child it may have, and collect it. Safe to call twice."""
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        # The exit must be collected even if the caller is being cancelled, or a zombie stays.
        await asyncio.shield(process.wait())
        if self._process is process:
            self._process = None
