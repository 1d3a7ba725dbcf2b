"""Atropos' commands (serve, process, evaluate), with one clear line for what a person got wrong.

    sys.argv ──> flags ──┐
                         ├──> the settings of the run, checked ──> Atropos' own command, which reads both again
    --config FILE ───────┘

Flags and YAML stay Atropos': `--env.NAME`, `--openai.NAME`, `--slurm`, `--testing`, `--config FILE`; flags win over
the file, the file over `config_init`. What is added here: a flag or key that does not exist is named, where Atropos
drops it without a word; every invalid setting is one line; places that cannot be written are found before any work
is done for them; API keys stay out of what Atropos prints, logs and writes, and out of sys.argv, which wandb uploads.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import textwrap
import warnings
from argparse import ArgumentParser
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol, get_args

import yaml
from atroposlib.envs import base
from atroposlib.envs.base import APIServerConfig
from atroposlib.envs.constants import ENV_NAMESPACE, NAMESPACE_SEP, OPENAI_NAMESPACE
from atroposlib.envs.server_handling.server_manager import ServerManagerConfig
from atroposlib.utils.cli import extract_namespace, get_double_dash_flags, merge_dicts
from pydantic import BeforeValidator, ValidationError
from pydantic.fields import FieldInfo
from pydantic_cli import FailedExecutionException

from ..errors import EnvironmentSetupError, unknown_name
from ..evaluation.journal import SETTINGS
from ..tasks.catalog import TaskSettings, check_names
from ..utils.terminal import check_file, check_folder, place_of_page
from .preflight import PLACEHOLDER
from .shutdown import ShutdownRequested

logger = logging.getLogger(__name__)

COMMANDS = ("serve", "process", "evaluate")
BAD_INPUT = 2
"""Exit code for settings that a person must change."""

HELP = ("-h", "--help")
VERBOSE = "--verbose"
RESUME = "resume"
ENV = f"{ENV_NAMESPACE}{NAMESPACE_SEP}"
OPENAI = f"{OPENAI_NAMESPACE}{NAMESPACE_SEP}"
YAML_SECTIONS = (ENV_NAMESPACE, OPENAI_NAMESPACE, "slurm", "testing")
OF_EACH_SERVER = ("server_type", "base_url", "model_name")
"""For several servers Atropos fills these from the defaults of its own class, not from those of the environment."""
KEY = f"{OPENAI}api_key"
KEY_ENV = f"{KEY}_env"
SERVER_FIELDS: dict[str, FieldInfo] = {
    **APIServerConfig.model_fields,
    "api_key_env": FieldInfo(default=None, description="Name of the environment variable that holds the API key."),
}
HIDDEN = "***"


def run(environment: Any) -> None:
    """Run the command in sys.argv with this class of environment (a BaseEnv).

    Returns when the command is done; exits with 2 for bad input, or 128 + the signal that ended it.
    """
    set_up_logging()
    is_verbose = VERBOSE in sys.argv
    given = [in_full(argument) for argument in sys.argv[1:] if argument != VERBOSE]
    # Atropos takes sys.argv apart by itself, whenever it needs a flag.
    sys.argv[1:] = arguments = unset(joined(given), _settings(environment))
    flags = get_double_dash_flags()
    take_key_out_of_arguments(flags.get(KEY))
    try:
        _run(environment, arguments, flags, is_verbose=is_verbose)
    # The last is Atropos' own: several servers in the file, and flags for one of them.
    except (EnvironmentSetupError, ValidationError, FailedExecutionException) as error:
        for line in explain(error) if isinstance(error, ValidationError) else [getattr(error, "message", error)]:
            logger.error("%s", line)
        sys.exit(BAD_INPUT)
    except ShutdownRequested as stop:
        logger.info("Closed: %s.", stop)
        sys.exit(stop.exit_code)


def _run(environment: Any, arguments: list[str], flags: dict[str, Any], *, is_verbose: bool) -> None:
    command = arguments[0] if arguments else ""
    if command not in COMMANDS:
        raise EnvironmentSetupError(f"Expected a command, one of {', '.join(COMMANDS)}, got {command!r}.")
    if any(argument in HELP for argument in arguments):
        sys.stdout.write(help_text(command, environment))
        return
    known = {f"{prefix}{name}" for prefix, fields in _settings(environment).items() for name in fields}
    check_flags(arguments[1:], known, command)
    if KEY_ENV in flags:
        flags[KEY] = with_key(extract_namespace(flags, OPENAI))["api_key"]
        del flags[KEY_ENV]
    if (folder := flags.pop(RESUME, None)) is not None:
        flags |= settings_kept_in(Path(str(folder)), command, flags)
    path = flags.get("config")
    file = check_yaml(Path(path)) if path is not None else {}
    with hidden_api_keys(flags), warnings.catch_warnings(), contextlib.ExitStack() as stack:
        # Whether the server is there is checked, so the advice to make sure of it is not needed.
        warnings.filterwarnings("ignore", message="You are using a local Base URL")
        check_servers(file, flags)
        config = merged_config(command, environment, file, flags)
        check_settings(command, config)
        if not is_verbose:
            base.rprint = lambda value: None
            logger.info("%s", what_differs(config, file, flags, start_values(command, environment)))
        stack.enter_context(settings_kept_for_results(environment))
        getattr(environment, f"get_cli_{command}_config_cls")()(config=path).run()


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


def in_full(argument: str) -> str:
    """A flag by its whole name, if it is given by its short one."""
    name, has_value, value = argument.partition("=")
    if name == "--dry-run" and not has_value:
        return f"--{ENV}dry_run=True"
    return f"--{ENV}limit_tokens{has_value}{value}" if name == "--limit-tokens" else argument


def joined(arguments: Sequence[str]) -> list[str]:
    """The arguments with every `--name value` as one `--name=value`.

    Atropos takes a separate value that begins with a dash for another flag, and the setting becomes True.
    """
    found: list[str] = []
    for argument in arguments:
        before = found[-1] if found else ""
        is_value = not argument.startswith("--") and argument not in HELP
        if is_value and before.startswith("--") and before not in HELP and "=" not in before:
            found[-1] += f"={argument}"
        else:
            found.append(argument)
    return found


def unset(arguments: Sequence[str], settings: Mapping[str, Mapping[str, FieldInfo]]) -> list[str]:
    """The arguments, in which `none` is spelt as Atropos has it where it leaves a setting without a value."""
    flags = {f"--{prefix}{name}" for prefix, fields in settings.items() for name in fields if is_optional(fields[name])}
    parts = [(argument, *argument.partition("=")) for argument in arguments]
    return [f"{flag}=None" if flag in flags and v.strip().lower() == "none" else all_ for all_, flag, _, v in parts]


def is_optional(field: FieldInfo) -> bool:
    """Whether this setting may be without a value."""
    return type(None) in get_args(field.annotation)


def note_on_none(field: FieldInfo) -> str:
    """How `none` is read by an optional setting that could mean that text; empty for any other."""
    reads_itself = any(isinstance(one, BeforeValidator) for one in field.metadata)
    is_ambiguous = is_optional(field) and str in get_args(field.annotation) and not reads_itself
    return " (The text none: in YAML only.)" if is_ambiguous else ""


def check_flags(arguments: Sequence[str], known: Collection[str], command: str) -> None:
    """Raise EnvironmentSetupError for what is no flag, has no value, or is not among `known`."""
    for argument in arguments:
        name, has_value, _ = argument.removeprefix("--").partition("=")
        if not argument.startswith("--"):
            raise EnvironmentSetupError(f"Expected --NAME VALUE, got {argument!r}.")
        if name not in known:
            raise unknown_name("setting", name, known, f"`reasoning-gym-env {command} --help` lists them.")
        if not has_value:
            raise EnvironmentSetupError(f"{name}: expected a value.")


def _settings(environment: Any) -> dict[str, dict[str, FieldInfo]]:
    """Every setting that a flag can set: prefix -> name -> field."""
    manager = ServerManagerConfig.model_fields
    return {
        "": {
            "config": FieldInfo(default=None, description="Path to .yaml config file. CLI args override this."),
            RESUME: FieldInfo(
                default=None,
                description="evaluate: a folder of results to go on with, under the settings that are kept there.",
            ),
            "slurm": manager["slurm"],
            "testing": manager["testing"],
        },
        OPENAI: SERVER_FIELDS,
        ENV: environment.env_config_cls.model_fields,
    }


def help_text(command: str, environment: Any) -> str:
    """Every flag with what it means and the value that the command starts from."""
    parser = ArgumentParser(
        prog=f"reasoning-gym-env {command}",
        usage="%(prog)s [--config FILE] [--env.NAME VALUE ...] [--openai.NAME VALUE ...]",
        description="Flags win over the YAML file, and the file over the defaults below; a flag's none is no value.",
        add_help=False,
    )
    titles = {
        "": "the command",
        OPENAI: "the inference server (in YAML under openai:, a list of such for several)",
        ENV: "the environment (in YAML under env:)",
    }
    values = start_values(command, environment)
    for prefix, fields in _settings(environment).items():
        group = parser.add_argument_group(titles[prefix])
        if not prefix:
            group.add_argument(*HELP, action="store_true", help="print this and exit")
            group.add_argument(VERBOSE, action="store_true", help="print every setting before the command begins")
        for name, field in fields.items():
            default = values.get(prefix, {}).get(name, field.default)
            described = f"{(field.description or '').rstrip('.')}.{note_on_none(field)}".strip(".")
            text = f"{described} (default: {_shown(default)})".strip()
            group.add_argument(f"--{prefix}{name}", metavar="VALUE", help=text.replace("%", "%%"))
    return parser.format_help()


def _shown(value: Any) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, (list, dict)) or value is None or value == "":
        return ",".join(map(str, value or ())) or "none"
    return str(value)


# --- the file


def settings_kept_in(folder: Path, command: str, flags: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that stand for `--resume FOLDER`. Raises EnvironmentSetupError."""
    if command != "evaluate" or "config" in flags:
        raise EnvironmentSetupError(f"--{RESUME} is for evaluate, without --config: the folder has its settings.")
    if not (folder / SETTINGS).is_file():
        raise EnvironmentSetupError(
            f"--{RESUME}: {folder} has no {SETTINGS}: expected a folder of results that `evaluate` has begun."
        )
    return {"config": str(folder / SETTINGS), f"{ENV}data_dir_to_save_evals": str(folder)}


def check_yaml(path: Path) -> dict[str, Any]:
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
    settings = data.get(ENV_NAMESPACE, {})
    if not isinstance(settings, dict):
        raise EnvironmentSetupError(f"The section env of {path} must be a mapping of settings.")
    for name in settings:
        if not isinstance(name, str):
            raise EnvironmentSetupError(f"The section env of {path} names a setting {name!r}: expected text.")
    servers = _servers_of(data)
    for number, server in enumerate(servers, start=1):
        if not isinstance(server, dict):
            raise EnvironmentSetupError(f"The section openai of {path} must be a mapping, or a list of mappings.")
        for key in server:
            if key not in SERVER_FIELDS:
                raise unknown_name("key", f"{OPENAI}{key}", (f"{OPENAI}{k}" for k in SERVER_FIELDS))
        missing = [name for name in OF_EACH_SERVER if name not in server]
        if len(servers) > 1 and missing:
            raise EnvironmentSetupError(
                f"Server {number} of {len(servers)} in {path} has no {' and no '.join(missing)}: with several servers "
                "each needs its own."
            )
    return with_keys(data)


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


def _servers_of(file: Mapping[str, Any]) -> list[Any]:
    named = file.get(OPENAI_NAMESPACE, {})
    return named if isinstance(named, list) else [named]


# --- the settings of the run


class Settings(Protocol):
    """What the checks below read of an environment's settings."""

    total_steps: int
    include_messages: bool
    data_path_to_save_groups: str | None
    data_dir_to_save_evals: str | None
    dump_rollouts: bool
    dump_failed_rollouts: bool
    data_dumps_dir: str
    dry_run: bool
    limit_tokens: int | None
    eval_tasks: list[str]
    num_eval_samples_per_task: int

    @property
    def tasks(self) -> TaskSettings: ...


def start_values(command: str, environment: Any) -> dict[str, dict[str, Any]]:
    """What a command of this environment class starts from: prefix -> name -> value."""
    config, servers = environment.config_init()
    values = config.model_dump()
    # As Atropos has it.
    if command != "serve":
        values["use_wandb"] = True
    if command == "process":
        values |= {"ensure_scores_are_not_same": False, "include_messages": True}
        values["data_path_to_save_groups"] = values["data_path_to_save_groups"] or f"data/{environment.name}.jsonl"
    return {ENV: values, OPENAI: servers[0].model_dump()}


def merged_config(command: str, environment: Any, file: Mapping[str, Any], flags: Mapping[str, Any]) -> Settings:
    """The settings under which the command will run. Raises pydantic's ValidationError."""
    start = start_values(command, environment)[ENV]
    config: Settings = environment.env_config_cls(
        **merge_dicts(start, file.get(ENV_NAMESPACE, {}), extract_namespace(flags, ENV))
    )
    return config


def what_differs(
    config: Any, file: Mapping[str, Any], flags: Mapping[str, Any], defaults: Mapping[str, Mapping[str, Any]]
) -> str:
    """One line: the settings that are not the command's defaults. Keys are not shown."""
    found = {f"{ENV}{name}": value for name, value in config.model_dump().items() if value != defaults[ENV].get(name)}
    servers = _servers_of(file)
    server = {**(servers[0] if len(servers) == 1 else {}), **extract_namespace(flags, OPENAI)}
    for name, value in server.items():
        if name != "api_key" and str(value) != _shown(defaults[OPENAI].get(name)):
            found[f"{OPENAI}{name}"] = value
    if len(servers) > 1:
        found["servers"] = len(servers)
    shown = ", ".join(
        f"{name} {textwrap.shorten(_shown(value), 60, placeholder='...')}" for name, value in found.items()
    )
    return f"Settings other than the defaults: {shown or 'none'}. ({VERBOSE} prints all.)"


def check_servers(file: Mapping[str, Any], flags: Mapping[str, Any]) -> None:
    """Raise EnvironmentSetupError, or ValidationError, for servers that cannot be reached as they are described."""
    for server in [*_servers_of(file), extract_namespace(flags, OPENAI)]:
        # Atropos would report an invalid value together with the whole section, API key included.
        address = APIServerConfig(**server).base_url
        if address and not address.startswith(("http://", "https://")):
            raise EnvironmentSetupError(
                f"openai.base_url: expected an address such as http://localhost:9004/v1, got {address!r}."
            )
    slurm = ServerManagerConfig(slurm=flags.get("slurm", file.get("slurm", False))).slurm
    if slurm and "SLURM_JOB_NODELIST" not in os.environ:
        raise EnvironmentSetupError(
            "slurm is on, but this is no SLURM job (SLURM_JOB_NODELIST is not set): start it with sbatch or srun, or "
            "name the servers with openai.base_url."
        )


def check_settings(command: str, config: Settings) -> None:
    """Raise EnvironmentSetupError for settings that are valid, but not with this command or on this machine."""
    if command == "process" and config.total_steps < 1:
        raise EnvironmentSetupError(
            f"env.total_steps is the number of groups to write: process needs at least 1, got {config.total_steps}."
        )
    if command == "serve" and (config.dry_run or config.limit_tokens is not None):
        raise EnvironmentSetupError("env.dry_run and env.limit_tokens are for evaluate and process, which end.")
    check_names(config.tasks, config.eval_tasks if config.num_eval_samples_per_task else ())
    if (groups := config.data_path_to_save_groups) is not None:
        # Atropos makes its folder, and takes another name for a file that is there.
        check_folder("The folder of env.data_path_to_save_groups", Path(groups).parent)
        check_file("env.data_path_to_save_groups", groups)
        if command == "process" and config.include_messages:
            place_of_page(Path(groups))
    if (results := config.data_dir_to_save_evals) is not None:
        check_folder("env.data_dir_to_save_evals", results)
    elif command == "evaluate":
        logger.info("Answers will not be kept: env.data_dir_to_save_evals names a folder for them, and to go on from.")
    if config.dump_rollouts or config.dump_failed_rollouts:
        check_folder("env.data_dumps_dir", config.data_dumps_dir)


def explain(error: ValidationError) -> list[str]:
    """One line for each invalid setting: its name, what was expected, what arrived."""
    prefix = {APIServerConfig.__name__: OPENAI, ServerManagerConfig.__name__: ""}.get(error.title, ENV)
    lines = []
    for problem in error.errors(include_url=False):
        name = ".".join(str(part) for part in problem["loc"][:1])
        message = problem["msg"].removeprefix("Value error, ")
        if not name:
            lines.append(f"{message[:1].upper()}{message[1:]}")
            continue
        arrived = "" if "got " in message or name == "api_key" else f", got {problem['input']!r}"
        lines.append(f"{prefix}{name}: {message}{arrived}")
    return list(dict.fromkeys(lines))


# --- what nobody else must read


def take_key_out_of_arguments(key: Any) -> None:
    """Remove the key from sys.argv: wandb writes it into the files of a run, and uploads them."""
    sys.argv[1:] = [one for one in sys.argv[1:] if one.partition("=")[0] != f"--{KEY}"]
    if isinstance(key, str) and key:
        sys.orig_argv[:] = [one.replace(key, HIDDEN) if key == one or KEY in one else one for one in sys.orig_argv]
        if key != PLACEHOLDER:
            logger.warning(
                "The value of --%s is in this machine's list of processes, for all to read: --%s NAME takes it from an "
                "environment variable.",
                *(KEY, KEY_ENV),
            )


def with_key(server: Mapping[str, Any]) -> dict[str, Any]:
    """A server's settings with the key that `api_key_env` names in its place. Raises EnvironmentSetupError."""
    settings = dict(server)
    if settings.get("api_key") == HIDDEN:
        # As it is kept beside results.
        del settings["api_key"]
    if (name := settings.pop("api_key_env", None)) is None:
        return settings
    if "api_key" in settings:
        raise EnvironmentSetupError(f"{KEY} and {KEY_ENV} both name a key: give one of them.")
    # Not repeated, for it may be the key itself.
    if not (key := os.environ.get(str(name))):
        raise EnvironmentSetupError(
            f"{KEY_ENV}: expected the name of an environment variable that is set and not empty."
        )
    return {**settings, "api_key": key}


def with_keys(file: Any) -> Any:
    """What a YAML file says, each server `with_key`."""
    servers = file.get(OPENAI_NAMESPACE) if isinstance(file, dict) else None
    if isinstance(servers, list):
        return {**file, OPENAI_NAMESPACE: [with_key(server) for server in servers]}
    return {**file, OPENAI_NAMESPACE: with_key(servers)} if servers else file


@contextmanager
def hidden_api_keys(flags: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Within, Atropos shows HIDDEN in place of every key: on the terminal, and in the settings beside results.

    It takes `flags` for those of the command line, if they are given, and the keys of a file from where it names them.
    """
    patched = ("rprint", "yaml", "get_double_dash_flags")
    before = {name: getattr(base, name) for name in patched}

    def dump(data: Any, *args: Any, **options: Any) -> Any:
        return yaml.dump(_without_keys(data), *args, **options)

    # Its debugging lines hold the flags and the file's settings as they are.
    logging.getLogger(base.__name__).setLevel(logging.INFO)
    base.rprint = lambda value: before["rprint"](_without_keys(value))
    base.yaml = SimpleNamespace(
        **{**vars(yaml), "dump": dump, "safe_load": lambda text: with_keys(yaml.safe_load(text))}
    )
    if flags is not None:
        base.get_double_dash_flags = lambda: dict(flags)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(base, name, value)


@contextmanager
def settings_kept_for_results(environment: Any) -> Iterator[None]:
    """Within, `evaluate` keeps its settings for when there are results to write them beside.

    Atropos writes them at the start, over those of the results that are there, which may be another evaluation's.
    """

    class Kept(StringIO):
        def close(self) -> None:
            environment.evaluate_settings = self.getvalue()
            super().close()

    def open_(path: Any, mode: str = "r", **options: Any) -> Any:
        return Kept() if Path(path).name == SETTINGS and mode == "w" else Path(path).open(mode, **options)

    def is_true(record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith("Dumped evaluate config")

    base.open = open_
    base.logger.addFilter(is_true)
    try:
        yield
    finally:
        del base.open
        base.logger.removeFilter(is_true)


def _without_keys(value: Any) -> Any:
    if isinstance(value, APIServerConfig):
        return value.model_copy(update={"api_key": HIDDEN})
    if isinstance(value, Mapping):
        return {name: HIDDEN if name == "api_key" else _without_keys(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_without_keys(one) for one in value]
    return value
