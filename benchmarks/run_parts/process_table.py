"""Processor time and memory of processes, read from /proc (Linux)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 2**20
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Process:
    """A process that is no zombie. `cpu_s` includes the time of children that have ended, and `own_cpu_s` does not."""

    pid: int
    parent: int
    own_cpu_s: float
    cpu_s: float
    rss_mb: float


def with_descendants(pid: int) -> list[Process]:
    """The process, its children, their children, and so on. The process itself comes first."""
    table = [process for path in Path("/proc").glob("[0-9]*/stat") if (process := _read(path)) is not None]
    found = [process for process in table if process.pid == pid]
    for parent in found:
        # The list grows while the loop runs, so the loop also reaches the children's children.
        found += [process for process in table if process.parent == parent.pid]
    return found


def _read(path: Path) -> Process | None:
    try:
        fields = path.read_text().rpartition(")")[2].split()
    except OSError:
        return None
    if fields[0] == "Z":
        return None
    ticks = [int(field) for field in fields[11:15]]
    own_cpu_s = sum(ticks[:2]) / TICKS_PER_S
    cpu_s = sum(ticks) / TICKS_PER_S
    return Process(int(path.parent.name), int(fields[1]), own_cpu_s, cpu_s, int(fields[21]) * PAGE_MB)


def proportional_mb(pid: int) -> float:
    """Resident memory in which a page that n processes share counts 1/n. 0 if the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
