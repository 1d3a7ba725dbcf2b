"""Whatever ends a run, every step of its end is made."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import subprocess
import sys

import pytest

from reasoning_gym_environment.utils.shutdown import run_then_close, shutdown_step


@pytest.mark.parametrize("ends", [None, KeyError, asyncio.CancelledError])
async def test_the_steps_of_the_end_are_made_whatever_ends_the_work_and_whichever_fails(
    ends: type[BaseException] | None, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[str] = []

    async def step(name: str, error: Exception | None = None, seconds: float = 0.0) -> None:
        await asyncio.sleep(seconds)
        made.append(name)
        if error is not None:
            raise error

    async def work() -> None:
        if ends is not None:
            raise ends("why")

    async def end() -> None:
        await shutdown_step("writing", step("write", OSError(errno.ENOSPC, "No space left on device")))
        await shutdown_step("signing off", step("never", seconds=60.0), 0.05)
        await shutdown_step("a bug", step("bug", KeyError("bug")))
        # A network file system raises this error.
        await shutdown_step("closing", step("close", TimeoutError(errno.ETIMEDOUT, "Connection timed out")), None)

    with pytest.raises(ends) if ends else contextlib.nullcontext():
        await run_then_close(work(), end())
    assert made == ["write", "bug", "close"]
    assert [(record.message, bool(record.exc_info)) for record in caplog.records] == [
        ("Shutdown: writing failed: [Errno 28] No space left on device", False),
        ("Shutdown: signing off timed out after 0.05 s.", False),
        ("Shutdown: a bug failed: 'bug'", True),
        ("Shutdown: closing failed: [Errno 110] Connection timed out", False),
    ]


PROGRAM = """
import asyncio, logging, os, sys
from reasoning_gym_environment.utils.shutdown import run_then_close

number, stubborn = int(sys.argv[1]), sys.argv[2] == "stubborn"

async def close():
    print("closed", flush=True)
    # Launchers repeat a signal at once.
    os.kill(os.getpid(), number)
    if stubborn:
        await asyncio.sleep(1.1)
        os.kill(os.getpid(), number)
        await asyncio.sleep(60)

async def work():
    os.kill(os.getpid(), number)
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        print("cancelled", flush=True)
        raise

logging.basicConfig(level="INFO", stream=sys.stdout, format="%(message)s")
asyncio.run(run_then_close(work(), close()))
"""


@pytest.mark.parametrize(
    ("number", "manner"), [(signal.SIGINT, "willing"), (signal.SIGTERM, "willing"), (signal.SIGTERM, "stubborn")]
)
def test_a_signal_closes_and_gives_its_exit_code_and_a_second_one_ends_at_once(
    number: signal.Signals, manner: str
) -> None:
    command = [sys.executable, "-c", PROGRAM, str(int(number)), manner]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    stopped = [f"Closed after {number.name}. Run the same command again to resume."] if manner == "willing" else []
    begun = f"{number.name}: flushing buffers and closing. Send it again to stop immediately."
    assert ended.stdout.splitlines() == [begun, "cancelled", "closed", *stopped]
    assert ended.returncode == 128 + number and "Traceback" not in ended.stderr
