"""The command `tasks`: a look at the tasks and their items before anything is trained.

`reasoning-gym-env tasks` prints a table of all tasks, with what is known about each of them.
`reasoning-gym-env tasks NAME` prints items of one task at some difficulty, with their config and their expected answer.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any

from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ..api import PromptedProblem, Tasks, training_items
from ..errors import EnvironmentSetupError
from ..settings.components import TasksSettings, checked
from ..tasks import reasoning_gym_source as library
from ..tasks.catalog import Catalog, discover
from ..tasks.difficulty_ladder import build_ladder, build_ladders
from ..tasks.measured_data import load_facts
from ..tasks.selectors import shortened
from ..utils.terminal import Output, positive, print_table, share, whole
from ..verification import eval_guards
from ..verification.entries import right_answer
from .options import add_settings, check_tasks, refuse_unused, task_settings

CHARS_PER_TOKEN = 3.5
"""A rough figure for English and numbers. A run counts with the tokenizer of its model."""

NUMBERS = ("ms", "~tokens", "distinct")
COLUMNS = ("task", "category", "levels", *NUMBERS)
LEGEND = (
    "ms: time to make an item. ~tokens: length of its prompt. distinct: different questions in so many draws. These "
    "three were measured at the default config."
)

SHOWN = ("task", "category", "level", "complexity", "config", "seed", "question")
LIST_OPTIONS = ("include_tasks", "exclude_tasks")
ITEM_DEFAULTS: Mapping[str, Any] = {"complexity": None, "count": 1, "seed": 42}


def main(arguments: Sequence[str]) -> int:
    """List the tasks, or print items of the task that the arguments name; returns the exit code 0.

    Raises EnvironmentSetupError for a mistake in the arguments, or if the task makes no item.
    """
    options = _parser().parse_args(arguments)
    if options.name is None:
        refuse_unused("Without NAME, the command", options, ITEM_DEFAULTS)
        check_tasks(options)
        _list_tasks(options)
    else:
        refuse_unused("With NAME, the command", options, LIST_OPTIONS)
        check_tasks(argparse.Namespace(**{**task_settings(options), "include_tasks": options.name}))
        _print_items(options)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="reasoning-gym-env tasks",
        usage="%(prog)s [NAME] [options]",
        description="Without NAME: list the tasks, with their levels of difficulty and the time to make an item. With "
        "NAME: print items of this task as training draws them, with their config and their expected answer.",
    )
    add = parser.add_argument
    add("name", metavar="NAME", nargs="?", help="print items of this task")
    add("--json", action="store_true", help="print plain data as JSON")
    add_settings(parser, ["task_modules"])

    listing = parser.add_argument_group("options for the list")
    add_settings(listing, LIST_OPTIONS)

    items = parser.add_argument_group("options for items, with NAME")
    items.add_argument(
        "--complexity",
        type=share,
        default=argparse.SUPPRESS,
        metavar="NUMBER",
        help="0 (easiest level) to 1 (hardest); the nearest level is used (default: reasoning-gym's config)",
    )
    items.add_argument(
        "--count",
        type=positive,
        default=argparse.SUPPRESS,
        metavar="N",
        help="number of items (default: 1)",
    )
    items.add_argument(
        "--seed",
        type=whole,
        default=argparse.SUPPRESS,
        metavar="N",
        help="another seed gives other items (default: 42)",
    )
    return parser


# --- the list


def _list_tasks(options: argparse.Namespace) -> None:
    with library.stdout_to_stderr():
        chosen = checked(TasksSettings, **task_settings(options))
        catalog = discover(include=chosen.include_tasks, exclude=chosen.exclude_tasks, modules=chosen.task_modules)
        records = task_records(catalog)
    if options.json:
        print(json.dumps(records, indent=1))
        return
    print_table(Output(), _table(records))
    for name, reason in catalog.excluded.items():
        if "include_tasks" not in reason:
            print(f"excluded: {name} ({reason})")
    print(f"tasks: {len(catalog)}")
    print(f"categories: {', '.join(catalog.categories)}")
    print(f"reasoning-gym: {library.load().version}")


def task_records(catalog: Catalog) -> list[dict[str, Any]]:
    """A record of plain data for each task, in the catalog's order."""
    measured = load_facts(library.load().version)
    ladders = build_ladders(catalog.tasks)
    return [
        {
            "task": task.name,
            "category": task.category,
            "levels": len(ladders[task.name]),
            "has_curriculum": library.has_curriculum(task.name),
            "note": ladders[task.name].note,
            "measured": asdict(measured[task.name]) if task.name in measured else None,
        }
        for task in catalog.tasks
    ]


def _table(records: Sequence[dict[str, Any]]) -> Table:
    table = Table(caption=LEGEND, caption_justify="left")
    for column in COLUMNS:
        table.add_column(column, justify="right" if column in NUMBERS else "left", no_wrap=True)
    for record in records:
        levels = str(record["levels"])
        if not record["has_curriculum"]:
            levels += " (no curriculum)"
        table.add_row(record["task"], record["category"], levels, *_measured_numbers(record["measured"]))
    return table


def _measured_numbers(measured: dict[str, Any] | None) -> list[str]:
    """The cells of the columns NUMBERS."""
    if measured is None:
        return ["-", "-", "not measured"]
    default = measured["default"]
    tokens = default["chars"] / CHARS_PER_TOKEN
    return [
        f"{default['ms']:.1f}",
        f"{tokens:,.0f}",
        f"{default['distinct']}/{default['draws']}",
    ]


# --- the items


def _print_items(options: argparse.Namespace) -> None:
    with library.stdout_to_stderr():
        items = _items(options)
    if options.json:
        print(json.dumps(items, indent=1, default=str))
        return
    console = Output()
    for item in items:
        console.print(_panel(item))
    task = items[0]["task"]
    for number, reason in build_ladder(task).excluded:
        print(f"excluded: level {number} of {task} ({reason})")


def _items(options: argparse.Namespace) -> list[dict[str, Any]]:
    _check_that_it_is_one_task(options)
    chosen = {**ITEM_DEFAULTS, **vars(options)}
    with Tasks(
        options.name,
        **task_settings(options),
        # The command grades no answers, so verifiers that evaluate answers as code do no harm.
        allow_unguarded_tasks=list(eval_guards.unguarded_tasks()),
        complexity_mode=chosen["complexity"],
    ) as tasks:
        problems = islice(training_items(tasks, chosen["seed"]), chosen["count"])
        return [_record(problem) for problem in problems]


def _check_that_it_is_one_task(options: argparse.Namespace) -> None:
    """Raise EnvironmentSetupError for a pattern that matches several tasks, before any worker starts."""
    chosen = checked(TasksSettings, **{**task_settings(options), "include_tasks": options.name})
    names = discover(include=chosen.include_tasks, modules=chosen.task_modules).names
    if len(names) > 1:
        raise EnvironmentSetupError(f"Expected the name of one task; {options.name!r} matches {shortened(names)}.")


def _record(problem: PromptedProblem) -> dict[str, Any]:
    record = {name: getattr(problem, name) for name in SHOWN}
    record["expected_answer"] = right_answer(problem.task, problem.entry)
    return record


def _panel(item: dict[str, Any]) -> Panel:
    difficulty = "default config"
    if item["level"] is not None:
        difficulty = f"level {item['level']}, complexity {item['complexity']:.2f}"
    config = ", ".join(f"{name}={value!r}" for name, value in item["config"].items())
    answer = item["expected_answer"]
    if answer is None:
        answer = "none: this item comes without an expected answer"
    body = Text()
    body.append(f"{config}\n\n", "dim")
    body.append(item["question"])
    body.append("\n\nexpected answer: ", "bold")
    body.append(answer or "an empty answer")
    return Panel(
        body,
        title=f"{item['task']} ({item['category']}), {difficulty}, seed {item['seed']}",
    )
