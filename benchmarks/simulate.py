"""Several environments at one run-api under thousands of random schedules: python benchmarks/simulate.py [--seeds 2000]

A schedule has one to four environments, and faults in any order: restarts of run-api and of its trainer, a gateway that
answers 404, 502 or 503, lost answers, environments that are killed or terminated, disks that are full or hang, and
workers that make most items too late. It runs in simulated time (testing/cluster.py), with the run-api of atroposlib.

After the last fault, all components recover. Then every living environment must be registered, only living environments
may have a share, no level may be closed, and each item must be in exactly one place. If a schedule fails, hypothesis
searches for the smallest failing schedule for some minutes.

    schedules       how many schedules have passed
    figures         faults by kind, processes, accepted groups, and `phantoms`: registrations that keep a share although
                    their process has ended, because it was killed before a checkpoint knew them or an answer was lost
    failures        the smallest schedule that fails and its error, for each process of this script
    passes          whether there is none

The same `--seed` gives the same schedules. A schedule takes one to two seconds on one core.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hypothesis import HealthCheck, given, seed, settings
from tqdm import tqdm

from testing.cluster import Schedule, run_cluster, schedules


class Part:
    """The schedules of one process of this script."""

    def __init__(self, number: int, seeds: int, queue: Any) -> None:
        self._number = number
        self._seeds = seeds
        self._queue = queue
        self._failed: Schedule | None = None

    def run(self) -> None:
        """Put the figures of each schedule into the queue, then the smallest failure, or None."""
        logging.disable(logging.CRITICAL)
        chosen = settings(
            max_examples=self._seeds,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        )
        failure = None
        try:
            seed(self._number)(chosen(given(schedules)(self._simulate)))()
        except Exception as error:  # noqa: BLE001
            # The last schedule that hypothesis has run is the smallest failing schedule.
            failure = {"schedule": repr(self._failed), "error": f"{type(error).__name__}: {error}"}
        self._queue.put(failure)

    def _simulate(self, schedule: Schedule) -> None:
        try:
            with tempfile.TemporaryDirectory() as folder:
                cluster = run_cluster(schedule, Path(folder))
        except Exception:
            self._failed = schedule
            raise
        if self._failed is None:
            self._queue.put(cluster.figures)


def run_part(number: int, seeds: int, queue: Any) -> None:
    Part(number, seeds, queue).run()


def simulate(seeds: int, first_seed: int, processes: int) -> dict[str, Any]:
    """Simulate so many schedules, in several processes."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    parts = []
    for number in range(processes):
        share = len(range(number, seeds, processes))
        part = context.Process(target=run_part, args=(first_seed + number, share, queue), daemon=True)
        part.start()
        parts.append(part)
    figures: Counter[str] = Counter()
    failures = []
    passed = 0
    running = processes
    with tqdm(total=seeds, unit="schedule", disable=None) as bar:
        while running:
            result = queue.get()
            if isinstance(result, Counter):
                figures.update(result)
                passed += 1
                bar.update()
                continue
            running -= 1
            if result is not None:
                failures.append(result)
                bar.write(f"This schedule fails ({result['error']}):\n{result['schedule']}", file=sys.stderr)
    for part in parts:
        part.join()
    return {
        "schedules": passed,
        "seed": first_seed,
        "figures": dict(sorted(figures.items())),
        "failures": failures,
        "passes": not failures,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--seeds", type=int, default=2000, help="number of schedules (default: 2000)")
    parser.add_argument("--seed", type=int, default=0, help="the first seed of hypothesis (default: 0)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="default: one for each core")
    options = parser.parse_args(arguments)
    if options.seeds < 1 or options.processes < 1:
        parser.error("--seeds and --processes must be at least 1")
    result = simulate(options.seeds, options.seed, min(options.processes, options.seeds))
    print(json.dumps(result, indent=2))
    return 0 if result["passes"] else 1


if __name__ == "__main__":
    sys.exit(main())
