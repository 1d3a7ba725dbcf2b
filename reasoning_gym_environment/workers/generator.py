"""Makes items in worker processes, so that an item that never ends delays no other item.

    ProcessGenerator ── a pool of ──> WorkerProcess ── socket ──> generation_worker.py

The pool ends a worker whose item is late, and starts another worker. If a worker dies, another worker tries to make its
item. Every worker runs with the same hash seed, because some of reasoning-gym's items depend on it. Therefore the same
seed and config give the same item in every process.
"""

from __future__ import annotations

import logging
import pickle
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import GenerationCrashedError, GenerationError, GenerationTimeoutError, NoRightAnswerError
from .confinement import WORKER_MEMORY_BYTES
from .generation_worker import Failure, ItemJob
from .pool import Request, WorkerDiedError, WorkerPool, WorkerProcess
from .protocol import Imports
from .worker import Sandbox, Start

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
    `task_modules`, and confine themselves as `sandbox` says (see SandboxGrader). With `has_spare`, one more worker
    starts once all have been busy for a second.
    """

    def __init__(
        self,
        *,
        num_workers: int = 1,
        has_spare: bool = False,
        timeout_s: float = ITEM_TIMEOUT_S,
        sandbox: Sandbox = "auto",
        task_modules: Sequence[str] = (),
    ) -> None:
        self._timeout_s = timeout_s
        start = Start(sandbox, Imports.as_here(task_modules))
        # The parent owns this folder, so that a killed worker leaves no files behind.
        self._folder = tempfile.TemporaryDirectory(prefix="reasoning-gym-items-", ignore_cleanup_errors=True)
        variables = {"PYTHONHASHSEED": "0", "TMPDIR": self._folder.name}
        self._num_workers = num_workers
        self._counts: Counter[str] = Counter()
        self._pool = WorkerPool(
            lambda: WorkerProcess("generation_worker", "A generation worker", start, **variables),
            num_workers,
            self._counts,
            logger,
            has_spare=has_spare,
        )

    async def start(self) -> None:
        """Start all workers in parallel. Raises EnvironmentSetupError if a worker cannot start."""
        await self._pool.start()
        logger.info(
            "Generation workers: %d. An item may take %g s and %d MiB of memory.",
            self._num_workers,
            self._timeout_s,
            WORKER_MEMORY_BYTES >> 20,
        )

    async def generate(
        self,
        task: str,
        seed: int,
        config: Mapping[str, Any],
        *,
        mends: bool = False,
        refuses: bool = False,
    ) -> dict[str, Any]:
        """Item 0 of the dataset with this seed and config, exactly as reasoning-gym returns it, unless it is mended.

        `mends` corrects the answers and clarifies the questions of sound items, see verification/questions.py. Raises
        GenerationTimeoutError at the deadline, GenerationCrashedError if two workers die, NoRightAnswerError if
        `refuses` is set and the item is not sound, GenerationError if reasoning-gym fails, and PoolClosedError if the
        generator is not running.
        """
        name = f"{task} with seed {seed}"
        job = ItemJob(task, seed, dict(config), self._timeout_s, mends, refuses)
        limit_s = WALL_FACTOR * self._timeout_s
        try:
            reply = await self._pool.ask(lambda: Request(pickle.dumps(job), limit_s), name)
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
