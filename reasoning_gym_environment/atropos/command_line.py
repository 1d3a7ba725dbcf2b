"""Atropos' own commands (serve, process, evaluate) with clear errors for what a person got wrong.

Flags and YAML stay Atropos': `--env.NAME`, `--openai.NAME`, `--slurm`, `--testing`, `--config FILE`. Around them we
check the YAML file (Atropos ignores what it does not know), keep API keys out of what is printed, and turn invalid
settings into one line each.

The settings of one of Atropos' commands, put together as Atropos will, and checked before it starts any work.

The help of Atropos' commands: every setting with what it means and the value the command starts from.

The flags of Atropos' commands, made unambiguous before Atropos reads them.

Atropos takes `--name value` apart by itself: a value that begins with a dash it takes for another flag, and the setting
becomes True. `--name=value` it reads as it is written. argparse, which reads them too, takes the beginning of a name
for the name, and Atropos drops what it does not know without a word.

API keys stay out of what Atropos prints, logs and writes about the settings it starts with.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from argparse import ArgumentParser
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import yaml
from atroposlib.envs import base
from atroposlib.envs.base import APIServerConfig
from atroposlib.envs.constants import ENV_NAMESPACE, NAMESPACE_SEP, OPENAI_NAMESPACE
from atroposlib.envs.server_handling.server_manager import ServerManagerConfig
from atroposlib.utils.cli import extract_namespace, get_double_dash_flags, merge_dicts
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from ..errors import EnvironmentSetupError, unknown_name
from ..report.group_page import place_of_page
from ..utils.paths import check_file, check_folder
from .shutdown import ShutdownRequested

if TYPE_CHECKING:
    from ..config import ReasoningGymEnvConfig

logger = logging.getLogger(__name__)


BAD_INPUT = 2
"""Exit code for settings that a person must change."""

COMMANDS = ("serve", "process", "evaluate")
OF_EACH_SERVER = ("server_type", "base_url", "model_name")
"""For several servers Atropos fills these from the defaults of its own class, not from those of the environment."""
PLAIN_FLAGS = ("config", "slurm", "testing")

_YAML_SECTIONS = ("env", "openai", "slurm", "testing")


class AtroposCommandLine:
    """Mixin for a BaseEnv subclass: `cls.cli()` and the config classes of the three commands."""

    @classmethod
    def cli(cls) -> None:
        """Run the command in sys.argv; exits with 0, 2 for bad input, or 128 + the signal that ended it."""
        set_up_logging()
        sys.argv[1:] = joined(sys.argv[1:])
        try:
            cls._check_flags(sys.argv[1:])
            super().cli()  # type: ignore[misc]
        except ValidationError as error:
            for line in explain(error):
                logger.error("%s", line)
            sys.exit(BAD_INPUT)
        except EnvironmentSetupError as error:
            logger.error("%s", error)
            sys.exit(BAD_INPUT)
        except ShutdownRequested as stop:
            logger.info("Closed: %s.", stop)
            sys.exit(stop.exit_code)

    @classmethod
    def _check_flags(cls, arguments: list[str]) -> None:
        """Refuse flags that do not exist; show the help and exit if it is asked for."""
        command = arguments[0] if arguments else ""
        if command not in COMMANDS:
            return
        every = getattr(cls, f"get_cli_{command}_config_cls")().model_fields
        # Atropos declares others too, and reads none of them.
        fields = {name: every[name] for name in every if name.startswith((ENV, OPENAI)) or name in PLAIN_FLAGS}
        if asks_for_help(arguments):
            sys.stdout.write(help_text(command, fields, start_values(command, cls)))
            sys.exit(0)
        check_names(arguments, fields, command)

    @classmethod
    def get_cli_serve_config_cls(cls) -> type:
        return _checked("serve", cls, super().get_cli_serve_config_cls())  # type: ignore[misc]

    @classmethod
    def get_cli_process_config_cls(cls) -> type:
        return _checked("process", cls, super().get_cli_process_config_cls())  # type: ignore[misc]

    @classmethod
    def get_cli_evaluate_config_cls(cls) -> type:
        return _checked("evaluate", cls, super().get_cli_evaluate_config_cls())  # type: ignore[misc]


def _checked(name: str, environment: Any, command: Any) -> type:
    class Checked(command):
        __doc__ = command.__doc__

        def run(self) -> None:
            file = check_yaml(Path(self.config)) if self.config is not None else {}
            with hidden_api_keys(), warnings.catch_warnings():
                # Whether the server is there is checked, so the advice to make sure of it is not needed.
                warnings.filterwarnings("ignore", message="You are using a local Base URL")
                check_servers(file)
                check_settings(name, merged_config(name, environment, file))
                super().run()

    Checked.__name__ = command.__name__
    return Checked


def check_yaml(path: Path) -> dict[str, Any]:
    """What the file says. Raises EnvironmentSetupError if it is not a mapping of the sections and keys that exist."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise EnvironmentSetupError(f"Cannot read the config file {path}: {error.strerror}.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise EnvironmentSetupError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict):
        kind = "empty" if data is None else f"a {type(data).__name__}"
        raise EnvironmentSetupError(f"{path} is {kind}: expected a mapping with sections {', '.join(_YAML_SECTIONS)}.")
    for section in data:
        if section not in _YAML_SECTIONS:
            raise unknown_name("section", str(section), _YAML_SECTIONS, f"In {path}.")
    if not isinstance(data.get("env", {}), dict):
        raise EnvironmentSetupError(f"The section env of {path} must be a mapping of settings.")
    for name in data.get("env", {}):
        if not isinstance(name, str):
            raise EnvironmentSetupError(f"The section env of {path} names a setting {name!r}: expected text.")
    _check_servers(data.get("openai", {}), path)
    return data


def _check_servers(servers: Any, path: Path) -> None:
    for server in servers if isinstance(servers, list) else [servers]:
        if not isinstance(server, dict):
            raise EnvironmentSetupError(f"The section openai of {path} must be a mapping, or a list of mappings.")
        for key in server:
            if key not in APIServerConfig.model_fields:
                raise unknown_name("key", f"openai.{key}", (f"openai.{k}" for k in APIServerConfig.model_fields))
        # Atropos would report an invalid value together with the whole section, API key included.
        APIServerConfig(**server)
    if isinstance(servers, list) and len(servers) > 1:
        _check_each_is_whole(servers, path)


def _check_each_is_whole(servers: list[dict[str, Any]], path: Path) -> None:
    for number, server in enumerate(servers, start=1):
        if missing := [name for name in OF_EACH_SERVER if name not in server]:
            raise EnvironmentSetupError(
                f"Server {number} of {len(servers)} in {path} has no {' and no '.join(missing)}: with several servers "
                "each needs its own."
            )


def explain(error: ValidationError) -> list[str]:
    """One line for each invalid setting: its name, what was expected, what arrived."""
    section = OPENAI if error.title == APIServerConfig.__name__ else ENV
    lines = []
    for problem in error.errors(include_url=False):
        name = ".".join(str(part) for part in problem["loc"][:1])
        message = problem["msg"].removeprefix("Value error, ")
        if not name:
            lines.append(f"{message[:1].upper()}{message[1:]}")
            continue
        name = name if name.startswith((ENV, OPENAI)) or name in PLAIN_FLAGS else f"{section}{name}"
        arrived = "" if "got " in message or name.endswith("api_key") else f", got {problem['input']!r}"
        lines.append(f"{name}: {message}{arrived}")
    return list(dict.fromkeys(lines))


def set_up_logging() -> None:
    """Log lines on stderr for the command line; libraries that report every request are kept quiet."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)-7s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr
    )
    logging.captureWarnings(True)
    warnings.formatwarning = lambda message, *_args, **_kwargs: str(message)
    for chatty in ("httpx", "httpcore", "openai", "aiohttp.access"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


RESULTS = ("metrics.json", "samples.jsonl")
ENV = f"{ENV_NAMESPACE}{NAMESPACE_SEP}"
OPENAI = f"{OPENAI_NAMESPACE}{NAMESPACE_SEP}"


def start_values(command: str, environment: Any) -> dict[str, Any]:
    """What a command of this environment class starts from: setting (`env.seed`, `openai.base_url`) -> value."""
    config, servers = environment.config_init()
    values = {f"{ENV}{name}": value for name, value in config.model_dump().items()}
    values |= {f"{OPENAI}{name}": value for name, value in servers[0].model_dump().items()}
    if command == "process":
        # As Atropos has it.
        values[f"{ENV}ensure_scores_are_not_same"] = False
        values[f"{ENV}include_messages"] = True
        values[f"{ENV}data_path_to_save_groups"] = f"data/{environment.name}.jsonl"
    return values


def merged_config(command: str, environment: Any, file: Mapping[str, Any]) -> ReasoningGymEnvConfig:
    """The settings under which the command will run: what it starts from, the YAML file's, the flags'."""
    config: ReasoningGymEnvConfig = environment.env_config_cls(
        **merge_dicts(
            extract_namespace(start_values(command, environment), ENV),
            file.get(ENV_NAMESPACE, {}),
            extract_namespace(get_double_dash_flags(), ENV),
        )
    )
    return config


def check_servers(file: Mapping[str, Any]) -> None:
    """Raise EnvironmentSetupError for servers that cannot be reached as they are described, here and by anyone."""
    flags = get_double_dash_flags()
    named = file.get(OPENAI_NAMESPACE, {})
    for server in [*(named if isinstance(named, list) else [named]), extract_namespace(flags, OPENAI)]:
        address = server.get("base_url")
        if address and not str(address).startswith(("http://", "https://")):
            raise EnvironmentSetupError(
                f"openai.base_url: expected an address such as http://localhost:9004/v1, got {address!r}."
            )
    slurm = ServerManagerConfig(slurm=flags.get("slurm", file.get("slurm", False))).slurm
    if slurm and "SLURM_JOB_NODELIST" not in os.environ:
        raise EnvironmentSetupError(
            "slurm is on, but this is no SLURM job (SLURM_JOB_NODELIST is not set): start it with sbatch or srun, or "
            "name the servers with openai.base_url."
        )


def check_settings(command: str, config: ReasoningGymEnvConfig) -> None:
    """Raise EnvironmentSetupError for settings that are valid, but not with this command or on this machine."""
    if command == "process" and config.total_steps < 1:
        raise EnvironmentSetupError(
            f"env.total_steps is the number of groups to write: process needs at least 1, got {config.total_steps}."
        )
    _check_outputs(config, has_page=command == "process" and config.include_messages)
    if command == "evaluate" and config.data_dir_to_save_evals is not None:
        _warn_of_earlier_results(Path(config.data_dir_to_save_evals))


def _check_outputs(config: ReasoningGymEnvConfig, *, has_page: bool) -> None:
    if (groups := config.data_path_to_save_groups) is not None:
        # Atropos makes its folder, and takes another name for a file that is there.
        check_folder("The folder of env.data_path_to_save_groups", Path(groups).parent)
        check_file("env.data_path_to_save_groups", groups)
        if has_page:
            place_of_page(Path(groups))
    if config.data_dir_to_save_evals is not None:
        check_folder("env.data_dir_to_save_evals", config.data_dir_to_save_evals)
    if config.dump_rollouts or config.dump_failed_rollouts:
        check_folder("env.data_dumps_dir", config.data_dumps_dir)


def _warn_of_earlier_results(folder: Path) -> None:
    if any((folder / name).exists() for name in RESULTS):
        logger.warning("%s holds the results of an earlier evaluation: they will be replaced.", folder)


GROUPS = {
    "env.": "the environment (in YAML under env:)",
    "openai.": "the inference server (in YAML under openai:, a list of such for several)",
    "": "the command",
}


def help_text(command: str, fields: Mapping[str, FieldInfo], values: Mapping[str, Any]) -> str:
    """The help for flags `fields`. `values` has the defaults of this command where they differ from the fields' own."""
    parser = ArgumentParser(
        prog=f"reasoning-gym-env {command}",
        usage="%(prog)s [--config FILE] [--env.NAME VALUE ...] [--openai.NAME VALUE ...]",
        description="Flags win over the YAML file, and the file over the defaults below.",
        add_help=False,
    )
    groups = {prefix: parser.add_argument_group(title) for prefix, title in reversed(GROUPS.items())}
    groups[""].add_argument("-h", "--help", action="store_true", help="print this and exit")
    for name, field in fields.items():
        prefix = next(prefix for prefix in GROUPS if name.startswith(prefix))
        default = values.get(name, field.get_default(call_default_factory=True))
        meaning = (field.description or "").rstrip(".")
        text = f"{meaning} (default: {_shown(default)})".strip()
        groups[prefix].add_argument(f"--{name}", metavar="VALUE", help=text.replace("%", "%%"))
    return parser.format_help()


def _shown(value: Any) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, (list, dict)) or value is None or value == "":
        return ",".join(map(str, value or ())) or "none"
    return str(value)


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


HIDDEN = "***"


@contextmanager
def hidden_api_keys() -> Iterator[None]:
    """Within, Atropos shows HIDDEN in place of every key: on the terminal, and in the settings beside results."""
    rprint, module = base.rprint, base.yaml

    def dump(data: Any, *args: Any, **options: Any) -> Any:
        return yaml.dump(_without_keys(data), *args, **options)

    # Its debugging lines hold the flags and the file's settings as they are.
    logging.getLogger(base.__name__).setLevel(logging.INFO)
    base.rprint = lambda value: rprint(_without_keys(value))
    base.yaml = SimpleNamespace(**{**vars(yaml), "dump": dump})
    try:
        yield
    finally:
        base.rprint, base.yaml = rprint, module


def _without_keys(value: Any) -> Any:
    if isinstance(value, APIServerConfig):
        return value.model_copy(update={"api_key": HIDDEN})
    if isinstance(value, Mapping):
        return {name: HIDDEN if name == "api_key" else _without_keys(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_without_keys(one) for one in value]
    return value
