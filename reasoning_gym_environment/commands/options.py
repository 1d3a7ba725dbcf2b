"""Options that several commands have, with one name and one meaning, and the refusal of options without effect.

An option that is a setting of the environment too has the setting's name, except for `--tasks` and `--exclude`.
"""

from __future__ import annotations

from argparse import SUPPRESS, Namespace, _ActionsContainer
from collections.abc import Iterable
from typing import Any

from ..errors import EnvironmentSetupError
from ..settings.components import TasksSettings
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


def add_settings(parser: _ActionsContainer, names: Iterable[str], **defaults: Any) -> None:
    """Add options for these settings of `Tasks`. Options without a value are missing in the result of the parser.

    `defaults` are the defaults of the command that differ from the defaults of the settings.
    """
    for name in names:
        field = TasksSettings.model_fields[name]
        default = defaults.get(name, field.default)
        text = (field.description or "").replace("%", "%%")
        if default:
            text = f"{text.rstrip('.')} (default: {default})"
        parser.add_argument(flag_of(name), dest=name, metavar="VALUE", default=SUPPRESS, help=text)


def task_settings(options: Namespace) -> dict[str, Any]:
    """The given settings of `Tasks`."""
    return {name: value for name, value in vars(options).items() if name in TasksSettings.model_fields}


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
