"""A clean interpreter that runs one of our modules, as its parent sees it: start, write, read, kill.

It gets no environment variable but those named here, a session of its own (so a terminal's signals pass it
by, and killing its process group takes along what it started), and dies with the thread that started it.
asyncio only: nothing here blocks the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from pathlib import Path

START_ALLOWANCE_S = 120.0
"""How long a child may take until it says that it is ready."""

_ROOT = Path(__file__).resolve().parents[__package__.count(".") + 1]
# `-c` puts the working directory first on sys.path, as an empty name.
_BOOTSTRAP = (
    "import sys; root = sys.argv[1]; sys.path[:] = [path for path in sys.path if path]; "
    "root in sys.path or sys.path.insert(0, root); "
    "import importlib; importlib.import_module(sys.argv[2]).main(int(sys.argv[3]))"
)
_KEPT_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""Some Python builds cannot start without these; no other variable reaches a child."""


class WorkerDiedError(Exception):
    """The child ended, went silent or broke the protocol before its work was finished."""


class ChildProcess:
    """At most one running process of `module` (a sibling of this one); may be started again after it died.

    `module` has a function `main(parent)`, which gets the number of this process. `variables` are added to
    its environment.
    """

    def __init__(self, module: str, **variables: str) -> None:
        self._module = f"{__package__}.{module}"
        self._variables = variables
        self._process: Process | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def spawn(self) -> None:
        """Start the process. Raises OSError if that fails; call `kill` before doing it again."""
        environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        # One thread: a process with more must not fork. And the parent-death signal follows the thread
        # that spawns, which here is the event loop's own.
        environment |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        environment |= {"LC_ALL": "C.UTF-8", "PATH": os.defpath, **self._variables}
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-s", "-B", "-c", _BOOTSTRAP, str(_ROOT), self._module, str(os.getpid())),
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            env=environment,
            cwd="/",
            start_new_session=True,
        )

    async def write(self, data: bytes) -> None:
        """Raises WorkerDiedError if the process no longer reads."""
        if self._process is None:
            raise WorkerDiedError("it is not running")
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
            await self._process.stdin.drain()
        except ConnectionError as error:
            raise WorkerDiedError("it no longer reads requests") from error

    async def read_some(self) -> bytes:
        """The bytes that have come, at least one. Raises WorkerDiedError at the end of the stream."""
        data = await self._output.read(1 << 16)
        return data or await self._report_end()

    async def read_exactly(self, size: int) -> bytes:
        """Raises WorkerDiedError if the stream ends before."""
        try:
            return await self._output.readexactly(size)
        except asyncio.IncompleteReadError:
            return await self._report_end()

    @property
    def _output(self) -> asyncio.StreamReader:
        if self._process is None:
            raise WorkerDiedError("it is not running")
        assert self._process.stdout is not None
        return self._process.stdout

    async def _report_end(self) -> bytes:
        assert self._process is not None
        raise WorkerDiedError(f"it ended with exit status {await self._process.wait()}")

    def end(self) -> None:
        """Send the process and all it started a signal they cannot refuse. Safe to call twice."""
        if self.is_running:
            assert self._process is not None
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def kill(self) -> None:
        """End the process and what it started, and collect it. Safe to call twice."""
        process = self._process
        if process is None:
            return
        self.end()
        # The exit must be collected even if the caller is being cancelled, or a zombie stays.
        await asyncio.shield(process.wait())
        if self._process is process:
            self._process = None
