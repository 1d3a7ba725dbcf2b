"""How fast `process` writes groups: python benchmarks/process.py [--quick] > process.json

Groups per second, from the end of the start-up to the closed file and its page, against a mock inference server that
takes a second for every request: one group at a time, and several. Also whether the files hold the same items in the
same order.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from atroposlib.envs.base import APIServerConfig

from reasoning_gym_environment import ReasoningGymEnv, ReasoningGymEnvConfig
from reasoning_gym_environment.cli import _write_page
from tests.byte_tokenizer import build_byte_tokenizer, save_byte_tokenizer
from tests.mock_dialects import Faults, ThreadedMockServer

LATENCY_S = 1.0
GROUP_SIZE = 8
REPLY = "<think>I think about it for a while.</think>\n<answer>42</answer>"


TASKS = {"cheap tasks": "category:arithmetic", "all tasks": "*"}
"""What is asked: questions that take no time to make, and the ones of every task at random levels."""


async def measure(
    path: Path, base_url: str, *, groups: int, concurrency: int, server_type: str, tasks: str
) -> dict[str, Any]:
    """Groups per second from the first request to the closed file."""
    config = ReasoningGymEnvConfig(
        tokenizer_name=str(path.parent / "tokenizer"),
        include_tasks=TASKS[tasks],
        exclude_tasks="composite",
        complexity_mode="random" if tasks == "all tasks" else None,
        num_eval_samples_per_task=0,
        group_size=GROUP_SIZE,
        max_token_length=32768,
        use_wandb=False,
        include_messages=True,
        process_concurrency=concurrency,
        data_path_to_save_groups=str(path),
        seed=1918,
    )
    server = APIServerConfig(
        server_type=server_type, base_url=base_url, model_name="mock", api_key="x", health_check=False
    )
    env = ReasoningGymEnv(config, [server])
    env.n_groups_to_process, env.group_size_to_process = groups, GROUP_SIZE
    type(env).page_of_groups = staticmethod(_write_page)
    started: list[float] = []
    set_up = env.setup

    async def timed_setup() -> None:
        await set_up()
        started.append(time.monotonic())

    env.setup = timed_setup  # type: ignore[method-assign]
    try:
        await env._process_groups()
    finally:
        await env.close()
    wall = time.monotonic() - started[0]
    skipped = sum(env.components.stream.skipped.values()) if env.components else 0
    return {
        "concurrency": concurrency,
        "groups": groups,
        "seconds": round(wall, 2),
        "groups_per_s": groups / wall,
        "items_skipped": skipped,
    }


def questions(path: Path) -> list[str]:
    """The question of each record, in the order of the file."""
    return [json.loads(line)["messages"][0][1]["content"] for line in path.open(encoding="utf-8")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer groups")
    options = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    sequential, concurrent = (4, 160) if options.quick else (20, 640)
    report: dict[str, Any] = {"latency_s": LATENCY_S, "group_size": GROUP_SIZE, "cores": os.cpu_count()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_byte_tokenizer(folder / "tokenizer")
        with ThreadedMockServer(
            lambda prompt: REPLY, build_byte_tokenizer(), faults=Faults(latency_s=LATENCY_S)
        ) as mock:
            for server_type, tasks in (("vllm", "cheap tasks"), ("openai", "cheap tasks"), ("vllm", "all tasks")):
                paths, runs = [], []
                for groups, width in ((sequential, 1), (concurrent, 32), (concurrent, 64)):
                    paths.append(folder / f"{server_type}_{tasks}_{width}.jsonl")
                    options_of_run = {"groups": groups, "concurrency": width, "server_type": server_type}
                    # Atropos prints a line for each page; standard output is for the result.
                    with contextlib.redirect_stdout(sys.stderr):
                        run = asyncio.run(measure(paths[-1], mock.base_url, tasks=tasks, **options_of_run))
                    runs.append(run)
                files = [questions(path) for path in paths]
                report[f"{server_type}, {tasks}"] = {
                    "runs": runs,
                    "times_sequential": [round(run["groups_per_s"] / runs[0]["groups_per_s"], 1) for run in runs],
                    "records": [len(file) for file in files],
                    "same_items_in_the_same_order": files[1] == files[2] and files[1][:sequential] == files[0],
                }
    print(re.sub(r"\d+\.\d{4,}", lambda match: f"{float(match[0]):.3f}", json.dumps(report, indent=1)))


if __name__ == "__main__":
    main()
