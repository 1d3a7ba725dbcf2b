"""Generates items in worker processes: an item that never ends costs its own deadline and nothing else.

    ProcessGenerator ── a pool of ──> GeneratorWorker ── pipes ──> generator_process

A call takes the next idle worker, in order of arrival. A worker whose item is late, or whose caller has gone,
is killed and replaced in the background. Every worker runs with the same hash seed, which some of
reasoning-gym's items depend on: the same seed and config give the same item in every process.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import EnvironmentSetupError, GenerationCrashedError, GenerationError, GenerationTimeoutError
from .child_process import START_ALLOWANCE_S, ChildProcess, WorkerDiedError
from .generator_process import MEMORY_BYTES, Job, Reply
from .imports import Imports
from .protocol import HEADER_SIZE, ProtocolError, frame_length, pack_frame
from .revival import Revival

logger = logging.getLogger(__name__)

ATTEMPTS = 2
WALL_FACTOR = 4.0
"""How many times its deadline an item may take by the clock, on a machine with other things to do."""
COUNTERS = ("items", "failed", "timed_out", "worker_restarts")


class ProcessGenerator:
    """Makes items on `num_workers` processes; `timeout_s` is the processor time that each may take.

    An item that computes for longer is late wherever it is made, whatever else the machine does; one that does not
    compute, or cannot be interrupted, is given up after WALL_FACTOR times as long by the clock.
    `library_path` is the folder reasoning-gym is to be imported from (a checkout's root or the installed
    package); `task_modules` are imported as well.
    """

    def __init__(
        self,
        *,
        num_workers: int = 1,
        timeout_s: float = 5.0,
        library_path: str | None = None,
        task_modules: Sequence[str] = (),
    ) -> None:
        if num_workers < 1:
            raise EnvironmentSetupError(f"num_workers must be at least 1, got {num_workers}")
        if not timeout_s > 0:
            raise EnvironmentSetupError(f"timeout_s must be positive, got {timeout_s}")
        self._timeout_s = timeout_s
        imports = Imports.as_here(library_path, task_modules)
        # Ours and not the workers', so that one that is killed leaves nothing behind.
        self._folder = tempfile.TemporaryDirectory(prefix="reasoning-gym-items-", ignore_cleanup_errors=True)
        self._workers = [GeneratorWorker(imports, self._folder.name) for _ in range(num_workers)]
        self._idle = _IdleWorkers()
        self._revival = Revival(logger, "A generation worker")
        self._revivals: set[asyncio.Task[None]] = set()
        self._counts: Counter[str] = Counter()

    async def start(self) -> None:
        """Start every worker, in parallel. Raises EnvironmentSetupError if one cannot."""
        results = await asyncio.gather(*(worker.start() for worker in self._workers), return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            await self.close()
            raise failures[0]
        self._idle.open(self._workers)
        logger.info("Generation: %s.", self.describe())

    def describe(self) -> str:
        """One line for the setup log."""
        count = len(self._workers)
        return (
            f"{count} worker{'s' * (count > 1)}, {self._timeout_s:g} s deadline per item, "
            f"at most {MEMORY_BYTES >> 20} MiB of memory for it"
        )

    async def generate(self, task: str, seed: int, config: Mapping[str, Any]) -> dict[str, Any]:
        """Item 0 of the dataset with this seed and config, exactly as reasoning-gym returns it.

        Raises GenerationTimeoutError at the deadline, GenerationCrashedError if two workers die of it, GenerationError
        if reasoning-gym fails, and RuntimeError unless the generator is running.
        """
        try:
            item = await self._generate(Job(task, seed, dict(config), self._timeout_s))
        except GenerationTimeoutError:
            self._counts["timed_out"] += 1
            raise
        except GenerationError:
            self._counts["failed"] += 1
            raise
        self._counts["items"] += 1
        return item

    def metrics(self) -> dict[str, float]:
        """Items made, failed and timed out, and workers replaced, since the start."""
        return {f"generation/{name}": float(self._counts[name]) for name in COUNTERS}

    async def close(self) -> None:
        """Kill every worker and wait for its end. Safe to call twice."""
        self._idle.close()
        for revival in self._revivals:
            revival.cancel()
        await asyncio.gather(*self._revivals, return_exceptions=True)
        await asyncio.gather(*(worker.kill() for worker in self._workers))
        self._folder.cleanup()

    async def _generate(self, job: Job) -> dict[str, Any]:
        name = f"{job.task} with seed {job.seed}"
        frame = pack_frame(job)
        problem = ""
        for _ in range(ATTEMPTS):
            worker = await self._idle.get()
            try:
                reply = await self._on(worker, frame)
            except WorkerDiedError as error:
                problem = str(error)
                if self._idle.is_open:
                    logger.warning("A generation worker died of %s: %s", name, problem)
                continue
            except asyncio.TimeoutError:
                raise self._late(name) from None
            if reply.is_late:
                raise self._late(name)
            return _item(reply, name)
        raise GenerationCrashedError(f"{name}: {ATTEMPTS} workers died of it, the last one because {problem}")

    def _late(self, name: str) -> GenerationTimeoutError:
        return GenerationTimeoutError(f"{name}: not made within {self._timeout_s:g} s of processor time")

    async def _on(self, worker: GeneratorWorker, frame: bytes) -> Reply:
        """The worker's reply; afterwards it is idle again, or being replaced."""
        is_fit = False
        try:
            reply = await worker.ask(frame, WALL_FACTOR * self._timeout_s)
            is_fit = not reply.retires
        finally:
            if is_fit:
                self._idle.put(worker)
            else:
                # At once, for it may be eating memory; its end is awaited in the background.
                worker.end()
                self._replace(worker)
        return reply

    def _replace(self, worker: GeneratorWorker) -> None:
        if self._idle.is_open:
            self._counts["worker_restarts"] += 1
            revival = asyncio.get_running_loop().create_task(self._revive(worker))
            self._revivals.add(revival)
            revival.add_done_callback(self._revivals.discard)

    async def _revive(self, worker: GeneratorWorker) -> None:
        await self._revival.revive(worker.start)
        self._idle.put(worker)


def _item(reply: Reply, name: str) -> dict[str, Any]:
    if reply.failure:
        raise GenerationError(f"{name}: {reply.failure}")
    # It may hold objects of a task module's own classes, whose reading may raise anything.
    try:
        item: dict[str, Any] = pickle.loads(reply.item)
    except Exception as error:
        raise GenerationError(f"{name}: it cannot be read here: {type(error).__name__}: {error}") from error
    return item


class GeneratorWorker(ChildProcess):
    """A generation worker; it makes one item at a time. `folder` is where its tasks may write."""

    def __init__(self, imports: Imports, folder: str) -> None:
        super().__init__("generator_process", PYTHONHASHSEED="0", TMPDIR=folder)
        self._imports = imports

    async def start(self) -> None:
        """Start the process and wait until it can make items. Raises EnvironmentSetupError with its reason."""
        await self.kill()
        try:
            await self.spawn()
            reply = await self.ask(pack_frame(self._imports), START_ALLOWANCE_S)
        except (OSError, WorkerDiedError, asyncio.TimeoutError) as error:
            await self.kill()
            raise EnvironmentSetupError(
                f"A generation worker could not start: {error or 'it was silent for too long'}. "
                f"It runs {sys.executable} with an empty environment."
            ) from error
        except BaseException:
            await self.kill()
            raise
        if reply.failure:
            await self.kill()
            raise EnvironmentSetupError(f"A generation worker could not start: {reply.failure}")

    async def ask(self, frame: bytes, timeout_s: float) -> Reply:
        """The reply to a request. Raises WorkerDiedError, and TimeoutError after `timeout_s`.

        After either, and after being cancelled, the process must be ended: a late reply would be taken for
        that to the next request.
        """
        answering = asyncio.ensure_future(self._exchange(frame))
        try:
            # Not wait_for: if the loop stood still past the deadline, a reply that lies ready still counts.
            await asyncio.wait({answering}, timeout=timeout_s)
            if not answering.done():
                raise asyncio.TimeoutError
            return answering.result()
        finally:
            answering.cancel()

    async def _exchange(self, frame: bytes) -> Reply:
        await self.write(frame)
        try:
            size = frame_length(await self.read_exactly(HEADER_SIZE))
        except ProtocolError as error:
            raise WorkerDiedError(str(error)) from error
        reply = pickle.loads(await self.read_exactly(size))
        assert isinstance(reply, Reply)
        return reply


class _IdleWorkers:
    """Hands workers to callers in the order in which they came.

    asyncio.Queue would not: there a caller that returns and asks again at once overtakes those who wait.
    """

    def __init__(self) -> None:
        self.is_open = False
        self._workers: list[GeneratorWorker] = []
        self._waiting: deque[asyncio.Future[GeneratorWorker]] = deque()

    def open(self, workers: Sequence[GeneratorWorker]) -> None:
        self.is_open = True
        self._workers = list(workers)

    def close(self) -> None:
        """Let everyone who waits, or comes later, have a RuntimeError."""
        self.is_open = False
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_exception(_closed())

    def put(self, worker: GeneratorWorker) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(worker)
                return
        self._workers.append(worker)

    async def get(self) -> GeneratorWorker:
        if not self.is_open:
            raise _closed()
        if self._workers:
            return self._workers.pop()
        waiter: asyncio.Future[GeneratorWorker] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            # Cancelled after a worker was handed over, but before this call went on.
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.put(waiter.result())
            raise


def _closed() -> RuntimeError:
    return RuntimeError("the generator is not running: it was not started, or is closed")
