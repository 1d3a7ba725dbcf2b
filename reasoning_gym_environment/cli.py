"""The command `reasoning-gym-env`: Atropos' serve, process, evaluate, and our own commands beside them.

This module imports nothing that takes time, so that Ctrl-C is answered in one line from the first moment.
"""

from __future__ import annotations

import atexit
import errno
import importlib
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

from . import __version__
from .errors import EnvironmentSetupError, missing_extra

ATROPOS = "cli:run_with_atropos"

COMMANDS = {
    "tasks": ("commands.tasks:main", "list the tasks that would be served, with what is known of each"),
    "preview": ("commands.tasks:preview", "print items of a task at some difficulty, with their answers"),
    "audit": ("commands.audit:main", "measure what the tasks' verifiers pay to right, wrong and worthless answers"),
    "serve": (ATROPOS, "generate scored groups for a trainer (needs run-api and an inference server)"),
    "process": (ATROPOS, "write scored groups to a JSONL file, for SFT or inspection (needs an inference server)"),
    "evaluate": (ATROPOS, "score a model on the held-out set (needs an inference server)"),
    "report": ("report.main:main", "write evaluation results and dumps as one HTML page"),
    "export": ("commands.export:main", "write good completions of dumps and groups as a dataset for fine-tuning"),
    "grade-server": ("integrations.servers:grade_server", "grade completions over HTTP, for other trainers"),
    "openenv": ("integrations.servers:openenv", "serve the tasks as an OpenEnv environment"),
    "regrade": ("commands.regrade:main", "score saved samples, dumps and groups again, without inference"),
}
"""Command -> the module and function that takes the arguments and returns the exit code; and what the command does."""

HELP = """usage: reasoning-gym-env COMMAND [options]

Train and evaluate language models on the tasks of reasoning-gym, with Atropos.

commands:
{commands}
example, with an OpenAI-compatible server on this machine:
  reasoning-gym-env evaluate --openai.server_type openai --openai.base_url http://localhost:9004/v1 \\
      --openai.model_name my-model --env.data_dir_to_save_evals results/my-model --env.use_wandb False
  reasoning-gym-env report results/my-model -o report.html

`reasoning-gym-env COMMAND --help` lists a command's options.
"""
RETIRED = {
    "dumps": "the command dumps was removed: `reasoning-gym-env report data_dumps` sums up runs, items and rewards."
}
"""Commands of the release before this one that no longer exist, each with a sentence that says what replaces it."""

CANNOT_RUN = 2

ESCAPED = {one: f"\\x{one:02x}" for one in (*range(32), *range(127, 160)) if chr(one) not in "\n\t"}
"""Characters that a terminal obeys, other than the ends of lines and tabs, for `str.translate`."""


class ShownRecord(logging.LogRecord):
    """A log record without characters that a terminal obeys: its text may come from a server."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.exc_info:
            self.exc_text = logging.Formatter().formatException(self.exc_info).translate(ESCAPED)

    def getMessage(self) -> str:
        return super().getMessage().translate(ESCAPED)


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command; exits with its code: 130 after Ctrl-C, 141 if nobody reads the output any more.

    What a person can mend, an EnvironmentSetupError or a file that cannot be used, is one line and code 2.
    """
    # Only tokenizers are used from transformers, so its advice to install PyTorch does not matter.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    # A hub that cannot be reached is reported once at the end, and not at each of a dozen attempts.
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A character that the terminal cannot print is shown escaped.
            stream.reconfigure(errors="backslashreplace")
    logging.setLogRecordFactory(ShownRecord)
    try:
        try:
            _run(list(sys.argv[1:] if argv is None else argv))
        finally:
            # The interpreter's own flush comes too late to report an error.
            print(end="", flush=True)
    except KeyboardInterrupt:
        sys.exit(last_words("interrupted.", 128 + signal.SIGINT))
    except BrokenPipeError:
        discard(sys.stdout)
        sys.exit(128 + signal.SIGPIPE)
    except EnvironmentSetupError as error:
        sys.exit(last_words(str(error), CANNOT_RUN))
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            discard(sys.stdout)
            sys.exit(last_words(f"cannot write: {error.strerror}. Make room and start again.", CANNOT_RUN))
        if error.filename is None:
            raise
        sys.exit(last_words(str(error), CANNOT_RUN))


def discard(stream: TextIO) -> None:
    """Drop what is still buffered, which would fail once more when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def last_words(text: str, code: int) -> int:
    """Print why the command ends, if that is possible; returns the exit code."""
    try:
        print(f"reasoning-gym-env: {text}", file=sys.stderr)
    except OSError:
        discard(sys.stderr)
    return code


def _run(arguments: list[str]) -> None:
    command = arguments[0] if arguments else "--help"
    if command in ("-h", "--help"):
        print(HELP.format(commands="".join(f"  {name:<12} {text}\n" for name, (_, text) in COMMANDS.items())), end="")
    elif command == "--version":
        print(f"reasoning-gym-env {__version__}")
    elif command in COMMANDS:
        # Only the module of this command is imported, for some of them load a lot.
        module, _, function = COMMANDS[command][0].partition(":")
        rest = arguments if COMMANDS[command][0] == ATROPOS else arguments[1:]
        try:
            sys.exit(getattr(importlib.import_module(f".{module}", __package__), function)(rest))
        except ModuleNotFoundError as error:
            sys.exit(last_words(missing_extra(command, error), CANNOT_RUN))
    else:
        known = f"unknown command {command!r}: expected one of {', '.join(COMMANDS)}."
        sys.exit(last_words(RETIRED.get(command, known), CANNOT_RUN))


def run_with_atropos(arguments: Sequence[str]) -> int:
    """Run serve, process or evaluate, then say where the results are.

    Everything temporary is in one folder, which the next start removes if this process is killed.
    """
    from .workers.generator import TemporaryFolder

    temporary = TemporaryFolder("run")
    # Before anything else that uses it: so it is removed last, and wandb, which looks at its import, is in it too.
    atexit.register(temporary.cleanup)
    tempfile.tempdir = temporary.name
    from .atropos import command_line
    from .commands.export import write_export
    from .env import ReasoningGymEnv
    from .report.main import write_page

    logger = logging.getLogger(__name__)
    config = command_line.run(ReasoningGymEnv, arguments)
    if arguments[0] == "process" and config and (groups := Path(config.data_path_to_save_groups)).exists():
        try:
            if config.include_messages:
                logger.info("A page to look at the groups: %s.", write_page([groups], groups.with_suffix(".html")))
            if config.process_format:
                logger.info("A dataset for fine-tuning: %s.", write_export(groups, config.process_format))
        except EnvironmentSetupError as error:
            logger.warning("The groups are complete, but not what belongs beside them: %s", error)
    if arguments[0] == "evaluate" and config and (folder := config.data_dir_to_save_evals):
        logger.info("The results are in %s: `reasoning-gym-env report %s -o report.html` shows them.", folder, folder)
    return 0
