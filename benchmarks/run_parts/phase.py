"""One run of one or more `serve` processes at one run-api, from the start to the check for remaining processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tokenizers import pre_tokenizers
from tqdm import tqdm

from testing.byte_tokenizer import build_byte_tokenizer
from testing.inference_server import free_port
from testing.processes import fail_if_it_ends, running, stop

from .dumps import DumpCounter
from .process_table import descendants, process_table, totals
from .trainer import GROUP_SIZE, GROUPS_PER_BATCH, MAX_TOKENS, Trainer

ROOT = Path(__file__).resolve().parents[2]
QUIET = {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled", "TRANSFORMERS_VERBOSITY": "error"}
PATHS = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")])}
COUNT_EVERY_S = 0.25
GRACE_S = 2.0
WORKERS_PER_INSTANCE = 16


@dataclass(frozen=True)
class Sample:
    """What all instances held together at one moment, by who holds it (serve, workers) and what."""

    groups: int
    held: dict[str, dict[str, float]]


@dataclass(frozen=True)
class Plan:
    """What one phase does. `settings` are more flags for serve."""

    name: str
    groups: int
    instances: int
    tasks: str
    sample_every_s: float
    latency_s: float
    settings: Sequence[str] = ()
    groups_per_batch: int = GROUPS_PER_BATCH
    max_tokens: int = MAX_TOKENS


class Phase:
    """Runs a plan in `folder`, which keeps logs, dumps and checkpoints."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan = plan
        self._folder = folder
        self._dumps = [folder / f"dumps-{number}" for number in range(plan.instances)]
        self._requests = folder / "requests.txt"
        self._pids: dict[str, int] = {}
        """By the name of the process."""
        self._serving: list[asyncio.subprocess.Process] = []
        self._seen: set[tuple[int, int]] = set()
        self._history: list[tuple[float, int]] = []
        self._samples: list[Sample] = []

    async def run(self) -> dict[str, Any]:
        """The report of the phase. Raises EnvironmentSetupError if a process ends that should not."""
        self._folder.mkdir(parents=True)
        api, student = free_port(), free_port()
        addresses = f"http://127.0.0.1:{api}", f"http://127.0.0.1:{student}/v1"
        async with contextlib.AsyncExitStack() as stack:
            watchers = []
            for name, module, arguments, env in self._processes(api, student, *addresses):
                log = self._folder / f"{name}.log"
                with patch.dict(os.environ, {**QUIET, **PATHS, **env}):
                    process = await stack.enter_async_context(running(module, *arguments, log=log))
                self._pids[name] = process.pid
                watchers.append(fail_if_it_ends(process, name, log))
                if name.startswith("serve"):
                    self._serving.append(process)
            plan = self._plan
            trainer = Trainer(addresses[0], self._folder / "checkpoints", plan.groups_per_batch, plan.max_tokens)
            self._trainer = await stack.enter_async_context(trainer)
            taking = asyncio.create_task(trainer.run())
            try:
                await _first_of(self._watch(), taking, *watchers)
                end = await self._end()
            finally:
                await _cancelled(taking)
            left_in_queue = await trainer.drain()
        return self._report(end, trainer, left_in_queue)

    def _processes(
        self, api_port: int, student_port: int, api: str, student: str
    ) -> list[tuple[str, str, Sequence[str], dict[str, str]]]:
        """Name, module, arguments and variables of each process."""
        tokenizer = save_word_tokenizer(self._folder / "tokenizer")
        return [
            ("run-api", "atroposlib.cli.run_api", ("--host", "127.0.0.1", "--port", str(api_port)), {}),
            (
                "student",
                "run_parts.instant_server",
                (str(student_port), str(self._plan.latency_s), str(self._requests)),
                {},
            ),
            *(
                (
                    f"serve-{number}",
                    "reasoning_gym_environment",
                    self._serve_arguments(api, student, tokenizer, self._dumps[number]),
                    {"SLURM_PROCID": str(number)},
                )
                for number in range(self._plan.instances)
            ),
        ]

    def _serve_arguments(self, api: str, student: str, tokenizer: Path, dumps: Path) -> list[str]:
        values = {
            "env.rollout_server_url": api,
            "env.tokenizer_name": tokenizer,
            "env.include_tasks": self._plan.tasks,
            "env.complexity_mode": "curriculum",
            "env.num_eval_samples_per_task": 2,
            "env.steps_per_eval": 100,
            "env.total_steps": 10**6,
            "env.group_size": GROUP_SIZE,
            "env.batch_size": GROUP_SIZE * self._plan.groups_per_batch,
            "env.max_token_length": self._plan.max_tokens,
            "env.max_num_workers_per_node": WORKERS_PER_INSTANCE,
            "env.use_wandb": False,
            "env.dump_rollouts": True,
            "env.dump_failed_rollouts": True,
            # So that every group that is scored has a line in one of the two dumps.
            "env.rollout_save_score_threshold": 0.0,
            "env.data_dumps_dir": dumps,
            "openai.server_type": "vllm",
            "openai.base_url": student,
            "openai.model_name": "cheap-student",
        }
        flags = [text for name, value in values.items() for text in (f"--{name}", str(value))]
        return ["serve", *flags, *self._plan.settings]

    async def _watch(self) -> None:
        """Count groups and sample the process table until the groups of the plan are on disk."""
        counters = self._counters()
        next_sample = 0.0
        with tqdm(total=self._plan.groups, desc=self._plan.name, unit="group", mininterval=1, smoothing=0.1) as bar:
            while True:
                groups = await asyncio.to_thread(lambda: sum(counter.update() for counter in counters))
                now = time.monotonic()
                self._history.append((now, groups))
                if groups > bar.n:
                    bar.update(min(groups, self._plan.groups) - bar.n)
                if groups and now >= next_sample:
                    next_sample = now + self._plan.sample_every_s
                    self._samples.append(Sample(groups, await asyncio.to_thread(self._look)))
                if groups >= self._plan.groups:
                    return
                await asyncio.sleep(COUNT_EVERY_S)

    def _counters(self) -> list[DumpCounter]:
        """What counts the groups of each instance."""
        return [DumpCounter(folder) for folder in self._dumps]

    def _look(self) -> dict[str, dict[str, float]]:
        table = process_table()
        serving = [table[process.pid] for process in self._serving if process.pid in table]
        workers = [worker for process in serving for worker in descendants(process.pid, table)]
        self._seen.update(process.identity for process in (*serving, *workers))
        return {"serve": totals(serving), "workers": totals(workers)}

    async def _end(self) -> dict[str, Any]:
        """Send SIGTERM to all instances simultaneously, and report the process table afterwards."""
        await asyncio.to_thread(self._look)
        ended = await asyncio.gather(*(_timed(stop(process)) for process in self._serving))
        left = await asyncio.to_thread(self._left)
        if left:
            await asyncio.sleep(GRACE_S)
        return {
            "exit_codes": [code for code, _ in ended],
            "seconds": [round(seconds, 2) for _, seconds in ended],
            "processes_left": left,
            f"processes_left_after_{GRACE_S:.0f}_s": await asyncio.to_thread(self._left) if left else 0,
        }

    def _left(self) -> int:
        """Processes of the instances' sessions, or that were once seen below an instance."""
        sessions = {process.pid for process in self._serving}
        table = process_table().values()
        return sum(process.session in sessions or process.identity in self._seen for process in table)

    def _report(self, end: dict[str, Any], trainer: Trainer, left_in_queue: int) -> dict[str, Any]:
        raise NotImplementedError


def save_word_tokenizer(folder: Path) -> Path:
    """The byte tokenizer, but split into words first, as tokenizers of models do; the tokens are the same.

    The library caches ten thousand pieces of up to 256 characters, with all tokens of each. Unsplit questions would
    fill that with 30 MB along the run, which is not the environment's memory; words fill it with little.
    """
    tokenizer = build_byte_tokenizer()
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.save_pretrained(folder)
    return folder


async def _timed(work: Coroutine[Any, Any, int]) -> tuple[int, float]:
    began = time.monotonic()
    return await work, time.monotonic() - began


async def _first_of(work: Coroutine[Any, Any, None], taking: asyncio.Task[None], *watchers: Any) -> None:
    """Wait until `work` is done, or until a task raises an error. Without an error, `taking` continues."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in (work, *watchers)]
    try:
        done, _ = await asyncio.wait([taking, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            await _cancelled(task)


async def _cancelled(task: asyncio.Future[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
