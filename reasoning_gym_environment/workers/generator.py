"""Makes items in worker processes: an item that never ends costs its own deadline and nothing else.

    ProcessGenerator ── a pool of ──> WorkerProcess ── socket ──> generation_worker.py

A worker whose item is late ends and is replaced. If a worker dies, its item is made once more by another one. Every
worker runs with the same hash seed, which some of reasoning-gym's items depend on: the same seed and config give the
same item in every process.
"""

from __future__ import annotations

import contextlib
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

from ..errors import GenerationCrashedError, GenerationError, GenerationTimeoutError, NoRightAnswerError
from .generation_worker import MEMORY_BYTES, Failure, ItemJob
from .pool import WorkerDiedError, WorkerPool, WorkerProcess
from .protocol import Imports

logger = logging.getLogger(__name__)

WALL_FACTOR = 12.0
"""How many times its deadline, which is of processor time, an item may take by the clock."""
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
        self._timeout_s = timeout_s
        imports = Imports.as_here(library_path, task_modules)
        # Ours and not the workers', so that one that is killed leaves nothing behind.
        self._folder = TemporaryFolder("items")
        variables = {"PYTHONHASHSEED": "0", "TMPDIR": self._folder.name}
        self._workers = [
            WorkerProcess("generation_worker", "A generation worker", imports, **variables) for _ in range(num_workers)
        ]
        self._counts: Counter[str] = Counter()
        self._pool = WorkerPool(self._workers, self._counts, logger)

    async def start(self) -> None:
        """Start every worker, in parallel. Raises EnvironmentSetupError if one cannot."""
        await self._pool.start()
        logger.info(
            "Generation workers: %d. An item may take %g s and %d MiB of memory.",
            len(self._workers),
            self._timeout_s,
            MEMORY_BYTES >> 20,
        )

    async def generate(
        self, task: str, seed: int, config: Mapping[str, Any], *, answerable: bool = False
    ) -> dict[str, Any]:
        """Item 0 of the dataset with this seed and config, exactly as reasoning-gym returns it.

        Raises GenerationTimeoutError at the deadline, GenerationCrashedError if two workers die of it, with
        `answerable` NoRightAnswerError, GenerationError if reasoning-gym fails, and RuntimeError unless the generator
        is running.
        """
        name = f"{task} with seed {seed}"
        job = ItemJob(task, seed, dict(config), self._timeout_s, answerable)
        try:
            reply = await self._pool.ask(pickle.dumps(job), WALL_FACTOR * self._timeout_s, name)
        except TimeoutError:
            self._counts["timed_out"] += 1
            limit = f"{self._timeout_s:g} s of processor time"
            raise GenerationTimeoutError(f"{name}: not made within {limit}") from None
        except WorkerDiedError as error:
            self._counts["failed"] += 1
            raise GenerationCrashedError(f"{name}: {error}") from error
        item = _read(reply)
        if item is None:
            raise NoRightAnswerError(f"{name}: no answer to it is right")
        if isinstance(item, Failure):
            self._counts["failed"] += 1
            raise GenerationError(f"{name}: {item}")
        self._counts["items"] += 1
        return item

    def metrics(self) -> dict[str, float]:
        """Items made, failed and timed out, and workers replaced, since the start."""
        return {f"generation/{name}": float(self._counts[name]) for name in COUNTERS}

    async def close(self) -> None:
        """Kill every worker and wait for its end. Safe to call twice."""
        await self._pool.close()
        self._folder.cleanup()


def _read(reply: bytes) -> dict[str, Any] | Failure | None:
    # It may hold objects of a task module's own classes, whose reading may raise anything.
    try:
        item: dict[str, Any] | Failure | None = pickle.loads(reply)
    except Exception as error:  # noqa: BLE001
        return Failure(f"it cannot be read here: {type(error).__name__}: {error}")
    return item


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
