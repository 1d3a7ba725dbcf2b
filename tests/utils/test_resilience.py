"""A deadline ends what it watches and heeds a cancellation; background calls hold up neither the loop nor the end;
an outage and the repeats of an event are a few lines, and counted.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading

import pytest

from reasoning_gym_environment.utils.resilience import (
    SUMMARY_EVERY,
    BackgroundCalls,
    Outage,
    RepeatedEvents,
    supervise,
    with_deadline,
)
from testing.process_table import until


async def result(after_s: float, ended: list[str]) -> str:
    try:
        await asyncio.sleep(after_s)
        return "result"
    finally:
        ended.append("ended")


async def fail() -> None:
    raise ValueError("no")


async def test_a_result_or_an_error_in_time_is_passed_on_and_the_deadline_ends_the_work() -> None:
    for seconds in (60, None):
        assert await with_deadline(seconds, result(0.001, [])) == "result"
        with pytest.raises(ValueError, match="no"):
            await with_deadline(seconds, fail())
    ended: list[str] = []
    with pytest.raises(asyncio.TimeoutError):
        await with_deadline(0.01, result(3600, ended))
    assert ended == ["ended"]


@pytest.mark.parametrize("has_result", [False, True])
async def test_a_cancellation_is_heeded_also_if_it_comes_with_the_result(has_result: bool) -> None:
    gate, ended = asyncio.Event(), []

    async def work() -> None:
        try:
            await gate.wait()
        finally:
            ended.append("ended")

    task = asyncio.create_task(with_deadline(60, asyncio.ensure_future(work())))
    await asyncio.sleep(0.01)
    if has_result:
        gate.set()
        # The work ends in this turn of the loop; who waits for it hears of that in the next one.
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["ended"]


async def test_calls_are_made_one_at_a_time_in_order_unless_they_are_taken_back_or_fail() -> None:
    background, made = BackgroundCalls("test"), []
    gate = threading.Event()
    first = background.submit(gate.wait)
    background.submit(made.append, -1).cancel()
    wrong = background.submit(lambda: 1 / 0)
    others = [background.submit(made.append, number) for number in range(20)]
    await asyncio.sleep(0.01)
    assert (background._has_thread, made) == (True, [])
    gate.set()
    with pytest.raises(ZeroDivisionError):
        await wrong
    await asyncio.gather(first, *others)
    # The thread ends with the calls, and a later call has another thread.
    await until(lambda: all(thread.name != "test" for thread in threading.enumerate()))
    await asyncio.wait_for(background.submit(made.append, 20), 60)
    assert made == list(range(21))


PROGRAM = """
import asyncio, threading
from reasoning_gym_environment.utils.resilience import BackgroundCalls

async def main():
    BackgroundCalls("hangs").submit(threading.Event().wait)
    await asyncio.sleep(0.05)

asyncio.run(main())
"""


def test_a_call_that_hangs_does_not_hold_up_the_end_of_the_process() -> None:
    assert subprocess.run([sys.executable, "-c", PROGRAM], timeout=60, check=False).returncode == 0


async def test_what_is_watched_ends_the_others_and_their_errors_end_it() -> None:
    ended: list[str] = []
    await supervise(result(0.001, ended), result(60, ended), asyncio.sleep(0))
    with pytest.raises(ValueError, match="no"):
        await supervise(result(60, ended), fail())
    assert len(ended) == 3


# --- outages and repeated events


LOGGER = logging.getLogger("test")


def test_an_outage_is_told_at_the_beginning_every_minute_and_at_the_end_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [100.0]
    outage = Outage(LOGGER, "The server", clock=lambda: now[0])
    outage.over()
    assert (outage.is_on, caplog.text, outage.metrics("api")) == (False, "", {})
    for _ in range(130):
        outage.failed("refused.", "do something")
        now[0] += 1
    outage.over()
    assert len(caplog.messages) == 4 and caplog.messages[-1] == "The server is back after 130 s."
    outage.failed("x")
    now[0] += 4
    assert (outage.is_on, outage.lasted_s) == (True, 4.0)
    assert outage.metrics("api") == {"api_outages": 2.0, "api_outage_seconds": 134.0}


def test_the_first_event_of_a_kind_is_told_in_full_and_every_hundredth_and_the_end_in_sum(
    caplog: pytest.LogCaptureFixture,
) -> None:
    events = RepeatedEvents(LOGGER)
    events.summarise()
    assert events.metrics("x") == {}
    for number in range(SUMMARY_EVERY + 2):
        events.note("a_failed", "a failed, its group is lost", f"detail {number}.")
    events.note("b", "b", "another")
    events.summarise()
    events.summarise()
    assert len(caplog.messages) == 4 and "102 times so far; last: detail 101." in caplog.messages[-1]
    assert events.metrics("train") == {"train_a_failed": 102.0, "train_b": 1.0}
    assert events.last_detail == "another"
