"""Options that several commands have, with one name and one meaning, and the refusal of options without effect.

An option that is a setting of the environment too has the setting's name, except for `--tasks` and `--exclude`.
"""

from __future__ import annotations

from argparse import SUPPRESS, Namespace, _ActionsContainer
from collections.abc import Iterable
from typing import Any

from ..errors import EnvironmentSetupError
from ..records import AnswerFormat
from ..tasks.catalog import check_names
from ..tasks.selectors import parse_names

SHORT_FLAGS = {"include_tasks": "--tasks", "exclude_tasks": "--exclude"}


ITEM_OPTIONS = (
    "include_tasks",
    "exclude_tasks",
    "task_modules",
    "allow_unguarded_tasks",
    "task_overrides",
    "answer_format",
    "system_prompt",
)
"""The settings of `Tasks` that are options of commands which make items."""


def flag_of(setting: str) -> str:
    """The flag of a setting: include_tasks -> --tasks, task_modules -> --task-modules."""
    return SHORT_FLAGS.get(setting, f"--{setting.replace('_', '-')}")


def add_tasks(parser: _ActionsContainer, **options: Any) -> None:
    """Add the options `--tasks` and `--exclude`, whose values are lists of names."""
    parser.add_argument(
        flag_of("include_tasks"),
        dest="include_tasks",
        type=parse_names,
        metavar="TASKS",
        help="tasks to use: names, globs or category:NAME, comma-separated (default: all tasks)",
        **options,
    )
    add_exclude(parser, **options)


def add_exclude(parser: _ActionsContainer, **options: Any) -> None:
    """Add the option `--exclude`, whose value is a list of names."""
    parser.add_argument(
        flag_of("exclude_tasks"),
        dest="exclude_tasks",
        type=parse_names,
        metavar="TASKS",
        help="tasks not to use: names, globs or category:NAME, comma-separated",
        **options,
    )


def add_task_modules(parser: _ActionsContainer, **options: Any) -> None:
    """Add the option `--task-modules`, whose value is a list of modules."""
    parser.add_argument(
        flag_of("task_modules"),
        type=parse_names,
        metavar="MODULES",
        help="modules with datasets of your own, comma-separated",
        **options,
    )


def add_item_settings(parser: _ActionsContainer) -> None:
    """Add ITEM_OPTIONS. Options without a value are missing in the result of the parser."""
    add_tasks(parser, default=SUPPRESS)
    parser.add_argument(
        "--answer-format",
        choices=list(AnswerFormat),
        default=SUPPRESS,
        help="form in which the prompts ask for the answer (default: tags)",
    )
    parser.add_argument(
        "--system-prompt",
        default=SUPPRESS,
        metavar="TEXT",
        help="system message of the prompts, as in the setting system_prompt: a text, a file, or none",
    )
    add_task_modules(parser, default=SUPPRESS)
    parser.add_argument(
        "--allow-unguarded-tasks",
        default=SUPPRESS,
        metavar="TASKS",
        help="tasks of your own to use although their verifiers run the answer as code",
    )
    parser.add_argument(
        "--task-overrides",
        default=SUPPRESS,
        metavar="JSON",
        help="parameters of individual tasks, as in the setting task_overrides",
    )


def task_settings(options: Namespace) -> dict[str, Any]:
    """The given settings of `Tasks`."""
    return {name: value for name, value in vars(options).items() if name in ITEM_OPTIONS}


def check_tasks(options: Namespace) -> None:
    """Raise UnknownNameError if `--tasks` or `--exclude` has a name that matches no task."""
    given = vars(options)
    names = parse_names(given.get("include_tasks")) + parse_names(given.get("exclude_tasks"))
    check_names(names, parse_names(given.get("task_modules")))


def refuse_unused(kind: str, options: Namespace, names: Iterable[str]) -> None:
    """Raise EnvironmentSetupError if the user has given one of the options `names`, which `kind` does not use."""
    unused = [flag_of(name) for name in names if name in options]
    if unused:
        raise EnvironmentSetupError(f"{kind} does not use {', '.join(unused)}. Remove the option.")
