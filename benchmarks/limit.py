"""How near a run comes to what its work costs at least: python benchmarks/limit.py [--original FOLDER] > limit.json

The work of a group is to make its item and to score its answers. Its limit is what bare reasoning-gym needs for that in
one process: build the dataset, take the item, score each answer (bare, and in tags unless that gave full credit, as the
rules of reward have it). The run is real: run-api, `serve`, an instant server, a trainer that takes what comes, all
tasks with equal chances, groups of eight, both dumps on. Then its dumps are made and scored again here.

    limit            processor time a group of the bare library, and the share of it for building, items, answers
    ratio            the limit, over the processor time a group of serve and its workers. The start-up is left out of
                     both: the first tenth of the groups. Above 1 where what the library does again for each item, and
                     the workers do once or faster (workers/datasets.py), takes longer than
                     all the work that is ours
    groups_per_s     by the clock, in the same window; everything shares the machine's cores
    longest_gaps_s   between two requests that the student got, the five longest in that window
    growth           MB of resident memory and open handles per 1,000 groups, by least squares over the second half; for
                     what a long run holds: --groups 10000
    after_sigterm    while groups are in flight: seconds until the end, exit codes, processes left over
    rss_mb, pss_mb   of serve and its workers together, at the end; memory that processes share counts for each in rss,
                     in parts in pss
    scores_unlike    answers that the bare library scores unlike the run: items that it did not make alike

With --original, a checkout of the environment this one takes after, its serve runs in the same harness, by turns. At
levels it falls back to the default configs for most tasks, so that only `--difficulty none` compares like with like.
Linux only: it reads /proc.
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
"""Samples at the end of which the median is the memory."""


class OwnRun(Phase):
    """`serve` of this project."""

    def _serve_arguments(self, *addresses: Any) -> list[str]:
        return [*super()._serve_arguments(*addresses), "--env.num_eval_samples_per_task", "0"]

    def _report(self, end: dict[str, Any], trainer: Trainer, left_in_queue: int) -> dict[str, Any]:
        samples = [one for one in self._samples if one.groups >= WARM * self._plan.groups]
        first, last = samples[0], samples[-1]
        groups = last.groups - first.groups
        times = [float(line) for line in self._requests.read_text().splitlines()]
        began, ended = (next(at for at, count in self._history if count >= one.groups) for one in (first, last))
        inside = [at for at in times if began <= at <= ended]

        def memory(what: str) -> float:
            last_ones = [sum(held[what] for held in one.held.values()) for one in samples[-SETTLED_MB:]]
            return round(statistics.median(last_ones))

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
        later = [one for one in self._samples if one.groups >= self._plan.groups / 2]
        held = [sum(of[what] for of in one.held.values()) for one in later]
        if len({one.groups for one in later}) < 4:
            return None
        return round(1000 * float(np.polyfit([one.groups for one in later], held, 1)[0]), 2)


class OriginalRun(OwnRun):
    """`serve` of the original: no workers, settings of its own; it logs a line for each group that it scores."""

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
    """What the groups on disk cost the bare library, in ms of processor time a group of the window."""
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
        answers = [one["answer"] for one in line["rollouts"] if one["answer"] is not None]
        native = [grade(dataset.score_answer, item, answer).native for answer in answers]
        at.append(time.process_time())
        for name, before, after in zip(spent, at, at[1:], strict=False):
            spent[name] += after - before
        recorded = [one["native_score"] for one in line["rollouts"] if one["answer"] is not None]
        unlike += sum(abs(mine - its) > 1e-6 for mine, its in zip(native, recorded, strict=True))
    groups = window[1] - window[0]
    parts = {name: round(1e3 * value / groups, 2) for name, value in spent.items()}
    return {"ms_per_group": round(sum(parts.values()), 2), **parts, "scores_unlike": unlike}


def _configs(wanted: set[tuple[str, int | None]]) -> dict[tuple[str, int | None], dict[str, Any]]:
    """By task and level: a line's own has lost what JSON does not know."""
    tasks = [Task(name, "") for name in {name for name, level in wanted if level is not None}]
    ladders = build_ladders(tasks)
    return {
        (name, level): config_of(name) if level is None else dict(ladders[name].levels[level].config)
        for name, level in wanted
    }


async def run(chosen: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The whole report. A signal ends all processes, then this with CancelledError."""
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
    parser.add_argument("--difficulty", default="none", help="what complexity_mode is set to (default: none)")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds that each request takes (default: 0)")
    parser.add_argument("--turns", type=int, default=1, help="runs of each (default: 1)")
    parser.add_argument("--original", type=Path, help="folder with the original's reasoning_gym_environment.py")
    parser.add_argument("--folder", type=Path, help="keep logs and dumps here (default: removed)")
    parser.add_argument("settings", nargs="*", help="more flags for serve, after --")
    chosen = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Some items depend on it, and the workers that made them have this one.
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"})
    if chosen.original:
        ORIGINAL_CHECKOUT.append(chosen.original.resolve())
    kept = chosen.folder and chosen.folder.resolve()
    with tempfile.TemporaryDirectory(prefix="limit-") as temporary:
        # The programs in some questions write files when they are run.
        os.chdir(temporary)
        try:
            # Some generators print; standard output is for the report.
            with library.stdout_to_stderr():
                report = asyncio.run(run(chosen, kept or Path(temporary)))
        except asyncio.CancelledError:
            sys.exit("Stopped; nothing is left running.")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
