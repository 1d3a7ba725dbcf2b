"""The pool alone, over workers that are no processes: who gets one when, and what becomes of those that die."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable

import pytest

from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.workers import pool as pool_module
from reasoning_gym_environment.workers.pool import PoolClosedError, Request, WorkerDiedError, WorkerPool, WorkerProcess
from testing.process_table import until


class PretendedWorker(WorkerProcess):
    """Answers with the message; dies of `die`, and does not answer before it may go on."""

    can_start, is_alive, starts = True, False, 0

    def __init__(self) -> None:
        super().__init__("nothing", "A pretended worker", None)
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()

    @property
    def is_running(self) -> bool:
        return self.is_alive

    async def start(self) -> None:
        await asyncio.sleep(0)
        if not self.can_start:
            raise EnvironmentSetupError("A pretended worker could not start: no processes left.")
        self.starts, self.is_alive = self.starts + 1, True

    async def ask(self, message: bytes, limit_s: float) -> bytes:
        await asyncio.sleep(0)
        await self.may_go_on.wait()
        if message == b"die" or not self.is_alive:
            self.end()
            raise WorkerDiedError("killed")
        return message

    def end(self) -> None:
        self.is_alive = False


async def started(count: int = 1, *, has_spare: bool = False) -> tuple[WorkerPool, list[PretendedWorker], Counter[str]]:
    workers: list[PretendedWorker] = []
    counts = Counter[str]()

    def make_worker() -> PretendedWorker:
        workers.append(PretendedWorker())
        return workers[-1]

    pool = WorkerPool(make_worker, count, counts, logging.getLogger("pool"), has_spare=has_spare)
    await pool.start()
    return pool, workers, counts


def ask(pool: WorkerPool, message: str) -> Awaitable[bytes]:
    return pool.ask(lambda: Request(message.encode(), 1.0), message)


async def use(pool: WorkerPool, served: list[str], name: str) -> None:
    served.append((await ask(pool, name)).decode())


async def test_a_worker_that_died_in_use_or_idle_is_replaced_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    pool, workers, counts = await started(2)
    with pytest.raises(WorkerDiedError, match="2 workers died of it, the last one because killed"):
        await ask(pool, "die")
    assert caplog.text.count("A pretended worker died of die: killed.") == 2
    await until(lambda: all(worker.is_running for worker in workers))
    for worker in workers:
        worker.end()
    assert await ask(pool, "live") == b"live"
    await until(lambda: all(worker.is_running for worker in workers))
    assert counts == {"worker_restarts": sum(worker.starts - 1 for worker in workers)}


async def test_work_waits_while_no_worker_can_be_started(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pool_module, "FIRST_DELAY_S", 0.001)
    pool, [worker], counts = await started()
    served: list[str] = []
    worker.can_start = False
    worker.end()
    calls = [asyncio.ensure_future(use(pool, served, name)) for name in "ab"]
    await until(lambda: "could not start" in caplog.text)
    await asyncio.sleep(0.02)
    assert served == [] and caplog.text.count("could not start") == 1
    worker.can_start = True
    await asyncio.gather(*calls)
    assert (served, counts) == (["a", "b"], {"worker_restarts": 1})


async def test_closing_answers_everyone_and_leaves_no_worker(caplog: pytest.LogCaptureFixture) -> None:
    pool, [worker], _ = await started()
    worker.may_go_on.clear()
    calls = [asyncio.ensure_future(use(pool, [], name)) for name in ("busy", "waiting")]
    await asyncio.sleep(0)
    await pool.close()
    worker.may_go_on.set()
    for call in [*calls, use(pool, [], "late")]:
        with pytest.raises(PoolClosedError, match="closed"):
            await call
    assert not worker.is_running and not caplog.text


async def test_the_spare_worker_starts_once_all_workers_have_been_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "BUSY_S", 0.001)
    pool, [worker, spare], counts = await started(has_spare=True)
    assert await ask(pool, "quick") == b"quick"
    worker.may_go_on.clear()
    slow = asyncio.ensure_future(ask(pool, "slow"))
    await asyncio.sleep(0.01)
    assert not spare.is_running, "no request waits"
    assert await ask(pool, "next") == b"next"
    assert spare.starts == 1 and not slow.done()
    worker.may_go_on.set()
    assert await slow == b"slow"
    assert counts == {}
    await pool.close()
    assert not spare.is_running
