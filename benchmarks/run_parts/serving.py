"""One run of `serve` with everything around it: run-api, an inference server, and a trainer that takes every batch.

async with serving(setup, folder) as run:
    await run.during(measure(run))

All of it is real: processes, HTTP, atroposlib's run-api. `serve` starts when the trainer has registered.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

from tokenizers import pre_tokenizers

from benchmarks.run_parts.trainer import GROUP_SIZE, Trainer
from testing.byte_tokenizer import build_byte_tokenizer
from testing.inference_server import free_port
from testing.processes import fail_if_it_ends, running, stop

ROOT = Path(__file__).resolve().parents[2]
VARIABLES = {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled", "TRANSFORMERS_VERBOSITY": "error"}
ORIGINAL = "original_environment"
"""The name of the original's module here. Its own name is that of this package."""
UNKNOWN_TO_ORIGINAL = ("env.include_tasks", "env.data_dumps_dir")

Result = TypeVar("Result")


def options_of(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The options of the command line, with those that all benchmarks of `serve` have."""
    parser.add_argument("--original", type=Path, help="folder with the original's reasoning_gym_environment.py")
    parser.add_argument("--folder", type=Path, help="keep logs and dumps here (default: removed)")
    options = parser.parse_args()
    if options.original:
        options.original = options.original.resolve()
    return options


@dataclass(frozen=True)
class Setup:
    """What differs between runs."""

    student: Sequence[str]
    """The module of the inference server, and its arguments. The port comes in front of the arguments."""

    settings: Mapping[str, Any]
    """Settings of `serve` by name, beside those that all runs have."""

    original: Path | None = None
    """A folder with the original's reasoning_gym_environment.py, to run the original instead of this project."""

    groups_per_batch: int = 128
    max_tokens: int = 8192
    steps: Path | None = None
    """A file for the long steps of the event loop of `serve` (watched.py)."""


class Serving:
    """A run in progress."""

    def __init__(self, process: asyncio.subprocess.Process, trainer: Trainer, watchers: list[asyncio.Task[None]]):
        self.began = time.monotonic()
        self.pid = process.pid
        self.trainer = trainer
        self._process = process
        self._watchers = watchers

    async def during(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Do the work, and return its result. Raises EnvironmentSetupError as soon as a process ends."""
        task = asyncio.create_task(work)
        try:
            done, _ = await asyncio.wait([task, *self._watchers], return_when=asyncio.FIRST_COMPLETED)
            for finished in done - {task}:
                finished.result()
            return await task
        finally:
            task.cancel()

    async def stop(self) -> int:
        """End `serve` with SIGTERM. Returns its exit code."""
        await self._cancel_watchers()
        return await stop(self._process)

    async def _cancel_watchers(self) -> None:
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)


@contextlib.asynccontextmanager
async def serving(setup: Setup, folder: Path) -> AsyncIterator[Serving]:
    """Start everything, with logs and dumps in `folder`, and end it with the block."""
    tokenizer = _prepare(folder)
    api_port = free_port()
    student_port = free_port()
    watchers: list[asyncio.Task[None]] = []
    task = asyncio.current_task()
    assert task is not None
    # Otherwise SIGTERM would end this script and leave its processes behind.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with contextlib.AsyncExitStack() as stack:

        async def start(name: str, module: str, *arguments: str) -> asyncio.subprocess.Process:
            log = folder / f"{name}.log"
            path = os.pathsep.join([str(folder), str(ROOT)])
            with patch.dict(os.environ, {**VARIABLES, "PYTHONPATH": path}):
                process = await stack.enter_async_context(running(module, *arguments, log=log))
            watchers.append(asyncio.create_task(fail_if_it_ends(process, name, log)))
            return process

        await start("run-api", "atroposlib.cli.run_api", "--host", "127.0.0.1", "--port", str(api_port))
        module, *arguments = setup.student
        await start("student", module, str(student_port), *arguments)
        api = f"http://127.0.0.1:{api_port}"
        trainer = Trainer(api, folder, setup.groups_per_batch, setup.max_tokens)
        await stack.enter_async_context(trainer)
        await trainer.register()
        watchers.append(asyncio.create_task(trainer.run()))
        settings = _settings(setup, api, f"http://127.0.0.1:{student_port}/v1", tokenizer, folder)
        run = Serving(await start("serve", *_command(setup, settings, folder)), trainer, watchers)
        try:
            yield run
        finally:
            await run.stop()


def _prepare(folder: Path) -> Path:
    """Make the folder, which must be new, because old dumps would count. Returns the path of a tokenizer in it."""
    folder.mkdir(parents=True)
    return save_word_tokenizer(folder / "tokenizer")


def _settings(setup: Setup, api: str, student: str, tokenizer: Path, folder: Path) -> dict[str, Any]:
    return {
        "env.rollout_server_url": api,
        "env.tokenizer_name": tokenizer,
        "env.include_tasks": "*",
        "env.num_eval_samples_per_task": 0,
        "env.total_steps": 10**6,
        "env.group_size": GROUP_SIZE,
        "env.batch_size": GROUP_SIZE * setup.groups_per_batch,
        "env.max_token_length": setup.max_tokens,
        "env.max_num_workers_per_node": 16,
        "env.use_wandb": False,
        "env.data_dumps_dir": folder / "dumps",
        "openai.server_type": "vllm",
        "openai.base_url": student,
        "openai.model_name": "cheap-student",
        **setup.settings,
    }


def _command(setup: Setup, settings: dict[str, Any], folder: Path) -> list[str]:
    """The module of `serve` and its arguments."""
    module = "reasoning_gym_environment"
    if setup.original is not None:
        module = ORIGINAL
        shutil.copy(setup.original / "reasoning_gym_environment.py", folder / f"{ORIGINAL}.py")
        settings = _for_original(settings, folder)
    flags = [text for name, value in settings.items() for text in (f"--{name}", str(value))]
    if setup.steps is not None:
        return ["benchmarks.run_parts.watched", str(setup.steps), module, "serve", *flags]
    return [module, "serve", *flags]


def _for_original(settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The settings as the original knows them."""
    found = {name: value for name, value in settings.items() if name not in UNKNOWN_TO_ORIGINAL}
    found["env.num_eval_samples_per_task"] = 1
    found["openai.tokenizer_name"] = found["env.tokenizer_name"]
    if found["env.complexity_mode"] == "none":
        # The original has no flag for this mode.
        del found["env.complexity_mode"]
        config = folder / "original.yaml"
        config.write_text("env:\n  complexity_mode: null\n")
        found["config"] = config
    return found


def save_word_tokenizer(folder: Path) -> Path:
    """The byte tokenizer, but split into words first, as tokenizers of models do; the tokens are the same.

    The library caches ten thousand pieces of up to 256 characters, with all tokens of each. Unsplit questions would
    fill that with 30 MB along the run, which is not the environment's memory; words fill it with little.
    """
    tokenizer = build_byte_tokenizer()
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.save_pretrained(folder)
    return folder
