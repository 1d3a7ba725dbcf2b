"""Whatever ends a run, every step of its end is made."""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import subprocess
import sys

import pytest

from reasoning_gym_environment.atropos import shutdown
from reasoning_gym_environment.atropos.shutdown import LastStep, cancel_all, run_to_the_end


@pytest.mark.parametrize("ends", ["by itself", "with an error", "cancelled"])
async def test_the_last_steps_are_made_whatever_ends_the_work_and_whichever_fails(
    ends: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made, started = [], asyncio.Event()

    async def step(name: str, error: Exception | None = None, seconds: float = 0.0) -> None:
        await asyncio.sleep(seconds)
        made.append(name)
        if error is not None:
            raise error

    async def work() -> None:
        started.set()
        if ends == "with an error":
            raise KeyError("bug")
        await asyncio.sleep(60 if ends == "cancelled" else 0)

    monkeypatch.setattr(shutdown, "STEP_S", 0.05)
    steps = [
        LastStep("writing", lambda: step("write", OSError(errno.ENOSPC, "No space left on device"))),
        LastStep("signing off", lambda: step("never", seconds=60.0)),
        LastStep("waiting", lambda: step("wait", seconds=0.1), is_limited=False),
        LastStep("a bug", lambda: step("bug", KeyError("bug"))),
    ]
    run = asyncio.ensure_future(run_to_the_end(work(), steps))
    await started.wait()
    if ends == "cancelled":
        run.cancel()
    [raised] = await asyncio.gather(run, return_exceptions=True)
    expected = {"by itself": None, "with an error": KeyError, "cancelled": asyncio.CancelledError}[ends]
    assert raised is None if expected is None else isinstance(raised, expected)
    assert made == ["write", "wait", "bug"]
    assert [(record.message, bool(record.exc_info)) for record in caplog.records] == [
        ("At the end, writing failed: [Errno 28] No space left on device", False),
        ("At the end, signing off was left after 0.05 s.", False),
        ("At the end, a bug failed: 'bug'", True),
    ]


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


async def test_signal_handlers_are_taken_back_and_left_to_the_host_program_outside_the_main_thread() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM)
    await run_to_the_end(asyncio.sleep(0), [])
    await asyncio.to_thread(lambda: asyncio.run(run_to_the_end(asyncio.sleep(0), [])))
    assert [signal.getsignal(number) for number in numbers] == [signal.default_int_handler, signal.SIG_DFL]


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


@pytest.mark.parametrize(
    ("number", "manner"), [(signal.SIGINT, "willing"), (signal.SIGTERM, "willing"), (signal.SIGTERM, "stubborn")]
)
def test_a_signal_closes_and_gives_its_exit_code_and_a_second_one_ends_at_once(
    number: signal.Signals, manner: str
) -> None:
    command = [sys.executable, "-c", PROGRAM, str(int(number)), manner]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    stopped = [f"stopped by {number.name}"] if manner == "willing" else []
    assert ended.stdout.splitlines() == ["cancelled", "closed", *stopped]
    assert ended.returncode == 128 + number and "Traceback" not in ended.stderr


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
