"""Options that several commands have, with one name and one meaning.

An option that is a setting of the environment too has the setting's name, except for `--tasks` and `--exclude`.
"""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentTypeError, Namespace, _ActionsContainer
from collections.abc import Iterable
from typing import Any

from ..settings.components import TasksSettings
from ..tasks.selectors import parse_names

SHORT_FLAGS = {"include_tasks": "--tasks", "exclude_tasks": "--exclude"}

SEED = 42
"""The default seed of every command that makes items. It is also the default of the setting `seed`."""

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


def add_settings(parser: _ActionsContainer, names: Iterable[str], *, verb: str = "serve", **defaults: Any) -> None:
    """Add options for these settings of `Tasks`. Options without a value are missing in the result of the parser.

    `verb` says what the command does with the tasks. `defaults` are the defaults of the command that differ from the
    defaults of the settings.
    """
    for name in names:
        field = TasksSettings.model_fields[name]
        default = defaults.get(name, field.default)
        text = (field.description or "").replace("%", "%%").replace("to serve", f"to {verb}")
        if default:
            text = f"{text.rstrip('.')} (default: {default})"
        kind = task_names if name in SHORT_FLAGS else str
        parser.add_argument(flag_of(name), dest=name, type=kind, metavar="VALUE", default=SUPPRESS, help=text)


def task_names(text: str) -> str:
    """The names of tasks. The empty text of a variable that is not set would be all tasks."""
    if parse_names(text):
        return text
    raise ArgumentTypeError(f"expected the name of a task, got {text!r:.100}")


def task_settings(options: Namespace) -> dict[str, Any]:
    """The given settings of `Tasks`."""
    return {name: value for name, value in vars(options).items() if name in TasksSettings.model_fields}
