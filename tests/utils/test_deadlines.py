"""A deadline ends what it watches, and passes on a cancellation at whatever moment it comes."""

from __future__ import annotations

import asyncio

import pytest

from reasoning_gym_environment.utils.aio import within


async def result(after_s: float, ended: list[str]) -> str:
    try:
        await asyncio.sleep(after_s)
        return "result"
    finally:
        ended.append("ended")


async def test_a_result_in_time_is_returned() -> None:
    assert await within(60, result(0.001, [])) == "result"
    assert await within(None, result(0.001, [])) == "result"


@pytest.mark.parametrize("seconds", [0.0, 0.01])
async def test_after_the_deadline_the_work_has_ended(seconds: float) -> None:
    ended: list[str] = []
    with pytest.raises(asyncio.TimeoutError):
        await within(seconds, result(3600, ended))
    assert ended in ([], ["ended"]), "work that had not begun has nothing to end"


async def test_an_error_is_passed_on() -> None:
    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await within(60, fail())


async def test_a_cancellation_ends_the_work_too() -> None:
    ended: list[str] = []
    task = asyncio.create_task(within(60, result(3600, ended)))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["ended"]


async def test_a_cancellation_that_comes_with_the_result_is_heeded() -> None:
    gate = asyncio.Event()

    async def work() -> str:
        await gate.wait()
        return "result"

    task = asyncio.create_task(within(60, work()))
    await asyncio.sleep(0.01)
    gate.set()
    # The work ends in this turn of the loop; who waits for it hears of that in the next one.
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
