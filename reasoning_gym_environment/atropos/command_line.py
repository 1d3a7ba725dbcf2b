"""Atropos' commands (serve, process, evaluate): their settings are read once, checked, and the command is run.

    flags ──────────────────┐
    --config FILE ──────────┼──> validated once ──> checked on this machine ──> the environment is built and run
    the command's defaults ─┘

The flags are those of Atropos: `--env.NAME VALUE`, `--openai.NAME VALUE`, `--slurm`, `--testing`, `--config FILE`.
Flags win over the file, and the file wins over the defaults (`config_init`). Every invalid setting is one line of the
log, a misspelt name is answered with the nearest right ones, and a place that cannot be written is reported before
any work is done. API keys are never printed, logged or written; they are removed from sys.argv, which wandb uploads.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NoReturn, get_args

import yaml
from atroposlib.envs.base import APIServerConfig, BaseEnvConfig
from atroposlib.envs.server_handling.server_manager import ServerManagerConfig
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator
from pydantic.fields import FieldInfo

from ..errors import EnvironmentSetupError, unknown_name
from ..evaluation.runner import SETTINGS
from ..utils.terminal import check_file, check_folder
from .preflight import PLACEHOLDER

logger = logging.getLogger(__name__)

COMMANDS = ("serve", "process", "evaluate")
BAD_INPUT = 2
"""Exit code for settings that a person must change."""

KEY, KEY_ENV = "openai.api_key", "openai.api_key_env"
STARS = "***"
SHORT = {"env.dry_run": ["--dry-run"], "env.limit_tokens": ["--limit-tokens"]}

SELDOM = ("suppress_*", "prefetch_*", "rolling_*", "n_kwarg_*", "health_check", "eval_limit_ratio", "inference_weight")
TRAINING = ("rollout_server_url", "batch_size", "max_staleness_*", "min_batch_*", "run_id", "dump_*", "data_dumps_*")
SAMPLING = ("seed", "instance_id", "group_size", "train_*", "task_weights", "task_sampling", "complexity_mode")
FILTERS = ("m*_prompt_tokens", "min_completion_*", "mask_*", "partial_*", "curriculum_*", "total_steps", "data_path_*")
HIDDEN = {
    "serve": ("process_*", "price_*", "limit_*", "dry_run", "data_path_*"),
    "process": (*TRAINING, "eval_*", "num_eval_*", "steps_per_eval", "data_dir_*", "rollout_save_*"),
    "evaluate": (*TRAINING, *SAMPLING, *FILTERS, "steps_per_eval", "eval_handling", "*rollout*", "process_*"),
}
"""What `--help` leaves to `--help-all`: what hardly anybody sets, and what the command does not use."""


class Server(APIServerConfig):
    """An inference server, whose key may be in the environment."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    api_key_env: str | None = None
    """Name of the environment variable that holds the API key."""
    base_url: str | None = Field("", pattern="^(https?://|$)")
    """Base URL for the server."""
    num_max_requests_at_once: int = Field(512, ge=1)
    """Maximum number of concurrent requests."""
    num_requests_for_eval: int = Field(64, ge=1)
    """Maximum number of concurrent requests for evaluation."""

    @model_validator(mode="after")
    def _has_its_key(self) -> Server:
        given: str | None = self.api_key
        self.api_key = PLACEHOLDER if given in (None, "", STARS) else given
        if (name := self.api_key_env) is None:
            return self
        if self.api_key != PLACEHOLDER:
            raise ValueError("api_key and api_key_env both give a key: use one of them")
        if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
            # Not repeated, for it may be the key itself.
            raise ValueError("api_key_env: expected the name of an environment variable, such as OPENAI_API_KEY")
        self.api_key = os.environ.get(name, "")
        if not self.api_key:
            raise ValueError(f"api_key_env: the environment variable {name} is not set, or it is empty")
        return self


def run(environment: Any, arguments: Sequence[str]) -> Any:
    """Run a command (`arguments` without the program's name) with this class of environment (a BaseEnv).

    Returns the command's settings when it has done its work, None if there was none to do (`--dry-run`). Exits with 0
    after `--help`, with 2 for bad input, and with 128 + the number of the signal that ended the command.
    """
    set_up_logging()
    try:
        command = arguments[0] if arguments else ""
        if command not in COMMANDS:
            raise EnvironmentSetupError(f"Expected a command, one of {', '.join(COMMANDS)}, got {command!r}.")
        flags = parse(command, environment, arguments[1:])
        remove_key_from_arguments(flags.get(KEY))
        return _run(command, environment, flags)
    except EnvironmentSetupError as error:
        for line in str(error).splitlines():
            logger.error("%s", line)
        sys.exit(BAD_INPUT)


def _run(command: str, environment: Any, flags: dict[str, Any]) -> Any:
    is_verbose = flags.pop("verbose", False)
    start = start_values(command, environment)
    settings = settings_of_run(command, environment, flags, start)
    check_settings(command, settings)
    shown = without_keys(settings)
    as_yaml = yaml.dump(shown, default_flow_style=False, sort_keys=False)
    logger.info("%s", f"All settings:\n{as_yaml}" if is_verbose else what_differs(shown, start))
    # A class may begin with servers that only Atropos can find.
    config, servers = settings.env, settings.openai or environment.config_init()[1]
    env = environment(config=config, server_configs=servers, slurm=settings.slurm, testing=settings.testing)
    if command == "serve":
        asyncio.run(env.env_manager())
    elif command == "process":
        asyncio.run(env.process_manager())
    else:
        asyncio.run(env._run_evaluate(as_yaml))
    return None if config.dry_run else config


def set_up_logging() -> None:
    """Log lines on stderr, warnings among them."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)-7s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr
    )
    logging.captureWarnings(True)
    warnings.formatwarning = lambda message, *_args, **_kwargs: str(message)


# --- the flags


class Parser(argparse.ArgumentParser):
    """Raises EnvironmentSetupError where argparse would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        raise EnvironmentSetupError(message.removeprefix("argument "))


def parse(command: str, environment: Any, arguments: Sequence[str]) -> dict[str, Any]:
    """The flags that were given, by their full names without dashes; values are text, or None for `none`.

    Unknown flags are included; the settings refuse them. Raises EnvironmentSetupError for a flag without a value.
    """
    parser = make_parser(command, environment, shows_all="--help-all" in arguments)
    found, unknown = parser.parse_known_args(arguments)
    for word in unknown[:1]:
        if not word.startswith("--"):
            raise EnvironmentSetupError(f"Expected --NAME VALUE, got {word!r}.")
        setattr(found, word.removeprefix("--").partition("=")[0], None)
    return vars(found)


def settings(environment: Any) -> dict[str, FieldInfo]:
    """Every setting, by its full name."""
    return {
        **{f"env.{name}": field for name, field in environment.env_config_cls.model_fields.items()},
        **{f"openai.{name}": field for name, field in Server.model_fields.items()},
        **{name: ServerManagerConfig.model_fields[name] for name in ("slurm", "testing")},
    }


def make_parser(command: str, environment: Any, *, shows_all: bool = False) -> Parser:
    """A flag for every setting; the help shows those that most users set, or all."""
    parser = Parser(
        prog=f"reasoning-gym-env {command}",
        usage="%(prog)s [--config FILE] [--env.NAME VALUE ...] [--openai.NAME VALUE ...]",
        description="Flags win over the YAML file, and the file wins over the defaults below. In YAML, env.NAME stands "
        "under env:, and openai.NAME under openai: (a list there means several servers). The value `none` leaves a "
        "setting without a value.",
        epilog=None if shows_all else "`--help-all` shows the other settings too.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("--help-all", action="help", help="print all settings and exit")
    parser.add_argument("--verbose", action="store_true", help="log every setting before the command begins")
    files = parser.add_mutually_exclusive_group()
    files.add_argument("--config", metavar="FILE", help="a YAML file with sections env, openai, slurm and testing")
    if command == "evaluate":
        text = "resume the evaluation in this folder, with the settings that are kept there"
        files.add_argument("--resume", metavar="FOLDER", help=text)
    start, of_atropos = start_values(command, environment), BaseEnvConfig.model_fields
    titles = ("tasks, scoring, evaluation, files", "the run, as Atropos has it", "the inference server")
    own, run, server = map(parser.add_argument_group, titles)
    # Of Atropos' own settings those that the class sets, and the two that name what a command writes.
    usual = {"data_path_to_save_groups", "data_dir_to_save_evals", "slurm"}
    usual |= environment.config_init()[0].model_fields_set
    for name, field in settings(environment).items():
        section, _, key = name.rpartition(".")
        default = start.get(section, {}).get(key, field.default)
        text = f"{(field.description or '').rstrip('.')} (default: {_shown(default)})".strip().replace("%", "%%")
        group = server if section == "openai" else own if section and key not in of_atropos else run
        is_seldom = any(fnmatch(key, one) for one in (*SELDOM, *HIDDEN[command])) or (group is run and key not in usual)
        if is_seldom and not shows_all:
            text = argparse.SUPPRESS
        kind = _none_or_text if type(None) in get_args(field.annotation) else str
        switch: dict[str, Any] = {"nargs": "?", "const": "True"} if field.annotation is bool else {}
        names = [*SHORT.get(name, ()), f"--{name}"]
        group.add_argument(*names, dest=name, metavar="VALUE", type=kind, help=text, **switch)
    return parser


def _none_or_text(text: str) -> str | None:
    return None if text.strip().lower() == "none" else text


def _shown(value: Any) -> str:
    if isinstance(value, (list, dict)) or value is None or value == "":
        return ",".join(map(str, value or ())) or "none"
    return str(value)


# --- the file


def read_yaml(path: Path | None) -> dict[str, Any]:
    """What the file says; `openai` is a list. Raises EnvironmentSetupError if it is not made of sections."""
    if path is None:
        return {"env": {}, "openai": []}
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise EnvironmentSetupError(f"Cannot read the config file {path}: {error.strerror}.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise EnvironmentSetupError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    sections = data if isinstance(data, dict) else {"env": data}
    env, servers = sections.get("env", {}), sections.get("openai", [])
    servers = servers if isinstance(servers, list) else [servers]
    if not all(isinstance(section, dict) for section in (env, *servers)):
        raise EnvironmentSetupError(
            f"{path}: expected the sections env (a mapping), openai (a mapping, or a list of them), slurm and testing."
        )
    return {**sections, "env": env, "openai": servers}


# --- the settings of the run


def start_values(command: str, environment: Any) -> dict[str, dict[str, Any]]:
    """The defaults of a command with this environment class: section -> name -> plain value."""
    config, servers = environment.config_init()
    values = config.model_dump(mode="json")
    # As Atropos has it.
    if command != "serve":
        values["use_wandb"] = True
    if command == "process":
        values |= {"ensure_scores_are_not_same": False, "include_messages": True}
        values["data_path_to_save_groups"] = values["data_path_to_save_groups"] or f"data/{environment.name}.jsonl"
    values["wandb_name"] = values["wandb_name"] or environment.name
    return {"env": values, "openai": (servers[0] if isinstance(servers, list) else servers).model_dump(mode="json")}


class Sections(BaseModel):
    """All settings of a run, but for those of the environment, whose class is not known here."""

    model_config = ConfigDict(extra="forbid")

    openai: list[Server]
    slurm: bool
    testing: bool


def settings_of_run(command: str, environment: Any, flags: Mapping[str, Any], start: Mapping[str, Any]) -> Any:
    """The settings, with attributes named like the sections of a file; without servers, those of the class are meant.

    Raises EnvironmentSetupError with a line for each invalid setting.
    """
    flags, env, server = dict(flags), _section("env", flags), _section("openai", flags)
    path = flags.pop("config", None)
    if command == "evaluate" and (folder := flags.pop("resume", None)):
        path, env = Path(folder, SETTINGS), {"data_dir_to_save_evals": folder, **env}
    file = read_yaml(path and Path(path))
    servers = file["openai"] or ([{}] if server or isinstance(environment.config_init()[1], list) else [])
    if server and len(servers) > 1:
        raise EnvironmentSetupError("With several servers in the file, their settings cannot be given as flags.")
    servers = [{**start["openai"], **one, **server} for one in servers]
    env = {**file["env"], **env}
    if command != "serve" and servers and servers[0]["server_type"] == "openai":
        # Such a server takes and gives text: tokens need only be estimated.
        env.setdefault("tokenizer_name", "none")
    others = {name: value for name, value in flags.items() if not name.startswith(("env.", "openai."))}
    values = {"slurm": False, "testing": False, **file, **others, "env": {**start["env"], **env}, "openai": servers}
    model = create_model("Settings", __base__=Sections, env=environment.env_config_cls)
    try:
        return model.model_validate(values)
    except ValidationError as error:
        lines = problems_of(error, {**settings(environment), **model.model_fields, "config": None})
        raise EnvironmentSetupError("\n".join(dict.fromkeys(lines))) from error


def _section(name: str, flags: Mapping[str, Any]) -> dict[str, Any]:
    return {flag.partition(".")[2]: value for flag, value in flags.items() if flag.startswith(f"{name}.")}


def problems_of(error: ValidationError, known: Iterable[str]) -> Iterator[str]:
    """A line for each: the name, what was expected, and what arrived unless that may be or hold a key."""
    for problem in error.errors(include_url=False):
        name = ".".join(part for part in problem["loc"] if isinstance(part, str))
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            yield str(unknown_name("setting", name, known))
        elif "got " in message or name == KEY or isinstance(problem["input"], Mapping):
            yield f"{name}: {message}"
        else:
            yield f"{name}: {message}, got {problem['input']!r}"


def check_settings(command: str, settings: Any) -> None:
    """Raise EnvironmentSetupError for settings that are valid, but not with this command or on this machine."""
    config = settings.env
    if settings.slurm and "SLURM_JOB_NODELIST" not in os.environ:
        raise EnvironmentSetupError("slurm is on, but this is no SLURM job: SLURM_JOB_NODELIST is not set.")
    if command == "process" and config.total_steps < 1:
        raise EnvironmentSetupError(f"env.total_steps: process needs at least 1, got {config.total_steps}.")
    if command == "serve" and (config.dry_run or config.limit_tokens is not None):
        raise EnvironmentSetupError("env.dry_run and env.limit_tokens are for evaluate and process, which end.")
    if (groups := config.data_path_to_save_groups) is not None:
        check_folder("The folder of env.data_path_to_save_groups", Path(groups).parent)
        check_file("env.data_path_to_save_groups", groups)
        if command == "process" and config.include_messages:
            page = Path(groups).with_suffix(".html")
            check_file("The page beside env.data_path_to_save_groups", page, inputs=[groups])
    if (results := config.data_dir_to_save_evals) is not None:
        check_folder("env.data_dir_to_save_evals", results)
    elif command == "evaluate":
        logger.info("Answers will not be kept: set env.data_dir_to_save_evals to keep them, and to be able to resume.")
    if config.dump_rollouts or config.dump_failed_rollouts:
        check_folder("env.data_dumps_dir", config.data_dumps_dir)


def what_differs(settings: Mapping[str, Any], start: Mapping[str, Any]) -> str:
    """One line: the settings that are not the command's defaults."""
    found = []
    for section, values in [("env", settings["env"]), *(("openai", server) for server in settings["openai"])]:
        changed = {name: value for name, value in values.items() if value != start[section].get(name)}
        found += [f"{section}.{name} {_shown(value):.60}" for name, value in changed.items()]
    return f"Settings other than the defaults: {', '.join(found) or 'none'}. (--verbose logs all.)"


# --- keys


def without_keys(settings: BaseModel) -> dict[str, Any]:
    """All settings of a run as a file for `--config` has them: they may be logged and written."""
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
        arguments[:] = [one.replace(key, STARS) if key == one or KEY in one else one for one in arguments]
    if key != PLACEHOLDER:
        logger.warning("Every user of this machine can see the value of --%s: use --%s NAME instead.", KEY, KEY_ENV)
