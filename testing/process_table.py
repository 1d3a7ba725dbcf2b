"""Which processes there are, for tests that must leave none behind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PATIENCE_S = 600.0

linux_only = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")


def living_processes() -> Iterator[tuple[int, int, int]]:
    """Yield number, parent and session of every process that is no zombie."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent, _, session, *_ = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if state != "Z":
            yield int(stat.parent.name), int(parent), int(session)


def parents() -> dict[int, int]:
    """Process -> parent, for every process that is no zombie."""
    return {process: parent for process, parent, _ in living_processes()}


def members_of_session(session: int) -> list[int]:
    return [process for process, _, its_session in living_processes() if its_session == session]


def workers_of(pid: int) -> list[int]:
    return [process for process, parent in parents().items() if parent == pid]


async def until(condition: Callable[[], bool], what: str = "it") -> None:
    """Return when the condition is true. Other tasks of the event loop run meanwhile. Fails after ten minutes."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"waited {PATIENCE_S:.0f} s for {what}"
        await asyncio.sleep(0.01)
