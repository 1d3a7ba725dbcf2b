"""Processes that add rewards to a store of levels at the same time. Some of them are killed while they write."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path
from random import Random
from typing import Any

from reasoning_gym_environment.sampling.level_store import LevelStore, StoreSettings

LEVELS = {"a": 5, "b": 3, "c": 1}
TASKS = sorted(LEVELS)
GROUP = 4


def new_store(path: Path, rows: int = 1000) -> LevelStore:
    return LevelStore.create(path, StoreSettings(rows, GROUP, 0.7), LEVELS)


def task_of(row: int) -> str:
    return TASKS[row % len(TASKS)]


def run(path: Path, *, rows: int, writers: int, kills: int) -> list[float]:
    """Complete the groups of all rows. Returns the longest wait of each writer that was not killed, in seconds.

    A new writer replaces each killed writer, and continues with its rows.
    """
    store = new_store(path, rows)
    for row in range(rows):
        store.keep(row, task_of(row), 0, {})
    context = multiprocessing.get_context("spawn")
    waits: Any = context.Queue()
    random = Random(3)

    def begin(number: int) -> Any:
        writer = context.Process(target=_write, args=(path, range(number, rows, writers), waits))
        writer.start()
        return writer

    running = [begin(number) for number in range(writers)]
    while any(writer.is_alive() for writer in running):
        time.sleep(random.uniform(0.02, 0.2))
        number = random.randrange(writers)
        if kills and running[number].is_alive():
            running[number].kill()
            running[number].join()
            running[number] = begin(number)
            kills -= 1
    assert [writer.exitcode for writer in running] == [0] * writers
    return [waits.get() for _ in running]


def _write(path: Path, rows: range, waits: Any) -> None:
    store = LevelStore(path)
    longest = 0.0
    for row in rows:
        # A killed writer may have added any number of the rewards.
        while not store.is_complete(row):
            before = time.monotonic()
            store.add(row, 1.0)
            longest = max(longest, time.monotonic() - before)
    waits.put(longest)
