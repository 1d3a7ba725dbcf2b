"""Which items of the usual evaluation are held out: python benchmarks/facts/held_out_draws.py [-o FILE]

For every task at its default config, the first items of evaluation seed 123 whose questions are held out, by index:
20 of each task, and as many as the demo asks of its own.
Written as reasoning_gym_environment/data/held_out_draws.json, it saves an evaluation with that seed from making ten
items for each question; run it again for another release of reasoning-gym. Takes some minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import logging
import os
import sys
from collections.abc import Awaitable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from reasoning_gym_environment.evaluation.questions import EvalSet, build_eval_set
from reasoning_gym_environment.sampling.item_maker import ItemMaker
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.tasks.catalog import discover
from reasoning_gym_environment.workers.generator import ProcessGenerator

EVAL_SEED = 123
PER_TASK = 20
OF_THE_DEMO = ("gcd", "leg_counting", "spell_backward")
ASKED_BY_THE_DEMO = 100


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, help="default: standard output")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    version = library.load().version
    generator = ProcessGenerator(num_workers=os.cpu_count() or 1, library_path=str(library.load().location))
    await generator.start()
    try:
        # Without a version it uses nothing that was measured before.
        maker = ItemMaker(discover(), generator)
        draw = functools.partial(build_eval_set, maker, seed=EVAL_SEED, show_progress=True)
        draws = await _indices(draw(per_task=PER_TASK))
        draws |= await _indices(draw(tasks=OF_THE_DEMO, per_task=ASKED_BY_THE_DEMO))
    finally:
        await generator.close()
    document = {"source": "benchmarks/facts/held_out_draws.py", "reasoning_gym_version": version}
    lines = ",\n".join(f"  {json.dumps(task)}: {json.dumps(indices)}" for task, indices in draws.items())
    text = f'{json.dumps({**document, "eval_seed": EVAL_SEED})[:-1]}, "draws": {{\n{lines}\n}}}}\n'
    if options.output:
        options.output.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


async def _indices(making: Awaitable[EvalSet]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for problem in await making:
        found.setdefault(problem.task, []).append(problem.index)
    return found


if __name__ == "__main__":
    asyncio.run(main())
