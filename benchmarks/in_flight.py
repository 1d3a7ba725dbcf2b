"""How many groups one `serve` keeps in flight: python benchmarks/in_flight.py [--groups 64 256 1024 4096] > found.json

The run is real: atroposlib's run-api, a trainer that takes every batch immediately, `serve` with its workers, and an
inference server that answers each request after 20 ± 5 seconds. For each limit of groups in flight, the script starts
`serve` again, waits until the first groups have arrived, waits for the latency once more, and then measures for twice
the latency. `serve` sends all groups, including groups with equal scores.

    ideal_groups_per_s   groups in flight, over the latency
    groups_per_s         groups that reached run-api
    tokens_per_group     of all sequences of a group, prompts included, on average
    in_flight            requests that the server was answering, on average over time
    longest_gap_s        longest time without a request
    cpu_cores            processors used by serve itself (its event loop), by its workers, by run-api, by the inference
                         server ("student"), and by the whole machine; run-api and serve can use one each
    cpu_ms_per_group     processor time of the same for each group
    load                 the machine's load average before the start: numbers of a busy machine say little
    memory_mb            of serve itself (resident), and of serve with its workers (proportional)
    handles              open files and sockets of serve and its workers
    warnings             log lines of serve above INFO, by how they begin

Flags for `serve` follow after `--`. Linux only: it reads /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from run_parts.phase import Phase, Plan, Sample
from run_parts.process_table import TICKS_PER_S, process_table, totals
from run_parts.trainer import COUNT_EVERY_S, GROUP_SIZE, GROUPS_PER_BATCH, Trainer
from run_parts.windows import Window

GROUPS = (64, 256, 1024, 4096)
LATENCY_S = 20.0
TOKENS = 1000
POLL_S = 0.25
SAMPLE_S = 2.0
LOUD = ("WARNING", "ERROR", "CRITICAL")


@dataclass(frozen=True)
class Look:
    """A sample, its moment on the monotonic clock, and the processor seconds that the machine had used until then."""

    moment: float
    sample: Sample
    machine_cpu_s: float


class InFlightRun(Phase):
    """`serve` with a number of groups in flight."""

    def __init__(self, plan: Plan, folder: Path, in_flight: int, tokens: int) -> None:
        super().__init__(plan, folder)
        self._in_flight = in_flight
        self._tokens = tokens
        self._looks: list[Look] = []

    def _processes(self, api_port: int, student_port: int, api: str, student: str) -> list[Any]:
        arguments = (str(student_port), str(self._plan.latency_s), str(self._tokens), str(self._requests))
        server = ("student", "run_parts.slow_server", arguments, {})
        others = super()._processes(api_port, student_port, api, student)
        return [server if process[0] == "student" else process for process in others]

    def _serve_arguments(self, api: str, student: str, tokenizer: Path, dumps: Path) -> list[str]:
        # Twice the groups in flight, because groups that wait for the trainer count too.
        batches = max(3, 2 * self._in_flight // GROUPS_PER_BATCH)
        values = {
            "env.max_num_workers_per_node": self._in_flight,
            "openai.num_max_requests_at_once": self._in_flight,
            "env.max_batches_offpolicy": batches,
            "env.max_staleness_steps": -1,
            "env.num_eval_samples_per_task": 0,
            "env.complexity_mode": "none",
            "env.ensure_scores_are_not_same": False,
        }
        flags = [text for name, value in values.items() for text in (f"--{name}", str(value))]
        mine = super()._serve_arguments(api, student, tokenizer, dumps)
        return [*mine, *flags, *self._plan.settings]

    def _look(self) -> dict[str, dict[str, float]]:
        table = process_table()
        others = {name: totals([table[self._pids[name]]]) for name in ("run-api", "student")}
        return {**super()._look(), **others}

    async def _watch(self) -> None:
        [counter] = self._counters()
        groups = 0
        while groups < self._plan.groups:
            await asyncio.sleep(POLL_S)
            groups = await asyncio.to_thread(counter.update)
        await asyncio.sleep(self._plan.latency_s)
        end = time.monotonic() + 2 * self._plan.latency_s
        while time.monotonic() < end:
            sample = Sample(groups, await asyncio.to_thread(self._look))
            self._looks.append(Look(time.monotonic(), sample, machine_cpu_s()))
            await asyncio.sleep(SAMPLE_S)
        # Let the trainer count once more, so that the window ends between two counts.
        await asyncio.sleep(2 * COUNT_EVERY_S)

    def _report(self, end: dict[str, Any], trainer: Trainer, left_in_queue: int) -> dict[str, Any]:
        first = self._looks[0]
        last = self._looks[-1]
        window = Window(first.moment, last.moment)
        seconds = last.moment - first.moment
        lines = [line.split() for line in self._requests.read_text().splitlines()]
        requests = [(float(moment), float(moment) + float(latency_s)) for moment, latency_s in lines]
        rate = window.rate(trainer.received)
        cpu_s = {who: last.sample.held[who]["cpu_s"] - first.sample.held[who]["cpu_s"] for who in last.sample.held}
        cores = {who: round(used / seconds, 2) for who, used in cpu_s.items()}
        cores["machine"] = round((last.machine_cpu_s - first.machine_cpu_s) / seconds, 2)
        return {
            "groups_in_flight": self._in_flight,
            "ideal_groups_per_s": round(self._in_flight / self._plan.latency_s, 1),
            "groups_per_s": round(rate, 1),
            "tokens_per_group": self._tokens_per_group(),
            "in_flight": round(window.mean_open(requests)),
            "longest_gap_s": round(window.longest_gap([began for began, _ in requests]), 2),
            "cpu_cores": cores,
            "cpu_ms_per_group": {who: round(1e3 * used / seconds / rate, 1) for who, used in cpu_s.items()},
            "memory_mb": {
                "serve": self._largest("rss_mb", "serve"),
                "with_workers": self._largest("pss_mb", "serve", "workers"),
            },
            "handles": self._largest("handles", "serve", "workers"),
            "warnings": self._warnings(),
            "after_sigterm": end,
        }

    def _tokens_per_group(self) -> int:
        paths = self._dumps[0].glob("*.jsonl*")
        groups = [json.loads(line)["rollouts"] for path in paths for line in path.read_text().splitlines()]
        return round(fmean(sum(rollout["num_tokens"] for rollout in rollouts) for rollouts in groups))

    def _largest(self, what: str, *who: str) -> int:
        return round(max(sum(look.sample.held[name][what] for name in who) for look in self._looks))

    def _warnings(self) -> dict[str, int]:
        log = (self._folder / "serve-0.log").read_text(errors="replace")
        fields = [line.split(maxsplit=2) for line in log.splitlines()]
        return dict(Counter(line[2][:60] for line in fields if len(line) == 3 and line[1] in LOUD))


def machine_cpu_s() -> float:
    """Processor seconds that all processes together have used since the machine started."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _waiting, interrupts, soft_interrupts = map(int, fields[:7])
    return (user + nice + system + interrupts + soft_interrupts) / TICKS_PER_S


async def run(chosen: argparse.Namespace, folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = {
        "cores": os.cpu_count(),
        "latency_s": chosen.latency,
        "completions": f"{GROUP_SIZE} a group, of {chosen.tokens} tokens",
        "cells": [],
    }
    for in_flight in chosen.groups:
        plan = Plan(f"{in_flight} in flight", 1, 1, chosen.tasks, SAMPLE_S, chosen.latency, chosen.settings)
        load = os.getloadavg()[0]
        found = await InFlightRun(plan, folder / str(in_flight), in_flight, chosen.tokens).run()
        cell = {"load": round(load, 1), **found}
        report["cells"].append(cell)
        print(json.dumps(cell), file=sys.stderr, flush=True)
    return report


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, nargs="+", default=GROUPS, help="groups in flight, of each run")
    parser.add_argument("--latency", type=float, default=LATENCY_S, help=f"seconds (default: {LATENCY_S:g})")
    parser.add_argument("--tokens", type=int, default=TOKENS, help=f"of a completion (default: {TOKENS})")
    parser.add_argument("--tasks", default="*", help="tasks that are served (default: all)")
    parser.add_argument("--folder", type=Path, help="keep logs and dumps here (default: removed)")
    parser.add_argument("settings", nargs="*", help="more flags for serve, after --")
    return parser.parse_args(arguments)


def main() -> None:
    chosen = parsed()
    with tempfile.TemporaryDirectory(prefix="in-flight-") as temporary:
        folder = chosen.folder.resolve() if chosen.folder else Path(temporary)
        report = asyncio.run(run(chosen, folder))
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
