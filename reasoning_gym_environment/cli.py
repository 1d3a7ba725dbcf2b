"""The command `reasoning-gym-env`: Atropos' serve, process and evaluate, and our own commands beside them.

This module imports only light modules, so that Ctrl-C ends a command with one line even while it starts.
"""

from __future__ import annotations

import atexit
import errno
import importlib
import logging
import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from . import __version__
from .errors import EnvironmentSetupError, missing_extra
from .utils.logs import stderr_handler

ATROPOS = "cli:run_with_atropos"
RESUMES = "The same command resumes where it stopped."


class Command(NamedTuple):
    """`target` is the module and the function that takes the arguments and returns the exit code.

    `after_signal` says what the user can do after the command was interrupted.
    """

    target: str
    summary: str
    after_signal: str = "The same command starts again from the beginning."


COMMANDS = {
    "tasks": Command("commands.tasks:main", "list the tasks, or print items of one task with their answers"),
    "serve": Command(ATROPOS, "generate scored groups for a trainer (needs run-api and an inference server)", RESUMES),
    "evaluate": Command(ATROPOS, "score a model on held-out questions (needs an inference server)", RESUMES),
    "report": Command("html_report.main:main", "write evaluation results and rollouts as one HTML page"),
    "process": Command(
        ATROPOS, "write scored groups to a JSONL file for fine-tuning (needs an inference server)", RESUMES
    ),
    "export": Command("commands.export:main", "write items, or good completions, as a dataset for another trainer"),
    "audit": Command(
        "commands.audit:main",
        "check that a task's verifier pays right answers, pays nothing without work, and raises nothing",
    ),
    "levels": Command(
        "commands.levels:main",
        "make or show a store of levels, with which the difficulty follows the rewards in other trainers",
        after_signal="",
    ),
    "grade-server": Command(
        "commands.http_servers:grade_server",
        "grade completions over HTTP for other trainers",
        after_signal="",
    ),
    "openenv": Command(
        "commands.http_servers:openenv",
        "serve the tasks as an OpenEnv environment",
        after_signal="",
    ),
}

HELP = """usage: reasoning-gym-env COMMAND [options]

Train and evaluate language models on the tasks of reasoning-gym, with Atropos.

commands:
{commands}
example, with an OpenAI-compatible server on this machine:
  reasoning-gym-env evaluate --openai.server_type openai --openai.base_url http://localhost:9004/v1 \\
      --openai.model_name my-model --env.data_dir_to_save_evals results/my-model
  reasoning-gym-env report results/my-model -o report.html

`reasoning-gym-env COMMAND --help` lists the options of a command.
"""

CANNOT_RUN = 2
NO_WINDOWS = "expected Linux or macOS, and this is Windows. Install and run it in WSL (https://aka.ms/wsl)."


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command, and exit with its code.

    The code is 130 after Ctrl-C, 143 after SIGTERM, and 141 if the reader of the output has gone away. An error that
    the user can fix (EnvironmentSetupError, or an unusable file) is printed as one line; its code is 2.
    """
    if sys.platform == "win32":
        # Modules of the package import `fcntl`, which Windows does not have.
        sys.exit(last_words(NO_WINDOWS, CANNOT_RUN))
    _prepare_process()
    arguments = list(sys.argv[1:] if argv is None else argv)
    received: list[int] = []

    def like_ctrl_c(number: int, frame: FrameType | None) -> None:
        received.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, like_ctrl_c)
    try:
        code = _run(arguments)
        # The interpreter flushes at its end, too late to report an error.
        print(end="", flush=True)
    except KeyboardInterrupt:
        number = received[0] if received else signal.SIGINT
        command = COMMANDS.get(arguments[0]) if arguments else None
        code = last_words(f"interrupted. {command.after_signal if command else ''}".strip(), 128 + number)
    except BrokenPipeError:
        # Otherwise the interpreter would try to write the buffered output again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 128 + signal.SIGPIPE
    except EnvironmentSetupError as error:
        code = last_words(str(error), CANNOT_RUN)
    except OSError as error:
        code = last_words(_about_files(error), CANNOT_RUN)
    finally:
        signal.signal(signal.SIGTERM, before)
    sys.exit(code)


def _prepare_process() -> None:
    # Transformers loads only tokenizers, so its advice to install PyTorch does not matter.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    # The environment reports an unreachable hub once; the hub's client would log each of a dozen attempts.
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # Characters that the terminal cannot print are escaped.
            stream.reconfigure(errors="backslashreplace")
    logging.basicConfig(handlers=[stderr_handler()])


def _about_files(error: OSError) -> str:
    """A sentence about an unusable file or a full disk. Raises all other errors."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"cannot write: {error.strerror}. Make room and start again."
    if error.filename is None:
        raise error
    return f"cannot use {error.filename}: {error.strerror}. Check that it exists and that you may use it."


def last_words(text: str, code: int) -> int:
    """Print why the command ends; returns the exit code."""
    print(f"reasoning-gym-env: {text}", file=sys.stderr)
    return code


def _run(arguments: list[str]) -> int:
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help"):
        commands = "".join(f"  {name:<12} {command.summary}\n" for name, command in COMMANDS.items())
        print(HELP.format(commands=commands), end="")
        return 0
    if name == "--version":
        print(f"reasoning-gym-env {__version__}")
        return 0
    if name not in COMMANDS:
        known = ", ".join(COMMANDS)
        return last_words(f"unknown command {name!r}: expected one of {known}.", CANNOT_RUN)
    target = COMMANDS[name].target
    # Atropos' commands share a function, which needs the name too.
    options = arguments if target == ATROPOS else arguments[1:]
    module_name, _, function_name = target.partition(":")
    try:
        # Some modules take seconds to import, so each command imports only its own.
        module = importlib.import_module(f".{module_name}", __package__)
        code: int = getattr(module, function_name)(options)
    except ModuleNotFoundError as error:
        return last_words(missing_extra(name, error), CANNOT_RUN)
    return code


def run_with_atropos(arguments: Sequence[str]) -> int:
    """Run serve, process or evaluate, then log the paths of the results; returns the exit code 0."""
    # Before the imports below, because wandb chooses its temporary folder at import.
    temporary = keep_temporary_files_together()
    _use_home_if_there_is_none(temporary)
    from .atropos import flags

    with flags.mistakes_end_the_command():
        # The names are checked before the imports below, which take seconds.
        given = flags.read(arguments, flags.packaged_settings())
        from .atropos import command_line
        from .env import ReasoningGymEnv

        config = command_line.run(command_line.Initial.of(ReasoningGymEnv), given)
    if arguments[0] == "process":
        _write_page(config)
    elif arguments[0] == "evaluate" and config.data_dir_to_save_evals:
        folder = config.data_dir_to_save_evals
        command = f"reasoning-gym-env report {shlex.quote(str(folder))} -o report.html"
        logging.getLogger(__name__).info("The results are in %s. Show them with: `%s`", folder, command)
    return 0


def keep_temporary_files_together() -> str:
    """Make a folder for all temporary files of this process. It is removed when the process ends.

    A forked child shares the folder, and leaves it to this process.
    """
    folder = tempfile.mkdtemp(prefix="reasoning-gym-run-")
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    tempfile.tempdir = folder
    return folder


def _use_home_if_there_is_none(folder: str) -> None:
    """Use `folder` as the home directory of a user who has none: neither HOME nor an entry in the system's list.

    Containers often run as such a user, and wandb ends with a traceback then.
    """
    try:
        Path.home()
    except RuntimeError:
        os.environ["HOME"] = folder
        print(
            "reasoning-gym-env: There is no home directory, so the caches of libraries are removed when the command "
            "ends. Set HOME to keep them.",
            file=sys.stderr,
        )


def _write_page(config: Any) -> None:
    """Write a page about the groups of `process`, if they have messages."""
    from .html_report.main import write_page

    logger = logging.getLogger(__name__)
    groups = Path(config.data_path_to_save_groups)
    if not groups.exists() or not config.include_messages:
        return
    try:
        page = write_page([groups], groups.with_suffix(".html"))
    except EnvironmentSetupError as error:
        logger.warning("The groups are complete, but writing their page failed: %s", error)
    else:
        logger.info("A page to look at the groups: %s.", page)
