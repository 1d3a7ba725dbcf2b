"""Measure the cost of a sampled token in `serve`: python benchmarks/long_completions.py [--original FOLDER] > long.json

The run is real: atroposlib's run-api, a trainer that takes every batch immediately, `serve` with its workers, groups of
eight completions, and an inference server that returns the same answer without delay. The run has a single task with
short questions, so nearly all of its tokens are in completions. Each length of completions has a separate run.

    ms_per_group        processor time of the main process of `serve` for a group
    s_per_million       the same for a million sampled tokens
    tokens_per_s        sampled tokens per second that a main process can handle: a million / s_per_million
    longest_steps_ms    the longest steps of the event loop, in processor time. Each step blocks all other work
    memory_mb           the largest resident memory of the main process
    bare_s_per_million  the limit: a plain loop with the same libraries reads the bytes of the reply, decodes the
                        tokens, and writes the bytes of the group
    load                the machine's load average before the start

--original names a checkout of the environment that this project reimplements. Its `serve` runs in the same harness,
with Atropos' server. It serves all tasks and has no workers, so its main process also makes and grades every item.
Compare how its numbers grow with the tokens. Linux only, because this script reads /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec
from run_parts.canned_server import DIALECTS, completion_ids
from run_parts.original import original_process
from run_parts.phase import Phase, Plan, save_word_tokenizer
from run_parts.process_table import process_table
from run_parts.trainer import GROUP_SIZE, Trainer
from transformers import AutoTokenizer

from reasoning_gym_environment.inference.server_types import Choices, Lists

TOKENS = (256, 1024, 4096, 32768)
SAMPLED = 4_000_000
"""A run has at least this many sampled tokens."""
SAMPLED_BY_ORIGINAL = 400_000
"""The same for the original, which needs minutes for a million tokens."""
MOST_GROUPS = 400
"""A run has at most this many groups."""
LEAST_GROUPS = 12
WARM = 0.25
"""The share of the groups that counts as start-up."""
TASK = "leg_counting"
POLL_S = 0.05
STEPS = 5
PROMPT_ROOM = 2048


@dataclass(frozen=True)
class Look:
    """The progress of the run at a moment of the monotonic clock."""

    moment: float
    groups: float
    cpu_s: float


class LongRun(Phase):
    """`serve` of this project, with completions of one length."""

    def __init__(self, plan: Plan, folder: Path, dialect: str, tokens: int) -> None:
        super().__init__(plan, folder)
        self._dialect = dialect
        self._tokens = tokens
        self._steps = folder / "steps.txt"
        self._looks: list[Look] = []
        self._memory_mb = 0.0

    def _processes(self, api_port: int, student_port: int, api: str, student: str) -> list[Any]:
        found = []
        for name, module, arguments, variables in super()._processes(api_port, student_port, api, student):
            process = (name, module, arguments, variables)
            if name == "student":
                canned = (str(student_port), self._dialect, str(self._tokens), str(self._folder / "tokenizer"))
                process = (name, "run_parts.canned_server", canned, {})
            elif name == "serve-0":
                process = (name, "run_parts.watched", [str(self._steps), module, *arguments], variables)
            found.append(process)
        return found

    def _serve_arguments(self, *addresses: Any) -> list[str]:
        values = {
            "env.complexity_mode": "none",
            "env.ensure_scores_are_not_same": False,
            "env.num_eval_samples_per_task": 0,
            "env.dump_rollouts": False,
            "env.dump_failed_rollouts": False,
        }
        flags = [text for name, value in values.items() for text in (f"--{name}", str(value))]
        return [*super()._serve_arguments(*addresses), *flags, *self._plan.settings]

    async def _watch(self) -> None:
        """Record the progress until the trainer has the groups of the plan."""
        [serving] = self._serving
        while not self._looks or self._looks[-1].groups < self._plan.groups:
            await asyncio.sleep(POLL_S)
            received = self._trainer.received
            groups = received[-1][1] if received else 0
            process = (await asyncio.to_thread(process_table)).get(serving.pid)
            if process is not None:
                own_cpu_s = await asyncio.to_thread(_own_cpu_s, serving.pid)
                self._memory_mb = max(self._memory_mb, process.rss_mb)
                self._looks.append(Look(time.monotonic(), groups, own_cpu_s))

    def _report(self, end: dict[str, Any], trainer: Trainer, left_in_queue: int) -> dict[str, Any]:
        looks = [look for look in self._looks if look.groups >= WARM * self._plan.groups]
        first = looks[0]
        last = looks[-1]
        groups = last.groups - first.groups
        cpu_s = (last.cpu_s - first.cpu_s) / groups
        s_per_million = 1e6 * cpu_s / (GROUP_SIZE * self._tokens)
        return {
            "groups": groups,
            "ms_per_group": round(1e3 * cpu_s, 1),
            "s_per_million": round(s_per_million, 2),
            "tokens_per_s": round(1e6 / s_per_million),
            "longest_steps_ms": self._longest_steps(first.moment, last.moment),
            "memory_mb": round(self._memory_mb),
            "exit_codes": end["exit_codes"],
        }

    def _longest_steps(self, began: float, ended: float) -> list[float]:
        steps = [tuple(map(float, line.split())) for line in self._steps.read_text().splitlines()]
        inside = [used for moment, used, _ in steps if began <= moment <= ended]
        return sorted(inside, reverse=True)[:STEPS]


class OriginalLongRun(LongRun):
    """`serve` of the original."""

    def __init__(self, checkout: Path, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._checkout = checkout

    def _processes(self, *addresses: Any) -> list[Any]:
        found = []
        for name, module, arguments, variables in super()._processes(*addresses):
            if name == "serve-0":
                file, own_module, *flags = arguments
                assert own_module == "reasoning_gym_environment"
                original, flags, path = original_process(self._checkout, self._folder, flags)
                found.append((name, module, [file, original, *flags], path))
            else:
                found.append((name, module, arguments, variables))
        return found


def _own_cpu_s(pid: int) -> float:
    """Processor seconds of a process, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def bare_s_per_million(folder: Path, dialect: str, tokens: int) -> float:
    """The limit: the processor time of a plain loop that reads, decodes and writes a group."""
    tokenizer = AutoTokenizer.from_pretrained(save_word_tokenizer(folder))
    prompt_ids = tokenizer.encode("How many legs do they have?")
    completions = [completion_ids(tokenizer, number, tokens) for number in range(GROUP_SIZE)]
    _, make_reply = DIALECTS[dialect]
    schema = {"stock": Choices, "atropos": Lists}[dialect]
    reply = json.dumps(make_reply(tokenizer, completions, prompt_ids)).encode()
    logprobs = [[-0.5 / (place + 1) for place in range(len(ids))] for ids in completions]
    repetitions = max(1, 500_000 // (GROUP_SIZE * tokens))
    # Otherwise the garbage collector would go through the mappings of each token while the parser builds them.
    gc.disable()
    began = time.process_time()
    for _ in range(repetitions):
        msgspec.json.decode(reply, type=schema)
        tokenizer.backend_tokenizer.decode_batch(completions)
        msgspec.json.encode({"tokens": completions, "masks": completions, "inference_logprobs": logprobs})
    used_s = time.process_time() - began
    gc.enable()
    return 1e6 * used_s / (repetitions * GROUP_SIZE * tokens)


def groups_of(who: str, tokens: int) -> int:
    sampled = SAMPLED_BY_ORIGINAL if who == "original" else SAMPLED
    return max(LEAST_GROUPS, min(MOST_GROUPS, sampled // (GROUP_SIZE * tokens)))


async def run(chosen: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The whole report. After a signal, it ends all processes and raises CancelledError."""
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, asyncio.current_task().cancel)
    report: dict[str, Any] = {"cores": os.cpu_count(), "completions_of_a_group": GROUP_SIZE, "runs": []}
    for tokens in chosen.tokens:
        for who in (*chosen.servers, *["original"] * bool(chosen.original)):
            dialect = "atropos" if who == "original" else who
            place = folder / f"{who}-{tokens}"
            max_tokens = tokens + PROMPT_ROOM
            groups = groups_of(who, tokens)
            plan = Plan(f"{who} {tokens}", groups, 1, TASK, 1.0, 0.0, chosen.settings, max_tokens=max_tokens)
            arguments = (plan, place, dialect, tokens)
            phase = OriginalLongRun(chosen.original, *arguments) if who == "original" else LongRun(*arguments)
            load = os.getloadavg()[0]
            found = {"who": who, "tokens": tokens, "load": round(load, 1), **await phase.run()}
            if who != "original":
                bare = await asyncio.to_thread(bare_s_per_million, place / "bare", dialect, tokens)
                found["bare_s_per_million"] = round(bare, 2)
            report["runs"].append(found)
            print(json.dumps(found), file=sys.stderr, flush=True)
    return report


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS, help="lengths of completions")
    parser.add_argument("--servers", nargs="+", choices=DIALECTS, default=list(DIALECTS), help="types of servers")
    parser.add_argument("--original", type=Path, help="folder with the original's reasoning_gym_environment.py")
    parser.add_argument("--folder", type=Path, help="keep logs here (default: removed)")
    parser.add_argument("settings", nargs="*", help="more flags for serve, after --")
    return parser.parse_args(arguments)


def main() -> None:
    chosen = parsed()
    with tempfile.TemporaryDirectory(prefix="long-") as temporary:
        folder = chosen.folder.resolve() if chosen.folder else Path(temporary)
        try:
            report = asyncio.run(run(chosen, folder))
        except asyncio.CancelledError:
            sys.exit("Stopped. All processes have ended.")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
