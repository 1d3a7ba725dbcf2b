"""What making items through the environment costs and holds: python benchmarks/generation.py [--quick] > out.json

Items per second through the sampler and its worker processes against reasoning-gym alone in this process, over all
tasks; the event loop's longest stall while items are made at default, random and top level; resident memory along ten
thousand items; and, over a long stream in each mode, how many questions of evaluations of other settings, and how many
seeds of another instance, come up. --quick does a twentieth of it, --only-overlap that part alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tqdm import trange

from reasoning_gym_environment.atropos.shutdown import freeze_memory
from reasoning_gym_environment.evaluation.questions import build_eval_set
from reasoning_gym_environment.records import Problem
from reasoning_gym_environment.sampling.choosers import CurriculumLevels, RandomLevels
from reasoning_gym_environment.sampling.curriculum import Curriculum
from reasoning_gym_environment.sampling.item_maker import ItemMaker, LevelLimits
from reasoning_gym_environment.sampling.item_stream import ItemStream
from reasoning_gym_environment.sampling.seeds import HoldOut, derive_seed
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.tasks.catalog import Catalog, discover
from reasoning_gym_environment.tasks.difficulty_ladder import Ladder, Level, build_ladders
from reasoning_gym_environment.workers.generator import ProcessGenerator

SEED = 7
PREFETCH = 4
MODES = ("default", "random", "top")


class TopLevels:
    def __init__(self, ladders: Mapping[str, Ladder]) -> None:
        self._ladders = ladders

    def choose(self, task: str, index: int) -> Level:
        return self._ladders[task].levels[-1]


class StudiedLevels(CurriculumLevels):
    """The curriculum's levels for a student who is right up to the middle of each ladder, and mostly wrong above."""

    def __init__(self, ladders: Mapping[str, Ladder]) -> None:
        sizes = {task: len(ladder) for task, ladder in ladders.items()}
        super().__init__(ladders, Curriculum(target_accuracy=0.7, ladder_sizes=sizes))

    def heed(self, problem: Problem) -> None:
        if problem.level is not None:
            right = 1.0 if (problem.complexity or 0.0) <= 0.5 else 0.0
            self.curriculum.observe(problem.task, problem.level, [1.0, right, right, right])


def sampler_for(
    mode: str, catalog: Catalog, ladders: Mapping[str, Ladder], generator: Any, levels: Any = None
) -> ItemStream:
    if mode in ("random", "top"):
        levels = RandomLevels(ladders, SEED) if mode == "random" else TopLevels(ladders)
    maker = ItemMaker(catalog, generator, held_out=HoldOut())
    return ItemStream(maker, seed=SEED, levels=levels, limits=LevelLimits(ladders), prefetch=PREFETCH)


@contextmanager
def stalls() -> Iterator[list[float]]:
    """How long the event loop kept a one-millisecond sleep waiting, in seconds, each time."""
    found = [0.0]

    async def watch() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            found.append(time.perf_counter() - before - 0.001)

    watcher = asyncio.get_running_loop().create_task(watch())
    try:
        yield found
    finally:
        watcher.cancel()


def bare(catalog: Catalog, items: int) -> float:
    """Items per second of reasoning-gym alone: the same tasks and seeds, one after the other, in this process."""
    sampler = sampler_for("default", catalog, {}, None)
    plan = [(sampler.task_at(index), index) for index in range(items)]
    began = time.perf_counter()
    for task, index in plan:
        library.create_dataset(task, seed=derive_seed(SEED, "item", "train", "0", task, index), size=1)[0]
    return items / (time.perf_counter() - began)


async def pipeline(
    mode: str, catalog: Catalog, ladders: Mapping[str, Ladder], items: int, workers: int
) -> dict[str, float]:
    generator = ProcessGenerator(num_workers=workers, library_path=str(library.load().location))
    await generator.start()
    sampler = sampler_for(mode, catalog, ladders, generator)
    # As serve does when it is set up.
    freeze_memory()
    try:
        with stalls() as found:
            began = time.perf_counter()
            for _ in range(items):
                sampler.ledger.done(await sampler.next())
            wall = time.perf_counter() - began
    finally:
        await sampler.close()
        await generator.close()
    skipped = sum(sampler.skipped.values())
    return {
        "items_per_s": round(items / wall, 1),
        "longest_stall_ms": round(1e3 * max(found), 2),
        "skipped": skipped,
        **{name: value for name, value in sampler.metrics().items() if "lowered" in name or "closed" in name},
    }


def resident_mb(pid: int | str) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except OSError:
        return 0.0


async def memory(catalog: Catalog, items: int) -> list[dict[str, float]]:
    """Resident memory of this process and of the worker, ten times along the stream."""
    generator = ProcessGenerator(num_workers=1, library_path=str(library.load().location))
    await generator.start()
    sampler = sampler_for("default", catalog, {}, generator)
    points = []
    try:
        for number in range(1, items + 1):
            sampler.ledger.done(await sampler.next())
            if number % max(1, items // 10) == 0:
                worker = resident_mb(generator._workers[0].pid or "self")
                points.append({"items": number, "here_mb": round(resident_mb("self")), "worker_mb": round(worker)})
    finally:
        await sampler.close()
        await generator.close()
    return points


EVALUATIONS: tuple[dict[str, Any], ...] = (
    {"seed": 123},
    {"seed": SEED},
    {"seed": 1, "complexity": 0.0},
    {"seed": 2, "complexity": 0.5},
    {"seed": 3, "complexity": 0.25, "difficulty_range": "cumulative"},
)


async def asked(catalog: Catalog, each: int) -> set[str]:
    """The questions of evaluations with other settings than the streams', `each` of every task."""
    generator = ProcessGenerator(num_workers=2, library_path=str(library.load().location))
    await generator.start()
    try:
        made = [
            await build_eval_set(ItemMaker(catalog, generator), per_task=each, show_progress=True, **one)
            for one in EVALUATIONS
        ]
    finally:
        await generator.close()
    return {problem.question for questions in made for problem in questions}


async def overlap(
    mode: str, catalog: Catalog, ladders: Mapping[str, Ladder], items: int, questions: set[str]
) -> dict[str, int]:
    """Items of a stream whose question is one of these, and seeds it shares with another instance."""
    generator = ProcessGenerator(num_workers=2, library_path=str(library.load().location))
    await generator.start()
    studied = StudiedLevels(ladders) if mode == "curriculum" else None
    sampler = sampler_for(mode, catalog, ladders, generator, studied)
    try:
        seen, seeds = 0, set()
        for _ in trange(items, desc=f"items, {mode}", unit="item"):
            problem = await sampler.next()
            sampler.ledger.done(problem)
            if studied is not None:
                studied.heed(problem)
            seen += problem.question in questions
            seeds.add(problem.seed)
    finally:
        await sampler.close()
        await generator.close()
    other = ItemStream(sampler.maker, seed=SEED, instance="1")
    others = {derive_seed(SEED, "item", "train", "1", other.task_at(index), index) for index in range(2 * items)}
    return {
        "items": items,
        "eval_questions": len(questions),
        "questions_in_eval": seen,
        "redrawn_for_being_held_out": sampler.redrawn,
        "skipped": sum(sampler.skipped.values()),
        "distinct_seeds": len(seeds),
        "seeds_shared_with_instance_1": len(seeds & others),
    }


async def main() -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a twentieth of the items")
    parser.add_argument("--only-overlap", action="store_true", help="only training questions against evaluations")
    options = parser.parse_args()
    share = 20 if options.quick else 1
    catalog = await asyncio.to_thread(discover)
    ladders = await asyncio.to_thread(build_ladders, catalog.tasks, difficulty_range="level")
    report: dict[str, Any] = {"cores": os.cpu_count(), "tasks": len(catalog)}
    if not options.only_overlap:
        await throughput(report, catalog, ladders, share)
    questions = await asked(catalog, 5 if share == 1 else 1)
    report["overlap"] = {}
    for mode in ("default", "random", "curriculum", "top"):
        report["overlap"][mode] = await overlap(mode, catalog, ladders, 20_000 // share, questions)
        print(mode, json.dumps(report["overlap"][mode]), file=sys.stderr, flush=True)
    return report


async def throughput(report: dict[str, Any], catalog: Catalog, ladders: Mapping[str, Ladder], share: int) -> None:
    """Adds what making items costs and holds."""
    items = 3000 // share
    before = bare(catalog, items)
    for workers in (1, 2):
        report[f"default_{workers}_workers"] = await pipeline("default", catalog, ladders, items, workers)
    after = bare(catalog, items)
    report["bare_items_per_s"] = [round(before, 1), round(after, 1)]
    one = report["default_1_workers"]["items_per_s"]
    report["one_worker_against_bare"] = round(one / ((before + after) / 2), 2)
    for mode in MODES[1:]:
        report[f"{mode}_2_workers"] = await pipeline(mode, catalog, ladders, items // 3, 2)
    report["memory"] = await memory(catalog, 10_000 // share)


if __name__ == "__main__":
    # Some generators print; standard output is for the report.
    with library.stdout_to_stderr():
        measured = asyncio.run(main())
    print(json.dumps(measured, indent=1))
