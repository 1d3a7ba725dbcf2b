"""Worker processes as their parent sees them, and the pool that starts them, lends them out and replaces them.

    WorkerPool ── keeps ──> WorkerProcess ── pipes ──> a clean interpreter that runs one of our modules

Generator and grader each hold a pool. A caller gets the next idle worker, in order of arrival; one whose caller takes
long is passed on to the next as well, for it can do several things at a time. When a worker has died, nobody knows of
which of them: each tries again with a worker of its own. A worker that died, or was ended because its caller has gone,
is started again in the background, until that works: a machine may be short of processes for a moment. Work waits
meanwhile. asyncio only: nothing here blocks the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process, SubprocessStreamProtocol
from collections import Counter, deque
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from ..errors import EnvironmentSetupError
from ..utils.outage_log import Outage

START_ALLOWANCE_S = 120.0
"""How long a worker may take until it says that it is ready."""
FIRST_DELAY_S = 0.1
MAX_DELAY_S = 10.0
"""Between attempts to start a worker again."""

TURN_S = 1.0
"""A limit by the clock is waited for in turns of this length."""
SLOW_S = 0.25
"""How long a caller has a worker to itself."""

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
    """The worker ended, went silent or broke the protocol before its work was finished."""


class WorkerEndedError(WorkerDiedError):
    """The worker was ended from here, not by its work: that of its other callers can go to another one."""


class PoolClosedError(RuntimeError):
    """There is no worker to be had, and there will be none."""

    def __init__(self) -> None:
        super().__init__("the workers are not running: they were not started, or are closed")


class _Streams(SubprocessStreamProtocol):
    """What `asyncio.create_subprocess_exec` uses, and tells its transport also when that fails."""

    def __init__(self, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit, loop)
        self.transport: asyncio.Future[asyncio.BaseTransport] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.set_result(transport)


class WorkerProcess:
    """At most one running process of `module` (a sibling of this one); may be started again after it died.

    `module` has a function `main(parent)`, which gets the number of this process. `variables` are added to its
    environment, which holds nothing else of ours. It has a session of its own (so a terminal's signals pass it by,
    and killing its process group takes along what it started), and dies with the thread that started it.
    """

    who = "A worker"
    """Begins a sentence about one that could not start; `hint` ends it."""
    hint = ""
    at_once = 1
    """How many callers it can have at a time."""

    def __init__(self, module: str, **variables: str) -> None:
        self._module = f"{__package__}.{module}"
        self._variables = variables
        self._process: Process | None = None
        self._is_ended = False

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def is_running(self) -> bool:
        """Whether it can be given work: False as soon as `end` was called."""
        return self._process is not None and self._process.returncode is None and not self._is_ended

    async def start(self) -> None:
        """Start the process and wait until it is ready. Raises EnvironmentSetupError with its reason."""
        await self.kill()
        try:
            await self._spawn()
            await self.prepare()
            if not self.is_running:
                raise WorkerDiedError("it ended at once")
        except (OSError, WorkerDiedError, asyncio.TimeoutError) as error:
            await self.kill()
            reason = str(error).rstrip(".") or "it was silent for too long"
            raise EnvironmentSetupError(
                f"{self.who} could not start: {reason}. It runs {sys.executable} with an empty environment{self.hint}."
            ) from error
        except BaseException:
            await self.kill()
            raise

    async def prepare(self) -> None:
        """Tell a new process what it is to do and await that it is ready. Raises WorkerDiedError with why it is not."""

    async def _spawn(self) -> None:
        environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        # One thread: a process with more must not fork. And the parent-death signal follows the thread
        # that spawns, which here is the event loop's own.
        environment |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        environment |= {"LC_ALL": "C.UTF-8", "PATH": os.defpath, **self._variables}
        loop = asyncio.get_running_loop()
        streams = _Streams(limit=1 << 16, loop=loop)
        try:
            transport, _ = await loop.subprocess_exec(
                lambda: streams,
                *(sys.executable, "-s", "-B", "-c", _BOOTSTRAP, str(_ROOT), self._module, str(os.getpid())),
                stdin=PIPE,
                stdout=PIPE,
                stderr=DEVNULL,
                env=environment,
                cwd="/",
                start_new_session=True,
            )
        except RuntimeError as error:
            # Before Python 3.12 a thread waits for each process. Where none can be had the process runs all the same.
            await asyncio.wait([streams.transport], timeout=TURN_S)
            if streams.transport.done():
                streams.transport.result().close()
            raise WorkerDiedError(str(error)) from error
        self._process = Process(transport, streams, loop)
        self._is_ended = False

    def write(self, data: bytes) -> None:
        """Have it written as fast as the process reads. Raises WorkerDiedError if it does not run.

        Not awaited: one that has stopped reading would be waited for without limit. Whether it reads shows in what it
        says, for which there is a limit.
        """
        if not self.is_running:
            raise (WorkerEndedError if self._is_ended else WorkerDiedError)("it is not running")
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(data)

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
        process, is_ended = self._process, self._is_ended
        if process is None:
            raise WorkerEndedError("it was ended")
        how = f"it ended with exit status {await process.wait()}"
        raise WorkerEndedError(how) if is_ended else WorkerDiedError(how)

    def end(self) -> None:
        """Send the process and all it started a signal they cannot refuse. Safe to call twice."""
        if self.is_running:
            assert self._process is not None
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._is_ended = True

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


async def wait_a_turn(awaited: asyncio.Future[Any], limit_s: float) -> float:
    """Wait for it, at most for a turn; returns how much of the limit that has used.

    However late this comes back, it is no more than a turn: while this process stood still (its job was suspended, or a
    call held up its event loop) the worker may have done so too, or its reply lies ready.
    """
    turn_s = min(limit_s, TURN_S)
    await asyncio.wait([awaited], timeout=turn_s)
    return turn_s


AnyWorker = TypeVar("AnyWorker", bound=WorkerProcess)


class WorkerPool(Generic[AnyWorker]):
    """Lends out `workers`, of one kind; each replacement counts as a `worker_restarts` in `counts`."""

    def __init__(self, workers: Sequence[AnyWorker], counts: Counter[str], logger: logging.Logger) -> None:
        self._workers = workers
        self._counts = counts
        self._outage = Outage(logger, workers[0].who, first_delay_s=FIRST_DELAY_S, max_delay_s=MAX_DELAY_S)
        self._callers: Counter[AnyWorker] = Counter()
        self._free: list[AnyWorker] = []
        """Those that the next caller may have; one with callers is here once all of them have taken long."""
        self._full: set[AnyWorker] = set()
        """Those that would be free, had they not as many callers as they can."""
        # Not an asyncio.Queue, where a caller that returns and asks again at once overtakes those who wait.
        self._waiting: deque[tuple[asyncio.Future[AnyWorker], bool]] = deque()
        """With each, whether it must have the worker alone."""
        self._replacements: set[asyncio.Task[None]] = set()
        self.is_open = False

    async def start(self) -> None:
        """Start every worker, in parallel. Raises EnvironmentSetupError if one cannot; then none is left."""
        results = await asyncio.gather(*(worker.start() for worker in self._workers), return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            await self.close()
            raise failures[0]
        self.is_open = True
        self._free = list(self._workers)

    @contextlib.asynccontextmanager
    async def worker(self, *, alone: bool = False) -> AsyncIterator[AnyWorker]:
        """A worker, for the length of the block: an idle one, or one whose callers all take long.

        With `alone` nobody else has it meanwhile, and others who wait for theirs do not overtake this one. One that
        does not run afterwards is replaced. Raises PoolClosedError.
        """
        worker = await self._get(alone)
        passed_on: list[bool] = []

        def pass_on() -> None:
            passed_on.append(True)
            self._offer(worker)

        timer = None if alone else asyncio.get_running_loop().call_later(SLOW_S, pass_on)
        try:
            yield worker
        finally:
            if timer is not None:
                timer.cancel()
            self._put(worker, was_passed_on=bool(passed_on))

    async def close(self) -> None:
        """Let everyone who waits, or comes later, have a PoolClosedError; kill every worker. Safe to call twice."""
        self.is_open = False
        while self._waiting:
            waiter, _ = self._waiting.popleft()
            if not waiter.done():
                waiter.set_exception(PoolClosedError())
        for replacement in self._replacements:
            replacement.cancel()
        await asyncio.gather(*self._replacements, return_exceptions=True)
        await asyncio.gather(*(worker.kill() for worker in self._workers))

    async def _get(self, alone: bool) -> AnyWorker:
        if not self.is_open:
            raise PoolClosedError
        while self._free:
            # None that somebody else has, while one is idle; of those the last, which keeps few of them warm.
            worker = min(reversed(self._free), key=self._callers.__getitem__)
            if alone and self._callers[worker]:
                self._full.update(self._free)
                self._free.clear()
                break
            self._free.remove(worker)
            if worker.is_running:
                self._callers[worker] += 1
                return worker
            self._replace_when_left(worker)  # it died while it was idle
        waiter: asyncio.Future[AnyWorker] = asyncio.get_running_loop().create_future()
        self._waiting.append((waiter, alone))
        try:
            return await waiter
        except asyncio.CancelledError:
            # Cancelled after a worker was handed over, but before this call went on.
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._put(waiter.result(), was_passed_on=False)
            # Those that would have been kept for it alone.
            full, self._full = self._full, set()
            for worker in full:
                self._offer(worker)
            raise

    def _offer(self, worker: AnyWorker) -> None:
        """Let the next caller have it."""
        if not self.is_open or not worker.is_running:
            return
        while self._waiting and self._waiting[0][0].done():
            self._waiting.popleft()
        waiter, alone = self._waiting[0] if self._waiting else (None, False)
        if self._callers[worker] >= (1 if alone else worker.at_once):
            self._full.add(worker)
        elif waiter is None:
            self._free.append(worker)
        else:
            self._waiting.popleft()
            self._callers[worker] += 1
            waiter.set_result(worker)

    def _put(self, worker: AnyWorker, *, was_passed_on: bool) -> None:
        self._callers[worker] -= 1
        if not self.is_open:
            return
        if not worker.is_running:
            self._replace_when_left(worker)
        elif not was_passed_on or worker in self._full:
            self._full.discard(worker)
            self._offer(worker)

    def _replace_when_left(self, worker: AnyWorker) -> None:
        """Replace a worker that does not run, once its last caller has seen that."""
        self._full.discard(worker)
        if worker in self._free:
            self._free.remove(worker)
        if self._callers[worker]:
            return
        self._counts["worker_restarts"] += 1
        replacement = asyncio.get_running_loop().create_task(self._replace(worker))
        self._replacements.add(replacement)
        replacement.add_done_callback(self._replacements.discard)

    async def _replace(self, worker: AnyWorker) -> None:
        while True:
            try:
                await worker.start()
            except EnvironmentSetupError as error:
                await asyncio.sleep(self._outage.failed(str(error), "it is started again, its work waits"))
            else:
                self._outage.over()
                self._offer(worker)
                return
