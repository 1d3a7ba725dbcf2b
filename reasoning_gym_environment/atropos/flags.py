"""The flags of Atropos' commands, made unambiguous before Atropos reads them.

Atropos takes `--name value` apart by itself: a value that begins with a dash it takes for another flag, and the setting
becomes True. `--name=value` it reads as it is written. argparse, which reads them too, takes the beginning of a name
for the name, and Atropos drops what it does not know without a word.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..errors import unknown_name

HELP = ("-h", "--help")


def joined(arguments: Sequence[str]) -> list[str]:
    """The arguments with every `--name value` as one `--name=value`."""
    found: list[str] = []
    for argument in arguments:
        if found and _waits_for_value(found[-1]) and not _is_flag(argument):
            found[-1] += f"={argument}"
        else:
            found.append(argument)
    return found


def _waits_for_value(argument: str) -> bool:
    return argument.startswith("--") and argument not in HELP and "=" not in argument


def _is_flag(argument: str) -> bool:
    return argument.startswith("--") or argument in HELP


def check_names(arguments: Sequence[str], known: Collection[str], command: str) -> None:
    """Raise UnknownNameError for a flag that the command does not have."""
    for argument in arguments:
        name = argument.removeprefix("--").partition("=")[0]
        if argument.startswith("--") and name not in known:
            raise unknown_name("setting", name, known, f"`reasoning-gym-env {command} --help` lists them.")


def asks_for_help(arguments: Sequence[str]) -> bool:
    """Whether `-h` or `--help` is among them."""
    return any(argument in HELP for argument in arguments)
