"""The demo's other processes: started together, always stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from ..errors import EnvironmentSetupError

STOP_S = 10.0


def free_port() -> int:
    """A port of the loopback interface that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def running(
    module: str, *arguments: str, log: Path, pass_fd: int | None = None, env: dict[str, str] | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """`python -m module arguments` in a session of its own, its output in `log`; ended with the block."""
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            module,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, **(env or {})},
            pass_fds=() if pass_fd is None else (pass_fd,),
            start_new_session=True,
        )
    try:
        yield process
    finally:
        await stop(process)


async def stop(process: asyncio.subprocess.Process) -> int:
    """Ask the process to end, then insist; returns its exit code."""
    if process.returncode is None:
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), timeout=STOP_S)
        except asyncio.TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)
    return await process.wait()


async def fail_if_it_ends(process: asyncio.subprocess.Process, name: str, log: Path) -> None:
    """Returns only by raising, when the process ends although it should still run."""
    code = await process.wait()
    last = await asyncio.to_thread(_last_line, log)
    raise EnvironmentSetupError(f"{name} ended with code {code}: {last} (all of it: {log})")


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "it printed nothing"
