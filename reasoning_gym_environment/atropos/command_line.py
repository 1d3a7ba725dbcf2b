"""Atropos' commands (serve, process, evaluate): read their settings once, check them, and run the command.

    flags ──────────────────┐
    --config FILE ──────────┼──> validated once ──> checked on this machine ──> the environment is built and run
    the command's defaults ─┘

The flags have Atropos' names: `--env.NAME VALUE`, `--openai.NAME VALUE`, `--slurm`, `--testing`, `--config FILE`.
Flags win over the file, and the file wins over the defaults (`config_init`). The log reports all invalid settings at
once, in a line each, and suggests the nearest names for an unknown name. Names that only Atropos or its trainers use
cause a warning (original_names.py). The command stops before any work if it cannot write its results. API keys are
never printed, logged or written; they are removed from sys.argv, which wandb uploads.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
import sys
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn, get_args

import yaml
from atroposlib.envs.base import BaseEnvConfig
from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic.fields import FieldInfo

from ..errors import SETTINGS_ARE_LISTED, EnvironmentSetupError, unknown_name
from ..evaluation.runner import SETTINGS
from ..settings.components import problems_of
from ..settings.help import RARELY_SET, is_shown
from ..settings.servers import PLACEHOLDER, STARS, Server
from ..tasks.catalog import check_names
from ..utils.logs import StderrHandler
from ..utils.terminal import check_file, check_folder
from .original_names import SETTINGS_WITHOUT_EFFECT

logger = logging.getLogger(__name__)

COMMANDS = ("serve", "process", "evaluate")
BAD_INPUT = 2
ENDED_EARLY = 1
"""The exit code of an environment that has made its steps while the trainer has steps left. The log says so."""
"""Exit code for settings that the user must change."""

KEY = "openai.api_key"
KEY_ENV = "openai.api_key_env"
VARIABLE = re.compile(r"\$\{(?:(?:oc\.)?env:)?([A-Za-z_]\w*)[^{}]*\}")
"""A variable as shells and OmegaConf write it. The group is its name, without a default, which may be an API key."""

MERGE = "tag:yaml.org,2002:merge"
"""The tag of the key `<<`."""

SHORT_FLAGS = {"env.dry_run": "--dry-run", "env.limit_tokens": "--limit-tokens"}


class Sections(BaseModel):
    """All settings of a run, except the settings of the environment, whose class is not known here."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    openai: list[Server]
    slurm: bool = False
    """Whether environment is running on slurm or not."""
    testing: Annotated[bool, RARELY_SET] = False
    """For tests in Python that construct the environment. The commands refuse it, because it replaces the servers."""


def run(environment: Any, arguments: Sequence[str]) -> Any:
    """Run a command (`arguments` without the program's name) with this class of environment (a BaseEnv).

    Returns the command's settings, or None after a dry run. Exits with 0 after `--help`, with 2 for bad input, with 1
    if `serve` ends before the trainer, and with 128 + the number of the signal that ended the command.
    """
    set_up_logging()
    try:
        return _run(environment, arguments)
    except EnvironmentSetupError as error:
        for line in str(error).splitlines():
            logger.error("%s", line)
        sys.exit(BAD_INPUT)


def _run(environment: Any, arguments: Sequence[str]) -> Any:
    command = arguments[0] if arguments else ""
    if command not in COMMANDS:
        raise EnvironmentSetupError(f"Expected a command, one of {', '.join(COMMANDS)}, got {command!r}.")
    parser = make_parser(command, environment, shows_all="--help-all" in arguments)
    parsed, words = parser.parse_known_args(arguments[1:])
    flags = vars(parsed)
    remove_key_from_arguments(flags.get(KEY))
    is_verbose = flags.pop("verbose", False)
    settings = settings_of_run(command, environment, flags, words)
    check_settings(command, settings)
    as_yaml = log_settings(settings, start_values(command, environment), is_verbose=is_verbose)
    env = environment(
        config=settings.env,
        # Without servers in the settings, the class names servers in a form that only Atropos reads.
        server_configs=settings.openai or environment.config_init()[1],
        slurm=settings.slurm,
        testing=settings.testing,
    )
    if command == "serve":
        asyncio.run(env.env_manager())
        if env.state.ends_before_trainer:
            # A job of environment and trainer must not continue, because the trainer would wait for ever.
            sys.exit(ENDED_EARLY)
    elif command == "process":
        asyncio.run(env.process_manager())
    else:
        asyncio.run(env._run_evaluate(as_yaml))
    return None if settings.env.dry_run else settings.env


def set_up_logging() -> None:
    """Log to stderr, and log warnings too."""
    logging.basicConfig(level=logging.INFO, handlers=[StderrHandler()])
    logging.captureWarnings(True)
    warnings.formatwarning = lambda message, *_args, **_kwargs: str(message)


# --- the flags


class Parser(argparse.ArgumentParser):
    """Raises EnvironmentSetupError where argparse would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        raise EnvironmentSetupError(message.removeprefix("argument "))


def config_class(environment: Any) -> type[BaseEnvConfig]:
    """The class of this environment's config: the class that `config_init` returns an object of, as in Atropos.

    A subclass may override `config_init` and leave `env_config_cls` as it is. If `env_config_cls` is a subclass of the
    class that `config_init` returns, it is the answer, because the environment was written for its additional fields.
    These fields start with their own defaults.
    """
    declared: type[BaseEnvConfig] = environment.env_config_cls
    returned = type(environment.config_init()[0])
    return declared if issubclass(declared, returned) else returned


def settings(environment: Any) -> dict[str, FieldInfo]:
    """Every setting, by its full name."""
    found: dict[str, FieldInfo] = {}
    for name, field in config_class(environment).model_fields.items():
        found[f"env.{name}"] = field
    for name, field in Server.model_fields.items():
        found[f"openai.{name}"] = field
    for name in ("slurm", "testing"):
        found[name] = Sections.model_fields[name]
    return found


def make_parser(command: str, environment: Any, *, shows_all: bool = False) -> Parser:
    """A parser with a flag for every setting. Its help shows the settings that most users set, or all of them."""
    parser = Parser(
        prog=f"reasoning-gym-env {command}",
        usage="%(prog)s [--config FILE] [--env.NAME VALUE ...] [--openai.NAME VALUE ...]",
        description="Flags win over the YAML file, and the file wins over the defaults below. In the file, env.NAME is "
        "NAME in the section env, and openai.NAME is NAME in the section openai. A list of mappings under openai "
        "describes several servers. The value `none` unsets a setting.",
        epilog=None if shows_all else "`--help-all` shows all settings.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("--help-all", action="help", help="print all settings and exit")
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="log every setting before the command starts",
    )
    files = parser.add_mutually_exclusive_group()
    files.add_argument(
        "--config",
        metavar="FILE",
        help="a YAML file with sections env, openai, slurm and testing",
    )
    if command == "evaluate":
        resume_help = "resume the evaluation in this folder, with the settings that it was started with"
        files.add_argument("--resume", metavar="FOLDER", help=resume_help)
    own_group = parser.add_argument_group("tasks, scoring, evaluation, files")
    atropos_group = parser.add_argument_group("settings of Atropos")
    server_group = parser.add_argument_group("the inference server")
    start = start_values(command, environment)
    for full_name, field in settings(environment).items():
        section, _, name = full_name.rpartition(".")
        if section == "openai":
            group = server_group
        elif section == "env" and name not in BaseEnvConfig.model_fields:
            group = own_group
        else:
            group = atropos_group
        help_text = argparse.SUPPRESS
        if shows_all or is_shown(name, field, command):
            default = start.get(section, {}).get(name, field.default)
            help_text = help_of(field, default)
        _add_setting(group, full_name, field, help_text)
    return parser


def help_of(field: FieldInfo, default: Any) -> str:
    """The help of a setting: its description and its default."""
    description = (field.description or "").rstrip(".")
    text = f"{description} (default: {_shown(default)})"
    # argparse formats the text with the % operator.
    return text.strip().replace("%", "%%")


def _add_setting(group: argparse._ArgumentGroup, name: str, field: FieldInfo, text: str) -> None:
    options: dict[str, Any] = {"dest": name, "metavar": "VALUE", "help": text}
    if type(None) in get_args(field.annotation):
        options["type"] = _none_or_text
    if field.annotation is bool:
        # `--env.NAME` alone means True.
        options |= {"nargs": "?", "const": "True"}
    flags = [f"--{name}"]
    if name in SHORT_FLAGS:
        flags.insert(0, SHORT_FLAGS[name])
    group.add_argument(*flags, **options)


def _none_or_text(text: str) -> str | None:
    return None if text.strip().lower() == "none" else text


def _shown(value: Any) -> str:
    if value in (None, "", [], {}):
        return "none"
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value)


# --- the file


def read_yaml(path: Path | None) -> dict[str, Any]:
    """The sections of a config file; `openai` is a list. Raises EnvironmentSetupError if it does not have sections."""
    if path is None:
        return {"env": {}, "openai": []}
    try:
        # The errors about a text quote its lines, which may hold an API key. The errors about a file do not.
        with path.open(encoding="utf-8") as file:
            loader = yaml.SafeLoader(file)
            document = loader.get_single_node()
            _check_document(path, document)
            data: Any = None if document is None else loader.construct_document(document)
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


def _check_document(path: Path, document: yaml.Node | None) -> None:
    """Raise EnvironmentSetupError for each key that a mapping has twice, and for each variable in a value.

    YAML keeps the last value of a key, and knows no variables, so both would be other settings than the file shows.
    """
    problems: list[str] = []
    waiting = [("", document)] if document else []
    checked: set[int] = set()
    while waiting:
        name, node = waiting.pop()
        # An alias is the node itself again, perhaps within itself.
        if id(node) in checked:
            continue
        checked.add(id(node))
        if isinstance(node, yaml.ScalarNode):
            problems += _variables_in(name, node)
        elif isinstance(node, yaml.SequenceNode):
            waiting += [(name, part) for part in node.value]
        elif isinstance(node, yaml.MappingNode):
            problems += _repeated_keys(name, node)
            waiting += [(_joined(name, key), value) for key, value in node.value]
    if problems:
        raise EnvironmentSetupError("\n".join(f"{path}, {problem}" for problem in problems))


def _joined(name: str, key: yaml.Node) -> str:
    if key.tag == MERGE:
        return name
    return f"{name}.{key.value}".removeprefix(".")


def _repeated_keys(name: str, mapping: yaml.MappingNode) -> list[str]:
    lines: dict[str, int] = {}
    problems = []
    for key, _ in mapping.value:
        if key.tag == MERGE:
            continue
        full_name = _joined(name, key)
        line = key.start_mark.line + 1
        if full_name in lines:
            problems.append(f"line {line}: {full_name} is already in line {lines[full_name]}. Keep one of them.")
        lines.setdefault(full_name, line)
    return problems


def _variables_in(name: str, value: yaml.ScalarNode) -> list[str]:
    found = VARIABLE.search(value.value)
    if found is None:
        return []
    variable = found[1]
    remedy = f"write its value, or leave {name} out and give the flag --{name}, in which the shell replaces variables"
    if name == KEY:
        remedy = f"use api_key_env: {variable}"
    return [
        f"line {value.start_mark.line + 1}: {name} has the variable {variable}, which is not replaced in this file: "
        f"{remedy}."
    ]


# --- the settings of the run


def start_values(command: str, environment: Any) -> dict[str, dict[str, Any]]:
    """The defaults of a command with this environment class: section -> name -> plain value."""
    initial, servers = environment.config_init()
    # The class may have more fields than the object. They get their defaults. No value is checked here, because the
    # user may give the values that the class requires.
    config = config_class(environment).model_construct(**dict(initial))
    values = config.model_dump(mode="json")
    # Atropos' commands have these defaults.
    if command != "serve":
        values["use_wandb"] = True
        # They write their own files.
        values["keep_for_report"] = False
    if command == "process":
        values["ensure_scores_are_not_same"] = False
        values["include_messages"] = True
        values["data_path_to_save_groups"] = values["data_path_to_save_groups"] or f"data/{environment.name}.jsonl"
    values["wandb_name"] = values["wandb_name"] or environment.name
    server = servers[0] if isinstance(servers, list) else servers
    return {"env": values, "openai": _plain(server)}


def settings_of_run(command: str, environment: Any, flags: Mapping[str, Any], words: Sequence[str]) -> Any:
    """The settings, with attributes named like the sections of a file. No servers means the servers of the class.

    `flags` are values by the full names of settings: text, or None for `none`. `words` are the arguments that belong to
    no setting. Logs a warning about names without effect. Raises EnvironmentSetupError with a line for each mistake.
    """
    problems = []
    unknown = [word.removeprefix("--").partition("=")[0] for word in words if word.startswith("--")]
    # Later words are not repeated: after an unknown flag, or after a name without dashes, a word may be an API key.
    if words and not words[0].startswith("--"):
        name = words[0].partition("=")[0]
        problems.append(f"Expected --NAME VALUE, got {name!r}.")

    given = _by_section(flags)
    path = given[""].pop("config", None)
    folder = given[""].pop("resume", None)
    if folder is not None:
        path = Path(folder, SETTINGS)
        given["env"].setdefault("data_dir_to_save_evals", folder)
    file = read_yaml(None if path is None else Path(path))
    start = start_values(command, environment)
    servers = file["openai"] or _own_servers(environment)
    if given["openai"] and len(servers) > 1:
        problems.append("With several servers, their settings cannot be given as flags.")
    if given["openai"] and not servers:
        servers = [{}]
    given_servers = [server | given["openai"] for server in servers]
    servers = [start["openai"] | server for server in given_servers]
    env = file["env"] | given["env"]
    if command != "serve" and servers and servers[0]["server_type"] == "openai":
        # Such a server exchanges text, so the number of tokens is only estimated.
        env.setdefault("tokenizer_name", "none")
    models = [server["model_name"] for server in given_servers if server.get("model_name")]
    if models:
        # The default tokenizer belongs to the default model.
        env.setdefault("tokenizer_name", models[0])

    known = [*settings(environment), "env", "openai", "config"]
    values = _only_known("", file | given[""], known, unknown)
    values["env"] = _only_known("env.", start["env"] | env, known, unknown)
    values["openai"] = [_only_known("openai.", server, known, unknown) for server in servers]
    for name in dict.fromkeys(unknown):
        if name in SETTINGS_WITHOUT_EFFECT:
            logger.warning("%s has no effect in this environment: %s.", name, SETTINGS_WITHOUT_EFFECT[name])
        else:
            problems.append(unknown_setting(name, known))
    model = create_model("Settings", __base__=Sections, env=config_class(environment))
    try:
        validated = model.model_validate(values)
    except ValidationError as error:
        problems += problems_of(error)
    if problems:
        raise EnvironmentSetupError("\n".join(problems))
    return validated


def _by_section(flags: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    sections: dict[str, dict[str, Any]] = {"env": {}, "openai": {}, "": {}}
    for full_name, value in flags.items():
        section, _, name = full_name.rpartition(".")
        sections[section][name] = value
    return sections


def _own_servers(environment: Any) -> list[dict[str, Any]]:
    """The servers of the class; none if the class names them in a form that only Atropos reads."""
    servers = environment.config_init()[1]
    return [_plain(server) for server in servers] if isinstance(servers, list) else []


def _plain(server: BaseModel) -> dict[str, Any]:
    # As in Atropos, a class of servers cannot have settings of its own.
    return server.model_dump(mode="json", include=set(Server.model_fields))


def _only_known(prefix: str, values: Mapping[Any, Any], known: Collection[str], unknown: list[str]) -> dict[str, Any]:
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


def check_settings(command: str, settings: Any) -> None:
    """Raise EnvironmentSetupError for settings that are valid, but not with this command or on this machine."""
    config = settings.env
    if settings.slurm and "SLURM_JOB_NODELIST" not in os.environ:
        raise EnvironmentSetupError("slurm is on, but this is no SLURM job: SLURM_JOB_NODELIST is not set.")
    if command == "process" and config.total_steps < 1:
        raise EnvironmentSetupError(f"env.total_steps: process needs at least 1, got {config.total_steps}.")
    if command == "serve" and (config.dry_run or config.limit_tokens is not None):
        raise EnvironmentSetupError("env.dry_run and env.limit_tokens are for evaluate and process, which end.")
    if command == "evaluate" and config.data_dir_to_save_evals is None:
        logger.info("Completions will not be saved. Set env.data_dir_to_save_evals to save them and to allow a resume.")
    asked = [name for name in config.eval_tasks if name != "all" and not name.isdecimal()]
    check_names(
        [*config.include_tasks, *config.exclude_tasks, *config.task_weights, *config.task_overrides, *asked],
        config.task_modules,
    )
    _check_output_paths(command, config)


def _check_output_paths(command: str, config: Any) -> None:
    groups = config.data_path_to_save_groups
    if groups is not None:
        check_folder("The folder of env.data_path_to_save_groups", Path(groups).parent)
        check_file("env.data_path_to_save_groups", groups)
        if command == "process" and config.include_messages:
            page = Path(groups).with_suffix(".html")
            check_file("The page beside env.data_path_to_save_groups", page, inputs=[groups])
    if config.data_dir_to_save_evals is not None:
        check_folder("env.data_dir_to_save_evals", config.data_dir_to_save_evals)
    if config.keeps_groups:
        check_folder("env.data_dumps_dir", config.dumps_folder)


def log_settings(settings: BaseModel, start: Mapping[str, Any], *, is_verbose: bool) -> str:
    """Log the settings that differ from the command's defaults, or all settings. Returns all settings as YAML."""
    shown = without_keys(settings)
    as_yaml = yaml.dump(shown, default_flow_style=False, sort_keys=False)
    if is_verbose:
        logger.info("All settings:\n%s", as_yaml)
        return as_yaml
    changed = _changed("env", shown["env"], start["env"])
    for server in shown["openai"]:
        changed += _changed("openai", server, start["openai"])
    listed = ", ".join(changed) or "none"
    logger.info("Settings other than the defaults: %s. (--verbose logs all settings.)", listed)
    return as_yaml


def _changed(section: str, values: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[str]:
    return [f"{section}.{name} {_shown(value):.60}" for name, value in values.items() if value != defaults.get(name)]


# --- keys


def without_keys(settings: BaseModel) -> dict[str, Any]:
    """All settings of a run without API keys, in the form of a file for `--config`: safe to log and to write."""
    shown = settings.model_dump(mode="json")
    for server in shown["openai"]:
        if server["api_key"] != PLACEHOLDER:
            server["api_key"] = STARS
    return shown


def remove_key_from_arguments(key: str | None) -> None:
    """Hide the key in sys.argv, which wandb writes into the files of a run and uploads."""
    if not key:
        return
    for arguments in (sys.argv, sys.orig_argv):
        for index, argument in enumerate(arguments):
            if argument == key or KEY in argument:
                arguments[index] = argument.replace(key, STARS)
    if key != PLACEHOLDER:
        logger.warning(
            "Every user of this machine can see the value of --%s: use --%s NAME instead.",
            KEY,
            KEY_ENV,
        )
