"""Atropos' commands (serve, process, evaluate): read their settings once, check them, and run the command.

    flags ──────────────────┐
    --config FILE ──────────┼──> validated once ──> checked on this machine ──> the environment is built and run
    the command's defaults ─┘

The flags have Atropos' names: `--env.NAME VALUE`, `--openai.NAME VALUE`, `--slurm`, `--testing`, `--config FILE`.
Flags win over the file, and the file wins over the defaults (`config_init`). The log reports all invalid settings at
once, in a line each, and suggests the nearest names for an unknown name. Names that only Atropos or its trainers use
cause a warning (known_names.py). The command stops before any work if it cannot write its results. API keys are never
printed, logged or written; they are removed from sys.argv, which wandb uploads.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NoReturn, get_args

import yaml
from atroposlib.envs.base import APIServerConfig, BaseEnvConfig
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic.fields import FieldInfo

from ..errors import SETTINGS_ARE_LISTED, EnvironmentSetupError, unknown_name
from ..evaluation.runner import SETTINGS
from ..inference.servers import NO_SERVER_IN_TESTING
from ..utils.logs import LINE_FORMAT, TIME_FORMAT
from ..utils.terminal import check_file, check_folder
from .known_names import WITHOUT_EFFECT, warnings_about
from .preflight import PLACEHOLDER

logger = logging.getLogger(__name__)

COMMANDS = ("serve", "process", "evaluate")
BAD_INPUT = 2
"""Exit code for settings that the user must change."""

KEY = "openai.api_key"
KEY_ENV = "openai.api_key_env"
STARS = "***"
SHORT_FLAGS = {"env.dry_run": "--dry-run", "env.limit_tokens": "--limit-tokens"}

# --- what --help leaves to --help-all, as patterns of names

RARELY_SET = (
    "suppress_*",
    "rolling_*",
    "n_kwarg_*",
    "health_check",
    "eval_limit_ratio",
    "inference_weight",
)
TRAINER = (
    "rollout_server_url",
    "batch_size",
    "max_staleness_*",
    "min_batch_*",
    "run_id",
    "dump_*",
    "data_dumps_*",
)
TRAINING_ITEMS = (
    "seed",
    "instance_id",
    "group_size",
    "train_*",
    "task_weights",
    "complexity_mode",
    "curriculum_*",
    "total_steps",
)
TRAINING_REWARDS = (
    "min_completion_*",
    "mask_*",
    "partial_*",
)
EVALUATION = (
    "eval_*",
    "num_eval_*",
    "steps_per_eval",
    "data_dir_*",
    "rollout_save_*",
)
GROUP_FILES = (
    "data_path_*",
    "steps_per_eval",
    "eval_handling",
    "*rollout*",
)
UNUSED = {
    "serve": ("limit_*", "dry_run", "data_path_*"),
    "process": TRAINER + EVALUATION,
    "evaluate": TRAINER + TRAINING_ITEMS + TRAINING_REWARDS + GROUP_FILES,
}
"""Settings that a command does not use."""
ATROPOS_RESULTS = frozenset({"data_path_to_save_groups", "data_dir_to_save_evals", "slurm"})
"""Settings of Atropos that --help shows, besides the settings to which the environment's class gives a value."""


class Server(APIServerConfig):
    """An inference server, whose key may be in an environment variable."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    api_key_env: str | None = None
    """Name of the environment variable that holds the API key."""
    base_url: str | None = Field("", pattern="^(https?://|$)")
    """Base URL for the server."""
    timeout: int = Field(1200, ge=1)
    """Requests that take longer than this number of seconds fail and are retried."""
    num_max_requests_at_once: int = Field(512, ge=1)
    """Maximum number of concurrent requests."""
    num_requests_for_eval: int = Field(64, ge=1)
    """Maximum number of concurrent requests for evaluation."""

    @model_validator(mode="after")
    def _has_its_key(self) -> Server:
        given: str | None = self.api_key
        self.api_key = PLACEHOLDER if given in (None, "", STARS) else given
        name = self.api_key_env
        if name is None:
            return self
        if self.api_key != PLACEHOLDER:
            raise ValueError("api_key and api_key_env both give a key: use one of them")
        if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
            # The message does not repeat the value, because it may be the key itself.
            raise ValueError("api_key_env: expected the name of an environment variable, such as OPENAI_API_KEY")
        self.api_key = os.environ.get(name, "")
        if not self.api_key:
            raise ValueError(f"api_key_env: the environment variable {name} is not set, or it is empty")
        return self


def run(environment: Any, arguments: Sequence[str]) -> Any:
    """Run a command (`arguments` without the program's name) with this class of environment (a BaseEnv).

    Returns the command's settings, or None after a dry run. Exits with 0 after `--help`, with 2 for bad input, and with
    128 + the number of the signal that ended the command.
    """
    set_up_logging()
    try:
        command = arguments[0] if arguments else ""
        if command not in COMMANDS:
            raise EnvironmentSetupError(f"Expected a command, one of {', '.join(COMMANDS)}, got {command!r}.")
        flags, problems = parse(command, environment, arguments[1:])
        remove_key_from_arguments(flags.get(KEY))
        return _run(command, environment, flags, problems)
    except EnvironmentSetupError as error:
        for line in str(error).splitlines():
            logger.error("%s", line)
        sys.exit(BAD_INPUT)


def _run(command: str, environment: Any, flags: dict[str, Any], problems: Sequence[str]) -> Any:
    is_verbose = flags.pop("verbose", False)
    start = start_values(command, environment)
    settings = settings_of_run(command, environment, flags, problems, start)
    check_settings(command, settings)
    shown = without_keys(settings)
    as_yaml = yaml.dump(shown, default_flow_style=False, sort_keys=False)
    if is_verbose:
        logger.info("All settings:\n%s", as_yaml)
    else:
        logger.info("%s", what_differs(shown, start))
    # Without servers in the settings, the class names servers in a form that only Atropos reads.
    servers = settings.openai or environment.config_init()[1]
    env = environment(
        config=settings.env,
        server_configs=servers,
        slurm=settings.slurm,
        testing=settings.testing,
    )
    if command == "serve":
        asyncio.run(env.env_manager())
    elif command == "process":
        asyncio.run(env.process_manager())
    else:
        asyncio.run(env._run_evaluate(as_yaml))
    return None if settings.env.dry_run else settings.env


def set_up_logging() -> None:
    """Log to stderr, and log warnings too."""
    logging.basicConfig(
        level=logging.INFO,
        format=LINE_FORMAT,
        datefmt=TIME_FORMAT,
        stream=sys.stderr,
    )
    logging.captureWarnings(True)
    warnings.formatwarning = lambda message, *_args, **_kwargs: str(message)


# --- the flags


class Parser(argparse.ArgumentParser):
    """Raises EnvironmentSetupError where argparse would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        raise EnvironmentSetupError(message.removeprefix("argument "))


def parse(command: str, environment: Any, arguments: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The flags in the arguments, by their full names without dashes, and a line for each word that is wrong.

    Values are text, or None for `none`. Raises EnvironmentSetupError for a flag without a value.
    """
    parser = make_parser(command, environment, shows_all="--help-all" in arguments)
    found, words = parser.parse_known_args(arguments)
    return vars(found), list(problems_of_words(words, [*settings(environment), "config"]))


def problems_of_words(words: Sequence[str], known: Collection[str]) -> Iterator[str]:
    """A line for each unknown flag, and for a word at the beginning that belongs to no flag.

    Other words are not repeated: after an unknown flag, or after a name without dashes, a word may be an API key.
    """
    for position, word in enumerate(words):
        name = word.partition("=")[0]
        if name.startswith("--"):
            yield unknown_setting(name.removeprefix("--"), known)
        elif position == 0:
            yield f"Expected --NAME VALUE, got {name!r}."


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
    _add_general_flags(parser, command)
    own_group = parser.add_argument_group("tasks, scoring, evaluation, files")
    run_group = parser.add_argument_group("settings of Atropos")
    server_group = parser.add_argument_group("the inference server")
    start = start_values(command, environment)
    usual = ATROPOS_RESULTS | environment.config_init()[0].model_fields_set
    for name, field in settings(environment).items():
        section, _, key = name.rpartition(".")
        is_shown = shows_all or not _is_left_out(command, key)
        if section == "openai":
            group = server_group
        elif section == "env" and key not in BaseEnvConfig.model_fields:
            group = own_group
        else:
            group = run_group
            is_shown = is_shown and (shows_all or key in usual)
        default = start.get(section, {}).get(key, field.default)
        _add_setting(
            group,
            name,
            field,
            help_of(field, default) if is_shown else argparse.SUPPRESS,
        )
    for name in WITHOUT_EFFECT.keys() - settings(environment):
        parser.add_argument(f"--{name}", dest=name, help=argparse.SUPPRESS)
    return parser


def _add_general_flags(parser: Parser, command: str) -> None:
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


def _is_left_out(command: str, key: str) -> bool:
    patterns = RARELY_SET + UNUSED[command]
    return any(fnmatch(key, pattern) for pattern in patterns)


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
            data = yaml.safe_load(file)
    except OSError as error:
        raise EnvironmentSetupError(f"Cannot read the config file {path}: {error.strerror}.") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
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
    if command == "process":
        values["ensure_scores_are_not_same"] = False
        values["include_messages"] = True
        values["data_path_to_save_groups"] = values["data_path_to_save_groups"] or f"data/{environment.name}.jsonl"
    values["wandb_name"] = values["wandb_name"] or environment.name
    server = servers[0] if isinstance(servers, list) else servers
    return {"env": values, "openai": _plain(server)}


class Sections(BaseModel):
    """All settings of a run, except the settings of the environment, whose class is not known here."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    openai: list[Server]
    slurm: bool = False
    """Whether environment is running on slurm or not."""
    testing: bool = False
    """For tests in Python that construct the environment. The commands refuse it, because it replaces the servers."""


def settings_of_run(
    command: str, environment: Any, flags: Mapping[str, Any], problems: Sequence[str], start: Mapping[str, Any]
) -> Any:
    """The settings, with attributes named like the sections of a file. No servers means the servers of the class.

    Logs a warning about names without effect. Raises EnvironmentSetupError with the lines of `problems`, which the
    flags have, and a line for each unknown name and each invalid setting.
    """
    problems = list(problems)
    env_flags = _section("env", flags)
    server_flags = _section("openai", flags)
    others = {name: value for name, value in flags.items() if not name.startswith(("env.", "openai."))}
    path = others.pop("config", None)
    if command == "evaluate" and "resume" in others:
        folder = others.pop("resume")
        path = Path(folder, SETTINGS)
        env_flags.setdefault("data_dir_to_save_evals", folder)
    file = read_yaml(None if path is None else Path(path))

    servers = file["openai"] or _own_servers(environment)
    if server_flags and len(servers) > 1:
        problems.append("With several servers, their settings cannot be given as flags.")
    if server_flags and not servers:
        servers = [{}]
    servers = [start["openai"] | server | server_flags for server in servers]
    env = file["env"] | env_flags
    if command != "serve" and servers and servers[0]["server_type"] == "openai":
        # Such a server exchanges text, so the number of tokens is only estimated.
        env.setdefault("tokenizer_name", "none")
    values = file | others | {"env": start["env"] | env, "openai": servers}
    known = list(settings(environment))
    values, unknown = only_known(values, known)
    for line in warnings_about(unknown):
        logger.warning("%s", line)
    for name in unknown:
        if name not in WITHOUT_EFFECT:
            problems.append(unknown_setting(name, [*known, "env", "openai"]))
    return _validated(environment, values, problems)


def _own_servers(environment: Any) -> list[dict[str, Any]]:
    """The servers of the class; none if the class names them in a form that only Atropos reads."""
    servers = environment.config_init()[1]
    return [_plain(server) for server in servers] if isinstance(servers, list) else []


def _plain(server: BaseModel) -> dict[str, Any]:
    # As in Atropos, a class of servers cannot have settings of its own.
    return server.model_dump(mode="json", include=set(Server.model_fields))


def _section(name: str, flags: Mapping[str, Any]) -> dict[str, Any]:
    prefix = f"{name}."
    return {flag.removeprefix(prefix): value for flag, value in flags.items() if flag.startswith(prefix)}


def only_known(values: Mapping[Any, Any], known: Collection[str]) -> tuple[dict[str, Any], list[str]]:
    """The sections without the names that are no settings, and these names in full. Each name is there once."""
    others = {name: value for name, value in values.items() if name not in ("env", "openai")}
    kept, unknown = _split("", others, [name for name in known if "." not in name])
    kept["env"], unknown_of_env = _split("env.", values["env"], known)
    unknown += unknown_of_env
    kept["openai"] = []
    for server in values["openai"]:
        kept_of_server, unknown_of_server = _split("openai.", server, known)
        kept["openai"].append(kept_of_server)
        unknown += unknown_of_server
    return kept, list(dict.fromkeys(unknown))


def _split(prefix: str, values: Mapping[Any, Any], known: Collection[str]) -> tuple[dict[str, Any], list[str]]:
    kept = {}
    unknown = []
    for name, value in values.items():
        full_name = f"{prefix}{name}"
        if full_name in known:
            kept[name] = value
        else:
            unknown.append(full_name)
    return kept, unknown


def _validated(environment: Any, values: Mapping[str, Any], problems: Sequence[str]) -> Any:
    model = create_model("Settings", __base__=Sections, env=config_class(environment))
    lines = list(problems)
    try:
        validated = model.model_validate(values)
    except ValidationError as error:
        lines += problems_of(error)
    if lines:
        raise EnvironmentSetupError("\n".join(dict.fromkeys(lines)))
    return validated


def problems_of(error: ValidationError) -> Iterator[str]:
    """A line for each problem: the name, what was expected, and the value unless it may be or hold a key."""
    for problem in error.errors(include_url=False):
        path = [part for part in problem["loc"] if isinstance(part, str)]
        name = ".".join(path)
        message = problem["msg"].removeprefix("Value error, ")
        if "got " in message or name == KEY or isinstance(problem["input"], Mapping):
            yield f"{name}: {message}"
        else:
            yield f"{name}: {message}, got {problem['input']!r}"


def check_settings(command: str, settings: Any) -> None:
    """Raise EnvironmentSetupError for settings that are valid, but not with this command or on this machine."""
    config = settings.env
    if settings.testing:
        # Before the environment is made, because it loads a tokenizer, possibly from the hub.
        raise EnvironmentSetupError(NO_SERVER_IN_TESTING)
    if settings.slurm and "SLURM_JOB_NODELIST" not in os.environ:
        raise EnvironmentSetupError("slurm is on, but this is no SLURM job: SLURM_JOB_NODELIST is not set.")
    if command == "process" and config.total_steps < 1:
        raise EnvironmentSetupError(f"env.total_steps: process needs at least 1, got {config.total_steps}.")
    if command == "serve" and (config.dry_run or config.limit_tokens is not None):
        raise EnvironmentSetupError("env.dry_run and env.limit_tokens are for evaluate and process, which end.")
    if command == "evaluate" and config.data_dir_to_save_evals is None:
        logger.info("Completions will not be saved. Set env.data_dir_to_save_evals to save them and to allow a resume.")
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
    if config.dump_rollouts or config.dump_failed_rollouts:
        check_folder("env.data_dumps_dir", config.dumps_folder)


def what_differs(settings: Mapping[str, Any], start: Mapping[str, Any]) -> str:
    """One line with the settings that are not the command's defaults."""
    changed = _changed("env", settings["env"], start["env"])
    for server in settings["openai"]:
        changed += _changed("openai", server, start["openai"])
    listed = ", ".join(changed) or "none"
    return f"Settings other than the defaults: {listed}. (--verbose logs all settings.)"


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
