"""Measure the items of each task by level: python benchmarks/facts/task_facts.py [--quick] [-o FILE] [TASK ...]

Draws items at the default config and at every level of the ladder, and measures the number of distinct questions, their
length, and the processor time for an item. The command `tasks` and the set-up report of a run show these numbers from
reasoning_gym_environment/data/task_facts.json. Run this script again for another release of reasoning-gym.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from reasoning_gym_environment.errors import GenerationError
from reasoning_gym_environment.sampling.seeds import derive_seed
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.tasks.difficulty_ladder import build_ladder
from reasoning_gym_environment.workers.generator import ProcessGenerator

MAX_FAILURES = 5
"""Items of one level that may fail before the rest of it is not tried."""


async def measure(generator: ProcessGenerator, task: str, config: Mapping[str, Any], draws: int) -> dict[str, Any]:
    """Facts about `draws` items of one config. `failed` counts the items that took too long."""
    questions, seconds, failed = [], [], 0
    for index in range(draws):
        before = time.perf_counter()
        try:
            entry = await generator.generate(task, derive_seed(0, "facts", task, index), config)
        except GenerationError:
            failed += 1
            if failed >= MAX_FAILURES:
                break
            continue
        seconds.append(time.perf_counter() - before)
        questions.append(str(entry["question"]))
    facts = {
        "draws": len(questions),
        "distinct": len(set(questions)),
        "chars": round(statistics.median(map(len, questions))) if questions else 0,
        "ms": round(1e3 * statistics.median(seconds), 1) if seconds else 0.0,
    }
    return {**facts, "failed": failed} if failed else facts


async def measure_task(generator: ProcessGenerator, task: str, draws: int, per_level: int) -> dict[str, Any]:
    ladder = await asyncio.to_thread(build_ladder, task)
    return {
        "default": await measure(generator, task, {}, draws),
        "levels": [await measure(generator, task, level.config, per_level) for level in ladder.levels],
    }


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="*", metavar="TASK")
    parser.add_argument("--quick", action="store_true", help="5 items instead of 100, 2 per level instead of 20")
    parser.add_argument("-o", "--output", type=Path, help="default: standard output")
    options = parser.parse_args()
    draws, per_level = (5, 2) if options.quick else (100, 20)
    tasks = options.tasks or sorted(set(library.registry()) - {"composite"})
    workers = os.cpu_count() or 1
    generator = ProcessGenerator(num_workers=workers)
    await generator.start()
    slots = asyncio.Semaphore(workers)
    bar = tqdm(total=len(tasks), desc="facts", unit="task", disable=None)

    async def one(task: str) -> dict[str, Any]:
        async with slots:
            facts = await measure_task(generator, task, draws, per_level)
        bar.update()
        return facts

    try:
        found = await asyncio.gather(*map(one, tasks))
    finally:
        await generator.close()
    document = {
        "source": "measured by benchmarks/facts/task_facts.py",
        "reasoning_gym_version": library.load().version,
        "tasks": dict(zip(tasks, found, strict=True)),
    }
    text = _compact(document)
    if options.output:
        options.output.write_text(text, encoding="utf-8")
    else:
        print(text)


def _compact(document: Mapping[str, Any]) -> str:
    """JSON with one line for each task."""
    head = {key: value for key, value in document.items() if key != "tasks"}
    lines = [f"  {json.dumps(task)}: {json.dumps(facts)}" for task, facts in document["tasks"].items()]
    return json.dumps(head, indent=1)[:-2] + ',\n "tasks": {\n' + ",\n".join(lines) + "\n }\n}\n"


if __name__ == "__main__":
    # Some generators print; standard output is for the facts.
    with library.stdout_to_stderr():
        asyncio.run(main())
