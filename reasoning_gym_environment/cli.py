"""The command `reasoning-gym-env`: Atropos' serve, process, evaluate, and our own commands beside them."""

from __future__ import annotations

import atexit
import errno
import gc
import importlib
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

from . import __version__

USAGE = """usage: reasoning-gym-env COMMAND [options]

Train and evaluate language models on the tasks of reasoning-gym, with Atropos.

commands:
  demo       train a tiny model through the whole loop, in two minutes: no GPU, no network
  tasks      list the tasks that would be served, with what is known of each
  preview    print items of a task at some difficulty, with their answers
  audit      measure what the tasks' verifiers pay to right, wrong and worthless answers
  serve      generate scored groups for a trainer (needs run-api and an inference server)
  process    write scored groups to a JSONL file, for SFT or inspection (needs an inference server)
  evaluate   score a model on the held-out set (needs an inference server)
  report     write evaluation results and dumps as one HTML page
  dumps      sum up the rollout dumps of one run or many
  export     write good completions of dumps and groups as a dataset for fine-tuning
  regrade    score saved samples, dumps and groups again, without inference

examples:
  reasoning-gym-env demo
  reasoning-gym-env serve --config my_run.yaml --env.complexity_mode curriculum
  reasoning-gym-env process --env.total_steps 100 --env.data_path_to_save_groups data/groups.jsonl
  reasoning-gym-env evaluate --openai.base_url http://localhost:9004/v1 --env.use_wandb False
  reasoning-gym-env report results/some-model data_dumps/*.jsonl -o report.html

`reasoning-gym-env COMMAND --help` lists a command's options.
"""

ATROPOS_COMMANDS = ("serve", "process", "evaluate")
OWN_COMMANDS = {
    "demo": "demo.main",
    "tasks": "commands.tasks",
    "preview": "commands.tasks:preview",
    "audit": "audit.main",
    "report": "report.main",
    "dumps": "commands.dumps",
    "export": "commands.export",
    "regrade": "commands.regrade",
}
"""Command -> the module and function (`main` if none is named) that takes the arguments and returns the exit code."""

HEAVY = {"transformers": ("AutoTokenizer", "PreTrainedTokenizer"), "wandb": ()}
"""A second and a half to import, and not needed to answer `--help` or a misspelt setting."""

INTERRUPTED = 128 + signal.SIGINT
READER_GONE = 128 + signal.SIGPIPE
CANNOT_RUN = 2
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
ESCAPED = {one: f"\\x{one:02x}" for one in (*range(32), *range(127, 160)) if chr(one) not in "\n\t"}
"""Characters that a terminal obeys, other than the ends of lines and tabs, for `str.translate`."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command; exits the process with its code: 130 after Ctrl-C, 141 if nobody reads the output any more."""
    # Only tokenizers are used from transformers, so its advice to install PyTorch is noise.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    # And what cannot be had from the hub is said once, in the end, and not at each of a dozen attempts.
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    _mend_streams()
    logging.setLogRecordFactory(ShownRecord)
    try:
        try:
            _run(list(sys.argv[1:] if argv is None else argv))
        finally:
            # Here, where an error can still be told; the interpreter's own flush comes too late for that.
            sys.stdout.flush()
    except KeyboardInterrupt:
        _tell("interrupted.")
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        _give_up(sys.stdout)
        sys.exit(READER_GONE)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        _give_up(sys.stdout)
        _tell(f"cannot write: {error.strerror}. Make room and start again.")
        sys.exit(CANNOT_RUN)


class ShownRecord(logging.LogRecord):
    """A log record whose text no terminal obeys: it may be what a server says."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.exc_info:
            self.exc_text = logging.Formatter().formatException(self.exc_info).translate(ESCAPED)

    def getMessage(self) -> str:
        return super().getMessage().translate(ESCAPED)


def _mend_streams() -> None:
    """A stream that was closed becomes the null device; a letter that the terminal has not is shown escaped."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            # It takes the lowest number, which is the stream's own: else the next file that is opened had it.
            null = Path(os.devnull).open("r" if name == "stdin" else "w")  # noqa: SIM115
            os.set_inheritable(null.fileno(), True)
            setattr(sys, name, null)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="backslashreplace")


def _tell(text: str) -> None:
    """Say why it ends, if that can be said."""
    try:
        print(f"reasoning-gym-env: {text}", file=sys.stderr)
    except OSError:
        _give_up(sys.stderr)


def _give_up(stream: TextIO) -> None:
    """What is still buffered goes nowhere, instead of failing once more when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _run(arguments: list[str]) -> None:
    command = arguments[0] if arguments else "--help"
    if command in ("-h", "--help"):
        print(USAGE, end="")
    elif command == "--version":
        print(f"reasoning-gym-env {__version__}")
    elif command in OWN_COMMANDS:
        # Only the module of the command that is run, for some of them load a lot.
        module, _, function = OWN_COMMANDS[command].partition(":")
        sys.exit(getattr(importlib.import_module(f".{module}", __package__), function or "main")(arguments[1:]))
    elif command in ATROPOS_COMMANDS:
        # Atropos reads the flags from sys.argv.
        sys.argv = [sys.argv[0], *arguments]
        _run_with_atropos()
    else:
        known = ", ".join((*ATROPOS_COMMANDS, *OWN_COMMANDS))
        print(f"reasoning-gym-env: unknown command {command!r}: expected one of {known}.", file=sys.stderr)
        sys.exit(CANNOT_RUN)


def _run_with_atropos() -> None:
    """All that is temporary is in one folder, which is found and removed when a run is killed: wandb has many."""
    from .workers.generator import TemporaryFolder

    folder = TemporaryFolder("run")
    # Registered first, so that it is called last: wandb still cleans up in it.
    atexit.register(folder.cleanup)
    before, tempfile.tempdir = tempfile.tempdir, folder.name
    if "--help" not in sys.argv and "-h" not in sys.argv:
        # A second is long without a word. Not by logging, which is set up by what is loaded.
        print(f"{time.strftime('%H:%M:%S')} INFO    Loading Atropos.", file=sys.stderr)
    try:
        # Of thousands of new classes none is garbage: looking for some takes a sixth of the time.
        gc.disable()
        with imported_on_use(HEAVY):
            from .env import ReasoningGymEnv
        gc.enable()

        ReasoningGymEnv.page_of_groups = _write_page
        ReasoningGymEnv.export_of_groups = _write_export
        ReasoningGymEnv.cli()
    finally:
        tempfile.tempdir = before


@contextmanager
def imported_on_use(modules: Mapping[str, Sequence[str]]) -> Iterator[None]:
    """What is imported within gets stand-ins for these modules, each of which imports its own once something is used.

    Atropos imports them at its top, whatever is to be done. The names given are those imported by `from`; what is asked
    of them must be an attribute, as they are no types. Modules that are loaded already stay as they are.
    """
    stand_ins = {name: _OnUse(name, names) for name, names in modules.items() if name not in sys.modules}
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for stand_in in stand_ins.values():
            stand_in.step_aside()


class _OnUse(ModuleType):
    """Stands for a module. `names` are what may be imported from it before it is loaded."""

    def __init__(self, name: str, names: Sequence[str]) -> None:
        super().__init__(name)
        vars(self).update({one: _AttributeOnUse(self, one) for one in names})

    def step_aside(self) -> None:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]

    def load(self) -> ModuleType:
        self.step_aside()
        return importlib.import_module(self.__name__)

    def __getattr__(self, name: str) -> Any:
        # The import system asks for some of these, and takes none for an answer.
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.load(), name)


class _AttributeOnUse:
    def __init__(self, module: _OnUse, name: str) -> None:
        self._module, self._name = module, name

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(self._module.load(), self._name), name)


def _write_export(groups: Path, form: str) -> Path:
    """The dataset beside the groups of `process`."""
    from .commands.export import write_export

    return write_export(groups, form)


def _write_page(groups: Path) -> Path:
    """The page beside the groups of `process`."""
    # Here, for it draws charts: nothing else that a run does needs what that takes to import.
    from .report.main import write_page
    from .utils.terminal import place_of_page

    return write_page([groups], place_of_page(groups))
