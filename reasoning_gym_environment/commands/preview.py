"""`reasoning-gym-env preview TASK`: look at items of a task at some difficulty, with config and oracle answer."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from typing import Any

from rich.panel import Panel
from rich.text import Text

from ..audit.known_answers import reference_answer
from ..errors import EnvironmentSetupError, GenerationError
from ..sampling.item_maker import ItemMaker, Place
from ..tasks import reasoning_gym_source as library
from ..tasks.catalog import discover
from ..tasks.difficulty_ladder import Level, Ranges, build_ladder
from ..tasks.selectors import parse_names
from ..utils.terminal import Output, positive, share
from ..workers.generator import ProcessGenerator

TIMEOUT_S = 60.0


def preview(arguments: Sequence[str]) -> int:
    """Exit code 0, or 2 for a mistake in the arguments or an item that cannot be made."""
    options = _preview_parser().parse_args(arguments)
    try:
        with library.stdout_to_stderr():
            items = asyncio.run(_items(options))
    except (EnvironmentSetupError, GenerationError) as error:
        print(f"reasoning-gym-env preview: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(items, indent=1, default=str))
    else:
        _show(items)
    return 0


def _preview_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="reasoning-gym-env preview",
        description="Print items of a task as a model would be asked them, with the config they were made from and the "
        "oracle answer. Without --complexity: reasoning-gym's default config.",
    )
    parser.add_argument("task", metavar="TASK", help="`reasoning-gym-env tasks` lists them")
    parser.add_argument("--complexity", type=share, help="0 (easiest level) to 1 (hardest); the nearest level is used")
    parser.add_argument("--difficulty-range", choices=("level", "cumulative"), default="level")
    parser.add_argument("--count", type=positive, default=1, help="how many items (default: 1)")
    parser.add_argument("--seed", type=int, default=42, help="other items with another seed (default: 42)")
    parser.add_argument("--task-modules", default="", metavar="MODULES", help="register your own datasets first")
    parser.add_argument("--json", action="store_true", help="plain data instead of panels")
    return parser


async def _items(options: argparse.Namespace) -> list[dict[str, Any]]:
    modules = parse_names(options.task_modules)
    catalog = discover(include=[options.task], modules=modules)
    if len(catalog) > 1:
        raise EnvironmentSetupError(f"{options.task!r} stands for {', '.join(catalog.names)}: name one of them.")
    (task,) = catalog.names
    level = _level(task, options.complexity, options.difficulty_range)
    generator = ProcessGenerator(timeout_s=TIMEOUT_S, library_path=str(library.load().location), task_modules=modules)
    await generator.start()
    try:
        maker = ItemMaker(catalog, generator)
        places = [Place(task, index, "preview", options.seed) for index in range(options.count)]
        return [await _item(maker, place, level) for place in places]
    finally:
        await generator.close()


def _level(task: str, complexity: float | None, difficulty_range: Ranges) -> tuple[Level, int] | None:
    if complexity is None:
        return None
    ladder = build_ladder(task, difficulty_range=difficulty_range)
    return ladder.at(complexity), len(ladder)


async def _item(maker: ItemMaker, place: Place, level: tuple[Level, int] | None) -> dict[str, Any]:
    # As in training: of some tasks, not every seed makes an item. Raises GenerationError if none of several does.
    drawn = await maker.make_at_first_of([level[0] if level else None], place)
    if (problem := drawn.problem) is None:
        raise GenerationError(drawn.skipped[1])
    return {
        "task": problem.task,
        "category": problem.category,
        "level": problem.level,
        "levels": level[1] if level else None,
        "complexity": problem.complexity,
        "config": dict(problem.config),
        "seed": problem.seed,
        "question": problem.question,
        "oracle_answer": reference_answer(problem.task, problem.entry),
    }


def _show(items: Sequence[dict[str, Any]]) -> None:
    console = Output()
    for item in items:
        place = "default config"
        if item["level"] is not None:
            place = f"level {item['level']} of 0 to {item['levels'] - 1}, complexity {item['complexity']:.2f}"
        config = ", ".join(f"{name}={value!r}" for name, value in item["config"].items())
        answer = item["oracle_answer"]
        body = Text.assemble(
            (f"{config}\n\n", "dim"),
            item["question"],
            ("\n\noracle answer: ", "bold"),
            answer if answer is not None else "none: this task's items have no right answer at hand",
        )
        console.print(Panel(body, title=f"{item['task']} ({item['category']}), {place}, seed {item['seed']}"))
