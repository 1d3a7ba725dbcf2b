"""The command `levels`: make a store of levels for a trainer, or show the levels in it.

levels create FILE --group-size 8 --tasks ...    ──> a new store, with every task at its lowest level
levels show FILE                                 ──> the level of each task now, and what was counted
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from ..api import DEFAULT_ROWS, new_store
from ..sampling.level_store import LevelStore, TaskSummary
from ..tasks import reasoning_gym_source as library
from ..utils.terminal import Output, path_name, positive, print_table, share, whole
from .options import ITEM_OPTIONS, SEED, add_settings, task_settings

MOST_TASKS = 16
"""What the command prints fits a screen."""


def main(arguments: Sequence[str]) -> int:
    """Make a store, or show one; returns the exit code 0.

    Raises EnvironmentSetupError for a mistake in the arguments, a store that exists, or a missing store.
    """
    options = _parser().parse_args(arguments)
    options.run(options)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="reasoning-gym-env levels",
        description="A store of levels lets the difficulty follow the rewards in trainers that read their prompts from "
        "a dataset: verl, SkyRL, TRL's asynchronous GRPO, prime-rl.",
    )
    kinds = parser.add_subparsers(title="kinds", metavar="KIND", required=True)
    show = _add_kind(kinds, "show", _show, "Show the level of each task, and what was counted.")
    show.add_argument("--json", action="store_true", help="print plain data as JSON")
    create = _add_kind(kinds, "create", _create, "Make a new store, in which every task is at its lowest level.")
    add = create.add_argument
    add(
        "--group-size",
        type=positive,
        required=True,
        metavar="N",
        help="completions of each prompt, as in the trainer's settings",
    )
    add(
        "--rows",
        type=positive,
        default=DEFAULT_ROWS,
        metavar="N",
        help="length of the dataset: at least the steps of the run times the prompts of a step "
        f"(default: {DEFAULT_ROWS:,})",
    )
    add("--seed", type=whole, default=SEED, help="seed of the items (default: %(default)s)")
    add(
        "--curriculum-target-accuracy",
        type=share,
        default=0.7,
        metavar="SHARE",
        help="share of right answers, above 0 and below 1, that each task should have (default: %(default)s)",
    )
    add_settings(create, ITEM_OPTIONS)
    return parser


def _add_kind(
    kinds: Any, kind: str, run: Callable[[argparse.Namespace], None], description: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = kinds.add_parser(kind, help=description, description=description)
    parser.set_defaults(run=run)
    parser.add_argument("path", metavar="FILE", type=path_name, help="the store, such as levels.sqlite")
    return parser


def _create(options: argparse.Namespace) -> None:
    with library.stdout_to_stderr():
        store = new_store(
            options.path,
            group_size=options.group_size,
            rows=options.rows,
            seed=options.seed,
            curriculum_target_accuracy=options.curriculum_target_accuracy,
            **task_settings(options),
        )
    levels = store.levels()
    print(
        f"{store.path}: {len(levels)} tasks with {sum(levels.values())} levels, {store.settings.rows:,} rows, "
        f"{store.settings.group_size} completions each."
    )


def _show(options: argparse.Namespace) -> None:
    store = LevelStore(options.path)
    summary = store.summary()
    if options.json:
        print(json.dumps(asdict(summary), indent=1))
        return
    print_table(Output(), _table(summary.tasks))
    if len(summary.tasks) > MOST_TASKS:
        print(f"and {len(summary.tasks) - MOST_TASKS} tasks with fewer groups (--json has them)")
    short = f", {summary.short} of them with fewer than {summary.group_size} completions" if summary.short else ""
    print(f"rows read: {summary.rows}; groups counted: {summary.complete}{short}")
    if summary.group_size != store.settings.group_size:
        print(f"--group-size is {store.settings.group_size}, and the trainer samples {summary.group_size} completions")
    print(f"completions without a score: {summary.unscored}")
    if summary.repeated:
        print(f"rewards for rows that had all theirs (training went back to a checkpoint): {summary.repeated}")


def _table(tasks: Sequence[TaskSummary]) -> Table:
    """The tasks with most groups, by name."""
    shown = sorted(tasks, key=lambda task: task.groups, reverse=True)[:MOST_TASKS]
    table = Table(box=None)
    table.add_column("task")
    for name in ("level", "of", "groups", "moves", "mean reward"):
        table.add_column(name, justify="right")
    for task in sorted(shown, key=lambda task: task.task):
        accuracy = "" if task.recent_accuracy is None else f"{task.recent_accuracy:.2f}"
        numbers = (task.level, task.last_level, task.groups, task.moves)
        table.add_row(task.task, *map(str, numbers), accuracy)
    return table
