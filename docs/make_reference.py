"""Write docs/reference.md and data/names.json from the settings and commands: python docs/make_reference.py [--check]

Names, defaults and descriptions (the docstrings) of the settings come from the config classes, and the headings from
the comments in them. The options of a command come from the parser that prints its help. The package reads the names of
its settings from data/names.json, because their classes take seconds to import. `--check`
only compares the files, and exits with 1 if they differ. `tests/docs` compares too.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Any
from unittest import mock

from reasoning_gym_environment import ReasoningGymEnv, ReasoningGymEnvConfig, cli
from reasoning_gym_environment.atropos.command_line import Initial, settings_of
from reasoning_gym_environment.atropos.flags import SHORT_FLAGS, TASKS, make_parser, packaged_settings
from reasoning_gym_environment.settings.components import EvaluationSettings, SamplingSettings, TasksSettings
from reasoning_gym_environment.settings.environment import UNUSED, Server
from reasoning_gym_environment.tasks.measured_data import DATA

PAGE = Path(__file__).with_name("reference.md")
NAMES = DATA / "names.json"

INTRODUCTION = """\
# Settings and commands

<!-- Written by `python docs/make_reference.py`; do not edit. -->

Set a setting with a flag, `--env.NAME VALUE`, or in a YAML file under `env:` (`--config my_run.yaml`). Flags override
the file, and the file overrides the defaults. A misspelt name is an error that suggests the nearest name.
[`reasoning_gym_environment/configs/`](../reasoning_gym_environment/configs) has complete files.

The column *class* has the defaults of `ReasoningGymEnvConfig`, which are mostly the defaults of the original
environment. The column *commands* has the value that `serve`, `process` and `evaluate` start with, if it differs. Lists
can be written as YAML lists or as text with commas, and mappings as YAML or as JSON. To leave a setting without a
value, write `none` on the command line or `null` in YAML.
"""

SERVERS = """\
## Inference servers

Set these with `--openai.NAME VALUE`, or in YAML under `openai:`. For several servers, write a list in YAML; each entry
starts with the defaults. The flag `--openai.api_key` works, but all users of the machine can read it in the list of
processes, so prefer `api_key_env`. The files of a run, including the files of wandb, never contain a key.
"""

COMMANDS = """\
## Commands

`--help` after the name of a command prints its options. `--tasks`, `--exclude` and the other options that have the name
of a setting mean the same in all commands.
"""

HEAD = "| setting | class | commands | meaning |\n|---|---|---|---|\n"
OPTIONS_HEAD = "| option | meaning |\n|---|---|\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Write docs/reference.md and data/names.json.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file is out of date")
    options = parser.parse_args()
    if options.check:
        expected = {NAMES: names(), PAGE: page()}
        return int(any(text != path.read_text(encoding="utf-8") for path, text in expected.items()))
    NAMES.write_text(names(), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
    return 0


def names() -> str:
    """Return the names of the settings as JSON."""
    document = {
        "source": "written by docs/make_reference.py",
        "settings": [asdict(setting) for setting in settings_of(Initial.of(ReasoningGymEnv))],
    }
    return json.dumps(document, indent=1) + "\n"


def page() -> str:
    """Return the whole page."""
    return "\n".join([INTRODUCTION, *settings(), COMMANDS, *map(command_text, cli.COMMANDS)])


# --- settings


def settings() -> Iterator[str]:
    """Yield a section for each group of settings."""
    config, servers = ReasoningGymEnv.config_init()
    fields = ReasoningGymEnvConfig.model_fields
    for title, group in groups():
        rows = [row(name, fields[name], getattr(config, name)) for name in group]
        yield f"## {title}\n\n{HEAD}{''.join(rows)}"
    rows = []
    for name, field in Server.model_fields.items():
        if name not in UNUSED:
            rows.append(row(name, field, getattr(servers[0], name, None)))
    yield f"{SERVERS}\n{HEAD}{''.join(rows)}"
    unused = ", ".join(f"`{name}`" for name in UNUSED)
    yield f"Atropos also has these settings, which have no effect here: {unused}.\n"


def groups() -> list[tuple[str, list[str]]]:
    """Return the names of the settings by heading. The headings are the comments in the classes."""
    found: list[tuple[str, list[str]]] = []
    comment = ""
    classes = (TasksSettings, SamplingSettings, EvaluationSettings, ReasoningGymEnvConfig)
    for line in "".join(map(inspect.getsource, classes)).splitlines():
        if heading := re.match(r"    # (.+?)\.?$", line):
            comment = heading[1]
        elif (field := re.match(r"    (\w+): .* = ", line)) and field[1] in ReasoningGymEnvConfig.model_fields:
            if comment:
                found.append((comment, []))
            found[-1][1].append(field[1])
            comment = ""
    return found


def row(name: str, field: Any, start: Any) -> str:
    """Return one line of a table: name, default of the class, start value of the commands if it differs, meaning."""
    default = field.get_default(call_default_factory=True)
    commands = "" if start == default else shown(start)
    return f"| `{name}` | {shown(default)} | {commands} | {escaped(field.description or '')} |\n"


def shown(value: Any) -> str:
    if isinstance(value, Enum):
        value = value.value
    if value is None:
        return "none"
    if isinstance(value, (list, dict, str)) and not value:
        return "empty"
    return f"`{','.join(map(str, value)) if isinstance(value, list) else value}`"


# --- commands


class HelpRequested(Exception):
    """A command is about to print its help."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__()
        self.parser = parser


def command_text(name: str) -> str:
    """Return the section of a command: what it does, and the options that are no settings."""
    command = cli.COMMANDS[name]
    heading = f"### {name}\n\n"
    if command.target == cli.ATROPOS:
        return f"{heading}{sentence(command.summary)} {of_atropos(name)}"
    parser = parser_of(command.target, [])
    if name == "tasks":
        return f"{heading}{options_text(parser)}\n**tasks TASK.** {options_text(parser_of(command.target, ['TASK']))}"
    kinds = [kind for action in parser._actions for kind in subcommands(action).items()]
    if not kinds:
        return heading + options_text(parser)
    sections = [f"**{name} {kind}.** {options_text(of_kind)}" for kind, of_kind in kinds]
    return "\n".join([f"{heading}{escaped(parser.description or '')}\n", *sections])


def of_atropos(name: str) -> str:
    """Return sentences about a command whose options are the settings above."""
    parser = make_parser(name, packaged_settings(), shows_all=False)
    own = [row_of(parser, action) for action in parser._actions if is_own(action)]
    start = {command: Initial.of(ReasoningGymEnv).values(command)["env"] for command in ("serve", name)}
    changed = [f"`{key}` {shown(value)}" for key, value in start[name].items() if value != start["serve"][key]]
    short = {**SHORT_FLAGS, TASKS[name]: "--tasks"}
    lines = ["Its options are the settings above. `--help` shows the ten that matter first."]
    lines.append(f"Short forms: {', '.join(f'`{flag}` for `{setting}`' for setting, flag in short.items())}.")
    if changed:
        lines.append(f"It starts with {', '.join(changed)}.")
    return " ".join(lines) + f"\n\n{OPTIONS_HEAD}{''.join(own)}"


def is_own(action: argparse.Action) -> bool:
    """Whether the help shows the option, and it is neither a setting nor the help."""
    is_setting = "." in action.dest or (action.dest in TasksSettings.model_fields and bool(action.option_strings))
    return not is_setting and action.dest != "help" and action.help != argparse.SUPPRESS


def parser_of(target: str, words: list[str]) -> argparse.ArgumentParser:
    """Return the parser that prints the help of a command."""
    module, _, function = target.partition(":")
    start = getattr(importlib.import_module(f"reasoning_gym_environment.{module}"), function)
    with mock.patch.object(argparse.ArgumentParser, "print_help", request_help):
        try:
            start([*words, "--help"])
        except HelpRequested as request:
            return request.parser
    raise RuntimeError(f"expected that `{target}` prints the help of a parser, but it did not")


def request_help(parser: argparse.ArgumentParser, file: Any = None) -> None:
    raise HelpRequested(parser)


def subcommands(action: argparse.Action) -> dict[str, argparse.ArgumentParser]:
    return dict(action.choices or {}) if isinstance(action, argparse._SubParsersAction) else {}


def options_text(parser: argparse.ArgumentParser) -> str:
    """Return the description of a parser, a table of its options, and the names of those that are settings."""
    rows = []
    settings_here = []
    for action in parser._actions:
        if is_own(action):
            rows.append(row_of(parser, action))
        elif action.dest in TasksSettings.model_fields:
            settings_here.append(f"`{action.option_strings[0]}`")
    parts = [escaped(parser.description or ""), ""]
    if rows:
        parts.append(f"{OPTIONS_HEAD}{''.join(rows)}")
    if settings_here:
        parts += [f"Settings that are options: {', '.join(settings_here)}.", ""]
    return "\n".join(parts)


def row_of(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """Return the line of a table for one option."""
    meaning = parser._get_formatter()._expand_help(action) if action.help else ""
    return f"| {spellings(action)} | {escaped(meaning)} |\n"


def spellings(action: argparse.Action) -> str:
    """Return the names of an option, the longest with the placeholder of its value."""
    value = placeholder(action)
    if not action.option_strings:
        return f"`{value}`"
    *short, long = action.option_strings
    return ", ".join([*(f"`{flag}`" for flag in short), f"`{f'{long} {value}'.strip()}`"])


def placeholder(action: argparse.Action) -> str:
    """Return what stands for the value of an option in its help, or nothing for an option without a value."""
    if action.nargs == 0:
        return ""
    if isinstance(action.metavar, tuple):
        return " ".join(action.metavar)
    if action.metavar is None and action.choices:
        return f"{{{','.join(map(str, action.choices))}}}"
    return action.metavar or action.dest.upper()


# --- text


def sentence(text: str) -> str:
    return f"{text[0].upper()}{escaped(text[1:])}."


def escaped(text: str) -> str:
    """Return a help text as one line of Markdown. Code in backquotes keeps its form."""
    pieces = re.split(r"(`[^`]*`)", " ".join(text.split()))
    pieces[::2] = [re.sub(r"([*\[\]\\])", r"\\\1", piece).replace("<", "&lt;") for piece in pieces[::2]]
    return "".join(pieces).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
