"""Atropos' commands (serve, process, evaluate): make the settings of the run, check them, and run the command.

    flags and file (flags.py) ──┐
    the command's defaults ─────┴──> validated once ──> checked on this machine ──> the environment is built and run

The flags have Atropos' names: `--env.NAME VALUE`, `--openai.NAME VALUE`, `--slurm`, `--testing`, `--config FILE`.
Flags win over the file, and the file wins over the defaults (`config_init`). The log reports all invalid values at
once, in a line each. The command stops before any work if it cannot write its results. API keys are never printed,
logged or written; they are removed from sys.argv, which wandb uploads.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import yaml
from atroposlib.envs.base import BaseEnvConfig
from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic.fields import FieldInfo

from ..errors import EnvironmentSetupError
from ..inference.servers import without_credentials
from ..settings.components import problems_of
from ..settings.environment import DEFAULT_MODEL, PLACEHOLDER, STARS, UNUSED, Server
from ..utils.terminal import check_file, check_folder
from .flags import COMMANDS, KEY, Given, Setting, mistakes_end_the_command, read

logger = logging.getLogger(__name__)

ENDED_EARLY = 1
"""The exit code of an environment that has made its steps while the trainer has steps left. The log says so."""

KEY_ENV = "openai.api_key_env"

SECRETS = (f"--{KEY}", "--openai.default_headers", "--openai.base_url")
"""Flags whose values may hold a secret."""


class Sections(BaseModel):
    """All settings of a run, except the settings of the environment, whose class is not known here."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    openai: list[Server]
    slurm: bool = False
    """Whether environment is running on slurm or not."""
    testing: bool = False
    """For tests in Python that construct the environment. The commands refuse it, because it replaces the servers."""


def main(environment: Any, arguments: Sequence[str]) -> None:
    """Run the command that the arguments name, with this class of environment (a BaseEnv).

    Exits with 0 after `--help` and `--help-all`, with 2 for bad input, with 1 if `serve` ends before the trainer, and
    with 128 + the number of the signal that ended the command.
    """
    with mistakes_end_the_command():
        initial = Initial.of(environment)
        run(initial, read(arguments, settings_of(initial)))


def run(initial: Initial, given: Given) -> Any:
    """Run a command. Returns its settings.

    Raises EnvironmentSetupError for bad input, and exits with 1 if `serve` ends before the trainer.
    """
    command = given.command
    for arguments in (sys.argv, sys.orig_argv):
        hide_secrets(arguments)
    if given.flags["openai"].get("api_key") not in (None, "", PLACEHOLDER):
        logger.warning("Every user of this machine can see the value of --%s: use --%s NAME instead.", KEY, KEY_ENV)
    settings = settings_of_run(initial, given)
    check_settings(command, settings)
    as_yaml = log_settings(settings, initial.values(command), is_verbose=given.is_verbose)
    env = initial.environment(
        config=settings.env,
        # Without servers in the settings, the class names servers in a form that only Atropos reads.
        server_configs=settings.openai or initial.servers,
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
    return settings.env


# --- the settings of a class


@dataclass(frozen=True)
class Initial:
    """What `config_init` of an environment class returns: the settings that its commands start with.

    A command calls `config_init` once, because a subclass may do anything there.
    """

    environment: Any
    config: BaseEnvConfig
    servers: Any
    """A list of server configs, or a template that only Atropos reads."""

    @classmethod
    def of(cls, environment: Any) -> Initial:
        config, servers = environment.config_init()
        return cls(environment, config, servers)

    @property
    def config_class(self) -> type[BaseEnvConfig]:
        """The class of this environment's config: the class that `config_init` returns an object of, as in Atropos.

        A subclass may override `config_init` and leave `env_config_cls` as it is. If `env_config_cls` is a subclass of
        the class that `config_init` returns, it is the answer, because the environment was written for its additional
        fields. These fields start with their own defaults.
        """
        declared: type[BaseEnvConfig] = self.environment.env_config_cls
        returned = type(self.config)
        return declared if issubclass(declared, returned) else returned

    @property
    def own_servers(self) -> list[dict[str, Any]]:
        """The servers of the class; none if the class names them in a form that only Atropos reads."""
        return [_plain(server) for server in self.servers] if isinstance(self.servers, list) else []

    @property
    def own_tokenizer(self) -> str | None:
        """The tokenizer that `config_init` of a subclass names; None if it has the default, or names none."""
        name = self.config.tokenizer_name
        is_named = "tokenizer_name" in self.config.model_fields_set and name != DEFAULT_MODEL
        return name if is_named else None

    def values(self, command: str) -> dict[str, dict[str, Any]]:
        """The defaults of a command: section -> name -> plain value."""
        # The class may have more fields than the object. They get their defaults. No value is checked here, because
        # the user may give the values that the class requires.
        config = self.config_class.model_construct(**dict(self.config))
        values = config.model_dump(mode="json")
        # Atropos' commands have these defaults.
        if command != "serve":
            values["use_wandb"] = True
            # They write their own files.
            values["keep_for_report"] = False
        name = self.environment.name
        if command == "process":
            values["ensure_scores_are_not_same"] = False
            values["include_messages"] = True
            values["data_path_to_save_groups"] = values["data_path_to_save_groups"] or f"data/{name}.jsonl"
        values["wandb_name"] = values["wandb_name"] or name
        server = self.servers[0] if isinstance(self.servers, list) else self.servers
        return {"env": values, "openai": _plain(server)}


def settings_of(initial: Initial) -> list[Setting]:
    """Every setting of a class of environment and of its servers, for the flags and their help."""
    start = {command: initial.values(command) for command in COMMANDS}
    found = []
    for section, name, field in _fields(initial.config_class):
        group = "server" if section == "openai" else "atropos"
        if name in UNUSED:
            group = "unused"
        elif section == "env" and name not in BaseEnvConfig.model_fields:
            group = "own"
        default = field.get_default(call_default_factory=True)
        setting = Setting(
            f"{section}.{name}".removeprefix("."),
            group,
            " ".join((field.description or "").split()),
            {command: _shown(start[command].get(section, {}).get(name, default)) for command in COMMANDS},
            is_switch=field.annotation is bool,
            may_be_none=type(None) in get_args(field.annotation),
        )
        found.append(setting)
    return found


def _fields(config_class: type[BaseEnvConfig]) -> Iterator[tuple[str, str, FieldInfo]]:
    for name, field in config_class.model_fields.items():
        yield "env", name, field
    for name, field in Server.model_fields.items():
        yield "openai", name, field
    for name in ("slurm", "testing"):
        yield "", name, Sections.model_fields[name]


def _shown(value: Any) -> str:
    if value in (None, "", [], {}):
        return "none"
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value)


# --- the settings of the run


def settings_of_run(initial: Initial, given: Given) -> Any:
    """The settings, with attributes named like the sections of a file. No servers means the servers of the class.

    Raises EnvironmentSetupError with a line for each invalid value.
    """
    problems = []
    flags, file = given.flags, given.file
    start = initial.values(given.command)
    servers = file["openai"] or initial.own_servers
    if flags["openai"] and len(servers) > 1:
        problems.append("With several servers, their settings cannot be given as flags.")
    if flags["openai"] and not servers:
        servers = [{}]
    given_servers = [server | flags["openai"] for server in servers]
    servers = [start["openai"] | server for server in given_servers]
    env = file["env"] | flags["env"]
    models = [server["model_name"] for server in given_servers if server.get("model_name")]
    tokenizer = _implied_tokenizer(initial, given.command, servers, models)
    if tokenizer is not None:
        env.setdefault("tokenizer_name", tokenizer)

    values = {**file, **flags[""], "env": start["env"] | env, "openai": servers}
    model = create_model("Settings", __base__=Sections, env=initial.config_class)
    try:
        validated = model.model_validate(values)
    except ValidationError as error:
        problems += problems_of(error)
    if problems:
        raise EnvironmentSetupError("\n".join(problems))
    return validated


def _implied_tokenizer(initial: Initial, command: str, servers: Sequence[Any], models: Sequence[str]) -> str | None:
    """The tokenizer where neither the flags nor the file name one; None to keep the tokenizer of `config_init`.

    What a subclass says stays, unless it named the tokenizer after its model and the user names another model.
    """
    own = initial.own_tokenizer
    models_of_class = [server["model_name"] for server in initial.own_servers]
    if own is not None and own not in models_of_class:
        return None
    is_text = command != "serve" and bool(servers) and servers[0]["server_type"] == "openai"
    if is_text and own is None:
        # Such a server exchanges text, so the number of tokens is only estimated.
        return "none"
    # The default tokenizer belongs to the default model.
    return models[0] if models else None


def _plain(server: BaseModel) -> dict[str, Any]:
    # As in Atropos, a subclass of the server config cannot add settings.
    return server.model_dump(mode="json", include=set(Server.model_fields))


def check_settings(command: str, settings: Any) -> None:
    """Raise EnvironmentSetupError for settings that are valid, but not with this command or on this machine."""
    config = settings.env
    if settings.slurm and "SLURM_JOB_NODELIST" not in os.environ:
        raise EnvironmentSetupError("slurm is on, but this is no SLURM job: SLURM_JOB_NODELIST is not set.")
    if command == "process" and config.total_steps < 1:
        raise EnvironmentSetupError(f"env.total_steps: process needs at least 1, got {config.total_steps}.")
    if command == "serve" and config.limit_tokens is not None:
        raise EnvironmentSetupError("env.limit_tokens is for evaluate and process, which end.")
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
    shown = {name: _shown(value) for name, value in values.items()}
    return [f"{section}.{name} {text:.60}" for name, text in shown.items() if text != _shown(defaults.get(name))]


# --- keys


def without_keys(settings: BaseModel) -> dict[str, Any]:
    """All settings of a run without API keys, in the form of a file for `--config`: safe to log and to write."""
    shown = settings.model_dump(mode="json")
    for server in shown["openai"]:
        if server["api_key"] != PLACEHOLDER:
            server["api_key"] = STARS
        server["base_url"] = without_credentials(server["base_url"] or "")
        server["default_headers"] = dict.fromkeys(server["default_headers"], STARS)
    return shown


def hide_secrets(arguments: list[str]) -> None:
    """Hide the key, the headers and an address with a password. wandb writes and uploads the arguments of a process."""
    for index, argument in enumerate(arguments):
        flag, is_joined, value = argument.partition("=")
        if flag not in SECRETS:
            continue
        if is_joined:
            arguments[index] = f"{flag}={_hidden(flag, value)}"
        elif index + 1 < len(arguments):
            arguments[index + 1] = _hidden(flag, arguments[index + 1])


def _hidden(flag: str, value: str) -> str:
    return without_credentials(value) if flag.endswith("base_url") else STARS
