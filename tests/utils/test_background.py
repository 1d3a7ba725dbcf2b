"""Calls in the background are made in order, and one that hangs holds up neither the event loop nor the end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from reasoning_gym_environment.utils.aio import Background


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
