"""The pool alone, over workers that are no processes: who gets one when, and what becomes of those that die."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

import pytest

from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.workers import pool as pool_module
from reasoning_gym_environment.workers.pool import PoolClosedError, WorkerPool, WorkerProcess

from ..process_table import until


class PretendedWorker(WorkerProcess):
    who = "A pretended worker"
    can_start = True

    def __init__(self) -> None:
        super().__init__("nothing")
        self.starts, self.is_alive = 0, False

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

    async def kill(self) -> None:
        self.end()


async def started(count: int = 1) -> tuple[WorkerPool[PretendedWorker], list[PretendedWorker], Counter[str]]:
    workers, counts = [PretendedWorker() for _ in range(count)], Counter[str]()
    pool = WorkerPool(workers, counts, logging.getLogger("pool"))
    await pool.start()
    return pool, workers, counts


async def use(pool: WorkerPool[PretendedWorker], served: list[str], name: str, times: int = 1) -> None:
    for _ in range(times):
        async with pool.worker():
            await asyncio.sleep(0)
            served.append(name)


async def test_callers_are_served_in_the_order_in_which_they_came() -> None:
    pool, _, _ = await started()
    served: list[str] = []
    await asyncio.gather(use(pool, served, "often", 3), use(pool, served, "once", 1), use(pool, served, "twice", 2))
    assert served == ["often", "once", "twice", "often", "twice", "often"]


async def test_a_worker_handed_to_a_cancelled_caller_goes_to_the_next() -> None:
    pool, [worker], counts = await started()
    served: list[str] = []
    async with pool.worker():
        first, second = (asyncio.ensure_future(use(pool, served, name)) for name in ("first", "second"))
        await asyncio.sleep(0)
    first.cancel()
    await second
    assert first.cancelled() and served == ["second"]
    assert worker.is_running and not counts


async def test_a_worker_that_ended_in_use_or_died_idle_is_replaced_and_counted() -> None:
    pool, workers, counts = await started(2)
    with pytest.raises(asyncio.CancelledError):
        async with pool.worker() as ended:
            ended.end()
            raise asyncio.CancelledError
    for worker in workers:
        worker.end()
    async with pool.worker() as fresh:
        assert fresh.is_running
    await until(lambda: all(worker.is_running for worker in workers))
    assert counts == {"worker_restarts": sum(worker.starts - 1 for worker in workers)}


async def test_a_healthy_worker_outlives_an_error_of_its_caller() -> None:
    pool, [worker], counts = await started()
    with pytest.raises(KeyError):
        async with pool.worker():
            raise KeyError
    async with pool.worker() as same:
        assert (same, same.starts) == (worker, 1)
    assert not counts


async def test_a_worker_whose_callers_take_long_is_passed_on_until_it_has_as_many_as_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool_module, "SLOW_S", 0.0)
    monkeypatch.setattr(PretendedWorker, "at_once", 2)
    pool, [worker], counts = await started()
    leave, inside = [asyncio.Event() for _ in range(4)], []

    async def call(number: int) -> None:
        async with pool.worker():
            inside.append(number)
            await leave[number].wait()

    calls = [asyncio.ensure_future(call(number)) for number in range(4)]
    await until(lambda: len(inside) == 2)
    await asyncio.sleep(0.02)
    assert inside == [0, 1]
    leave[0].set()
    await until(lambda: len(inside) == 3)
    # It dies of one of them: it is started again, once, when all have left it.
    worker.end()
    leave[1].set()
    await calls[1]
    await asyncio.sleep(0.01)
    assert (worker.starts, inside) == (1, [0, 1, 2])
    leave[2].set()
    await until(lambda: len(inside) == 4)
    leave[3].set()
    await asyncio.gather(*calls)
    assert (worker.starts, counts) == (2, {"worker_restarts": 1})


async def test_a_caller_that_must_be_alone_waits_for_that_and_is_not_overtaken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool_module, "SLOW_S", 0.0)
    monkeypatch.setattr(PretendedWorker, "at_once", 4)
    pool, _, _ = await started()
    leave, inside = [asyncio.Event() for _ in range(5)], set[int]()

    async def call(number: int, alone: bool = False) -> None:
        async with pool.worker(alone=alone):
            inside.add(number)
            await leave[number].wait()
            inside.remove(number)

    calls = [asyncio.ensure_future(call(number)) for number in (0, 1)]
    await until(lambda: inside == {0, 1})
    calls += [asyncio.ensure_future(call(2, alone=True)), asyncio.ensure_future(call(3))]
    await asyncio.sleep(0.01)
    assert inside == {0, 1}
    leave[1].set()
    await asyncio.sleep(0.01)
    assert inside == {0}
    leave[0].set()
    await until(lambda: inside == {2})
    await asyncio.sleep(0.01)
    assert inside == {2}
    leave[2].set()
    await until(lambda: inside == {3})
    # One that gives up while the worker is kept for it lets the others have it.
    given_up, last = asyncio.ensure_future(call(4, alone=True)), asyncio.ensure_future(call(4))
    await asyncio.sleep(0.01)
    given_up.cancel()
    await until(lambda: inside == {3, 4})
    for event in leave:
        event.set()
    await asyncio.gather(*calls, last)


async def test_an_idle_worker_is_preferred_to_one_that_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "SLOW_S", 0.0)
    monkeypatch.setattr(PretendedWorker, "at_once", 2)
    pool, _, _ = await started(2)
    async with pool.worker() as first:
        await asyncio.sleep(0.01)
        async with pool.worker() as second:
            assert second is not first


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
    assert "A pretended worker is back" in caplog.text


async def test_closing_answers_everyone_and_leaves_no_worker() -> None:
    pool, [worker], counts = await started()
    async with pool.worker():
        waiting = asyncio.ensure_future(use(pool, [], "waiting"))
        await asyncio.sleep(0)
        await pool.close()
        await pool.close()
        with pytest.raises(PoolClosedError):
            await waiting
    with pytest.raises(RuntimeError, match="closed"):
        await use(pool, [], "late")
    assert not worker.is_running and not counts


async def test_if_one_cannot_start_none_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = [PretendedWorker(), PretendedWorker()]
    workers[1].can_start = False
    pool: WorkerPool[Any] = WorkerPool(workers, Counter(), logging.getLogger("pool"))
    with pytest.raises(EnvironmentSetupError, match="no processes left"):
        await pool.start()
    assert not workers[0].is_running
    with pytest.raises(PoolClosedError):
        await use(pool, [], "never")
