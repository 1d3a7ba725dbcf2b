"""Compare the cost of a run with the least possible cost: python benchmarks/limit.py [--original FOLDER] > limit.json

The work of a group is to make its item and to score its answers. The limit is the time that bare reasoning-gym needs
for this work in a single process: it builds the dataset, makes the item, and scores each answer (the bare answer, and
the answer in tags unless the bare answer gave full credit, as in the rules of reward). The run is real: run-api,
`serve`, an instant server, a trainer that takes every batch, all tasks with equal chances, groups of eight, both dumps
on. Afterwards, this script makes the items in the dumps again and scores their answers.

    limit            processor time of the bare library per group, divided into building, items and answers
    ratio            the limit divided by the processor time of serve and its workers per group. Both exclude the
                     start-up, which is the first tenth of the groups. The ratio is above 1 if the library spends more
                     time on steps that it repeats for each item, and that the workers do once or faster
                     (workers/datasets.py), than the environment spends on all its other work
    groups_per_s     by the clock, in the same window; all processes share the machine's cores
    longest_gaps_s   the five longest times between two requests to the student in this window
    growth           MB of resident memory and open handles per 1,000 groups, by least squares over the second half. For
                     the growth in a long run, use --groups 10000
    after_sigterm    a SIGTERM while groups are in flight: seconds until the end, exit codes, remaining processes
    rss_mb, pss_mb   memory of serve and its workers together, at the end. rss counts shared memory for each process,
                     and pss divides it between the processes
    scores_unlike    answers with different scores in the bare library and in the run, because the items differ

--original names a checkout of the environment that this project reimplements. Its serve runs in the same harness,
alternating with ours. With levels, it uses the default configs for most tasks, so only `--difficulty none` is a fair
comparison. Linux only, because this script reads /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from run_parts.dumps import DumpCounter
from run_parts.original import original_process
from run_parts.phase import Phase, Plan
from run_parts.trainer import Trainer

from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.tasks.catalog import Task, config_of
from reasoning_gym_environment.tasks.difficulty_ladder import build_ladders
from reasoning_gym_environment.verification.grade import grade

GROUPS = 1500
WARM = 0.1
"""Share of the groups that counts as start-up."""
SETTLED_MB = 3
"""The memory is the median of this many samples at the end."""


class OwnRun(Phase):
    """`serve` of this project."""

    def _serve_arguments(self, *addresses: Any) -> list[str]:
        return [*super()._serve_arguments(*addresses), "--env.num_eval_samples_per_task", "0"]

    def _report(self, end: dict[str, Any], trainer: Trainer, left_in_queue: int) -> dict[str, Any]:
        samples = [sample for sample in self._samples if sample.groups >= WARM * self._plan.groups]
        first, last = samples[0], samples[-1]
        groups = last.groups - first.groups
        times = [float(line) for line in self._requests.read_text().splitlines()]
        began, ended = (next(at for at, count in self._history if count >= sample.groups) for sample in (first, last))
        inside = [at for at in times if began <= at <= ended]

        def memory(what: str) -> float:
            totals = [sum(held[what] for held in sample.held.values()) for sample in samples[-SETTLED_MB:]]
            return round(statistics.median(totals))

        cpu = {who: 1e3 * (last.held[who]["cpu_s"] - first.held[who]["cpu_s"]) / groups for who in first.held}
        return {
            "window": [first.groups, last.groups],
            "cpu_ms_per_group": {**{who: round(value, 1) for who, value in cpu.items()}, "all": sum(cpu.values())},
            "groups_per_s": round(groups / (ended - began), 1),
            "longest_gaps_s": sorted((round(b - a, 2) for a, b in itertools.pairwise(inside)), reverse=True)[:5],
            "rss_mb": memory("rss_mb"),
            "pss_mb": memory("pss_mb"),
            "growth": {what: self._growth(what) for what in ("rss_mb", "handles")},
            "after_sigterm": end,
            "processes": last.held["workers"]["processes"] + 1,
            "sent": trainer.groups + left_in_queue,
        }

    def _growth(self, what: str) -> float | None:
        later = [sample for sample in self._samples if sample.groups >= self._plan.groups / 2]
        totals = [sum(held[what] for held in sample.held.values()) for sample in later]
        if len({sample.groups for sample in later}) < 4:
            return None
        slope, _ = np.polyfit([sample.groups for sample in later], totals, 1)
        return round(1000 * float(slope), 2)


class OriginalRun(OwnRun):
    """`serve` of the original. It has no workers and different settings, and logs a line for each scored group."""

    def _processes(self, *addresses: Any) -> list[tuple[str, str, Sequence[str], dict[str, str]]]:
        own = super()._processes(*addresses)
        return [
            (name, *original_process(ORIGINAL_CHECKOUT[0], self._folder, flags))
            if name == "serve-0"
            else (name, module, flags, env)
            for name, module, flags, env in own
        ]

    def _counters(self) -> list[DumpCounter]:
        return [DumpCounter(self._folder, "serve-0.log", b"Group average score")]


ORIGINAL_CHECKOUT: list[Path] = []


def bare(folder: Path, window: tuple[int, int]) -> dict[str, Any]:
    """The cost of the groups on disk for the bare library, in ms of processor time per group of the window."""
    lines = [json.loads(line) for path in folder.glob("*.jsonl*") for line in path.read_bytes().splitlines()]
    lines.sort(key=lambda line: line["index"])
    configs = _configs({(line["task"], line["level"]) for line in lines})
    spent = {"datasets": 0.0, "items": 0.0, "answers": 0.0}
    unlike = 0
    for number, line in enumerate(lines[: window[1]]):
        if number == window[0]:
            spent = dict.fromkeys(spent, 0.0)
        config = configs[line["task"], line["level"]]
        random.seed(line["seed"])
        at = [time.process_time()]
        dataset = library.create_dataset(line["task"], seed=line["seed"], size=1, **config)
        at.append(time.process_time())
        item = dataset[0]
        at.append(time.process_time())
        answers = [rollout["answer"] for rollout in line["rollouts"] if rollout["answer"] is not None]
        native = [grade(dataset.score_answer, item, answer).native for answer in answers]
        at.append(time.process_time())
        for name, before, after in zip(spent, at, at[1:], strict=False):
            spent[name] += after - before
        recorded = [rollout["native_score"] for rollout in line["rollouts"] if rollout["answer"] is not None]
        unlike += sum(abs(mine - its) > 1e-6 for mine, its in zip(native, recorded, strict=True))
    groups = window[1] - window[0]
    parts = {name: round(1e3 * value / groups, 2) for name, value in spent.items()}
    return {"ms_per_group": round(sum(parts.values()), 2), **parts, "scores_unlike": unlike}


def _configs(wanted: set[tuple[str, int | None]]) -> dict[tuple[str, int | None], dict[str, Any]]:
    """The configs by task and level. The config in a line of a dump has lost the types that JSON lacks."""
    tasks = [Task(name, "") for name in {name for name, level in wanted if level is not None}]
    ladders = build_ladders(tasks)
    return {
        (name, level): config_of(name) if level is None else dict(ladders[name].levels[level].config)
        for name, level in wanted
    }


async def run(chosen: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The whole report. After a signal, it ends all processes and raises CancelledError."""
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, asyncio.current_task().cancel)
    settings = ["--env.complexity_mode", chosen.difficulty, *chosen.settings]
    plan = Plan("limit", chosen.groups, 1, "*", 0.5, chosen.latency, settings)
    report: dict[str, Any] = {
        "difficulty": chosen.difficulty,
        "latency_s": chosen.latency,
        "groups": chosen.groups,
        "cores": os.cpu_count(),
    }
    kinds: list[type[OwnRun]] = [*[OriginalRun] * bool(chosen.original), OwnRun]
    for turn in range(chosen.turns):
        for kind in kinds:
            place = folder / f"{kind.__name__}-{turn}"
            load = os.getloadavg()[0]
            found = {"load_before": round(load, 2), **await kind(plan, place).run()}
            if kind is OwnRun:
                limit = await asyncio.to_thread(bare, place / "dumps-0", tuple(found["window"]))
                found["limit"] = limit
                found["ratio"] = round(limit["ms_per_group"] / found["cpu_ms_per_group"]["all"], 3)
            found["cpu_ms_per_group"]["all"] = round(found["cpu_ms_per_group"]["all"], 1)
            report.setdefault("ours" if kind is OwnRun else "original", []).append(found)
            print(kind.__name__, json.dumps(found), file=sys.stderr, flush=True)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=GROUPS, help=f"groups of each run (default: {GROUPS})")
    parser.add_argument("--difficulty", default="none", help="value of complexity_mode (default: none)")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds that each request takes (default: 0)")
    parser.add_argument("--turns", type=int, default=1, help="runs of each environment (default: 1)")
    parser.add_argument("--original", type=Path, help="folder with the original's reasoning_gym_environment.py")
    parser.add_argument("--folder", type=Path, help="keep logs and dumps here (default: removed)")
    parser.add_argument("settings", nargs="*", help="more flags for serve, after --")
    chosen = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Some items depend on the hash seed, and the workers that made the items have this hash seed.
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"})
    if chosen.original:
        ORIGINAL_CHECKOUT.append(chosen.original.resolve())
    kept = chosen.folder and chosen.folder.resolve()
    with tempfile.TemporaryDirectory(prefix="limit-") as temporary:
        # The programs in some questions write files.
        os.chdir(temporary)
        try:
            # Some generators print, but standard output is for the report.
            with library.stdout_to_stderr():
                report = asyncio.run(run(chosen, kept or Path(temporary)))
        except asyncio.CancelledError:
            sys.exit("Stopped. All processes have ended.")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
