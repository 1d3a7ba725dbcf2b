"""How fast `serve` makes groups: python benchmarks/serve_speed.py [--original FOLDER] [--groups 1500] > speed.json

Each run is real: atroposlib's run-api, an inference server that guesses, a trainer that takes every batch, all tasks,
groups of eight, both dumps on, and `serve` with its workers. The runs take turns, so that a machine that gets slower or
faster affects all of them. The JSON has each run, and the comparison of their medians.

    first_group_s     from the start of `serve` until its first group is scored; run-api and the trainer wait for it
    groups_per_s      scored groups, without the first tenth, which counts as start-up
    longest_gap_s     the longest time between two requests for completions, in the same window
    cpu_ms_per_group  processor time of serve and its workers, in the same window
    limit_ms_per_group  the processor time that bare reasoning-gym needs in a single process to make the same items and
                      to score the same answers: the bare answer, and the answer in tags unless the bare answer is right
    share_of_limit    the limit, divided by the processor time. It is above 1 if the workers save more time with what
                      they keep between items than the environment spends on all its other work
    scores_unlike     answers with another score in the bare library than in the run. Expected: 0
    memory_mb         of serve and its workers, at the end. Memory that they share counts once
    load              the machine's load average before the run. Times of a busy machine say little

--original names a folder with the script of the environment that this project reimplements. Its `serve` runs in the
same way. With levels, it falls back to the default configs for most tasks, so its items are easier. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tqdm import tqdm

from benchmarks.run_parts.serving import Serving, Setup, options_of, serving
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.tasks.catalog import Task, config_of
from reasoning_gym_environment.tasks.difficulty_ladder import build_ladders
from reasoning_gym_environment.verification.grade import grade
from testing.process_table import proportional_mb, with_descendants

MODES = ("none", "random")
WARM = 0.1
"""Share of the groups that counts as start-up."""
POLL_S = 0.1
WHATS = ("first_group_s", "groups_per_s", "longest_gap_s", "cpu_ms_per_group", "share_of_limit", "memory_mb")


class Counter:
    """Counts how often some bytes are in files, while the files grow."""

    def __init__(self, folder: Path, files: str, what: bytes) -> None:
        self._folder = folder
        self._files = files
        self._what = what
        self._read: dict[str, int] = {}
        self._count = 0

    def update(self) -> int:
        """The occurrences so far. A dump keeps its count when it gets its final name."""
        for path in self._folder.glob(self._files):
            name = path.name.removesuffix(".part")
            try:
                with path.open("rb") as file:
                    file.seek(self._read.get(name, 0))
                    new = file.read()
            except FileNotFoundError:
                continue
            self._read[name] = self._read.get(name, 0) + len(new)
            self._count += new.count(self._what)
        return self._count


@dataclass(frozen=True)
class Look:
    """The progress of a run at a moment of the monotonic clock."""

    moment: float
    groups: int
    cpu_s: float


@dataclass(frozen=True)
class Measured:
    """What was seen of a run: its first group, the end of its start-up, and its end."""

    first_group_s: float
    warm: Look
    last: Look
    memory_mb: float


async def measure(run: Serving, counter: Counter, groups: int, name: str) -> Measured:
    """Follow a run until it has scored so many groups."""
    first_group_s = None
    warm = None
    with tqdm(total=groups, desc=name, unit="group", disable=None) as bar:
        while True:
            scored = await asyncio.to_thread(counter.update)
            bar.update(min(scored, groups) - bar.n)
            if first_group_s is None and scored:
                first_group_s = time.monotonic() - run.began
            if scored >= groups * (WARM if warm is None else 1):
                processes = await asyncio.to_thread(with_descendants, run.pid)
                look = Look(time.monotonic(), scored, sum(process.cpu_s for process in processes))
                if warm is not None:
                    break
                warm = look
            await asyncio.sleep(POLL_S)
    memory_mb = sum(proportional_mb(process.pid) for process in processes)
    assert first_group_s is not None
    return Measured(first_group_s, warm, look, memory_mb)


def longest_gap(requests: Path, began: float, ended: float) -> float:
    """The longest time between two requests, or between a request and an end of the window."""
    moments = [float(line) for line in requests.read_text().splitlines()]
    marks = [began, *(moment for moment in moments if began < moment < ended), ended]
    return max(after - before for before, after in itertools.pairwise(marks))


async def one_run(options: argparse.Namespace, mode: str, folder: Path, name: str) -> dict[str, Any]:
    """Run `serve` once. Returns its figures."""
    is_original = name == "original"
    requests = folder / "requests.txt"
    settings = {
        "env.complexity_mode": mode,
        "env.dump_rollouts": True,
        "env.dump_failed_rollouts": True,
        # With 0, every scored group has a line in one of the two dumps.
        "env.rollout_save_score_threshold": 0.0,
    }
    setup = Setup(
        student=["benchmarks.run_parts.instant_server", str(requests)],
        settings=settings,
        original=options.original if is_original else None,
    )
    counted = (folder, "serve.log", b"Group average score") if is_original else (folder / "dumps", "*.jsonl*", b"\n")
    load = os.getloadavg()[0]
    async with serving(setup, folder) as run:
        measured = await run.during(measure(run, Counter(*counted), options.groups, f"{name}, {mode}"))
        exit_code = await run.stop()
    warm = measured.warm
    last = measured.last
    groups = last.groups - warm.groups
    cpu_ms = 1000 * (last.cpu_s - warm.cpu_s) / groups
    found = {
        "environment": name,
        "mode": mode,
        "load": round(load, 1),
        "first_group_s": round(measured.first_group_s, 2),
        "groups_per_s": round(groups / (last.moment - warm.moment), 2),
        "longest_gap_s": round(longest_gap(requests, warm.moment, last.moment), 2),
        "cpu_ms_per_group": round(cpu_ms, 1),
        "memory_mb": round(measured.memory_mb),
        "exit_code": exit_code,
    }
    if not is_original:
        limit = await asyncio.to_thread(bare_library, folder / "dumps", warm.groups, last.groups)
        found |= limit
        found["share_of_limit"] = round(limit["limit_ms_per_group"] / cpu_ms, 3)
    return found


def bare_library(dumps: Path, begin: int, end: int) -> dict[str, Any]:
    """Make the items in the dumps again and score their answers, with reasoning-gym alone."""
    lines = [json.loads(line) for path in dumps.glob("*.jsonl*") for line in path.read_bytes().splitlines()]
    lines.sort(key=lambda line: line["index"])
    configs = configs_of({(line["task"], line["level"]) for line in lines})
    spent_s = 0.0
    unlike = 0
    for line in lines[begin:end]:
        config = configs[line["task"], line["level"]]
        rollouts = [rollout for rollout in line["rollouts"] if rollout["answer"] is not None]
        random.seed(line["seed"])
        before = time.process_time()
        dataset = library.create_dataset(line["task"], seed=line["seed"], size=1, **config)
        item = dataset[0]
        scores = [grade(dataset.score_answer, item, rollout["answer"]).native for rollout in rollouts]
        spent_s += time.process_time() - before
        for score, rollout in zip(scores, rollouts, strict=True):
            # Strict runs have no score of the library's own verifier.
            unlike += rollout["native_score"] is not None and abs(score - rollout["native_score"]) > 1e-6
    return {"limit_ms_per_group": round(1000 * spent_s / (end - begin), 1), "scores_unlike": unlike}


def configs_of(wanted: set[tuple[str, int | None]]) -> dict[tuple[str, int | None], Mapping[str, Any]]:
    """The configs by task and level. The config in a line of a dump has lost the types that JSON lacks."""
    ladders = build_ladders([Task(name, "") for name in sorted({name for name, _ in wanted})])
    return {
        (name, level): config_of(name) if level is None else ladders[name].levels[level].config
        for name, level in wanted
    }


def compared(runs: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """For each mode: the medians of both environments, and their relation."""
    for mode in dict.fromkeys(run["mode"] for run in runs):
        ours = medians(runs, "ours", mode)
        original = medians(runs, "original", mode)
        row: dict[str, Any] = {"mode": mode, "ours": ours}
        if original:
            row["original"] = original
            row["groups_per_s_to_original"] = round(ours["groups_per_s"] / original["groups_per_s"], 2)
        yield row


def medians(runs: Sequence[dict[str, Any]], name: str, mode: str) -> dict[str, float]:
    chosen = [run for run in runs if (run["environment"], run["mode"]) == (name, mode)]
    return {what: statistics.median(run[what] for run in chosen) for what in WHATS if chosen and what in chosen[0]}


async def all_runs(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    names = ["original", "ours"] if options.original else ["ours"]
    runs = []
    for turn, mode, name in itertools.product(range(options.turns), options.modes, names):
        found = await one_run(options, mode, folder / f"{name}-{mode}-{turn}", name)
        runs.append(found)
        print(json.dumps(found), file=sys.stderr, flush=True)
    return runs


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=1500, help="scored groups of each run (default: %(default)s)")
    parser.add_argument(
        "--modes", nargs="+", choices=MODES, default=list(MODES), help="complexity modes (default: both)"
    )
    parser.add_argument("--turns", type=int, default=1, help="runs of each kind (default: 1)")
    return options_of(parser)


def main() -> None:
    options = parsed()
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Some items depend on the hash seed, and the workers that made the items have this hash seed.
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"})
    folder = options.folder and options.folder.resolve()
    with tempfile.TemporaryDirectory(prefix="serve-speed-") as temporary:
        # The programs in some questions write files.
        os.chdir(temporary)
        # Some generators print, but standard output is for the report.
        with library.stdout_to_stderr():
            runs = asyncio.run(all_runs(options, folder or Path(temporary) / "runs"))
    comparison = list(compared(runs))
    report = {"cores": os.cpu_count(), "groups": options.groups}
    print(json.dumps({**report, "compared": comparison, "runs": runs}, indent=1))


if __name__ == "__main__":
    main()
