"""A deadline ends what it watches and heeds a cancellation; background calls hold up neither the loop nor the end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from reasoning_gym_environment.utils.aio import Background, watched, within


async def result(after_s: float, ended: list[str]) -> str:
    try:
        await asyncio.sleep(after_s)
        return "result"
    finally:
        ended.append("ended")


async def test_a_result_or_an_error_in_time_is_passed_on() -> None:
    async def fail() -> None:
        raise ValueError("no")

    for seconds in (60, None):
        assert await within(seconds, result(0.001, [])) == "result"
        with pytest.raises(ValueError, match="no"):
            await within(seconds, fail())


async def test_after_the_deadline_the_work_has_ended() -> None:
    for seconds in (0.0, 0.01):
        ended: list[str] = []
        with pytest.raises(asyncio.TimeoutError):
            await within(seconds, result(3600, ended))
        assert ended in ([], ["ended"]), "work that had not begun has nothing to end"


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


# --- calls in the background


async def test_calls_are_made_one_at_a_time_in_order() -> None:
    background, made = Background("test"), []
    gate = threading.Event()
    first = background.submit(gate.wait)
    others = [background.submit(made.append, number) for number in range(20)]
    assert background.unfinished == 21
    gate.set()
    await asyncio.gather(first, *others)
    assert made == list(range(20))


async def test_the_thread_ends_with_the_last_call_and_begins_again() -> None:
    background = Background("short-lived")
    for number in range(3):
        assert await background.submit(lambda n=number: n) == number
        for thread in [thread for thread in threading.enumerate() if thread.name == "short-lived"]:
            thread.join(10)
            assert not thread.is_alive()


async def test_calls_soon_after_one_another_are_made_by_one_thread() -> None:
    background = Background("test")
    threads = {await background.submit(threading.get_ident) for _ in range(20)}
    assert len(threads) == 1


async def test_an_error_is_the_callers_and_the_next_call_is_made() -> None:
    background = Background("test")
    with pytest.raises(ZeroDivisionError):
        await background.submit(lambda: 1 / 0)
    assert await background.submit(int, "7") == 7


async def test_a_call_that_has_not_begun_can_be_taken_back() -> None:
    background, made = Background("test"), []
    gate = threading.Event()
    first = background.submit(gate.wait)
    background.submit(made.append, 1).cancel()
    await asyncio.sleep(0.01)
    gate.set()
    await first
    await background.submit(made.append, 2)
    assert made == [2]


PROGRAM = """
import asyncio, threading
from reasoning_gym_environment.utils.aio import Background

async def main():
    Background("hangs").submit(threading.Event().wait)
    await asyncio.sleep(0.05)

asyncio.run(main())
"""


def test_a_call_that_hangs_does_not_hold_up_the_end_of_the_process() -> None:
    assert subprocess.run([sys.executable, "-c", PROGRAM], timeout=60, check=False).returncode == 0


async def test_what_is_watched_ends_the_others_and_their_errors_end_it() -> None:
    async def fail() -> None:
        raise ValueError("no")

    ended: list[str] = []
    await watched(result(0.001, ended), result(60, ended), asyncio.sleep(0))
    with pytest.raises(ValueError, match="no"):
        await watched(result(60, ended), fail())
    assert len(ended) == 3
