"""Processes that run beside an asynchronous program, such as the demo: started, watched and ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, STDOUT, Process
from collections.abc import AsyncIterator
from pathlib import Path

from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.utils.resilience import with_deadline


@contextlib.asynccontextmanager
async def running(module: str, *arguments: str, log: Path) -> AsyncIterator[Process]:
    """Run `python -m module arguments` in a new session, with its output in `log`, until the block ends."""
    command = [sys.executable, "-m", module, *arguments]
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=DEVNULL, stdout=output, stderr=STDOUT, start_new_session=True
        )
    try:
        yield process
    finally:
        await stop(process)


async def stop(process: Process) -> int:
    """Ask the process to end, and kill it after 10 seconds. Returns its exit code."""
    if process.returncode is not None:
        # By now, the system may have given the number of this process to another process.
        return process.returncode
    # `process.terminate()` might collect the exit code of a process that has just ended. The event loop, which waits
    # for this exit code, would then never receive it.
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGTERM)
        with contextlib.suppress(asyncio.TimeoutError):
            return await with_deadline(10.0, process.wait())
        os.killpg(process.pid, signal.SIGKILL)
    return await process.wait()


async def fail_if_it_ends(process: Process, name: str, log: Path) -> None:
    """Wait until the process ends, then raise EnvironmentSetupError, because the process should keep running."""
    code = await process.wait()
    printed = await asyncio.to_thread(log.read_text, encoding="utf-8", errors="replace")
    lines = printed.strip().splitlines() or ["it printed nothing"]
    last = lines[-1]
    raise EnvironmentSetupError(f"{name} ended with code {code}: {last} (full output: {log})")
