"""Which processes there are, for tests that must leave none behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

linux_only = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")


def parents() -> dict[int, int]:
    """Process -> parent, for every process that is no zombie."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent, *_ = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if state != "Z":
            found[int(stat.parent.name)] = int(parent)
    return found


def workers_of(pid: int) -> list[int]:
    return [process for process, parent in parents().items() if parent == pid]


async def until(condition: Callable[[], bool]) -> None:
    """Return when it is so; the event loop goes on."""
    for _ in range(12_000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("still not so after 2 minutes")
