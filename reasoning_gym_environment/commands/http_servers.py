"""The commands `grade-server` and `openenv`: serve the tasks over HTTP (docs/datasets.md).

Both servers are behind the boundary of integrations/boundary.py. The web frameworks are imported when a command serves,
because its `--help` does not need them.
"""

from __future__ import annotations

import argparse
import ipaddress
import logging
import os
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..api import Tasks, new_store
from ..errors import EnvironmentSetupError
from ..settings.components import TasksSettings
from ..utils.terminal import path_name, positive, seconds
from ..utils.terminal import port as port_number
from .options import add_settings, task_settings

logger = logging.getLogger(__name__)

DEFAULTS: Mapping[str, Any] = {"partial_credit": "exact", "sandbox": "require"}
"""The settings of both servers that differ from those of `Tasks`. Their clients choose the answers, and items too."""

KEEP_ALIVE_S = 75
"""How long the server keeps an idle connection. httpx keeps one for 5 s, and aiohttp for 15 s. A server that closes a
connection in the moment in which its client sends a request makes this request fail."""


def grade_server(arguments: Sequence[str]) -> int:
    """The command `grade-server`."""
    parser = _parser("grade-server", "Grade completions over HTTP.", port=8100, **DEFAULTS)
    parser.add_argument(
        "--queue", type=positive, default=4096, help="completions graded at the same time (%(default)s)"
    )
    parser.add_argument("--deadline-s", type=seconds, default=60.0, help="seconds a request may take (%(default)s)")
    parser.add_argument(
        "--allow-configs",
        action="store_true",
        help="accept any config from clients, and not only those of the served levels and the defaults",
    )
    options = _parse(parser, arguments)
    from ..integrations.servers import build_app

    limits = {"queue": options.queue, "deadline_s": options.deadline_s}
    return _serve(options, partial(build_app, **limits, allow_configs=options.allow_configs), DEFAULTS)


def openenv(arguments: Sequence[str]) -> int:
    """The command `openenv`; integrations/openenv.py has the environment."""
    defaults = {**DEFAULTS, "complexity_mode": "curriculum"}
    parser = _parser("openenv", "Serve the tasks as an OpenEnv environment.", port=8200, **defaults)
    parser.add_argument(
        "--group-size", type=positive, default=8, help="completions of each row, as the trainer samples (%(default)s)"
    )
    parser.add_argument(
        "--level-store",
        type=path_name,
        metavar="FILE",
        help="keep the levels in this file, which a server that starts again needs (default: a temporary file)",
    )
    options = _parse(parser, arguments)
    from ..integrations.openenv import build_app

    with tempfile.TemporaryDirectory() as folder:
        path = Path(options.level_store or Path(folder) / "levels.sqlite")
        if not path.exists():
            chosen = {name: value for name, value in task_settings(options).items() if name != "complexity_mode"}
            new_store(path, group_size=options.group_size, **chosen)
        app = partial(build_app, level_store=str(path), group_size=options.group_size)
        return _serve(options, app, defaults)


def _parser(command: str, description: str, *, port: int, **defaults: Any) -> argparse.ArgumentParser:
    """The options that both commands have: the settings of `Tasks`, and the address."""
    parser = argparse.ArgumentParser(f"reasoning-gym-env {command}", "%(prog)s [options]", description)
    add_settings(parser, TasksSettings.model_fields, **defaults)
    parser.add_argument("--host", type=_not_empty, default="127.0.0.1", help="(%(default)s: this machine only)")
    parser.add_argument("--port", type=port_number, default=port, help="(%(default)s)")
    parser.add_argument(
        "--token-env",
        type=_not_empty,
        metavar="NAME",
        help="variable that holds a token which requests must carry",
    )
    return parser


def _parse(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """The options, with the token. Raises UnknownNameError."""
    options = parser.parse_args(arguments)
    options.token = os.environ.get(options.token_env, "") if options.token_env else ""
    if options.token_env and not options.token:
        parser.error(f"--token-env: the variable {options.token_env} is not set.")
    return options


def _not_empty(text: str) -> str:
    """The text of a variable that is not set would listen on all interfaces, or serve without a token."""
    if not text:
        raise argparse.ArgumentTypeError("expected a name, got ''")
    return text


def _listen(host: str, port: int) -> socket.socket:
    """A socket with this address. Raises EnvironmentSetupError if this machine or another program does not allow it."""
    try:
        # An address with a colon is one of IPv6.
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError, TypeError, UnicodeError) as error:
        raise EnvironmentSetupError(
            f"--host and --port: expected a free port of this machine, but {host} port {port} cannot be used "
            f"({error}). Name another --port, or 0 for any free port."
        ) from error


def _serve(options: argparse.Namespace, app: Callable[[Tasks], Any], defaults: Mapping[str, Any]) -> int:
    """Start the workers, and serve until Ctrl-C. Raises EnvironmentSetupError."""
    import uvicorn

    from ..integrations.boundary import Connection, Gate

    # `Tasks` starts one worker of each kind unless the numbers are given.
    workers = {"num_generation_workers": None, "num_scoring_workers": None}
    settings = {**workers, **defaults, **task_settings(options)}
    with (
        _listen(options.host, options.port) as bound,
        Tasks(**settings) as tasks,
    ):
        host, port = bound.getsockname()[:2]
        address = f"[{host}]" if ":" in host else host
        if not options.token and not ipaddress.ip_address(host).is_loopback:
            logger.warning("Everybody who reaches %s port %d can use this server. Add --token-env.", host, port)
        names = {options.host, socket.gethostname()}
        gate = Gate(app(tasks), token=options.token, names=names)
        print(f"{len(tasks.names)} tasks at http://{address}:{port}. Ctrl-C ends it.", flush=True)
        config = uvicorn.Config(gate, http=Connection, log_level="warning", timeout_keep_alive=KEEP_ALIVE_S)
        uvicorn.Server(config).run(sockets=[bound])
    return 0
