"""Makes items in worker processes: an item that never ends costs its own deadline and nothing else.

    ProcessGenerator ── a pool of ──> GenerationWorker ── socket ──> generation_worker.py

A worker whose item is late is killed and replaced. If a worker dies, its item is made once more by another one. Every
worker runs with the same hash seed, which some of reasoning-gym's items depend on: the same seed and config give the
same item in every process.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import pickle
import shutil
import stat
import tempfile
from asyncio import StreamReader
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import EnvironmentSetupError, GenerationCrashedError, GenerationError, GenerationTimeoutError
from .generation_worker import MEMORY_BYTES
from .pool import START_ALLOWANCE_S, WorkerDiedError, WorkerPool, WorkerProcess
from .protocol import HEADER_SIZE, Imports, ItemJob, ItemReply, frame_length, pack_frame

logger = logging.getLogger(__name__)

ATTEMPTS = 2
WALL_FACTOR = 12.0
"""How many times its deadline, which is of processor time, an item may take by the clock."""
TURN_S, LOOK_AGAIN_S = 1.0, 0.01
COUNTERS = ("items", "failed", "timed_out", "worker_restarts")


class ProcessGenerator:
    """Makes items on `num_workers` processes, one item at a time on each.

    `timeout_s` is the processor time that an item may take: an item that computes for longer is late on any machine,
    whatever else it does. One that does not compute is given up after WALL_FACTOR times as long by the clock.
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

        Raises GenerationTimeoutError at the deadline, GenerationCrashedError if two workers die of it,
        GenerationError if reasoning-gym fails, and RuntimeError unless the generator is running.
        """
        try:
            item = await self._generate(ItemJob(task, seed, dict(config)))
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
        for _ in range(ATTEMPTS):
            try:
                async with self._pool.worker() as worker:
                    return _item(await worker.make(job, self._timeout_s), name)
            except WorkerDiedError as error:
                died = error
                logger.warning("A generation worker died while it made %s: %s.", name, error)
            except TimeoutError:
                raise GenerationTimeoutError(
                    f"{name}: not made within {self._timeout_s:g} s of processor time"
                ) from None
        raise GenerationCrashedError(f"{name}: {ATTEMPTS} workers died of it, the last one because {died}") from died


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
    """Makes one item at a time. `folder` is where its tasks may write."""

    who = "A generation worker"

    def __init__(self, imports: Imports, folder: str) -> None:
        super().__init__("generation_worker", PYTHONHASHSEED="0", TMPDIR=folder)
        self._imports = imports

    async def prepare(self) -> None:
        reply = await self.ask(pack_frame(self._imports), _read_reply, START_ALLOWANCE_S)
        if reply.failure:
            raise WorkerDiedError(reply.failure)

    async def make(self, job: ItemJob, timeout_s: float) -> ItemReply:
        """The result of a job. Raises WorkerDiedError, and TimeoutError if it takes more than `timeout_s` of processor
        time or WALL_FACTOR times as long by the clock; then the process is ended.
        """
        making = asyncio.ensure_future(self.ask(pack_frame(job), _read_reply))
        processor_end_s, wall_s = self.processor_s() + timeout_s, WALL_FACTOR * timeout_s
        try:
            while not making.done():
                left_s = min(processor_end_s - self.processor_s(), wall_s)
                if left_s <= 0:
                    raise TimeoutError
                turn_s = min(max(left_s, LOOK_AGAIN_S), TURN_S)
                await asyncio.wait([making], timeout=turn_s)
                # No more, however late this comes back: all processes may have been stopped meanwhile.
                wall_s -= turn_s
        finally:
            making.cancel()
            await asyncio.wait([making])
        reply = making.result()
        if reply.is_last:
            self.end()
        return reply


async def _read_reply(reader: StreamReader) -> ItemReply:
    size = frame_length(await reader.readexactly(HEADER_SIZE))
    reply = pickle.loads(await reader.readexactly(size))
    assert isinstance(reply, ItemReply)
    return reply


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
