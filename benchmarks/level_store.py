"""Measure the wait for a store of levels while many processes write and some of them are killed.

    python -m benchmarks.level_store --writers 16 --kills 50

All writers write as fast as they can. Prints JSON: the rewards per second, the longest wait of a surviving writer, and
the numbers of groups that were lost or counted twice.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from reasoning_gym_environment.sampling.level_store import LevelStore
from testing import store_writers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--writers", type=int, default=16)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--folder", type=Path, help="a folder on the file system to measure (default: a temporary one)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "levels.sqlite"
        begun = time.monotonic()
        waits = store_writers.run(path, rows=options.rows, writers=options.writers, kills=options.kills)
        seconds = time.monotonic() - begun
        summary = LevelStore(path).summary()
    counted = sum(task.groups for task in summary.tasks)
    result = {
        "writers": options.writers,
        "killed": options.kills,
        "groups": options.rows,
        "lost": options.rows - summary.complete,
        "counted_twice": counted - summary.complete,
        "rewards_per_s": round(options.rows * store_writers.GROUP / seconds),
        "longest_wait_s": round(max(waits), 3),
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
