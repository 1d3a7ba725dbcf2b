"""The command `levels`: make a store of levels for a trainer, or show the levels in it.

levels FILE --create --group-size 8 --tasks ...    ──> a new store, with every task at its lowest level
levels FILE                                        ──> the level of each task now, and what was counted
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from ..errors import EnvironmentSetupError
from ..integrations.curriculum_rows import DEFAULT_ROWS, new_store
from ..sampling.level_store import LevelStore, StoreSummary
from ..tasks import reasoning_gym_source as library
from ..utils.terminal import Output, path_name, positive, print_table, share, whole
from .options import ITEM_OPTIONS, add_settings, check_tasks, flag_of, refuse_unused, task_settings

STORE_OPTIONS = ("group_size", "rows", "seed", "curriculum_target_accuracy")


def main(arguments: Sequence[str]) -> int:
    """Make a store, or show one; returns the exit code 0.

    Raises EnvironmentSetupError for a mistake in the arguments, a store that exists, or a missing store.
    """
    options = _parser().parse_args(arguments)
    if options.create:
        print(_create(options))
    else:
        refuse_unused("A look at a store", options, (*STORE_OPTIONS, *ITEM_OPTIONS))
        _show(options)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="reasoning-gym-env levels",
        description="A store of levels lets the difficulty follow the rewards in trainers that read their prompts from "
        "a dataset: verl, SkyRL, TRL's asynchronous GRPO, prime-rl. Without --create: show the level of each task.",
    )
    add = parser.add_argument
    add("path", metavar="FILE", type=path_name, help="the store, such as levels.sqlite")
    add("--create", action="store_true", help="make a new store, in which every task is at its lowest level")
    add("--json", action="store_true", help="print plain data as JSON")
    store = parser.add_argument_group("with --create: the run")
    store.add_argument(
        "--group-size",
        type=positive,
        default=argparse.SUPPRESS,
        metavar="N",
        help="completions of each prompt, as in the trainer's settings (needed)",
    )
    store.add_argument(
        "--rows",
        type=positive,
        default=argparse.SUPPRESS,
        metavar="N",
        help="length of the dataset: at least the steps of the run times the prompts of a step "
        f"(default: {DEFAULT_ROWS:,})",
    )
    store.add_argument("--seed", type=whole, default=argparse.SUPPRESS, help="seed of the items (default: 42)")
    store.add_argument(
        "--curriculum-target-accuracy",
        type=share,
        default=argparse.SUPPRESS,
        metavar="SHARE",
        help="share of right answers, above 0 and below 1, that each task should have (default: 0.7)",
    )
    add_settings(parser.add_argument_group("with --create: the items"), ITEM_OPTIONS)
    return parser


def _create(options: argparse.Namespace) -> str:
    """Make the store; returns a sentence about it."""
    given: dict[str, Any] = {name: value for name, value in vars(options).items() if name in STORE_OPTIONS}
    if "group_size" not in given:
        raise EnvironmentSetupError(f"--create needs {flag_of('group_size')}, the completions of each prompt.")
    check_tasks(options)
    with library.stdout_to_stderr():
        store = new_store(options.path, **given, **task_settings(options))
    levels = store.levels()
    return (
        f"{store.path}: {len(levels)} tasks with {sum(levels.values())} levels, {store.settings.rows:,} rows, "
        f"{store.settings.group_size} completions each."
    )


def _show(options: argparse.Namespace) -> None:
    summary = LevelStore(options.path).summary()
    if options.json:
        print(json.dumps(asdict(summary), indent=1))
        return
    print_table(Output(), _table(summary))
    print(f"rows read: {summary.rows}, of which {summary.complete} have all their rewards")
    print(f"completions without a score: {summary.unscored}")
    if summary.skipped:
        reasons = [f"{reason} ({draws})" for reason, draws in summary.skipped.items()]
        print(f"draws without an item: {', '.join(reasons)}")
    if summary.repeated:
        print(f"rewards for rows that had all theirs (training went back to a checkpoint): {summary.repeated}")


def _table(summary: StoreSummary) -> Table:
    table = Table(box=None)
    table.add_column("task")
    for name in ("level", "of", "groups", "moves", "mean reward"):
        table.add_column(name, justify="right")
    for task in summary.tasks:
        accuracy = "" if task.recent_accuracy is None else f"{task.recent_accuracy:.2f}"
        numbers = (task.level, task.last_level, task.groups, task.moves)
        table.add_row(task.task, *map(str, numbers), accuracy)
    return table
