"""The pool alone, over workers that are no processes: who gets one when, and what becomes of those that die."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

import pytest

from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.workers import pool as pool_module
from reasoning_gym_environment.workers.pool import PoolClosedError, WorkerPool, WorkerProcess

from ..process_table import until


class PretendedWorker(WorkerProcess):
    who = "A pretended worker"
    can_start, is_alive, starts = True, False, 0

    @property
    def is_running(self) -> bool:
        return self.is_alive

    async def start(self) -> None:
        await asyncio.sleep(0)
        if not self.can_start:
            raise EnvironmentSetupError("A pretended worker could not start: no processes left.")
        self.starts, self.is_alive = self.starts + 1, True

    def end(self) -> None:
        self.is_alive = False


async def started(count: int = 1) -> tuple[WorkerPool[PretendedWorker], list[PretendedWorker], Counter[str]]:
    workers, counts = [PretendedWorker("nothing") for _ in range(count)], Counter[str]()
    pool = WorkerPool(workers, counts, logging.getLogger("pool"))
    await pool.start()
    return pool, workers, counts


async def use(pool: WorkerPool[PretendedWorker], served: list[str], name: str, times: int = 1) -> None:
    for _ in range(times):
        async with pool.worker():
            await asyncio.sleep(0)
            served.append(name)


async def test_callers_are_served_in_the_order_in_which_they_came_and_a_cancelled_one_is_passed_over() -> None:
    pool, _, counts = await started()
    served: list[str] = []
    async with pool.worker():
        calls = [asyncio.ensure_future(use(pool, served, name, 2)) for name in "abc"]
        await asyncio.sleep(0)
        calls[1].cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    assert (served, counts) == (["a", "c", "a", "c"], {})


async def test_a_worker_that_ended_in_use_or_died_idle_is_replaced_and_counted() -> None:
    pool, workers, counts = await started(2)
    with pytest.raises(KeyError):
        async with pool.worker() as ended:
            ended.end()
            raise KeyError
    for worker in workers:
        worker.end()
    async with pool.worker() as fresh:
        assert fresh.is_running
    await until(lambda: all(worker.is_running for worker in workers))
    assert counts == {"worker_restarts": sum(worker.starts - 1 for worker in workers)}


async def test_work_waits_while_no_worker_can_be_started(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pool_module, "FIRST_DELAY_S", 0.001)
    pool, [worker], counts = await started()
    served: list[str] = []
    worker.can_start = False
    async with pool.worker():
        worker.end()
    calls = [asyncio.ensure_future(use(pool, served, name)) for name in "ab"]
    await until(lambda: "could not start" in caplog.text)
    await asyncio.sleep(0.02)
    assert served == [] and caplog.text.count("could not start") == 1
    worker.can_start = True
    await asyncio.gather(*calls)
    assert (served, counts) == (["a", "b"], {"worker_restarts": 1})


async def test_closing_answers_everyone_and_leaves_no_worker() -> None:
    pool, [worker], _ = await started()
    async with pool.worker():
        waiting = asyncio.ensure_future(use(pool, [], "waiting"))
        await asyncio.sleep(0)
        await pool.close()
        await pool.close()
        with pytest.raises(PoolClosedError):
            await waiting
    with pytest.raises(RuntimeError, match="closed"):
        await use(pool, [], "late")
    assert not worker.is_running
