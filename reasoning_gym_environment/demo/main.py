"""The command: start the processes, play the trainer, show what happens, sum up; leave no process behind.

    _Demo.run ── running ──> run-api, environment ── events ──> Progress ──> live_view or lines, then print_summary

The live view is a table, for a terminal only; elsewhere a line is printed now and then.
"""

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
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..errors import EnvironmentSetupError
from ..records import CORRECT_THRESHOLD
from ..sampling.choosers import effective_number
from ..utils.aio import within
from ..utils.terminal import Output, check_folder, positive
from .inference_server import InferenceServer, build_byte_tokenizer, save_byte_tokenizer
from .student import Note, Student

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

STAGES = 4
"""Parts of the run that the summary compares."""

RATE_WINDOW_S = 5.0


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
        print_summary(self._console, self._progress, str(self._logs))

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
                print(f"[{self._progress.stage}] {progress_line(self._progress)}", flush=True)
                await asyncio.sleep(LINE_EVERY_S)
        with Live(console=self._console, refresh_per_second=4, transient=True) as live:
            while True:
                live.update(live_view(self._progress))
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
            note = Note(event["task"], event["answer"], event["complexity"] or 0.0)
            await self._student.learn_about(event["question"], note)
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
    printed = await asyncio.to_thread(log.read_text, encoding="utf-8", errors="replace")
    last = (printed.strip().splitlines() or ["it printed nothing"])[-1]
    raise EnvironmentSetupError(f"{name} ended with code {code}: {last} (all of it: {log})")


# --- what was seen so far


@dataclass(frozen=True)
class Seen:
    """One scored group, as the `group` event of the demo environment tells of it."""

    task: str
    category: str
    complexity: float
    scores: list[float]
    signal: bool
    at: float


@dataclass(frozen=True)
class Averages:
    """Over some of the groups; `accuracy` is the share of completions that count as correct."""

    groups: int
    mean_score: float
    accuracy: float
    complexity: float
    signal_share: float
    effective_tasks: float
    """How many equally frequent tasks would be as diverse."""


def averages(seen: Sequence[Seen]) -> Averages:
    scores = [score for group in seen for score in group.scores]
    count, completions = max(1, len(seen)), max(1, len(scores))
    return Averages(
        groups=len(seen),
        mean_score=sum(scores) / completions,
        accuracy=sum(score >= CORRECT_THRESHOLD for score in scores) / completions,
        complexity=sum(group.complexity for group in seen) / count,
        signal_share=sum(group.signal for group in seen) / count,
        effective_tasks=effective_number(list(Counter(group.task for group in seen).values())),
    )


@dataclass
class Progress:
    """One demo run. `total_steps` is where it ends."""

    total_steps: int
    stage: str = "starting"
    step: int = 0
    sequences_trained: int = 0
    ready: dict[str, Any] = field(default_factory=dict)
    evaluation: dict[str, float] = field(default_factory=dict)
    dumps: list[str] = field(default_factory=list)
    outcomes: str = ""
    seen: list[Seen] = field(default_factory=list)
    levels: dict[str, int] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
    training_started: float | None = None

    def add_group(self, event: dict[str, Any]) -> None:
        """Count one scored group."""
        complexity, now = event["complexity"] or 0.0, time.monotonic()
        self.seen.append(Seen(event["task"], event["category"], complexity, event["scores"], event["signal"], at=now))
        if event["level"] is not None:
            self.levels[event["task"]] = event["level"]

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    @property
    def recent_rate(self) -> float:
        """Groups per second over the last seconds."""
        recent = [group.at for group in self.seen if time.monotonic() - group.at <= RATE_WINDOW_S]
        return (len(recent) - 1) / max(1e-6, recent[-1] - recent[0]) if len(recent) > 1 else 0.0

    def parts(self) -> list[Averages]:
        """The run in a few parts of as many groups each, first to last; none before there are enough groups."""
        size = len(self.seen) // STAGES
        return [averages(self.seen[number * size : (number + 1) * size]) for number in range(STAGES if size else 0)]

    def by_category(self) -> dict[str, Averages]:
        names = sorted({group.category for group in self.seen})
        return {name: averages([group for group in self.seen if group.category == name]) for name in names}


# --- the display


def live_view(progress: Progress) -> RenderableType:
    """The display of a running demo."""
    head = Text.assemble(
        ("reasoning-gym environment demo  ", "bold"),
        (f"{progress.stage}", "cyan"),
        f"  {progress.seconds:4.0f} s",
    )
    bar = ProgressBar(total=progress.total_steps, completed=min(progress.step, progress.total_steps), width=40)
    # A bar ends without a line break of its own; the grid gives it a line.
    line = Table.grid()
    line.add_row(bar)
    return Group(head, line, Text(f"{progress_line(progress)}\n"), category_table(progress))


def progress_line(progress: Progress) -> str:
    """The state of the run in one line."""
    so_far = averages(progress.seen)
    return (
        f"step {progress.step}/{progress.total_steps}  {so_far.groups} groups scored  "
        f"{progress.recent_rate:.1f} groups/s  signal {so_far.signal_share:.0%}  accuracy {so_far.mean_score:.0%}  "
        f"{len({group.task for group in progress.seen})} tasks seen, effective number {so_far.effective_tasks:.0f}"
    )


def category_table(progress: Progress) -> Table:
    """Accuracy and signal by category."""
    table = _table("category", "groups", "with signal", "mean score")
    for name, part in progress.by_category().items():
        table.add_row(name, str(part.groups), f"{part.signal_share:.0%}", f"{part.mean_score:.2f}")
    return table


def _table(first: str, *numbers: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(first)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def parts_table(progress: Progress) -> Table:
    """How the run went on: difficulty and accuracy, part by part."""
    table = _table("groups", "mean difficulty", "accuracy", "with signal", "effective tasks")
    first = 1
    for part in progress.parts():
        table.add_row(
            f"{first} to {first + part.groups - 1}",
            f"{part.complexity:.2f}",
            f"{part.accuracy:.2f}",
            f"{part.signal_share:.0%}",
            f"{part.effective_tasks:.0f}",
        )
        first += part.groups
    return table


def print_summary(console: Console, progress: Progress, logs: str) -> None:
    """What happened, and where to look next."""
    so_far = averages(progress.seen)
    console.print()
    console.print(f"[bold]Done in {progress.seconds:.0f} s.[/bold] What you saw, all of it real but the model:")
    console.print(
        f"  {progress.ready.get('tasks', 0)} tasks of {progress.ready.get('library', 'reasoning-gym')}\n"
        f"  {so_far.groups} groups generated and scored, {so_far.signal_share:.0%} with a learning signal "
        f"(a group with equal scores teaches nothing and is not sent)\n"
        f"  {progress.step} training steps, {progress.sequences_trained} sequences taken from run-api by the demo's "
        "trainer",
        soft_wrap=True,
    )
    if progress.levels:
        raised = sum(level > 0 for level in progress.levels.values())
        console.print(
            f"  difficulty: {raised} of {len(progress.levels)} tasks seen have moved up from their easiest level "
            f"(0 is a task's first level, 1 its last; the curriculum aims at an accuracy of 0.7)",
            soft_wrap=True,
        )
    if progress.evaluation:
        console.print(
            f"  held-out set: mean score {progress.evaluation['eval/percent_correct']:.2f} "
            f"on {progress.ready.get('eval_items', 0)} items never used in training"
        )
    if progress.outcomes:
        console.print(f"  {progress.outcomes}", soft_wrap=True)
    for table in (parts_table(progress), category_table(progress)):
        console.print()
        console.print(table)
    console.print()
    for path in progress.dumps:
        console.print(f"rollouts: {path}", soft_wrap=True)
    console.print(f"logs:     {logs}", soft_wrap=True)
    console.print("next:     README.md, “Train a real model”")
