"""Runs the demo: starts the processes, plays the trainer, shows the progress, sums up; leaves no process behind."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console
from rich.live import Live

from ..errors import EnvironmentSetupError
from ..utils.aio import within
from ..utils.terminal import Output, check_folder, positive
from . import view
from .inference_server import InferenceServer, build_byte_tokenizer, save_byte_tokenizer
from .student import Student, note_from
from .view import Progress

GROUP_SIZE = 8
GROUPS_PER_BATCH = 8
MAX_TOKENS = 12288
"""A byte is a token here, so a question of ten thousand characters still fits."""

CONFIG = Path(__file__).resolve().parent.parent / "configs" / "demo.yaml"
POLL_S = 0.1
LINE_EVERY_S = 3.0
STOP_S = 10.0

EVENTS_FD = "REASONING_GYM_DEMO_EVENTS_FD"
"""Environment variable with the number of the file descriptor that takes events, as JSON lines."""


def main(arguments: Sequence[str]) -> int:
    """Parse the options and run; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="reasoning-gym-env demo",
        description="Run the whole loop on this machine: run-api, the environment, a simulated student in place of a "
        "model, and a small trainer loop. No GPU, no network, less than a minute.",
    )
    parser.add_argument("--steps", type=positive, default=30, help="training steps to run (default: 30)")
    parser.add_argument("--max-seconds", type=float, default=22.0, help="stop training after this long (default: 22)")
    parser.add_argument("--seed", type=int, default=1918, help="seed of items and student (default: 1918)")
    parser.add_argument(
        "--dumps", type=Path, default=Path("data_dumps"), help="where rollouts go (default: data_dumps)"
    )
    options = parser.parse_args(arguments)
    if options.max_seconds <= 0:
        parser.error("--max-seconds must be positive")
    try:
        check_folder("--dumps", options.dumps)
    except EnvironmentSetupError as error:
        parser.error(str(error))
    console = Output()
    try:
        asyncio.run(_interruptible(_Demo(options, console).run()))
    except EnvironmentSetupError as error:
        console.print(f"The demo stopped: {error}", style="red", soft_wrap=True)
        return 1
    except (asyncio.CancelledError, KeyboardInterrupt):
        console.print("Stopped; nothing is left running.")
        return 130
    return 0


async def _interruptible(work: Any) -> None:
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    await task


class _Demo:
    def __init__(self, options: argparse.Namespace, console: Console) -> None:
        self._options = options
        self._console = console
        self._progress = Progress(total_steps=options.steps)
        self._student = Student(options.seed)
        self._logs = Path(tempfile.mkdtemp(prefix="reasoning-gym-demo-"))
        self._api = ""

    async def run(self) -> None:
        """The whole demo, from first process to summary."""
        port = free_port()
        self._api = f"http://127.0.0.1:{port}"
        tokenizer_dir = await asyncio.to_thread(save_byte_tokenizer, self._logs / "tokenizer")
        api_log, env_log = self._logs / "run-api.log", self._logs / "environment.log"
        reading, writing = os.pipe()
        async with contextlib.AsyncExitStack() as stack:
            server = await stack.enter_async_context(InferenceServer(self._student.respond, build_byte_tokenizer()))
            arguments = ("--host", "127.0.0.1", "--port", str(port))
            api = await stack.enter_async_context(running("atroposlib.cli.run_api", *arguments, log=api_log))
            environment = await stack.enter_async_context(
                running(
                    "reasoning_gym_environment.demo.environment",
                    *self._environment_arguments(server.base_url, tokenizer_dir),
                    log=env_log,
                    pass_fd=writing,
                    env={EVENTS_FD: str(writing), "WANDB_MODE": "disabled", "TRANSFORMERS_VERBOSITY": "error"},
                )
            )
            os.close(writing)
            events = asyncio.create_task(self._read_events(reading))
            watchers = [fail_if_it_ends(api, "run-api", api_log), fail_if_it_ends(environment, "serve", env_log)]
            await self._show(self._train(), watchers)
            self._progress.stage = "closing"
            await stop(environment)
            await events
        view.print_summary(self._console, self._progress, str(self._logs))

    def _environment_arguments(self, base_url: str, tokenizer: Path) -> list[str]:
        values = {
            "env.rollout_server_url": self._api,
            "env.tokenizer_name": str(tokenizer),
            "env.seed": str(self._options.seed),
            "env.group_size": str(GROUP_SIZE),
            "env.max_token_length": str(MAX_TOKENS),
            "env.data_dumps_dir": str(self._options.dumps),
            "openai.base_url": base_url,
            "openai.model_name": "simulated-student",
        }
        flags = [text for name, value in values.items() for text in (f"--{name}", value)]
        return ["serve", "--config", str(CONFIG), *flags]

    async def _show(self, training: Any, watchers: list[Any]) -> None:
        """Run the training with its display until it is done, or until a process that it needs ends."""
        tasks = [asyncio.ensure_future(work) for work in (training, self._display(), *watchers)]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _display(self) -> None:
        if not self._console.is_terminal:
            while True:
                print(f"[{self._progress.stage}] {view.progress_line(self._progress)}", flush=True)
                await asyncio.sleep(LINE_EVERY_S)
        with Live(console=self._console, refresh_per_second=4, transient=True) as live:
            while True:
                live.update(view.live_view(self._progress))
                await asyncio.sleep(0.25)

    async def _train(self) -> None:
        """A trainer reduced to its dealings with run-api: register, take batches, count steps."""
        progress = self._progress
        async with aiohttp.ClientSession(self._api) as session:
            await self._register(session)
            progress.stage = "setting up the environment"
            while progress.step < progress.total_steps:
                async with session.get("/batch") as response:
                    batch = (await response.json())["batch"]
                if batch is not None:
                    progress.stage = "training"
                    progress.training_started = progress.training_started or time.monotonic()
                    progress.step += 1
                    progress.sequences_trained += sum(len(group["tokens"]) for group in batch)
                    continue
                started = progress.training_started
                if started is not None and time.monotonic() - started > self._options.max_seconds:
                    return
                await asyncio.sleep(POLL_S)

    async def _register(self, session: aiohttp.ClientSession) -> None:
        registration = {
            "wandb_group": "demo",
            "wandb_project": "demo",
            "batch_size": GROUP_SIZE * GROUPS_PER_BATCH,
            "max_token_len": MAX_TOKENS,
            "checkpoint_dir": str(self._logs),
            "save_checkpoint_interval": 10,
            "starting_step": 0,
            "num_steps": self._options.steps,
        }
        while True:
            try:
                async with session.post("/register", json=registration) as response:
                    response.raise_for_status()
                    return
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(POLL_S)

    async def _read_events(self, reading: int) -> None:
        reader = asyncio.StreamReader(limit=2**24)
        pipe = os.fdopen(reading, "rb", buffering=0)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        async for line in reader:
            await self._take(json.loads(line))
        transport.close()

    async def _take(self, event: dict[str, Any]) -> None:
        kind = event.pop("event")
        if kind == "item":
            await self._student.learn_about(event["question"], note_from(event))
        elif kind == "group":
            self._progress.add_group(event)
            if event["sent"]:
                self._student.train(event["task"])
        elif kind == "ready":
            self._progress.ready = event
        elif kind == "evaluation":
            self._progress.evaluation = event
        elif kind == "closed":
            self._progress.dumps, self._progress.outcomes = event["dumps"], event["outcomes"]


# --- the other processes


def free_port() -> int:
    """A port of the loopback interface that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def running(
    module: str, *arguments: str, log: Path, pass_fd: int | None = None, env: dict[str, str] | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """`python -m module arguments` in a session of its own, its output in `log`; ended with the block."""
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            module,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, **(env or {})},
            pass_fds=() if pass_fd is None else (pass_fd,),
            start_new_session=True,
        )
    try:
        yield process
    finally:
        await stop(process)


async def stop(process: asyncio.subprocess.Process) -> int:
    """Ask the process to end, then insist; returns its exit code."""
    if process.returncode is None:
        process.terminate()
        try:
            await within(STOP_S, process.wait())
        except asyncio.TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)
    return await process.wait()


async def fail_if_it_ends(process: asyncio.subprocess.Process, name: str, log: Path) -> None:
    """Returns only by raising, when the process ends although it should still run."""
    code = await process.wait()
    last = await asyncio.to_thread(_last_line, log)
    raise EnvironmentSetupError(f"{name} ended with code {code}: {last} (all of it: {log})")


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "it printed nothing"
