"""Groups per second while run-api answers late: python benchmarks/latency.py [--delays 0 0.15 0.5 2] > latency.json

The run is real: atroposlib's run-api, a trainer that takes every batch as soon as it is complete, an inference server
that answers after `--inference` seconds, and one `serve`, which reaches run-api through a proxy that delays answers.
With the default of one second and 16 groups in flight, about 16 groups a second are possible. With an instant server,
run-api itself reaches its limit (about 40 groups a second on a core). Then a delay makes requests arrive in bursts,
which run-api needs seconds to work off, and the numbers describe run-api. The trainer has no delay.
The delay changes while `serve` runs. The script goes through all delays several times, so that a machine that gets
slower or faster during the run affects all delays equally. It starts to count after the first groups of `serve`
(`--warm`), and pauses for some seconds after each change.

    groups_per_s      groups that reached run-api, for each round, and their mean
    of_undelayed      the mean, over the mean of the smallest delay
    longest_gap_s     longest time in which the inference server got no request
    passes            whether each delay has at least 0.9 of the groups per second of the smallest delay

Flags for `serve` follow after `--`. Linux only: it reads /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from run_parts.phase import Phase, Plan
from run_parts.trainer import COUNT_EVERY_S, GROUP_SIZE, Trainer
from run_parts.windows import Window

from testing.delaying_proxy import DelayingProxy

DELAYS_S = (0.0, 0.15, 0.5, 2.0)
BATCH = 1024
"""The default of the environment. The queue holds a few batches, and counts each group until a status has shown it, so
that with small batches and a high latency the queue limits the groups per second, and not `serve`."""
WARM_GROUPS = 150
SETTLE_S = 5.0
"""Seconds after a change of the delay in which nothing is counted; the delay itself comes on top."""
POLL_S = 0.1
BAR = 0.9
TASKS = "chain_sum,gcd,base_conversion,number_sorting"


class LatencyRun(Phase):
    """`serve` behind the proxy, with a window for each delay in each round."""

    def __init__(self, plan: Plan, folder: Path, delays: Sequence[float], window_s: float, rounds: int) -> None:
        super().__init__(plan, folder)
        self._delays = delays
        self._window_s = window_s
        self._rounds = rounds
        self._windows: list[tuple[float, Window]] = []

    async def run(self) -> dict[str, Any]:
        async with DelayingProxy() as self._proxy:
            return await super().run()

    def _processes(self, api_port: int, student_port: int, api: str, student: str) -> list[Any]:
        self._proxy.target_port = api_port
        return super()._processes(api_port, student_port, api, student)

    def _serve_arguments(self, api: str, student: str, tokenizer: Path, dumps: Path) -> list[str]:
        # Later flags override earlier ones.
        arguments = super()._serve_arguments(self._proxy.url, student, tokenizer, dumps)
        return [*arguments, "--env.num_eval_samples_per_task", "0"]

    async def _watch(self) -> None:
        await self._warm_up()
        for number, delay_s in itertools.product(range(self._rounds), self._delays):
            self._proxy.delay_s = delay_s
            await asyncio.sleep(SETTLE_S + delay_s)
            began = time.monotonic()
            await asyncio.sleep(self._window_s)
            self._windows.append((delay_s, Window(began, time.monotonic())))
            print(f"round {number + 1}: {delay_s:g} s measured", file=sys.stderr, flush=True)
        # Let the trainer count once more, so that the last window ends between two counts.
        await asyncio.sleep(2 * COUNT_EVERY_S)

    async def _warm_up(self) -> None:
        [counter] = self._counters()
        groups = 0
        while groups < self._plan.groups:
            await asyncio.sleep(POLL_S)
            groups = await asyncio.to_thread(counter.update)

    def _report(self, end: dict[str, Any], trainer: Trainer, left_in_queue: int) -> dict[str, Any]:
        requests = [float(line) for line in self._requests.read_text().splitlines()]
        delays: dict[str, dict[str, Any]] = {}
        for delay_s in self._delays:
            windows = [window for delay, window in self._windows if delay == delay_s]
            rates = [window.rate(trainer.received) for window in windows]
            delays[f"{delay_s:g}"] = {
                "groups_per_s": [round(found, 2) for found in rates],
                "mean_groups_per_s": fmean(rates),
                "longest_gap_s": round(max(window.longest_gap(requests) for window in windows), 2),
            }
        undelayed = delays[f"{min(self._delays):g}"]["mean_groups_per_s"]
        for found in delays.values():
            found["of_undelayed"] = round(found["mean_groups_per_s"] / undelayed, 3) if undelayed else 0.0
            found["mean_groups_per_s"] = round(found["mean_groups_per_s"], 2)
        passes = all(found["of_undelayed"] >= BAR for found in delays.values())
        return {"cores": os.cpu_count(), "delays_s": delays, "passes": passes, "after_sigterm": end}


async def run(chosen: argparse.Namespace, folder: Path) -> dict[str, Any]:
    # `serve` also sends groups with equal scores, so that every finished group counts.
    settings = ["--env.complexity_mode", "none", "--env.ensure_scores_are_not_same", "False", *chosen.settings]
    groups_per_batch = chosen.batch // GROUP_SIZE
    plan = Plan("latency", chosen.warm, 1, chosen.tasks, 1.0, chosen.inference, settings, groups_per_batch)
    return await LatencyRun(plan, folder / "run", chosen.delays, chosen.window, chosen.rounds).run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delays", type=float, nargs="+", default=DELAYS_S, help="seconds (default: 0 0.15 0.5 2)")
    parser.add_argument("--window", type=float, default=20.0, help="seconds for each delay in each round (default: 20)")
    parser.add_argument("--rounds", type=int, default=2, help="times that all delays come (default: 2)")
    parser.add_argument("--warm", type=int, default=WARM_GROUPS, help=f"groups before (default: {WARM_GROUPS})")
    parser.add_argument("--batch", type=int, default=BATCH, help=f"sequences of a batch (default: {BATCH})")
    parser.add_argument("--tasks", default=TASKS, help=f"tasks that are served (default: {TASKS})")
    parser.add_argument("--inference", type=float, default=1.0, help="seconds for completions (default: 1)")
    parser.add_argument("--folder", type=Path, help="keep logs and dumps here (default: removed)")
    parser.add_argument("settings", nargs="*", help="more flags for serve, after --")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="latency-") as temporary:
        folder = chosen.folder.resolve() if chosen.folder else Path(temporary)
        report = asyncio.run(run(chosen, folder))
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
