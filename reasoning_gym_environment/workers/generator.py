"""Makes items in worker processes, so that an item that never ends delays no other item.

    ProcessGenerator ── a pool of ──> WorkerProcess ── socket ──> generation_worker.py

The pool ends a worker whose item is late, and starts another worker. If a worker dies, another worker tries to make its
item. Every worker runs with the same hash seed, because some of reasoning-gym's items depend on it. Therefore the same
seed and config give the same item in every process.
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

ITEM_TIMEOUT_S = 5.0
"""The limit of processor time for an item, in seconds. In training, an easier item replaces an item above the limit."""
WALL_FACTOR = 12.0
"""The limit of elapsed time for an item, as a multiple of its limit of processor time."""
COUNTERS = ("items", "failed", "timed_out", "worker_restarts")
"""The counts that the metrics always have, even if they are 0."""


class ProcessGenerator:
    """Makes items on `num_workers` processes, one item at a time on each.

    `timeout_s` is the processor time that an item may take. On a busy machine, an item may take more elapsed time, but
    at most WALL_FACTOR times `timeout_s`, because an item that only waits uses no processor time. The workers import
    reasoning-gym from the folder `library_path` (a checkout's root or the installed package), and `task_modules`.
    """

    def __init__(
        self,
        *,
        num_workers: int = 1,
        timeout_s: float = ITEM_TIMEOUT_S,
        library_path: str | None = None,
        task_modules: Sequence[str] = (),
    ) -> None:
        self._timeout_s = timeout_s
        imports = Imports.as_here(library_path, task_modules)
        # The parent owns this folder, so that a killed worker leaves no files behind.
        self._folder = TemporaryFolder("items")
        variables = {"PYTHONHASHSEED": "0", "TMPDIR": self._folder.name}
        self._workers = [
            WorkerProcess("generation_worker", "A generation worker", imports, **variables) for _ in range(num_workers)
        ]
        self._counts: Counter[str] = Counter()
        self._pool = WorkerPool(self._workers, self._counts, logger)

    async def start(self) -> None:
        """Start all workers in parallel. Raises EnvironmentSetupError if a worker cannot start."""
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

        Raises GenerationTimeoutError at the deadline, GenerationCrashedError if two workers die, NoRightAnswerError if
        `answerable` is set and no answer is right, GenerationError if reasoning-gym fails, and PoolClosedError if the
        generator is not running.
        """
        name = f"{task} with seed {seed}"
        job = ItemJob(task, seed, dict(config), self._timeout_s, answerable)
        limit_s = WALL_FACTOR * self._timeout_s
        try:
            reply = await self._pool.ask(pickle.dumps(job), limit_s, name)
        except TimeoutError:
            self._counts["timed_out"] += 1
            limit = f"{self._timeout_s:g} s of processor time and {limit_s:g} s of elapsed time"
            raise GenerationTimeoutError(f"{name}: not made within {limit}") from None
        except WorkerDiedError as error:
            self._counts["failed"] += 1
            raise GenerationCrashedError(f"{name}: {error}") from error
        item: dict[str, Any] | Failure | None = _read(reply)
        if item is None:
            raise NoRightAnswerError(f"{name}: no answer to it is right")
        if isinstance(item, Failure):
            self._counts["failed"] += 1
            raise GenerationError(f"{name}: {item}")
        self._counts["items"] += 1
        return item

    def metrics(self) -> dict[str, float]:
        """Numbers of items that were made, failed or timed out, and of worker restarts, since the start."""
        return {f"generation/{name}": float(self._counts[name]) for name in COUNTERS}

    async def close(self) -> None:
        """Kill all workers, wait until they have ended, and remove their files. Safe to call twice."""
        await self._pool.close()
        self._folder.cleanup()


def _read(reply: bytes) -> Any:
    # An item may contain objects of classes in a task module. Unpickling them runs code of that module, which may raise
    # any exception.
    try:
        return pickle.loads(reply)
    except Exception as error:  # noqa: BLE001
        return Failure(f"it cannot be read here: {type(error).__name__}: {error}")


# --- temporary folders

_PREFIX = "reasoning-gym-"
_LOCK = ".lock"


class TemporaryFolder:
    """A temporary folder that lives as long as this process. The constructor removes the folders of dead processes.

    The process locks a file in its folder, and the kernel releases the lock when the process ends or is killed. On a
    file system without locks, the folder has no such file. Other processes then never remove the folder.
    """

    def __init__(self, kind: str) -> None:
        _remove_abandoned_folders(Path(tempfile.gettempdir()))
        self._folder = tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{kind}-", ignore_cleanup_errors=True)
        self.name = self._folder.name
        # The file gets its final name only after it is locked. Before that, it would look like the file of a dead
        # process, and another process could remove the folder.
        path = Path(self.name, f"{_LOCK}-is-made")
        self._lock = path.open("w")
        with contextlib.suppress(OSError):
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            path.rename(path.with_name(_LOCK))

    def cleanup(self) -> None:
        """Remove the folder. Safe to call twice."""
        self._folder.cleanup()
        self._lock.close()


def _remove_abandoned_folders(place: Path) -> None:
    for folder in place.glob(f"{_PREFIX}*"):
        # An error means that the folder stays: its process is running, it has no lock file, or another process is
        # removing it. Folders of other users stay too.
        with contextlib.suppress(OSError):
            status = folder.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
                continue
            with Path(folder, _LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
                logger.info("Removed %s of a run that was killed.", folder)
