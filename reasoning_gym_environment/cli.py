"""The command `reasoning-gym-env`: Atropos' serve, process, evaluate, and our demo, tasks, audit, report, dumps."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from . import __version__
from .utils.paths import place_of_page

USAGE = """usage: reasoning-gym-env COMMAND [options]

Train and evaluate language models on the tasks of reasoning-gym, with Atropos.

commands:
  demo       run the whole loop on this machine in less than a minute: no GPU, no network
  tasks      list the tasks that would be served, with what is known of each
  preview    print items of a task at some difficulty, with their answers
  audit      measure what the tasks' verifiers pay to right, wrong and worthless answers
  serve      generate scored groups for a trainer (needs run-api and an inference server)
  process    write scored groups to a JSONL file, for SFT or inspection (needs an inference server)
  evaluate   score a model on the held-out set (needs an inference server)
  report     write evaluation results and dumps as one HTML page
  dumps      sum up the rollout dumps of one run or many

examples:
  reasoning-gym-env demo
  reasoning-gym-env serve --config my_run.yaml --env.complexity_mode curriculum
  reasoning-gym-env process --env.total_steps 100 --env.data_path_to_save_groups data/groups.jsonl
  reasoning-gym-env evaluate --openai.base_url http://localhost:9004/v1 --env.use_wandb False
  reasoning-gym-env report results/some-model data_dumps/*.jsonl -o report.html

`reasoning-gym-env COMMAND --help` lists a command's options.
"""

ATROPOS_COMMANDS = ("serve", "process", "evaluate")


INTERRUPTED = 128 + signal.SIGINT
READER_GONE = 128 + signal.SIGPIPE
CANNOT_WRITE = 2
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command; exits the process with its code: 130 after Ctrl-C, 141 if nobody reads the output any more."""
    # Only tokenizers are used from transformers, so its advice to install PyTorch is noise.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        try:
            _run(list(sys.argv[1:] if argv is None else argv))
        finally:
            # Here, where an error can still be told; the interpreter's own flush comes too late for that.
            if sys.stdout:  # a program that was started without one has None
                sys.stdout.flush()
    except KeyboardInterrupt:
        print("reasoning-gym-env: interrupted.", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        _give_up_output()
        sys.exit(READER_GONE)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        _give_up_output()
        print(f"reasoning-gym-env: cannot write: {error.strerror}. Make room and start again.", file=sys.stderr)
        sys.exit(CANNOT_WRITE)


def _give_up_output() -> None:
    """What is still buffered goes nowhere, instead of failing once more when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: list[str]) -> None:
    command = arguments[0] if arguments else "--help"
    if command in ("-h", "--help"):
        print(USAGE, end="")
    elif command == "--version":
        print(f"reasoning-gym-env {__version__}")
    elif command in ATROPOS_COMMANDS:
        _run_atropos(arguments)
    elif command == "demo":
        from .demo.main import main as run_demo

        sys.exit(run_demo(arguments[1:]))
    elif command == "audit":
        from .audit.main import main as run_audit

        sys.exit(run_audit(arguments[1:]))
    elif command == "report":
        from .report.main import main as run_report

        sys.exit(run_report(arguments[1:]))
    elif command == "dumps":
        from .commands.dumps import main as run_dumps

        sys.exit(run_dumps(arguments[1:]))
    elif command == "tasks":
        from .commands.tasks import main as run_tasks

        sys.exit(run_tasks(arguments[1:]))
    elif command == "preview":
        from .commands.preview import main as run_preview

        sys.exit(run_preview(arguments[1:]))
    else:
        known = ", ".join((*ATROPOS_COMMANDS, "demo", "tasks", "preview", "audit", "report", "dumps"))
        print(f"reasoning-gym-env: unknown command {command!r}: expected one of {known}.", file=sys.stderr)
        sys.exit(2)


def _run_atropos(arguments: list[str]) -> None:
    # Atropos reads the flags from sys.argv.
    sys.argv = [sys.argv[0], *arguments]
    from .env import ReasoningGymEnv

    ReasoningGymEnv.page_of_groups = _write_page
    ReasoningGymEnv.cli()


def _write_page(groups: Path) -> Path:
    """The page beside the groups of `process`."""
    # Here, for it draws charts: nothing else that a run does needs what that takes to import.
    from .report.main import write_page

    return write_page([groups], place_of_page(groups))
