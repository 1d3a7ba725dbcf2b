"""Atropos' own commands (serve, process, evaluate) with clear errors for what a person got wrong.

Flags and YAML stay Atropos': `--env.NAME`, `--openai.NAME`, `--slurm`, `--testing`, `--config FILE`. Around them we
check the YAML file (Atropos ignores what it does not know), keep API keys out of what is printed, and turn invalid
settings into one line each.
"""

from __future__ import annotations

import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import yaml
from atroposlib.envs.base import APIServerConfig
from pydantic import ValidationError

from ..errors import EnvironmentSetupError, unknown_name
from .api_keys import hidden_api_keys
from .command_checks import ENV, OPENAI, check_servers, check_settings, merged_config, start_values
from .command_help import help_text
from .flags import asks_for_help, check_names, joined
from .shutdown import ShutdownRequested

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
