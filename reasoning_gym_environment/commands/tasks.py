"""The command `tasks`: a look at the tasks and their items before anything is trained.

`reasoning-gym-env tasks` prints a table of all tasks, with what is known about each of them.
`reasoning-gym-env tasks NAME` prints items of one task at some difficulty, with their config and their expected answer.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
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
from .options import SEED, add_settings, task_names, task_settings

CHARS_PER_TOKEN = 3.5
"""A rough figure for English and numbers. A run counts with the tokenizer of its model."""

NUMBERS = ("ms", "~tokens", "distinct")
COLUMNS = ("task", "category", "levels", *NUMBERS)
LEGEND = (
    "ms: time to make an item. ~tokens: length of its prompt. distinct: different questions in so many draws. These "
    "three were measured at the default config."
)

SHOWN = ("task", "category", "level", "complexity", "config", "seed", "question")


def main(arguments: Sequence[str]) -> int:
    """List the tasks, or print items of the task that the first argument names; returns the exit code 0.

    Raises EnvironmentSetupError for a mistake in the arguments, or if the task makes no item.
    """
    names_a_task = bool(arguments) and not arguments[0].startswith("-")
    if names_a_task:
        options = _items_parser().parse_args(arguments)
        _print_items(options)
    else:
        options = _list_parser().parse_args(arguments)
        _list_tasks(options)
    return 0


def _list_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="reasoning-gym-env tasks",
        description="List the tasks, with their levels of difficulty and the time to make an item. `reasoning-gym-env "
        "tasks chain_sum` prints an item of this task, and with `--help` the options for items.",
    )
    _add_common(parser)
    add_settings(parser, ["include_tasks", "exclude_tasks"], verb="list")
    return parser


def _items_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="reasoning-gym-env tasks",
        description="Print items of a task as training draws them, with their config and their expected answer.",
    )
    parser.add_argument("include_tasks", type=task_names, metavar="TASK", help="the task")
    _add_common(parser)
    parser.add_argument(
        "--complexity",
        type=share,
        metavar="NUMBER",
        help="0 (easiest level) to 1 (hardest); the nearest level is used (default: reasoning-gym's config)",
    )
    parser.add_argument("--count", type=positive, default=1, metavar="N", help="number of items (default: 1)")
    parser.add_argument(
        "--seed",
        type=whole,
        default=SEED,
        metavar="N",
        help="another seed gives other items (default: %(default)s)",
    )
    return parser


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print plain data as JSON")
    add_settings(parser, ["task_modules"])


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
            "measured": measured.get(task.name),
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
    chosen = checked(TasksSettings, **task_settings(options))
    names = discover(include=chosen.include_tasks, modules=chosen.task_modules).names
    if len(names) > 1:
        # This is found before any worker starts.
        raise EnvironmentSetupError(f"Expected the name of one task; {options.include_tasks!r} is {shortened(names)}.")
    with Tasks(
        **task_settings(options),
        # The command grades no answers, so verifiers that evaluate answers as code do no harm.
        allow_unguarded_tasks=list(eval_guards.unguarded_tasks()),
        complexity_mode=options.complexity,
    ) as tasks:
        problems = islice(training_items(tasks, options.seed), options.count)
        return [_record(problem) for problem in problems]


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
