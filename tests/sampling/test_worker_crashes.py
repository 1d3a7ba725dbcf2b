"""Generation workers that die, in simulated time: the stream continues."""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Callable

from reasoning_gym_environment.sampling.item_stream import ProblemStream
from reasoning_gym_environment.utils.clock import now
from reasoning_gym_environment.workers.generation_worker import ItemJob
from reasoning_gym_environment.workers.generator import ProcessGenerator
from reasoning_gym_environment.workers.pool import WorkerDiedError, WorkerPool, WorkerProcess
from testing.virtual_time import run_virtually

from .test_item_stream import item_source, take
from .test_levels import at_level

HOUR_S = 3600.0
START_S = 0.5
ITEM_S = 0.1

IsKilled = Callable[[ItemJob], bool]


class PretendedWorker(WorkerProcess):
    """Makes an item in ITEM_S seconds, unless `is_killed`. No process runs."""

    def __init__(self, is_killed: IsKilled) -> None:
        super().__init__("nothing", "A pretended worker", None)
        self._is_killed = is_killed
        self._is_alive = False

    @property
    def is_running(self) -> bool:
        return self._is_alive

    async def start(self) -> None:
        await asyncio.sleep(START_S)
        self._is_alive = True

    async def ask(self, message: bytes, limit_s: float) -> bytes:
        job = pickle.loads(message)
        await asyncio.sleep(ITEM_S)
        if self._is_killed(job):
            self.end()
            raise WorkerDiedError("it ended with exit status -9")
        return pickle.dumps({"question": f"{job.task} {job.seed}", "answer": "a", "metadata": {}})

    def end(self) -> None:
        self._is_alive = False


async def stream_of(workers: int, is_killed: IsKilled) -> ProblemStream:
    """A stream at the highest of three levels, whose workers are killed as `is_killed` says."""
    generator = ProcessGenerator(num_workers=workers)
    generator._pool = WorkerPool(
        lambda: PretendedWorker(is_killed), workers, generator._counts, logging.getLogger(__name__)
    )
    await generator.start()
    return item_source(generator, prefetch=4, **at_level(2))


def test_an_hour_in_which_all_workers_die_ends_no_run() -> None:
    async def go() -> None:
        stream = await stream_of(2, lambda job: 10.0 < now() < 10.0 + HOUR_S)
        while now() < HOUR_S + 200.0:
            problem = await stream.next()
            stream.pending.finish(problem)
        assert {problem.level for problem in await take(stream, 20)} == {2}
        assert stream.metrics()["train/redrawn_generation_crashed"] > 0
        assert not stream.replaced, "a crash says nothing about the level"
        await stream.close()

    run_virtually(go())
