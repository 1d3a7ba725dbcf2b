"""Options that several commands have, and the refusal of options that have no effect."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterable

from ..errors import EnvironmentSetupError
from ..tasks.selectors import parse_names


def add_task_modules(parser: ArgumentParser) -> None:
    """Add the option `--task-modules`, whose value is a list of modules."""
    parser.add_argument(
        "--task-modules",
        type=parse_names,
        default=[],
        metavar="MODULES",
        help="modules with datasets of your own, comma-separated",
    )


def refuse_unused(kind: str, options: Namespace, names: Iterable[str]) -> None:
    """Raise EnvironmentSetupError if the user has given one of the options `names`, which `kind` does not use."""
    unused = [f"--{name.replace('_', '-')}" for name in names if name in options]
    if unused:
        raise EnvironmentSetupError(f"{kind} does not use {', '.join(unused)}. Remove the option.")
