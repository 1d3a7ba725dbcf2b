"""How long `serve` takes to its first training group: python benchmarks/start.py [--starts N] [--original FOLDER]

The result is JSON on stdout. The benchmark starts real processes with real HTTP: atroposlib's run-api with a trainer
that has registered, a mock inference server, and `serve` with the settings of the commands, once for each complexity
mode (`curriculum` is the default of the commands). FOLDER has the script of the original environment. With it, the
benchmark starts both environments by turns. The original gets `--openai.server_type vllm`, without which it cannot
serve, and has no mode `none` on its command line. Linux only.

first_group_s       from the start of the process until run-api has the first group
first_request_s     from the start of the process until the first request for the completions of an item
processor_s         processor time of serve and of its workers until the first group, which depends less on other load
phases_s            seconds of each phase of our own start, by its log lines, in the order in which they came
help, typo          until `serve --help`, and a misspelt include_tasks, have answered
load                the machine's load average before each start. Times of a busy machine mean little.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from run_parts.process_table import descendants, process_table, totals

from reasoning_gym_environment.atropos.preflight import FIRST_QUESTION
from testing.byte_tokenizer import build_byte_tokenizer, save_byte_tokenizer
from testing.mock_dialects import ThreadedMockServer
from testing.support import child_environment, get_json, register_trainer, running, trajectory_api

ROOT = Path(__file__).resolve().parents[1]
ORIGINAL = "reasoning_gym_environment.py"
PATIENCE_S = 300.0
POLL_S = 0.02

MODES = ("none", "random", "curriculum")
PHASES = {
    "interpreter": "Loading Atropos",
    "imports and settings": "Settings other than",
    "tokenizers": "Starting workers",
    "reasoning-gym": "Using reasoning-gym",
    "tasks": "Serving ",
    "ladders": "Difficulty ",
    "generating workers": "Generation workers: ",
    "scoring workers": "Scoring sandbox: ",
    "registration": "Registered as",
    "first item": "Drew item",
}
"""Phase of a start -> beginning of the log line that ends the phase."""


def command(original: Path | None) -> list[str]:
    return [str(original / ORIGINAL)] if original else ["-m", "reasoning_gym_environment"]


def start(mode: str, original: Path | None, folder: Path, extra: Sequence[str]) -> dict[str, Any]:
    """One start, until run-api has its first group. Raises RuntimeError with the last log lines if there is none."""
    load = os.getloadavg()[0]
    tokenizer = build_byte_tokenizer()
    path = save_byte_tokenizer(folder / "tokenizer")
    requested: list[float] = []
    replies = itertools.cycle(["<think>1</think><answer>1</answer>", "<think>1</think>"])

    def reply(prompt: str) -> str:
        # Ignore the request by which the environment finds out how it must ask this server.
        if FIRST_QUESTION not in prompt:
            requested.append(time.monotonic())
        # The original never sends a group of equal scores, whatever its settings say.
        return next(replies)

    server = ThreadedMockServer(reply, tokenizer)
    with server, trajectory_api(folder) as api:
        register_trainer(api, batch_size=64, max_token_len=8192)
        settings = {
            "env.tokenizer_name": path,
            "env.rollout_server_url": api,
            "env.use_wandb": False,
            # Most answers are wrong, and so most groups have equal scores.
            "env.ensure_scores_are_not_same": False,
            "env.complexity_mode": mode,
            "env.debug_logging": True,
            "openai.base_url": server.base_url,
            "openai.model_name": "mock",
            "openai.server_type": "vllm",
            "openai.tokenizer_name": path,
        }
        arguments = [*command(original), "serve", *(f"--{name}={value}" for name, value in settings.items()), *extra]
        log = folder / "serve.log"
        seen: dict[str, float] = {}
        began = time.monotonic()
        with running(arguments, log, folder, PYTHONPATH=str(ROOT)) as process:
            while get_json(f"{api}/status")["queue_size"] == 0:
                time.sleep(POLL_S)
                note(log, seen, time.monotonic() - began)
                if process.poll() is not None or time.monotonic() - began > PATIENCE_S:
                    raise RuntimeError(f"no group: {log.read_text(errors='replace')[-1000:]}")
            seconds = time.monotonic() - began
            table = process_table()
            own = [table[process.pid], *descendants(process.pid, table)]
            used = totals(own)["cpu_s"]
    result: dict[str, Any] = {
        "first_group_s": round(seconds, 2),
        "first_request_s": round(requested[0] - began, 2),
        "processor_s": round(used, 2),
        "load": load,
    }
    return result if original else {**result, "phases_s": phases(seen, seconds)}


def note(log: Path, seen: dict[str, float], seconds: float) -> None:
    """When each of the lines was there first."""
    text = log.read_text(errors="replace")
    for phase, line in PHASES.items():
        if phase not in seen and line in text:
            seen[phase] = seconds


def phases(seen: dict[str, float], seconds: float) -> dict[str, float]:
    """The seconds between each line and the previous line."""
    found: dict[str, float] = {}
    before = 0.0
    for name, end in [*sorted(seen.items(), key=itemgetter(1)), ("first group", seconds)]:
        found[name] = round(end - before, 2)
        before = end
    return found


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
    result: dict[str, Any] = {}
    for name in ("first_group_s", "first_request_s", "processor_s"):
        result[name] = round(statistics.median(run[name] for run in runs), 2)
    result["fastest_s"] = min(run["first_group_s"] for run in runs)
    result["runs"] = list(runs)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=3, help="starts of each, by turns (default: 3)")
    parser.add_argument("--original", type=Path, help="folder with the original's reasoning_gym_environment.py")
    parser.add_argument("--modes", default=",".join(MODES), help=f"complexity modes (default: {','.join(MODES)})")
    parser.add_argument("--set", nargs="*", default=[], metavar="env.NAME=VALUE", help="further settings of ours")
    options = parser.parse_args()
    original = options.original and options.original.resolve()
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for mode in options.modes.split(","):
        environments: dict[str, Path | None] = {"ours": None}
        if original and mode != "none":
            environments["original"] = original
        runs[mode] = {name: [] for name in environments}
        for number in range(options.starts):
            for name, where in environments.items():
                extra = [] if where else [f"--{setting}" for setting in options.set]
                with tempfile.TemporaryDirectory() as folder:
                    run = start(mode, where, Path(folder), extra)
                runs[mode][name].append(run)
                print(f"{mode} {name} {number}: {run}", file=sys.stderr)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        quick = {
            "help": answered(["serve", "--help"], Path(folder)),
            "typo": answered(["serve", "--env.include_tasks", "chain_sun"], Path(folder)),
        }
    summaries: dict[str, dict[str, Any]] = {}
    for mode, by_environment in runs.items():
        summaries[mode] = {name: summary(starts) for name, starts in by_environment.items()}
    print(json.dumps({"to_first_group": summaries, **quick}, indent=1))


if __name__ == "__main__":
    main()
