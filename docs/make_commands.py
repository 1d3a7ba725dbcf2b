"""Writes a page for each command from its `--help`: python docs/make_commands.py [--check]

`reasoning_gym_environment.cli` lists the commands. The options of a command come from the parser that prints its help.
`--check` writes nothing and exits with 1 if a page is missing, superfluous or out of date; `tests/docs` does the same.
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from reasoning_gym_environment import cli
from reasoning_gym_environment.atropos.flags import make_parser, packaged_settings

FOLDER = Path(__file__).with_name("commands")
WIDTH = 100
NO_BREAK = "\N{NO-BREAK SPACE}"
NOTE = "<!-- Written by `python docs/make_commands.py`; do not edit. -->"
INTRODUCTION = f"""\
# Commands

{NOTE}

`reasoning-gym-env COMMAND --help` prints what these pages say.

| command | purpose |
|---|---|
"""
SETTINGS = "[Configuration](../configuration.md) explains how to set them in a file."


class HelpRequested(Exception):
    """A command is about to print its help."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__()
        self.parser = parser


def main() -> int:
    parser = argparse.ArgumentParser(description="Write docs/commands from the help texts of the commands.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is out of date")
    options = parser.parse_args()
    expected = pages()
    if options.check:
        return int(expected != written())
    FOLDER.mkdir(exist_ok=True)
    for name in written().keys() - expected.keys():
        (FOLDER / name).unlink()
    for name, text in expected.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


def written() -> dict[str, str]:
    """File name -> text of the pages that exist."""
    return {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}


def pages() -> dict[str, str]:
    """File name -> text of all pages; README.md lists the commands."""
    found = {"README.md": INTRODUCTION}
    for name, command in cli.COMMANDS.items():
        found["README.md"] += f"| [{name}]({name}.md) | {escaped(command.summary)} |\n"
        found[f"{name}.md"] = page(name, command.summary)
    return found


def page(command: str, purpose: str) -> str:
    """The page of a command: what it does, its usage, and a table for each group of its options."""
    parser = parser_of(command)
    of_atropos = cli.COMMANDS[command][0] == cli.ATROPOS
    parts = [f"# {command}", NOTE]
    if of_atropos:
        parts.append(f"{purpose[0].upper()}{escaped(purpose[1:])}.")
    kinds = kinds_of(parser)
    if kinds:
        parts.append(escaped(parser.description or ""))
        for name, kind in kinds.items():
            parts += [f"## {name}", *options_of(kind, "###")]
    else:
        parts += options_of(parser, "##")
    parts.append(SETTINGS if of_atropos else escaped(parser.epilog or ""))
    return "\n\n".join(part for part in parts if part) + "\n"


def options_of(parser: argparse.ArgumentParser, level: str) -> list[str]:
    """The description, the usage, and a table for each group of options; `level` is the mark of its heading."""
    parts = [escaped(parser.description or ""), usage(parser)]
    for group in parser._action_groups:
        rows = list(rows_of(parser, group))
        if rows:
            parts.append(f"{level} {heading(group.title or 'options')}")
            parts.append("\n".join(["| option | meaning |", "|---|---|", *rows]))
    return parts


def kinds_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers of the subcommands by name."""
    actions = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return {name: kind for action in actions for name, kind in action.choices.items()}


def parser_of(command: str) -> argparse.ArgumentParser:
    """The parser that prints the help of a command."""
    address = cli.COMMANDS[command][0]
    if address == cli.ATROPOS:
        return make_parser(command, packaged_settings())
    module, _, function = address.partition(":")
    start = getattr(importlib.import_module(f"reasoning_gym_environment.{module}"), function)
    with mock.patch.object(argparse.ArgumentParser, "print_help", request_help):
        try:
            start(["--help"])
        except HelpRequested as request:
            return request.parser
    raise RuntimeError(f"expected that `{command} --help` prints the help of a parser, but it did not")


def request_help(parser: argparse.ArgumentParser, file: Any = None) -> None:
    raise HelpRequested(parser)


def usage(parser: argparse.ArgumentParser) -> str:
    """The usage in a block of code. The lines are broken here, because each Python breaks them differently."""
    text = " ".join(parser.format_usage().split()).removeprefix("usage: ")
    # No line ends inside brackets.
    text = re.sub(r"\[[^\]]*\]", lambda option: option[0].replace(" ", NO_BREAK), text)
    lines = textwrap.wrap(text, WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(["```text", *lines, "```"]).replace(NO_BREAK, " ")


def heading(title: str) -> str:
    """The heading of a group of options."""
    if title == "positional arguments":
        return "Arguments"
    return f"{title[0].upper()}{escaped(title[1:])}"


def rows_of(parser: argparse.ArgumentParser, group: Any) -> Iterator[str]:
    """A row of the table for each option of a group that the help shows."""
    formatter = parser._get_formatter()
    for action in group._group_actions:
        if action.help != argparse.SUPPRESS:
            meaning = formatter._expand_help(action) if action.help else ""
            yield f"| {spellings(action)} | {escaped(meaning)} |"


def spellings(action: argparse.Action) -> str:
    """The names of an option, each with the placeholder of its value."""
    value = placeholder(action)
    if not action.option_strings:
        return f"`{value}`"
    return ", ".join(f"`{f'{name} {value}'.strip()}`" for name in action.option_strings)


def placeholder(action: argparse.Action) -> str:
    """What stands for the value of an option in its help, or nothing for an option without a value."""
    if action.nargs == 0:
        return ""
    if isinstance(action.metavar, tuple):
        return " ".join(action.metavar)
    if action.metavar is None and action.choices:
        return f"{{{','.join(map(str, action.choices))}}}"
    return action.metavar or action.dest.upper()


def escaped(text: str) -> str:
    """A help text as one line of Markdown. Code in backquotes keeps its form."""
    pieces = re.split(r"(`[^`]*`)", " ".join(text.split()))
    pieces[::2] = [re.sub(r"([*\[\]\\])", r"\\\1", piece).replace("<", "&lt;") for piece in pieces[::2]]
    return "".join(pieces).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
