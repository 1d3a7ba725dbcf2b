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
import itertools
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec
from transformers import AutoTokenizer

from benchmarks.run_parts.canned_server import DIALECTS, completion_ids
from benchmarks.run_parts.serving import Serving, Setup, options_of, save_word_tokenizer, serving
from benchmarks.run_parts.trainer import GROUP_SIZE
from reasoning_gym_environment.inference.server_types import Choices, Lists
from testing.process_table import with_descendants

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
GROUPS_PER_BATCH = 16


@dataclass(frozen=True)
class Look:
    """The main process of `serve` at a moment of the monotonic clock."""

    moment: float
    groups: int
    cpu_s: float
    rss_mb: float


async def measure(run: Serving, groups: int) -> list[Look]:
    """Look at the run until the trainer has so many groups."""
    looks: list[Look] = []
    while not looks or looks[-1].groups < groups:
        await asyncio.sleep(POLL_S)
        received = run.trainer.received
        process = (await asyncio.to_thread(with_descendants, run.pid))[0]
        count = received[-1][1] if received else 0
        looks.append(Look(time.monotonic(), count, process.own_cpu_s, process.rss_mb))
    return looks


async def one_run(options: argparse.Namespace, who: str, tokens: int, folder: Path) -> dict[str, Any]:
    """Run `serve` once, with completions of one length. `who` is the type of the server, or the original."""
    dialect = "atropos" if who == "original" else who
    steps = folder / "steps.txt"
    setup = Setup(
        student=["benchmarks.run_parts.canned_server", dialect, str(tokens), str(folder / "tokenizer")],
        settings={
            "env.include_tasks": TASK,
            "env.complexity_mode": "none",
            "env.ensure_scores_are_not_same": False,
            "env.dump_rollouts": False,
            "env.dump_failed_rollouts": False,
        },
        original=options.original if who == "original" else None,
        groups_per_batch=GROUPS_PER_BATCH,
        max_tokens=tokens + PROMPT_ROOM,
        steps=steps,
    )
    groups = options.groups or groups_of(who, tokens)
    load = os.getloadavg()[0]
    async with serving(setup, folder) as run:
        all_looks = await run.during(measure(run, groups))
        exit_code = await run.stop()
    looks = [look for look in all_looks if look.groups >= WARM * groups]
    first = looks[0]
    last = looks[-1]
    cpu_s = (last.cpu_s - first.cpu_s) / (last.groups - first.groups)
    s_per_million = 1e6 * cpu_s / (GROUP_SIZE * tokens)
    found = {
        "who": who,
        "tokens": tokens,
        "load": round(load, 1),
        "groups": last.groups - first.groups,
        "ms_per_group": round(1e3 * cpu_s, 1),
        "s_per_million": round(s_per_million, 2),
        "tokens_per_s": round(1e6 / s_per_million),
        "longest_steps_ms": longest_steps(steps, first.moment, last.moment),
        "memory_mb": round(max(look.rss_mb for look in all_looks)),
        "exit_code": exit_code,
    }
    if who != "original":
        bare = await asyncio.to_thread(bare_s_per_million, folder / "bare", dialect, tokens)
        found["bare_s_per_million"] = round(bare, 2)
    return found


def longest_steps(path: Path, began: float, ended: float) -> list[float]:
    """The processor time in milliseconds of the longest steps of the event loop in a window."""
    steps = [tuple(map(float, line.split())) for line in path.read_text().splitlines()]
    inside = [used for moment, used, _ in steps if began <= moment <= ended]
    return sorted(inside, reverse=True)[:STEPS]


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


async def all_runs(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = {"cores": os.cpu_count(), "completions_of_a_group": GROUP_SIZE, "runs": []}
    names = [*options.servers, *["original"] * bool(options.original)]
    for tokens, who in itertools.product(options.tokens, names):
        found = await one_run(options, who, tokens, folder / f"{who}-{tokens}")
        report["runs"].append(found)
        print(json.dumps(found), file=sys.stderr, flush=True)
    return report


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS, help="lengths of completions")
    parser.add_argument("--groups", type=int, help="of each run (default: as many as 4,000,000 tokens have, 12 to 400)")
    parser.add_argument("--servers", nargs="+", choices=DIALECTS, default=list(DIALECTS), help="types of servers")
    return options_of(parser)


def main() -> None:
    options = parsed()
    with tempfile.TemporaryDirectory(prefix="long-") as temporary:
        folder = options.folder.resolve() if options.folder else Path(temporary)
        report = asyncio.run(all_runs(options, folder))
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
