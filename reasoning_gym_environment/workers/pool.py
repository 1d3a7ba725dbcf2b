"""Worker processes as their parent sees them, and the pool that starts them, lends them out and replaces them.

    WorkerPool ── keeps ──> WorkerProcess ── socket ──> a clean interpreter that runs one of our modules

Generator and grader each hold a pool. A caller has a worker to itself, and callers are served in order of arrival. A
worker that died, or was ended because it was silent or its caller was cancelled, is started again in the background
until that works: a machine may be short of processes for a moment. Work waits meanwhile. Nothing here blocks the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from asyncio import StreamReader, StreamWriter
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from ..errors import EnvironmentSetupError
from ..utils.aio import within
from ..utils.outage_log import Outage
from .child import processor_s
from .protocol import ProtocolError

START_ALLOWANCE_S = 120.0
"""How long a worker may take until it says that it is ready."""
FIRST_DELAY_S, MAX_DELAY_S = 0.1, 10.0
"""Between attempts to start a worker again."""

_ROOT = Path(__file__).resolve().parents[__package__.count(".") + 1]
# `-c` puts the working directory first on sys.path, as an empty name.
_BOOTSTRAP = (
    "import sys; root = sys.argv[1]; sys.path[:] = [path for path in sys.path if path]; "
    "root in sys.path or sys.path.insert(0, root); "
    "import importlib; importlib.import_module(sys.argv[2]).main(int(sys.argv[3]))"
)
_KEPT_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""Some Python builds cannot start without these; no other variable reaches a worker."""
_CLOSED = "the workers are not running: they were not started, or are closed"
T = TypeVar("T")
ReadReply = Callable[[StreamReader], Coroutine[Any, Any, T]]


class WorkerDiedError(Exception):
    """The worker ended, went silent or broke the protocol before its work was finished."""


class PoolClosedError(RuntimeError):
    """The pool was not started, or is closed."""


class WorkerProcess:
    """At most one running process of `module` (a sibling of this one); may be started again after it died.

    `module` has a function `main(parent)`, which gets the number of this process. `variables` are added to its
    environment, which holds nothing else of ours. It has a session of its own (so a terminal's signals do not reach
    it, and killing its process group kills what it started), and dies with the thread that started it.
    """

    who = "A worker"
    """Begins a sentence about one that could not start; `hint` ends it."""
    hint = ""

    def __init__(self, module: str, **variables: str) -> None:
        self._module = f"{__package__}.{module}"
        self._variables = variables
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: StreamReader
        self._writer: StreamWriter | None = None
        self._is_ended = False

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def is_running(self) -> bool:
        """Whether it can be given work: False as soon as `end` was called."""
        return self._process is not None and not self._is_ended and self._process.poll() is None

    async def start(self) -> None:
        """Start the process and wait until it is ready. Raises EnvironmentSetupError with its reason."""
        await self.kill()
        try:
            await self._spawn()
            await self.prepare()
        except (OSError, WorkerDiedError) as error:
            await self.kill()
            raise EnvironmentSetupError(
                f"{self.who} could not start: {str(error).rstrip('.')}. It runs {sys.executable} with an empty "
                f"environment{self.hint}."
            ) from error
        except BaseException:
            await self.kill()
            raise

    async def prepare(self) -> None:
        """Send a new process its first message, and await that it is ready. Raises WorkerDiedError with the reason."""

    async def _spawn(self) -> None:
        environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        # One thread: a process with more must not fork.
        environment |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        environment |= {"LC_ALL": "C.UTF-8", "PATH": os.defpath, **self._variables}
        ours, theirs = socket.socketpair()
        self._reader, self._writer = await asyncio.open_unix_connection(sock=ours)
        with theirs:
            # asyncio's own way needs a thread for each process before Python 3.12. The parent-death signal follows the
            # thread that spawns, which here is the event loop's own.
            self._process = subprocess.Popen(  # noqa: ASYNC220
                [sys.executable, "-s", "-B", "-c", _BOOTSTRAP, str(_ROOT), self._module, str(os.getpid())],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                env=environment,
                cwd="/",
                start_new_session=True,
            )
        self._is_ended = False

    def processor_s(self) -> float:
        """The processor time that it has used; the clock's where that cannot be known, as on macOS."""
        return processor_s(self._process.pid) if self._process else 0.0

    async def ask(self, message: bytes, read_reply: ReadReply[T], limit_s: float | None = None) -> T:
        """Send a message and await its reply. Raises WorkerDiedError, also if there is no reply within `limit_s`.

        The process is ended whenever this raises, a cancellation included: nobody knows what it is doing.
        """
        if not self.is_running or self._writer is None:
            raise WorkerDiedError("it is not running")
        is_finished = False
        try:
            # Not drained: a process that has stopped reading is noticed by its silence.
            self._writer.write(message)
            reply = await within(limit_s, read_reply(self._reader))
            is_finished = True
            return reply
        except asyncio.TimeoutError:
            raise WorkerDiedError(f"it was silent for {limit_s:g} s") from None
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            await self.kill()
            raise WorkerDiedError(f"it ended with exit status {self._process and self._process.returncode}") from error
        except ProtocolError as error:
            raise WorkerDiedError(str(error)) from error
        finally:
            if not is_finished:
                self.end()

    def end(self) -> None:
        """Send the process and all it started a signal they cannot refuse. Safe to call twice."""
        if self.is_running:
            assert self._process is not None
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._is_ended = True

    async def kill(self) -> None:
        """End the process and what it started, and collect it. Safe to call twice."""
        self.end()
        while self._process is not None and self._process.poll() is None:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        if self._writer is not None:
            self._writer.close()


AnyWorker = TypeVar("AnyWorker", bound=WorkerProcess)


class WorkerPool(Generic[AnyWorker]):
    """Lends out `workers`, of one kind; each replacement counts as a `worker_restarts` in `counts`."""

    def __init__(self, workers: Sequence[AnyWorker], counts: Counter[str], logger: logging.Logger) -> None:
        self._workers = workers
        self._counts = counts
        self._outage = Outage(logger, workers[0].who, first_delay_s=FIRST_DELAY_S, max_delay_s=MAX_DELAY_S)
        self._idle: asyncio.Queue[AnyWorker | None] = asyncio.Queue()
        """None once the pool is closed."""
        # A caller that returns a worker and asks again at once would overtake those who wait at the queue alone.
        self._turn = asyncio.Lock()
        self._replacements: set[asyncio.Task[None]] = set()
        self._is_open = False

    async def start(self) -> None:
        """Start every worker, in parallel. Raises EnvironmentSetupError if one cannot; then none is left."""
        results = await asyncio.gather(*(worker.start() for worker in self._workers), return_exceptions=True)
        for failure in results:
            if failure is not None:
                await self.close()
                raise failure
        self._is_open = True
        for worker in self._workers:
            self._idle.put_nowait(worker)

    @contextlib.asynccontextmanager
    async def worker(self) -> AsyncIterator[AnyWorker]:
        """A worker, for the length of the block; one that does not run afterwards is replaced.

        Raises PoolClosedError.
        """
        if not self._is_open:
            raise PoolClosedError(_CLOSED)
        async with self._turn:
            while True:
                worker = await self._idle.get()
                if worker is None or not self._is_open:
                    self._idle.put_nowait(None)
                    raise PoolClosedError(_CLOSED)
                if worker.is_running:
                    break
                self._replace(worker)
        try:
            yield worker
        finally:
            if worker.is_running:
                self._idle.put_nowait(worker)
            elif self._is_open:
                self._replace(worker)

    async def close(self) -> None:
        """Let everyone who waits, or comes later, have a PoolClosedError; kill every worker. Safe to call twice."""
        self._is_open = False
        for replacement in self._replacements:
            replacement.cancel()
        await asyncio.gather(*self._replacements, return_exceptions=True)
        await asyncio.gather(*(worker.kill() for worker in self._workers))
        self._idle.put_nowait(None)

    def _replace(self, worker: AnyWorker) -> None:
        self._counts["worker_restarts"] += 1
        replacement = asyncio.get_running_loop().create_task(self._start_again(worker))
        self._replacements.add(replacement)
        replacement.add_done_callback(self._replacements.discard)

    async def _start_again(self, worker: AnyWorker) -> None:
        while True:
            try:
                await worker.start()
            except EnvironmentSetupError as error:
                await asyncio.sleep(self._outage.failed(str(error), "it is started again, its work waits"))
            else:
                self._outage.over()
                self._idle.put_nowait(worker)
                return
