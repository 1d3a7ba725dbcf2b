"""The flags and the file of Atropos' commands: the settings' names, their help, and what the user has given.

    flags ───────────┐
    --config FILE ───┴──> names of settings and tasks checked ──> Given ──> command_line.py

This module imports neither Atropos nor pydantic, so `--help` and misspelt settings take a fraction of a second. The
names and the help of ReasoningGymEnv's settings are in data/names.json, which docs/make_reference.py writes. For
another class of environment they come from the class (`settings_of` in command_line.py). The log reports all unknown
names at once, in a line each, with the nearest known names. Names that only Atropos or its trainers use cause a warning
(original_names.py).
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import logging
import sys
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import yaml

from ..errors import SETTINGS_ARE_LISTED, EnvironmentSetupError, unknown_name
from ..storage.files import EVALUATION_SETTINGS
from ..tasks.catalog import check_names
from ..tasks.measured_data import packaged
from ..utils.logs import stderr_handler
from .original_names import SETTINGS_WITHOUT_EFFECT

logger = logging.getLogger(__name__)

COMMANDS = ("serve", "process", "evaluate")
BAD_INPUT = 2
"""Exit code for settings that the user must change."""

KEY = "openai.api_key"
SHORT_FLAGS = {
    "env.limit_tokens": "--limit-tokens",
    "env.exclude_tasks": "--exclude",
    "env.num_eval_samples_per_task": "--per-task",
}
TASKS = {"serve": "env.include_tasks", "process": "env.include_tasks", "evaluate": "env.eval_tasks"}
"""The setting that --tasks means in a command."""

FIRST = {
    "serve": (
        "openai.base_url",
        "openai.model_name",
        "env.answer_format",
        "env.max_token_length",
        "env.include_tasks",
        "env.complexity_mode",
        "env.group_size",
        "env.max_num_workers_per_node",
        "env.num_eval_samples_per_task",
        "env.total_steps",
    ),
    "process": (
        "openai.base_url",
        "openai.model_name",
        "openai.server_type",
        "openai.api_key_env",
        "env.answer_format",
        "env.max_token_length",
        "env.include_tasks",
        "env.complexity_mode",
        "env.group_size",
        "env.total_steps",
    ),
    "evaluate": (
        "openai.base_url",
        "openai.model_name",
        "openai.server_type",
        "openai.api_key_env",
        "env.answer_format",
        "env.max_token_length",
        "env.eval_tasks",
        "env.num_eval_samples_per_task",
        "env.eval_completions",
        "env.data_dir_to_save_evals",
    ),
}
"""The settings of each command that `--help` shows, because they matter first."""
ALL_SETTINGS = "--help-all"
GROUPS = {
    "own": "tasks, scoring, evaluation, files",
    "atropos": "settings of Atropos",
    "server": "the inference server",
}
"""The groups of settings in `--help-all`, with their titles. Settings without effect are in no group."""


@dataclass(frozen=True)
class Setting:
    """A setting, as its flag and its help show it. `name` is its full name, such as env.seed."""

    name: str
    group: str
    """The key of GROUPS, or "unused"."""
    description: str
    defaults: Mapping[str, str]
    """The default of each command, as text."""
    is_switch: bool
    """Whether the flag without a value means True."""
    may_be_none: bool


@dataclass(frozen=True)
class Given:
    """The values that the user has set, by section and name. All names are settings.

    A value of a flag is text, or None for `none`. `file` has the sections of the file; its `openai` is a list.
    """

    command: str
    flags: dict[str, dict[str, Any]]
    file: dict[str, Any]
    is_verbose: bool


def packaged_settings() -> list[Setting]:
    """The settings of ReasoningGymEnv and of its servers."""
    return [Setting(**setting) for setting in packaged("names.json")["settings"]]


@contextlib.contextmanager
def mistakes_end_the_command() -> Iterator[None]:
    """Log to stderr. An EnvironmentSetupError is logged, each of its lines alone, and ends the process."""
    logging.basicConfig(handlers=[stderr_handler()])
    logging.getLogger().setLevel(logging.INFO)
    logging.captureWarnings(True)
    warnings.formatwarning = lambda message, *_args, **_kwargs: str(message)
    try:
        yield
    except EnvironmentSetupError as error:
        for line in str(error).splitlines():
            logger.error("%s", line)
        sys.exit(BAD_INPUT)


def read(arguments: Sequence[str], settings: Sequence[Setting]) -> Given:
    """Read the flags and the file that the arguments name; `arguments` begin with the command.

    Exits with 0 after `--help` and `--help-all`. Raises EnvironmentSetupError with a line for each unknown name.
    """
    command = arguments[0] if arguments else ""
    if command not in COMMANDS:
        raise EnvironmentSetupError(f"Expected a command, one of {', '.join(COMMANDS)}, got {command!r}.")
    parser = make_parser(command, settings, shows_all=ALL_SETTINGS in arguments)
    parsed, words = parser.parse_known_args(arguments[1:])
    flags = vars(parsed)
    is_verbose = flags.pop("verbose", False)
    path = flags.pop("config", None)
    folder = flags.pop("resume", None)
    if folder is not None:
        path = Path(folder, EVALUATION_SETTINGS)
        flags.setdefault("env.data_dir_to_save_evals", folder)
    file = read_yaml(None if path is None else Path(path))
    given = _only_known(Given(command, _by_section(flags), file, is_verbose), words, settings)
    _check_task_names(given.file["env"] | given.flags["env"])
    return given


# --- the flags


class Parser(argparse.ArgumentParser):
    """Raises EnvironmentSetupError where argparse would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        raise EnvironmentSetupError(message.removeprefix("argument "))


def make_parser(command: str, settings: Iterable[Setting], *, shows_all: bool) -> Parser:
    """A parser with a flag for every setting. Its help shows all settings, or one sentence about those of FIRST."""
    parser = Parser(
        prog=f"reasoning-gym-env {command}",
        usage="%(prog)s [--config FILE] [--env.NAME VALUE ...] [--openai.NAME VALUE ...]",
        description="Flags win over the YAML file, and the file wins over the defaults below. In the file, env.NAME is "
        "NAME in the section env, and openai.NAME is NAME in the section openai. A list of mappings under openai "
        "describes several servers. The value `none` unsets a setting."
        if shows_all
        else None,
        epilog=None if shows_all else f"{ALL_SETTINGS} shows all settings. A file may hold them too: --config.",
        formatter_class=functools.partial(argparse.HelpFormatter, max_help_position=6),
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    add = parser.add_argument
    add(ALL_SETTINGS, action="help", help="show all settings and exit")
    add("--verbose", action="store_true", help="log every setting before the command starts")
    files = parser.add_mutually_exclusive_group()
    files.add_argument("--config", metavar="FILE", help="a YAML file with sections env, openai, slurm and testing")
    if command == "evaluate":
        resume_help = "resume the evaluation in this folder, with the settings that it was started with"
        files.add_argument("--resume", metavar="FOLDER", help=resume_help)
    by_name = {setting.name: setting for setting in settings}
    first = [] if shows_all else [by_name.pop(name) for name in FIRST[command] if name in by_name]
    group = parser.add_argument_group("the settings that matter first")
    for setting in first:
        _add_setting(group, command, setting, help_of(setting, command, first_sentence=True))
    groups = {name: parser.add_argument_group(title) for name, title in GROUPS.items()}
    for setting in by_name.values():
        is_shown = shows_all and setting.group in groups
        text = help_of(setting, command) if is_shown else argparse.SUPPRESS
        _add_setting(groups.get(setting.group, parser), command, setting, text)
    return parser


def help_of(setting: Setting, command: str, *, first_sentence: bool = False) -> str:
    """The help of a setting: its description, or the first sentence of it, and its default."""
    text = setting.description.partition(". ")[0] if first_sentence else setting.description
    text = f"{text.rstrip('.')} (default: {setting.defaults[command]})"
    # argparse formats the text with the % operator.
    return text.strip().replace("%", "%%")


def _add_setting(group: argparse._ActionsContainer, command: str, setting: Setting, text: str) -> None:
    options: dict[str, Any] = {"dest": setting.name, "metavar": "VALUE", "help": text}
    if setting.may_be_none:
        options["type"] = _none_or_text
    if setting.is_switch:
        # `--env.NAME` alone means True.
        options |= {"nargs": "?", "const": "True"}
    flags = [f"--{setting.name}"]
    if setting.name == TASKS[command]:
        flags.append("--tasks")
    if setting.name in SHORT_FLAGS:
        flags.append(SHORT_FLAGS[setting.name])
    group.add_argument(*flags, **options)


def _none_or_text(text: str) -> str | None:
    return None if text.strip().lower() == "none" else text


def _by_section(flags: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    sections: dict[str, dict[str, Any]] = {"env": {}, "openai": {}, "": {}}
    for full_name, value in flags.items():
        section, _, name = full_name.rpartition(".")
        sections[section][name] = value
    return sections


# --- the file


def read_yaml(path: Path | None) -> dict[str, Any]:
    """The sections of a config file; `openai` is a list. Raises EnvironmentSetupError if it does not have sections."""
    if path is None:
        return {"env": {}, "openai": []}
    try:
        # The errors about a text quote its lines, which may hold an API key. The errors about a file do not.
        with path.open(encoding="utf-8") as file:
            data = yaml.safe_load(file)
    except OSError as error:
        raise EnvironmentSetupError(f"Cannot read the config file {path}: {error.strerror}.") from error
    except (yaml.YAMLError, ValueError) as error:
        # PyYAML reads some values, such as dates, without its own errors.
        raise EnvironmentSetupError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    sections = dict(data) if isinstance(data, dict) else {"env": data}
    sections.setdefault("env", {})
    servers = sections.get("openai", [])
    sections["openai"] = servers if isinstance(servers, list) else [servers]
    mappings = [sections["env"]] + sections["openai"]
    if not all(isinstance(mapping, dict) for mapping in mappings):
        raise EnvironmentSetupError(
            f"{path}: expected the sections env (a mapping), openai (a mapping, or a list of them), slurm and testing."
        )
    return sections


# --- the names


def _only_known(given: Given, words: Sequence[str], settings: Iterable[Setting]) -> Given:
    """The given values that are settings; `words` are the arguments that belong to no setting.

    Logs a warning about names without effect. Raises EnvironmentSetupError with a line for each unknown name.
    """
    problems = []
    # Later words are not repeated: after an unknown flag, or after a name without dashes, a word may be an API key.
    if words and not words[0].startswith("--"):
        name = words[0].partition("=")[0]
        problems.append(f"Expected --NAME VALUE, got {name!r}.")
    known = [setting.name for setting in settings] + ["env", "openai", "config"]
    unknown = [word.removeprefix("--").partition("=")[0] for word in words if word.startswith("--")]
    file = _known_values("", given.file, known, unknown)
    file["env"] = _known_values("env.", file["env"], known, unknown)
    file["openai"] = [_known_values("openai.", server, known, unknown) for server in file["openai"]]
    for name in dict.fromkeys(unknown):
        section = name.partition(".")[0]
        reason = SETTINGS_WITHOUT_EFFECT.get(name) or SETTINGS_WITHOUT_EFFECT.get(section)
        if reason:
            logger.warning("%s has no effect in this environment: %s.", name, reason)
        else:
            problems.append(unknown_setting(name, known))
    if problems:
        raise EnvironmentSetupError("\n".join(problems))
    return Given(given.command, given.flags, file, given.is_verbose)


def _known_values(prefix: str, values: Mapping[Any, Any], known: Collection[str], unknown: list[str]) -> dict[str, Any]:
    """The values that are settings. Adds the full names of all others to `unknown`."""
    kept = {}
    for name, value in values.items():
        full_name = f"{prefix}{name}"
        if full_name in known and "." not in str(name):
            kept[name] = value
        else:
            unknown.append(full_name)
    return kept


def unknown_setting(name: str, known: Collection[str]) -> str:
    """The line about a name that is no setting, which suggests names of the same section, or any names if it has none.

    Names are compared without their section, because a section in common would make all of them similar.
    """
    section, separator, key = name.partition(".")
    if separator and name in known:
        return f"Expected {key} in the section {section} of the file, got {name!r} outside of the sections."
    prefix = section + separator
    of_section = [other.removeprefix(prefix) for other in known if other.startswith(prefix)]
    if separator and of_section:
        return f"{section}: {unknown_name('setting', key, of_section, SETTINGS_ARE_LISTED)}"
    return str(unknown_name("setting", name, known, SETTINGS_ARE_LISTED))


def _check_task_names(env: Mapping[str, Any]) -> None:
    """Raise UnknownNameError for a task that does not exist. Invalid values are reported later, with all others."""
    # Pydantic takes longer to load than everything else here, and `--help` does not need it.
    from pydantic import ValidationError

    from ..settings.components import EvaluationSettings

    values = {name: value for name, value in env.items() if name in EvaluationSettings.model_fields}
    try:
        given = EvaluationSettings(**values)
    except ValidationError:
        return
    evaluated = [name for name in given.eval_tasks if not name.isdecimal()]
    names = [*given.include_tasks, *given.exclude_tasks, *given.task_weights, *given.task_overrides, *evaluated]
    if names:
        check_names(names, given.task_modules)
