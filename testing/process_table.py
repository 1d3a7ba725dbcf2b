"""The processes of this machine, read from /proc (Linux): which there are, their processor time, and their memory."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PATIENCE_S = 600.0
PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 2**20
TICKS_PER_S = os.sysconf("SC_CLK_TCK")

linux_only = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")


@dataclass(frozen=True)
class Process:
    """A process that is no zombie. `cpu_s` includes the time of children that have ended, and `own_cpu_s` does not."""

    pid: int
    parent: int
    session: int
    own_cpu_s: float
    cpu_s: float
    rss_mb: float


def living_processes() -> Iterator[Process]:
    """Yield every process that is no zombie."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        # The process has ended.
        except OSError:
            continue
        if fields[0] == "Z":
            continue
        times = [int(ticks) / TICKS_PER_S for ticks in fields[11:15]]
        yield Process(
            pid=int(stat.parent.name),
            parent=int(fields[1]),
            session=int(fields[3]),
            own_cpu_s=sum(times[:2]),
            cpu_s=sum(times),
            rss_mb=int(fields[21]) * PAGE_MB,
        )


def with_descendants(pid: int) -> list[Process]:
    """The process, its children, their children, and so on. The process itself comes first."""
    table = list(living_processes())
    found = [process for process in table if process.pid == pid]
    for parent in found:
        # The list grows while the loop runs, so the loop also reaches the children's children.
        found += [process for process in table if process.parent == parent.pid]
    return found


def proportional_mb(pid: int) -> float:
    """Resident memory in which a page that n processes share counts 1/n. 0 if the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def parents() -> dict[int, int]:
    """Process -> parent, for every process that is no zombie."""
    return {process.pid: process.parent for process in living_processes()}


def members_of_session(session: int) -> list[int]:
    return [process.pid for process in living_processes() if process.session == session]


def workers_of(pid: int) -> list[int]:
    return [process.pid for process in living_processes() if process.parent == pid]


async def until(condition: Callable[[], bool], what: str = "it") -> None:
    """Return when the condition is true. Other tasks of the event loop run meanwhile. Fails after ten minutes."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"waited {PATIENCE_S:.0f} s for {what}"
        await asyncio.sleep(0.01)
