"""Worker processes as their parent sees them, and the pool that starts them, asks them and replaces them.

    WorkerPool ── keeps ──> WorkerProcess ── socket ──> a clean interpreter that runs one of our modules

Generator and grader each hold a pool. A worker answers one question at a time, and questions are asked in order of
arrival. A worker that died, or was ended because it was late or its caller was cancelled, is started again in the
background until that works: a machine may be short of processes for a moment. Work waits meanwhile. Nothing here blocks
the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
from asyncio import StreamReader, StreamWriter
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import EnvironmentSetupError
from ..utils.resilience import Outage
from .protocol import HEADER_SIZE, unpack_header

START_ALLOWANCE_S = 120.0
"""How long a worker may take until it says that it is ready."""
FIRST_DELAY_S, MAX_DELAY_S = 0.1, 10.0
"""Between attempts to start a worker again."""
ATTEMPTS = 2
"""How many workers may die of one question."""
MAX_REPLY_BYTES = 1 << 30

_ROOT = Path(__file__).resolve().parents[__package__.count(".") + 1]
# `-c` puts the working directory first on sys.path, as an empty name.
_BOOTSTRAP = (
    "import sys; root = sys.argv[1]; sys.path[:] = [path for path in sys.path if path]; "
    "root in sys.path or sys.path.insert(0, root); "
    "import importlib; importlib.import_module(sys.argv[2]).main(int(sys.argv[3]))"
)
_KEPT_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""Some Python builds cannot start without these; no other variable reaches a worker."""


class WorkerDiedError(Exception):
    """The worker ended, or broke the protocol, before its work was finished."""


class PoolClosedError(RuntimeError):
    """The pool was not started, or is closed."""

    def __init__(self) -> None:
        super().__init__("the workers are not running: they were not started, or are closed")


class WorkerProcess:
    """At most one running process of `module` (a sibling of this one); may be started again after it died.

    `module` has a function `main(parent)`, which gets the number of this process. The process answers `first_message`
    with JSON, once it is ready. `variables` are added to its environment, which holds nothing else of ours. It has a
    session of its own (so a terminal's signals do not reach it, and killing its process group kills what it started),
    and dies with the thread that started it. `who` begins a sentence about one that could not start, `hint` ends it.
    """

    def __init__(self, module: str, who: str, first_message: object, hint: str = "", **variables: str) -> None:
        self.who = who
        self.ready: dict[str, Any] = {}
        """What it said at its start."""
        self._module = f"{__package__}.{module}"
        self._first_message = first_message
        self._hint = hint
        self._variables = variables
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: StreamReader
        self._writer: StreamWriter
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
            self.ready = json.loads(await self.ask(pickle.dumps(self._first_message), START_ALLOWANCE_S))
            if failure := self.ready.get("failure"):
                raise WorkerDiedError(failure)
        except (OSError, WorkerDiedError) as error:
            await self.kill()
            raise EnvironmentSetupError(
                f"{self.who} could not start: {str(error).rstrip('.')}. It runs {sys.executable} with an empty "
                f"environment{self._hint}."
            ) from error
        except BaseException:
            await self.kill()
            raise

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

    async def ask(self, message: bytes, limit_s: float) -> bytes:
        """Send a pickled message and await the reply. Raises WorkerDiedError, and TimeoutError if the process has
        limited its own processor time and reached the limit, or sends no reply within `limit_s`.

        The process is ended whenever this raises, a cancellation included: nobody knows what it is doing. It is also
        ended after a reply that the process calls its last, because a message sent while it exits would be lost.
        """
        # A process that is ended closes the socket, and so ends the waiting below.
        deadline = asyncio.get_running_loop().call_later(limit_s, self.end)
        is_ready_for_more = False
        try:
            # Not drained: a process that has stopped reading is noticed by its silence.
            self._writer.write(message)
            size, is_last = unpack_header(await self._reader.readexactly(HEADER_SIZE))
            if size > MAX_REPLY_BYTES:
                raise WorkerDiedError(f"it announced a reply of {size} bytes")
            reply = await self._reader.readexactly(size)
            is_ready_for_more = not is_last
            return reply
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            is_late = deadline.when() <= asyncio.get_running_loop().time()
            await self.kill()
            code = self._process.returncode if self._process else None
            if is_late or code == -signal.SIGPROF:
                raise TimeoutError(f"it was silent for {limit_s:g} s") from error
            raise WorkerDiedError(f"it ended with exit status {code}") from error
        finally:
            deadline.cancel()
            if not is_ready_for_more:
                self.end()

    def end(self) -> None:
        """Send the process and all it started a signal they cannot refuse. Safe to call twice."""
        if self.is_running:
            assert self._process is not None
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        if self._process is not None:
            self._writer.transport.abort()
        self._is_ended = True

    async def kill(self) -> None:
        """End the process and what it started, and collect it. Safe to call twice."""
        self.end()
        while self._process is not None and self._process.poll() is None:  # noqa: ASYNC110
            await asyncio.sleep(0.002)


class WorkerPool:
    """Shares out `workers`, of one kind; each replacement counts as a `worker_restarts` in `counts`."""

    def __init__(self, workers: Sequence[WorkerProcess], counts: Counter[str], logger: logging.Logger) -> None:
        self._workers = workers
        self._counts = counts
        self._logger = logger
        self._outage = Outage(logger, workers[0].who, first_delay_s=FIRST_DELAY_S, max_delay_s=MAX_DELAY_S)
        self._idle: asyncio.Queue[WorkerProcess | None] = asyncio.Queue()
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

    async def ask(self, message: bytes, limit_s: float, what: str) -> bytes:
        """A worker's reply; `what` the message is about is for the log. If the worker dies, another one is asked.

        Raises WorkerDiedError if ATTEMPTS workers died, TimeoutError as `WorkerProcess.ask`, and PoolClosedError.
        """
        for _ in range(ATTEMPTS):
            worker = await self._borrow()
            try:
                return await worker.ask(message, limit_s)
            except WorkerDiedError as error:
                if not self._is_open:
                    raise PoolClosedError from error
                died = error
                self._logger.warning("%s died of %s: %s.", worker.who, what, error)
            finally:
                if worker.is_running:
                    self._idle.put_nowait(worker)
                elif self._is_open:
                    self._replace(worker)
        raise WorkerDiedError(f"{ATTEMPTS} workers died of it, the last one because {died}")

    async def _borrow(self) -> WorkerProcess:
        async with self._turn:
            while self._is_open:
                worker = await self._idle.get()
                if worker is None:
                    break
                if worker.is_running:
                    return worker
                self._replace(worker)
        self._idle.put_nowait(None)
        raise PoolClosedError

    async def close(self) -> None:
        """Let everyone who waits, or comes later, have a PoolClosedError; kill every worker. Safe to call twice."""
        self._is_open = False
        for replacement in self._replacements:
            replacement.cancel()
        await asyncio.gather(*self._replacements, return_exceptions=True)
        await asyncio.gather(*(worker.kill() for worker in self._workers))
        self._idle.put_nowait(None)

    def _replace(self, worker: WorkerProcess) -> None:
        self._counts["worker_restarts"] += 1
        replacement = asyncio.get_running_loop().create_task(self._start_again(worker))
        self._replacements.add(replacement)
        replacement.add_done_callback(self._replacements.discard)

    async def _start_again(self, worker: WorkerProcess) -> None:
        while True:
            try:
                await worker.start()
            except EnvironmentSetupError as error:
                await asyncio.sleep(self._outage.failed(str(error), "it is started again, its work waits"))
            else:
                self._outage.over()
                self._idle.put_nowait(worker)
                return
