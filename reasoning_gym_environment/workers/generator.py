"""Generates items in worker processes: an item that never ends costs its own deadline and nothing else.

    ProcessGenerator ── a pool of ──> GenerationWorker ── pipes ──> generation_worker.py

An item that takes long holds up no other, and one that is late is given up by its worker. A worker that does not give
it up, or whose caller has gone, is ended and replaced. One that dies may have died of any item that it had: each is
made again on a worker that makes no other meanwhile, and is given up if that one dies too. Every worker runs with the
same hash seed, which some of reasoning-gym's items depend on: the same seed and config give the same item in every
process.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import fcntl
import logging
import os
import pickle
import shutil
import stat
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import EnvironmentSetupError, GenerationCrashedError, GenerationError, GenerationTimeoutError
from ..tasks.reasoning_gym_source import Library
from . import GenerationSettings
from .generation_worker import MEMORY_BYTES
from .pool import START_ALLOWANCE_S, WorkerDiedError, WorkerEndedError, WorkerPool, WorkerProcess, wait_a_turn
from .protocol import HEADER_SIZE, Imports, ItemJob, ItemReply, ProtocolError, frame_length, pack_frame

logger = logging.getLogger(__name__)

ATTEMPTS = 2
WALL_FACTOR = 12.0
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
        self._folder = TemporaryFolder("items")
        self._workers = [GenerationWorker(imports, self._folder.name) for _ in range(num_workers)]
        self._counts: Counter[str] = Counter()
        self._pool = WorkerPool(self._workers, self._counts, logger)

    @classmethod
    def of(cls, settings: GenerationSettings, found: Library) -> ProcessGenerator:
        """As the settings say, of the reasoning-gym that was found."""
        return cls(
            num_workers=settings.num_workers,
            timeout_s=settings.generation_timeout_s,
            library_path=str(found.location),
            task_modules=settings.task_modules,
        )

    async def start(self) -> None:
        """Start every worker, in parallel. Raises EnvironmentSetupError if one cannot."""
        try:
            await self._pool.start()
        except BaseException:
            await self.close()
            raise
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
            item = await self._generate(ItemJob(task, seed, dict(config), self._timeout_s))
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
        await self._pool.close()
        self._folder.cleanup()

    async def _generate(self, job: ItemJob) -> dict[str, Any]:
        name = f"{job.task} with seed {job.seed}"
        late = GenerationTimeoutError(f"{name}: not made within {self._timeout_s:g} s of processor time")
        deaths = 0
        while True:
            try:
                async with self._pool.worker(alone=deaths > 0) as worker:
                    reply = await worker.ask(job, WALL_FACTOR * self._timeout_s)
            except WorkerEndedError:
                continue
            except WorkerDiedError as error:
                logger.warning("A generation worker died while it made %s: %s", name, error)
                deaths += 1
                if deaths < ATTEMPTS:
                    continue
                why = f"{ATTEMPTS} workers died of it, the last one because {error}"
                raise GenerationCrashedError(f"{name}: {why}") from error
            except asyncio.TimeoutError:
                raise late from None
            if reply.is_late:
                raise late
            return _item(reply, name)


def _item(reply: ItemReply, name: str) -> dict[str, Any]:
    if reply.failure:
        raise GenerationError(f"{name}: {reply.failure}")
    # It may hold objects of a task module's own classes, whose reading may raise anything.
    try:
        item: dict[str, Any] = pickle.loads(reply.item)
    except Exception as error:
        raise GenerationError(f"{name}: it cannot be read here: {type(error).__name__}: {error}") from error
    return item


class GenerationWorker(WorkerProcess):
    """Makes items. `folder` is where its tasks may write."""

    who = "A generation worker"
    at_once = 4

    def __init__(self, imports: Imports, folder: str) -> None:
        super().__init__("generation_worker", PYTHONHASHSEED="0", TMPDIR=folder)
        self._imports = imports
        self._asked = 0
        self._waiting: dict[int, asyncio.Future[ItemReply]] = {}
        self._reading: asyncio.Task[None] | None = None

    async def prepare(self) -> None:
        self._asked = 0
        self._reading = asyncio.create_task(self._read_replies())
        reply = await self._exchange(0, self._imports, START_ALLOWANCE_S)
        if reply.failure:
            raise WorkerDiedError(reply.failure)

    async def ask(self, job: ItemJob, timeout_s: float) -> ItemReply:
        """What becomes of a job. Raises WorkerDiedError, and asyncio.TimeoutError after `timeout_s`.

        After the latter, and after being cancelled, the process is ended: the item may be eating memory.
        """
        self._asked += 1
        try:
            return await self._exchange(self._asked, dataclasses.replace(job, number=self._asked), timeout_s)
        except (asyncio.TimeoutError, asyncio.CancelledError):
            self.end()
            raise

    async def _exchange(self, number: int, message: Any, timeout_s: float) -> ItemReply:
        reply = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self.write(pack_frame(message))
            while not reply.done() and timeout_s > 0:
                timeout_s -= await wait_a_turn(reply, timeout_s)
            if not reply.done():
                raise asyncio.TimeoutError
            return reply.result()
        finally:
            del self._waiting[number]

    async def _read_replies(self) -> None:
        """Hand each reply to who waits for it, and the end of the process to all of them."""
        try:
            while True:
                size = frame_length(await self.read_exactly(HEADER_SIZE))
                reply = pickle.loads(await self.read_exactly(size))
                assert isinstance(reply, ItemReply)
                if reply.number in self._waiting and not self._waiting[reply.number].done():
                    self._waiting[reply.number].set_result(reply)
        except (WorkerDiedError, ProtocolError) as error:
            self.end()
            for waiter in self._waiting.values():
                if not waiter.done():
                    waiter.set_exception(error if isinstance(error, WorkerDiedError) else WorkerDiedError(str(error)))
                    # Looked at: one whose caller is just being cancelled is never awaited.
                    waiter.exception()


# --- temporary folders

_PREFIX = "reasoning-gym-"
_LOCK = ".lock"


class TemporaryFolder:
    """A temporary folder for as long as this process lives; making one removes those of processes that are gone.

    Its process holds a lock on a file in it, which the kernel lets go of when the process ends, however it ends. Where
    the file system has no locks there is no such file, and the folder is never taken for a dead process'.
    """

    def __init__(self, kind: str) -> None:
        _remove_those_of_the_dead(Path(tempfile.gettempdir()))
        self._folder = tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{kind}-", ignore_cleanup_errors=True)
        self.name = self._folder.name
        # Under another name first: a lock that is not held yet would be a dead process'.
        self._lock = Path(self.name, f"{_LOCK}-is-made").open("w")  # noqa: SIM115
        with contextlib.suppress(OSError):
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            Path(self._lock.name).rename(Path(self.name, _LOCK))

    def cleanup(self) -> None:
        """Remove it. Safe to call twice."""
        self._folder.cleanup()
        self._lock.close()


def _remove_those_of_the_dead(place: Path) -> None:
    for folder in place.glob(f"{_PREFIX}*"):
        # Another start may be at the same one, and what is not locked, or others', is none of ours.
        with contextlib.suppress(OSError):
            status = folder.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
                continue
            with Path(folder, _LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
                logger.info("Removed %s of a run that was killed.", folder)
