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
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, get_args

import yaml
from atroposlib.envs.base import APIServerConfig
from atroposlib.envs.server_handling.server_manager import ServerManagerConfig
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from ..errors import EnvironmentSetupError, unknown_name
from ..evaluation.journal import SETTINGS
from ..utils.terminal import check_file, check_folder
from .preflight import PLACEHOLDER
from .shutdown import ShutdownRequested

logger = logging.getLogger(__name__)

COMMANDS = ("serve", "process", "evaluate")
BAD_INPUT = 2
"""Exit code for settings that a person must change."""

ENV, OPENAI = "env.", "openai."
YAML_SECTIONS = ("env", "openai", "slurm", "testing")
KEY, KEY_ENV = f"{OPENAI}api_key", f"{OPENAI}api_key_env"
HIDDEN = "***"
SERVER_FIELDS: dict[str, FieldInfo] = {
    **APIServerConfig.model_fields,
    "api_key_env": FieldInfo(default=None, description="Name of the environment variable that holds the API key."),
}
SHORT = {f"{ENV}dry_run": ["--dry-run"], f"{ENV}limit_tokens": ["--limit-tokens"]}


def run(environment: Any, arguments: Sequence[str]) -> Any:
    """Run a command (`arguments` without the program's name) with this class of environment (a BaseEnv).

    Returns the command's settings when it has done its work, None when there was none to do (`--help`, `--dry-run`).
    Exits with 2 for bad input, or with 128 + the number of the signal that ended the command.
    """
    set_up_logging()
    try:
        command = arguments[0] if arguments else ""
        if command not in COMMANDS:
            raise EnvironmentSetupError(f"Expected a command, one of {', '.join(COMMANDS)}, got {command!r}.")
        flags = parse(command, environment, arguments[1:])
        if shows := {"help", "help-all"} & flags.keys():
            sys.stdout.write(make_parser(command, environment, shows_all="help-all" in shows).format_help())
            return None
        remove_key_from_arguments(flags.get(KEY))
        return _run(command, environment, flags)
    except EnvironmentSetupError as error:
        for line in str(error).splitlines():
            logger.error("%s", line)
        sys.exit(BAD_INPUT)
    except ShutdownRequested as stop:
        logger.info("Closed: %s.", stop)
        sys.exit(stop.exit_code)


def _run(command: str, environment: Any, flags: Mapping[str, Any]) -> Any:
    start = start_values(command, environment)
    config, servers, manager = settings_of_run(command, environment, flags, start)
    check_settings(command, config, manager)
    settings = without_keys(config, servers, manager)
    as_yaml = yaml.dump(settings, default_flow_style=False, sort_keys=False)
    logger.info("%s", f"All settings:\n{as_yaml}" if "verbose" in flags else what_differs(settings, start))
    env = environment(config=config, server_configs=servers, slurm=manager.slurm, testing=manager.testing)
    if command == "serve":
        asyncio.run(env.env_manager())
    elif command == "process":
        env.process_mode = True
        env.n_groups_to_process, env.group_size_to_process = config.total_steps, config.group_size
        asyncio.run(env.process_manager())
    else:
        asyncio.run(env._run_evaluate(as_yaml))
    return None if config.dry_run else config


def set_up_logging() -> None:
    """Log lines on stderr for the command line; libraries that report every request are kept quiet."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)-7s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr
    )
    logging.captureWarnings(True)
    warnings.formatwarning = lambda message, *_args, **_kwargs: str(message)
    for chatty in ("httpx", "httpcore", "openai", "aiohttp.access"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


# --- the flags

HELP = (
    "the training run | serve | rollout_server_url group_size max_token_length total_steps steps_per_eval",
    "the training run | serve | min_batch_allocation inference_weight max_staleness_steps run_id instance_id",
    "the groups | process | total_steps group_size max_token_length data_path_to_save_groups process_format",
    "the groups | process | process_concurrency",
    "the evaluation | evaluate | data_dir_to_save_evals eval_tasks num_eval_samples_per_task eval_completions",
    "the evaluation | evaluate | eval_complexity eval_temperature eval_seed max_token_length",
    "what it may cost | process evaluate | dry_run limit_tokens price_per_million",
    "the inference server | serve process evaluate | openai.base_url openai.model_name openai.server_type",
    "the inference server | serve process evaluate | openai.api_key_env openai.timeout tokenizer_name",
    "the inference server | serve process | openai.num_max_requests_at_once",
    "the inference server | evaluate | openai.num_requests_for_eval",
    "which tasks | serve process evaluate | include_tasks exclude_tasks task_overrides task_modules",
    "which items | serve process | complexity_mode curriculum_target_accuracy task_sampling task_weights seed hold_out",
    "sampling | serve process | train_temperature train_top_p",
    "rollouts on disk | serve | dump_rollouts dump_failed_rollouts data_dumps_dir",
    "grading | serve process evaluate | partial_credit scoring_timeout_s sandbox num_scoring_workers",
    "logging | serve process evaluate | use_wandb wandb_name debug_logging",
)
"""What `--help` shows: the title of a group, the commands that show it, and its settings (env. where no dot is)."""


class Parser(argparse.ArgumentParser):
    """Raises EnvironmentSetupError where argparse would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        raise EnvironmentSetupError(message.removeprefix("argument "))


def parse(command: str, environment: Any, arguments: Sequence[str]) -> dict[str, Any]:
    """The flags that were given, by their full names without dashes; values are text, or None for `none`.

    Raises EnvironmentSetupError for what is not a flag, or has no value.
    """
    found, unknown = make_parser(command, environment).parse_known_args(arguments)
    for word in unknown[:1]:
        name = word.removeprefix("--").partition("=")[0]
        if not word.startswith("--"):
            raise EnvironmentSetupError(f"Expected --NAME VALUE, got {word!r}.")
        if not name.startswith(ENV):
            raise unknown_name("setting", name, vars(found) | settings(environment), f"See `{command} --help-all`.")
        # The settings refuse it, and know what replaces one that was removed.
        setattr(found, name, None)
    return vars(found)


def settings(environment: Any) -> dict[str, FieldInfo]:
    """Every setting, by its full name."""
    return {
        **{f"{ENV}{name}": field for name, field in environment.env_config_cls.model_fields.items()},
        **{f"{OPENAI}{name}": field for name, field in SERVER_FIELDS.items()},
        **{name: ServerManagerConfig.model_fields[name] for name in ("slurm", "testing")},
    }


def make_parser(command: str, environment: Any, *, shows_all: bool = False) -> Parser:
    """A flag for every setting; the help shows those that the users of `command` set, or all."""
    parser = Parser(
        prog=f"reasoning-gym-env {command}",
        usage="%(prog)s [--config FILE] [--env.NAME VALUE ...] [--openai.NAME VALUE ...]",
        description="Flags win over the YAML file, and the file wins over the defaults below. In YAML, env.NAME stands "
        "under env:, and openai.NAME under openai: (a list there means several servers). The value `none` leaves a "
        "setting without a value.",
        epilog=None if shows_all else "`--help-all` shows the other settings too.",
        add_help=False,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    own = parser.add_argument_group("the command")
    own.add_argument("-h", "--help", action="store_true", help="print this and exit")
    own.add_argument("--help-all", dest="help-all", action="store_true", help="print all settings and exit")
    own.add_argument("--verbose", action="store_true", help="log every setting before the command begins")
    own.add_argument("--config", metavar="FILE", help="a YAML file with sections env, openai, slurm and testing")
    if command == "evaluate":
        text = "resume the evaluation in this folder, with the settings that are kept there"
        own.add_argument("--resume", metavar="FOLDER", help=text)
    start, left = start_values(command, environment), settings(environment)
    groups: dict[str, dict[str, FieldInfo]] = {}
    for title, commands, names in (line.split(" | ") for line in HELP):
        for name in names.split() if command in commands else ():
            full = name if "." in name else f"{ENV}{name}"
            if full in left:
                groups.setdefault(title, {})[full] = left.pop(full)
    for title, fields in {**groups, "other settings": left}.items():
        group = parser.add_argument_group(title)
        for name, field in fields.items():
            section, _, key = name.rpartition(".")
            default = start.get(section, {}).get(key, field.default)
            text = f"{(field.description or '').rstrip('.')} (default: {_shown(default)})".strip().replace("%", "%%")
            is_switch = field.annotation is bool
            group.add_argument(
                *SHORT.get(name, ()),
                f"--{name}",
                dest=name,
                metavar="VALUE",
                nargs="?" if is_switch else None,
                const="True" if is_switch else None,
                type=_none_or_text if type(None) in get_args(field.annotation) else str,
                help=text if shows_all or fields is not left else argparse.SUPPRESS,
            )
    return parser


def _none_or_text(text: str) -> str | None:
    return None if text.strip().lower() == "none" else text


def _shown(value: Any) -> str:
    if isinstance(value, (list, dict)) or value is None or value == "":
        return ",".join(map(str, value or ())) or "none"
    return str(value)


# --- the file


def read_yaml(path: Path) -> dict[str, Any]:
    """What the file says. Raises EnvironmentSetupError if it is not a mapping of the sections and keys that exist."""
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), EachKeyOnce)
    except OSError as error:
        raise EnvironmentSetupError(f"Cannot read the config file {path}: {error.strerror}.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise EnvironmentSetupError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict):
        kind = "empty" if data is None else f"a {type(data).__name__}"
        raise EnvironmentSetupError(f"{path} is {kind}: expected a mapping with sections {', '.join(YAML_SECTIONS)}.")
    for section in data:
        if section not in YAML_SECTIONS:
            raise unknown_name("section", str(section), YAML_SECTIONS, f"In {path}.")
    settings = data.get("env", {})
    if not isinstance(settings, dict) or not all(isinstance(name, str) for name in settings):
        raise EnvironmentSetupError(f"The section env of {path} must be a mapping of settings to values.")
    servers = data.get("openai", [])
    servers = servers if isinstance(servers, list) else [servers]
    if not all(isinstance(server, dict) for server in servers):
        raise EnvironmentSetupError(f"The section openai of {path} must be a mapping, or a list of mappings.")
    for key in (key for server in servers for key in server):
        if key not in SERVER_FIELDS:
            raise unknown_name("key", f"{OPENAI}{key}", (f"{OPENAI}{k}" for k in SERVER_FIELDS))
    return {**data, "env": settings, "openai": servers}


class EachKeyOnce(yaml.SafeLoader):
    """Refuses a mapping with the same key twice, of which PyYAML takes the last."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[tuple[str, Any]] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if (key.tag, key.value) in seen:
                line = key.start_mark.line + 1
                raise yaml.YAMLError(f"the key {key.value!r} is given twice, the second time in line {line}")
            seen.add((key.tag, key.value))
        return node


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


def settings_of_run(
    command: str, environment: Any, flags: Mapping[str, Any], start: Mapping[str, Any]
) -> tuple[Any, Any, ServerManagerConfig]:
    """The settings of the environment, of its servers, and of what manages them.

    Raises EnvironmentSetupError with a line for each invalid setting.
    """
    file: dict[str, Any] = {}
    if "resume" in flags:
        path = Path(flags["resume"], SETTINGS)
        if "config" in flags or not path.is_file():
            raise EnvironmentSetupError(f"--resume: expected a folder with {SETTINGS}, and no --config, got {path}.")
        file = read_yaml(path)
        file["env"]["data_dir_to_save_evals"] = flags["resume"]
    elif "config" in flags:
        file = read_yaml(Path(flags["config"]))
    named, given = [with_key(one) for one in file.get("openai", ())], with_key(_section("openai", flags))
    if given and len(named) > 1:
        raise EnvironmentSetupError("With several servers in the file, their settings cannot be given as flags.")
    servers = [{**start["openai"], **one, **given} for one in named or [{}]]
    env = {**file.get("env", {}), **_section("env", flags)}
    if command != "serve" and servers[0]["server_type"] == "openai":
        # Such a server takes and gives text: tokens need only be estimated.
        env.setdefault("tokenizer_name", "none")
    problems: list[str] = []
    config = _validated(environment.env_config_cls, {**start["env"], **env}, ENV, problems)
    checked = [_validated(APIServerConfig, one, OPENAI, problems) for one in servers]
    for url in (one.base_url for one in checked if one and one.base_url):
        if not url.startswith(("http://", "https://")):
            problems.append(f"{OPENAI}base_url: expected an address such as http://localhost:9004/v1, got {url!r}")
    both = {name: part[name] for part in (file, flags) for name in ("slurm", "testing") if name in part}
    manager = _validated(ServerManagerConfig, both, "", problems)
    if problems:
        raise EnvironmentSetupError("\n".join(dict.fromkeys(problems)))
    # A class may begin with servers that only Atropos can find.
    return config, checked if named or given else environment.config_init()[1], manager


def _section(name: str, flags: Mapping[str, Any]) -> dict[str, Any]:
    return {flag.partition(".")[2]: value for flag, value in flags.items() if flag.startswith(f"{name}.")}


def _validated(model: type[BaseModel], values: Mapping[str, Any], prefix: str, problems: list[str]) -> Any:
    """The settings as `model`; or None, and for each invalid one a line: its name, what was expected, what arrived."""
    try:
        return model(**values)
    except ValidationError as error:
        for problem in error.errors(include_url=False):
            name = str(problem["loc"][0]) if problem["loc"] else ""
            message = problem["msg"].removeprefix("Value error, ")
            arrived = "" if "got " in message or name in ("", "api_key") else f", got {problem['input']!r}"
            problems.append(f"{prefix}{name}: {message}{arrived}" if name else message)
        return None


def check_settings(command: str, config: Any, manager: ServerManagerConfig) -> None:
    """Raise EnvironmentSetupError for settings that are valid, but not with this command or on this machine."""
    if manager.slurm and "SLURM_JOB_NODELIST" not in os.environ:
        raise EnvironmentSetupError(
            "slurm is on, but this is no SLURM job (SLURM_JOB_NODELIST is not set): start it with sbatch or srun, or "
            "name the servers with openai.base_url."
        )
    if command == "process" and config.total_steps < 1:
        raise EnvironmentSetupError(
            f"env.total_steps is the number of groups to write: process needs at least 1, got {config.total_steps}."
        )
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
    """One line: the settings that are not the command's defaults. Several servers are only counted."""
    found = {f"{ENV}{name}": value for name, value in settings["env"].items() if value != start["env"][name]}
    servers = settings["openai"]
    if len(servers) > 1:
        found["servers"] = len(servers)
    else:
        found |= {f"{OPENAI}{name}": value for name, value in servers[0].items() if value != start["openai"].get(name)}
    shown = (f"{name} {textwrap.shorten(_shown(value), 60, placeholder='...')}" for name, value in found.items())
    return f"Settings other than the defaults: {', '.join(shown) or 'none'}. (--verbose logs all.)"


# --- keys


def without_keys(config: Any, servers: Any, manager: ServerManagerConfig) -> dict[str, Any]:
    """All settings of a run as a file for `--config` has them: they may be logged and written."""
    each = [one.model_dump(mode="json") for one in (servers if isinstance(servers, list) else [servers])]
    for server in each:
        if server.pop("api_key", None) not in (None, "", PLACEHOLDER):
            server["api_key"] = HIDDEN
    return {"env": config.model_dump(mode="json"), "openai": each, **manager.model_dump(include={"slurm", "testing"})}


def with_key(server: Mapping[str, Any]) -> dict[str, Any]:
    """A server's settings with the key in the variable that `api_key_env` names. Raises EnvironmentSetupError."""
    settings = dict(server)
    if settings.get("api_key") == HIDDEN:
        del settings["api_key"]
    if (name := settings.pop("api_key_env", None)) is None:
        return settings
    if "api_key" in settings:
        raise EnvironmentSetupError(f"{KEY} and {KEY_ENV} both give a key: use one of them.")
    if key := os.environ.get(str(name)):
        return {**settings, "api_key": key}
    if re.fullmatch("[A-Z_][A-Z0-9_]*", str(name)):
        raise EnvironmentSetupError(f"{KEY_ENV}: the environment variable {name} is not set, or it is empty.")
    # Not repeated, for it may be the key itself.
    raise EnvironmentSetupError(f"{KEY_ENV}: expected the name of an environment variable, such as OPENAI_API_KEY.")


def remove_key_from_arguments(key: str | None) -> None:
    """Hide the key in sys.argv, which wandb writes into the files of a run and uploads."""
    if not key:
        return
    for arguments in (sys.argv, sys.orig_argv):
        arguments[:] = [one.replace(key, HIDDEN) if key == one or KEY in one else one for one in arguments]
    if key != PLACEHOLDER:
        logger.warning(
            "The value of --%s is in this machine's list of processes, where every user can read it: --%s NAME takes "
            "it from an environment variable.",
            *(KEY, KEY_ENV),
        )
