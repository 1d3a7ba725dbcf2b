"""Worker processes as their parent sees them, and the pool that starts, uses and replaces them.

    WorkerPool ── owns ──> WorkerProcess ── socket ──> a clean interpreter that runs one of our modules

The generator and the grader each own a pool. A worker handles one request at a time, in the order of their arrival. A
worker ends if it dies, if it is late, if it announces its end, or if its caller is cancelled. The pool then restarts it
in the background, and retries until the restart succeeds, because a machine may briefly run out of processes. Requests
wait during this time. The code in this module never blocks the event loop.
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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import EnvironmentSetupError
from ..utils.resilience import Outage
from .protocol import HEADER_SIZE, LAST_REPLY

START_ALLOWANCE_S = 120.0
"""A worker that is not ready after this time counts as failed."""
FIRST_DELAY_S = 0.1
MAX_DELAY_S = 10.0
"""The first and the longest delay between two attempts to restart a worker."""
LONGEST_PAUSE_S = 60.0
"""The longest pause before a restart. After each worker that died of a request, without a reply between, the next pause
is a second longer. So an hour without memory fails few requests."""
BUSY_S = 1.0
"""The pool starts its spare worker when a request has waited for this long because all workers are busy. From then on,
one slow request delays no other. A run without slow requests does not pay for the start and the memory of a worker."""
ATTEMPTS = 2
"""A request fails after it has killed this many workers."""


def _folder_of_top_package() -> Path:
    """The folder from which this process has imported the package, under whatever name."""
    top = sys.modules[__package__.partition(".")[0]]
    file = Path(__file__).resolve()
    folders = [Path(folder).resolve() for folder in top.__path__]
    return next(folder for folder in folders if file.is_relative_to(folder)).parent


_ROOT = _folder_of_top_package()
_BOOTSTRAP = """
import importlib, os, sys
root, module, parent = sys.argv[1:]
# `-c` puts the working directory first on sys.path, as an empty name.
sys.path[:] = [path for path in sys.path if path]
if root not in sys.path:
    sys.path.insert(0, root)
# Python's own modules register handlers that prepare locks and random numbers after a fork. A worker has one thread, so
# no lock is held, and the handlers would copy 100 pages in each child.
os.register_at_fork = lambda **handlers: None
try:
    importlib.import_module(module).main(int(parent))
except BaseException:
    # Without this, the socket would close before the process ends. The parent would kill the process, and log the
    # exit status of a killed process.
    os._exit(1)
"""
_KEPT_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""Some Python builds cannot start without these; no other variable reaches a worker."""


class WorkerDiedError(Exception):
    """The worker ended, or broke the protocol, before its work was finished."""


class PoolClosedError(EnvironmentSetupError):
    """The pool is not running: it was not started, or it is closed."""

    def __init__(self) -> None:
        super().__init__("the workers are not running: they were not started, or are closed")


class WorkerProcess:
    """At most one running process of `module`, which is in this package. `start` replaces a process that has died.

    `module` has a function `main(parent)`, which gets the number of this process. The process replies to
    `first_message` with JSON when it is ready. Its environment holds `variables`, and few of this process's variables.
    It runs in a new session: a terminal's signals do not reach it, and killing its process group also kills its
    children. It dies with the thread that started it. The error message about a failed start begins with `who` and ends
    with `hint`.
    """

    def __init__(self, module: str, who: str, first_message: object, hint: str = "", **variables: str) -> None:
        self.who = who
        self.ready: dict[str, Any] = {}
        """The reply to `first_message` at the last successful start."""
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
        """Whether the process accepts work. False after a call of `end`."""
        return self._process is not None and not self._is_ended and self._process.poll() is None

    async def start(self) -> None:
        """Start the process and wait until it is ready. Raises EnvironmentSetupError with its reason."""
        await self.kill()
        try:
            await self._spawn()
            ready = json.loads(await self.ask(pickle.dumps(self._first_message), START_ALLOWANCE_S))
            if failure := ready.get("failure"):
                raise WorkerDiedError(failure)
            self.ready = ready
        except (OSError, WorkerDiedError) as error:
            await self.kill()
            raise EnvironmentSetupError(
                f"{self.who} could not start: {str(error).rstrip('.')}. It runs {sys.executable} with an empty "
                f"environment{self._hint}."
            ) from error

    async def _spawn(self) -> None:
        environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        environment |= {
            # A process with more than one thread must not fork.
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "LC_ALL": "C.UTF-8",
            "PATH": os.defpath,
            **self._variables,
        }
        ours, theirs = socket.socketpair()
        self._reader, self._writer = await asyncio.open_unix_connection(sock=ours)
        with theirs:
            # Before Python 3.12, asyncio starts a thread for each process. The parent-death signal depends on the
            # thread that starts the process, and here that is the thread of the event loop.
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

        Ends the process if this raises, even for a cancellation, because the state of the process is then unknown. Also
        ends the process if it announces that this is its last reply.
        """
        # The end of the process closes the socket, which ends the wait below.
        loop = asyncio.get_running_loop()
        deadline = loop.call_later(limit_s, self.end)
        may_go_on = False
        try:
            # There is no drain: if the process has stopped reading, the deadline ends the wait.
            # Pickled once more, so that the worker finds the end of a message that it cannot read.
            self._writer.write(pickle.dumps(message))
            header = int.from_bytes(await self._reader.readexactly(HEADER_SIZE), "little")
            reply = await self._reader.readexactly(header % LAST_REPLY)
            may_go_on = header < LAST_REPLY
            return reply
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            is_late = deadline.when() <= loop.time()
            await self.kill()
            code = self._process.returncode if self._process else None
            if is_late or code == -signal.SIGPROF:
                raise TimeoutError(f"it was silent for {limit_s:g} s") from error
            raise WorkerDiedError(f"it ended with exit status {code}") from error
        finally:
            deadline.cancel()
            if not may_go_on:
                self.end()

    def end(self) -> None:
        """Send SIGKILL to the process and its children. Safe to call twice."""
        if self.is_running:
            assert self._process is not None
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        if self._process is not None:
            self._writer.transport.abort()
        self._is_ended = True

    async def kill(self) -> None:
        """End the process and its children, and wait for its exit. Safe to call twice."""
        self.end()
        while self._process is not None and self._process.poll() is None:  # noqa: ASYNC110
            await asyncio.sleep(0.002)


@dataclass(frozen=True)
class Request:
    """A pickled message for a worker, and the seconds in which the reply must arrive."""

    message: bytes
    limit_s: float


class WorkerPool:
    """Distributes requests to workers that `make_worker` makes. `counts` counts each restart as `worker_restarts`.

    With `has_spare`, one more worker joins the `num_workers` workers once a request has waited for BUSY_S.
    """

    def __init__(
        self,
        make_worker: Callable[[], WorkerProcess],
        num_workers: int,
        counts: Counter[str],
        logger: logging.Logger,
        *,
        has_spare: bool = False,
    ) -> None:
        self.workers = [make_worker() for _ in range(num_workers)]
        """The workers that run, or are being started."""
        self._spare = make_worker() if has_spare else None
        self._counts = counts
        self._logger = logger
        self._outage = Outage(
            logger,
            self.workers[0].who,
            first_delay_s=FIRST_DELAY_S,
            max_delay_s=MAX_DELAY_S,
        )
        self._idle: list[WorkerProcess] = []
        self._may_take = asyncio.Semaphore(0)
        """Counts the idle workers. Unlike asyncio's queues, it serves requests in the order of their arrival."""
        self._starts: set[asyncio.Task[None]] = set()
        self._is_open = False
        self._deaths = 0
        """Workers that died of requests in a row."""

    async def start(self) -> None:
        """Start all workers in parallel. If a worker cannot start, kill all workers and raise EnvironmentSetupError."""
        results = await asyncio.gather(*(worker.start() for worker in self.workers), return_exceptions=True)
        for failure in results:
            if failure is not None:
                await self.close()
                raise failure
        self._is_open = True
        self._may_take = asyncio.Semaphore(0)
        for worker in self.workers:
            self._return(worker)

    async def ask(self, prepare: Callable[[], Request], what: str) -> bytes:
        """The reply of a worker to the request that `prepare` returns once a worker is idle.

        If the worker dies, the pool asks another worker. `what` names the request in the log. Raises WorkerDiedError if
        ATTEMPTS workers died, TimeoutError like `WorkerProcess.ask`, PoolClosedError, and the exceptions of `prepare`.
        """
        request = None
        for _ in range(ATTEMPTS):
            worker = await self._idle_worker()
            try:
                request = request or prepare()
                reply = await worker.ask(request.message, request.limit_s)
                self._deaths = 0
                return reply
            except WorkerDiedError as error:
                if not self._is_open:
                    raise PoolClosedError from error
                died = error
                self._deaths += 1
                self._logger.warning("%s died of %s: %s.", worker.who, what, error)
            finally:
                self._return(worker)
        raise WorkerDiedError(f"{ATTEMPTS} workers died of it, the last one because {died}")

    async def _idle_worker(self) -> WorkerProcess:
        if not self._is_open:
            raise PoolClosedError
        joining = asyncio.get_running_loop().call_later(BUSY_S, self._start_spare)
        try:
            while self._is_open:
                await self._may_take.acquire()
                if self._is_open:
                    worker = self._idle.pop()
                    if worker.is_running:
                        return worker
                    self._replace(worker)
        finally:
            joining.cancel()
        # The next waiting request ends, too.
        self._may_take.release()
        raise PoolClosedError

    def _return(self, worker: WorkerProcess) -> None:
        """Take back a worker, and restart it if it has ended."""
        if worker.is_running:
            self._idle.append(worker)
            self._may_take.release()
        elif self._is_open:
            self._replace(worker)

    async def close(self) -> None:
        """Kill all workers. Waiting and later callers get a PoolClosedError. Safe to call twice."""
        self._is_open = False
        self._may_take.release()
        for start in self._starts:
            start.cancel()
        await asyncio.gather(*self._starts, return_exceptions=True)
        await asyncio.gather(*(worker.kill() for worker in self.workers))

    def _start_spare(self) -> None:
        if self._spare is not None and self._is_open:
            self._logger.info("%s has been busy for %g s: starting another.", self._spare.who, BUSY_S)
            self.workers.append(self._spare)
            self._start_in_background(self._spare)
            self._spare = None

    def _replace(self, worker: WorkerProcess) -> None:
        self._counts["worker_restarts"] += 1
        self._start_in_background(worker)

    def _start_in_background(self, worker: WorkerProcess) -> None:
        start = asyncio.create_task(self._start(worker))
        self._starts.add(start)
        start.add_done_callback(self._starts.discard)

    async def _start(self, worker: WorkerProcess) -> None:
        await asyncio.sleep(min(max(0, self._deaths - 1), LONGEST_PAUSE_S))
        while True:
            try:
                await worker.start()
            except EnvironmentSetupError as error:
                await asyncio.sleep(self._outage.failed(str(error), "restarting it, requests wait"))
            else:
                self._outage.over()
                self._return(worker)
                return
