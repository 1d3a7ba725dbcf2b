"""Whatever ends a run, the environment is closed."""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import subprocess
import sys
from typing import Any

import pytest

from reasoning_gym_environment.atropos import shutdown
from reasoning_gym_environment.atropos.shutdown import (
    LastStep,
    ShutdownRequested,
    cancel_all,
    run_to_the_end,
)
from reasoning_gym_environment.utils.aio import to_the_end


class Ending:
    """Last steps of which one is noted as `closed`."""

    def __init__(self, *before: LastStep) -> None:
        self.closed = 0
        self.steps = [*before, LastStep("closing", self._close)]

    async def _close(self) -> None:
        self.closed += 1


async def nothing() -> None:
    await asyncio.sleep(0)


async def test_the_end_comes_after_the_work_an_error_and_a_cancellation() -> None:
    ending, started = Ending(), asyncio.Event()
    await run_to_the_end(nothing(), ending.steps)
    assert ending.closed == 1

    async def failing() -> None:
        raise KeyError("bug")

    with pytest.raises(KeyError, match="bug"):
        await run_to_the_end(failing(), ending.steps)
    assert ending.closed == 2
    ended: list[str] = []

    async def work() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("work")

    run = asyncio.ensure_future(run_to_the_end(work(), ending.steps))
    await started.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert (ending.closed, ended) == (3, ["work"])


async def test_a_task_that_does_not_end_is_left_behind_with_a_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shutdown, "GRACE_S", 0.05)
    release = asyncio.Event()

    async def stubborn() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    willing, task = asyncio.ensure_future(asyncio.sleep(3600)), asyncio.ensure_future(stubborn())
    await asyncio.sleep(0)
    await cancel_all([willing, None, task])
    assert willing.cancelled() and "1 tasks did not end" in caplog.text
    release.set()
    await task


async def test_every_step_of_the_end_is_made_whatever_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(error: Exception) -> None:
        raise error

    monkeypatch.setattr(shutdown, "STEP_S", 0.05)
    ending = Ending(
        LastStep("writing", lambda: fail(OSError(errno.ENOSPC, "No space left on device"))),
        LastStep("signing off", asyncio.Event().wait),
        LastStep("waiting", lambda: asyncio.sleep(0.1), is_limited=False),
        LastStep("a bug", lambda: fail(KeyError("bug"))),
    )
    await run_to_the_end(nothing(), ending.steps)
    assert ending.closed == 1
    assert [(record.message, bool(record.exc_info)) for record in caplog.records] == [
        ("At the end, writing failed: [Errno 28] No space left on device", False),
        ("At the end, signing off was left after 0.05 s.", False),
        ("At the end, a bug failed: 'bug'", True),
    ]


async def test_signal_handlers_are_taken_back() -> None:
    installed: list[Any] = []

    async def work() -> None:
        installed.extend(signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM))

    await run_to_the_end(work(), [])
    after = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert after == [signal.default_int_handler, signal.SIG_DFL]
    assert not set(installed) & set(after)


async def test_work_that_is_taken_to_the_end_is_not_stopped_halfway() -> None:
    done: list[str] = []
    gate = asyncio.Event()

    async def work() -> str:
        await gate.wait()
        done.append("all")
        return "result"

    async def caller() -> str:
        return await to_the_end(work())

    task = asyncio.create_task(caller())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0.01)
    assert not task.done()
    gate.set()
    assert (await task, done) == ("result", ["all"])
    twice = asyncio.create_task(to_the_end(asyncio.sleep(3600)))
    for _ in range(2):
        await asyncio.sleep(0.01)
        twice.cancel()
    with pytest.raises(asyncio.CancelledError):
        await twice


async def test_outside_the_main_thread_signals_are_left_to_the_host_program() -> None:
    ending = Ending()
    await asyncio.to_thread(lambda: asyncio.run(run_to_the_end(nothing(), ending.steps)))
    assert ending.closed == 1


PROGRAM = """
import asyncio, os, sys
from reasoning_gym_environment.atropos.shutdown import LastStep, ShutdownRequested, run_to_the_end

number, stubborn = int(sys.argv[1]), sys.argv[2] == "stubborn"

async def close():
    print("closed", flush=True)
    if stubborn:
        os.kill(os.getpid(), number)
        await asyncio.sleep(60)

async def work():
    os.kill(os.getpid(), number)
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        print("cancelled", flush=True)
        raise

try:
    asyncio.run(run_to_the_end(work(), [LastStep("closing", close, is_limited=False)]))
except ShutdownRequested as stop:
    print(stop, flush=True)
    sys.exit(stop.exit_code)
"""


def run_program(number: signal.Signals, manner: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, str(int(number)), manner]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_cancels_closes_and_gives_the_exit_code_of_its_number(number: signal.Signals) -> None:
    ended = run_program(number, "willing")
    assert ended.stdout.splitlines() == ["cancelled", "closed", f"stopped by {number.name}"]
    assert ended.returncode == 128 + number
    assert f"{number.name}: writing what is buffered and closing" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_second_signal_ends_the_process_at_once() -> None:
    ended = run_program(signal.SIGTERM, "stubborn")
    assert ended.stdout.splitlines() == ["cancelled", "closed"]
    assert ended.returncode == 128 + signal.SIGTERM


def test_the_exit_code_of_a_stop_is_that_of_the_shell() -> None:
    assert ShutdownRequested(signal.SIGINT).exit_code == 130


@pytest.mark.parametrize(
    ("suppress", "debug", "levels"),
    [(True, False, ("WARNING", "NOTSET")), (False, False, ("INFO", "NOTSET")), (True, True, ("WARNING", "DEBUG"))],
)
def test_log_levels_follow_the_settings(suppress: bool, debug: bool, levels: tuple[str, str]) -> None:
    loggers = [logging.getLogger(name) for name in ("atroposlib.envs.base", "reasoning_gym_environment")]
    before = [logger.level for logger in loggers]
    shutdown.quiet_base_env(suppress, debug=debug)
    assert tuple(logging.getLevelName(logger.level) for logger in loggers) == levels
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)
