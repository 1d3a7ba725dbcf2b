"""How long `serve` takes to its first request: python benchmarks/start.py [--starts N] [--original FOLDER] > start.json

Real processes and real HTTP: atroposlib's run-api with a trainer that has registered, a mock inference server, and
`serve` with the settings that the command starts from, for the level and task choice of the commands (`default`) and
for `--env.complexity_mode random`. With a checkout of the original environment (FOLDER has its script)
both are started by turns. The original gets `--openai.server_type vllm`, without which it cannot serve. Linux only.

first_request_s     from the start of the process to the first request for the completions of an item
processor_s         processor time of serve and of its workers by then, which other load changes less
phases_s            of ours, by its log lines: what passed until each of them, in the order in which they came
help_s, typo_s      until `serve --help`, and a misspelt include_tasks, have answered
load                the machine's load average before each start: numbers of a busy machine say little
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from run_parts.process_table import descendants, process_table, totals

from reasoning_gym_environment.atropos.preflight import FIRST_QUESTION
from tests.byte_tokenizer import build_byte_tokenizer, save_byte_tokenizer
from tests.mock_dialects import ThreadedMockServer
from tests.support import child_environment, register_trainer, running, trajectory_api

ROOT = Path(__file__).resolve().parents[1]
ORIGINAL = "reasoning_gym_environment.py"
PATIENCE_S = 300.0
POLL_S = 0.01

MODES = ("default", "random")
PHASES = {
    "interpreter": "Loading Atropos",
    "imports and settings": "Settings other than",
    "tokenizers": "Starting workers",
    "reasoning-gym": "Using reasoning-gym",
    "tasks": "Serving ",
    "ladders": "Difficulty ",
    "generating workers": "Generation: ",
    "scoring workers": "Scoring sandbox: ",
    "registration": "Registered as",
    "first item": "Drew item",
}
"""What has ended -> how the log line begins that says so."""


def command(original: Path | None) -> list[str]:
    return [str(original / ORIGINAL)] if original else ["-m", "reasoning_gym_environment"]


def start(mode: str, original: Path | None, folder: Path, extra: Sequence[str]) -> dict[str, Any]:
    """One start, until its first request. Raises RuntimeError with the end of its log if there is none."""
    load = os.getloadavg()[0]
    tokenizer = build_byte_tokenizer()
    path = save_byte_tokenizer(folder / "tokenizer")
    asked: list[str] = []

    def reply(prompt: str) -> str:
        # Not the one by which it finds out whether the server takes requests of this shape.
        asked.extend([prompt] if FIRST_QUESTION not in prompt else [])
        return "<think>1</think><answer>1</answer>"

    server = ThreadedMockServer(reply, tokenizer)
    with server, trajectory_api(folder) as api:
        register_trainer(api, batch_size=64, max_token_len=8192)
        settings = {
            "env.tokenizer_name": path,
            "env.rollout_server_url": api,
            "env.use_wandb": False,
            "openai.base_url": server.base_url,
            "openai.model_name": "mock",
            "openai.server_type": "vllm",
            "openai.tokenizer_name": path,
        }
        arguments = [*command(original), "serve", *(f"--{name}={value}" for name, value in settings.items()), *extra]
        if mode != "default":
            arguments.append(f"--env.complexity_mode={mode}")
        log = folder / "serve.log"
        seen: dict[str, float] = {}
        began = time.monotonic()
        with running(arguments, log, folder, PYTHONPATH=str(ROOT)) as process:
            while not asked:
                time.sleep(POLL_S)
                note(log, seen, time.monotonic() - began)
                if process.poll() is not None or time.monotonic() - began > PATIENCE_S:
                    raise RuntimeError(f"no request: {log.read_text(errors='replace')[-1000:]}")
            seconds = time.monotonic() - began
            table = process_table()
            own = [table[process.pid], *descendants(process.pid, table)]
            used = totals(own)["cpu_s"]
    result: dict[str, Any] = {"first_request_s": round(seconds, 2), "processor_s": round(used, 2), "load": load}
    return result if original else {**result, "phases_s": phases(seen, seconds)}


def note(log: Path, seen: dict[str, float], seconds: float) -> None:
    """When each of the lines was there first."""
    text = log.read_text(errors="replace")
    for phase, line in PHASES.items():
        if phase not in seen and line in text:
            seen[phase] = seconds


def phases(seen: dict[str, float], seconds: float) -> dict[str, float]:
    """Seconds that passed before each line, since the one before it."""
    ends = [*sorted(seen.items(), key=lambda one: one[1]), ("first request", seconds)]
    return {name: round(end - before, 2) for (name, end), (_, before) in zip(ends, [("", 0.0), *ends], strict=False)}


def answered(arguments: Sequence[str], folder: Path) -> dict[str, Any]:
    """Seconds, and processor seconds, until a command that does nothing else has answered."""
    began, before = time.monotonic(), os.times()
    environment = child_environment(PYTHONPATH=str(ROOT))
    ours = [sys.executable, "-m", "reasoning_gym_environment", *arguments]
    subprocess.run(ours, cwd=folder, env=environment, capture_output=True, check=False)
    used = os.times()
    processor = used.children_user + used.children_system - before.children_user - before.children_system
    return {"s": round(time.monotonic() - began, 2), "processor_s": round(processor, 2), "load": os.getloadavg()[0]}


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    middle = {
        name: round(statistics.median(run[name] for run in runs), 2) for name in ("first_request_s", "processor_s")
    }
    return {**middle, "fastest_s": min(run["first_request_s"] for run in runs), "runs": list(runs)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=3, help="starts of each, by turns (default: 3)")
    parser.add_argument("--original", type=Path, help="folder with the original's reasoning_gym_environment.py")
    parser.add_argument("--modes", default=",".join(MODES), help=f"complexity modes (default: {','.join(MODES)})")
    parser.add_argument("--set", nargs="*", default=[], metavar="env.NAME=VALUE", help="further settings of ours")
    options = parser.parse_args()
    who: dict[str, Path | None] = {"ours": None, **({"original": options.original} if options.original else {})}
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for mode in options.modes.split(","):
        runs[mode] = {name: [] for name in who}
        for number in range(options.starts):
            for name, original in who.items():
                with tempfile.TemporaryDirectory() as folder:
                    extra = [] if original else [f"--{one}" for one in options.set]
                    run = start(mode, original and original.resolve(), Path(folder), extra)
                runs[mode][name].append(run)
                print(f"{mode} {name} {number}: {run}", file=sys.stderr)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        quick = {
            "help": answered(["serve", "--help"], Path(folder)),
            "typo": answered(["serve", "--env.include_tasks", "chain_sun"], Path(folder)),
        }
    to_first_request = {mode: {name: summary(some) for name, some in each.items()} for mode, each in runs.items()}
    print(json.dumps({"to_first_request": to_first_request, **quick}, indent=1))


if __name__ == "__main__":
    main()
