"""What processes hold, read from /proc (Linux): resident memory, file handles, threads, processor time."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 2**20
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Process:
    """One line of the table. `started`, in ticks since boot, tells it from a later process with its number.

    `cpu_s` includes the time of children that have ended, because a scoring worker forks a child for each group.
    """

    pid: int
    parent: int
    session: int
    started: int
    threads: int
    cpu_s: float
    rss_mb: float

    @property
    def identity(self) -> tuple[int, int]:
        return self.pid, self.started


def process_table() -> dict[int, Process]:
    """Every process that is no zombie."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            pid = int(path.parent.name)
            cpu_s = sum(map(int, fields[11:15])) / TICKS_PER_S
            rss_mb = int(fields[21]) * PAGE_MB
            found[pid] = Process(pid, int(fields[1]), int(fields[3]), int(fields[19]), int(fields[17]), cpu_s, rss_mb)
    return found


def descendants(pid: int, table: Mapping[int, Process]) -> list[Process]:
    """Children of `pid`, their children, and so on."""
    found: list[Process] = []
    parents = {pid}
    while parents:
        children = [process for process in table.values() if process.parent in parents]
        found += children
        parents = {process.pid for process in children}
    return found


def handles(pid: int) -> int | None:
    """Open file handles; None if the process has ended or does not let itself be looked at."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 - a count, many times a second
    except OSError:
        return None


def proportional_mb(pid: int) -> float | None:
    """Resident memory in which a page that n processes share counts 1/n; None as for `handles`."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def totals(processes: Iterable[Process]) -> dict[str, float]:
    """What these hold together. In `rss_mb` memory that they share counts once for each of them."""
    processes = list(processes)
    open_handles = [handles(process.pid) for process in processes]
    return {
        "processes": len(processes),
        "rss_mb": sum(process.rss_mb for process in processes),
        "pss_mb": sum(proportional_mb(process.pid) or 0.0 for process in processes),
        "threads": sum(process.threads for process in processes),
        "handles": sum(number or 0 for number in open_handles),
        "handles_unreadable": sum(number is None for number in open_handles),
        "cpu_s": sum(process.cpu_s for process in processes),
    }
