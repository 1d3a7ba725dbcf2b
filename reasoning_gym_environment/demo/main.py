"""The command: start everything, train the tiny model, show what happens, sum up; leave no process behind.

    learner (model, inference server, trainer) ── here ──┐
    run-api, environment ── processes of their own ──────┤── events ──> Progress ──> live view or lines, then summary

What is served and how it is evaluated stands in configs/demo.yaml, what is trained with at the head of this file.
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
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..errors import EnvironmentSetupError
from ..utils.aio import within
from ..utils.terminal import Output, check_folder, positive, print_table

if TYPE_CHECKING:
    from .learner import Checks, Learner

GROUPS = 1500
MAX_SECONDS = 70.0
GROUP_SIZE = 8
GROUPS_PER_BATCH = 8
RATE = 5e-4
"""Adam's step size."""

MAX_TOKENS = 256
"""Of prompt and completion; half of the model's context, because evaluation may use twice as much."""

CONFIG = Path(__file__).resolve().parent.parent / "configs" / "demo.yaml"
POLL_S = 0.05
LINE_EVERY_S = 3.0
STOP_S = 10.0
LAST_EVALUATION_S = 120.0

EVENTS_FD = "REASONING_GYM_DEMO_EVENTS_FD"
"""Environment variable with the number of the file descriptor that takes events, as JSON lines."""

RECENT = 100
"""Groups over which reward and signal are shown while the demo runs."""

RATE_WINDOW_S = 5.0
BAR = 40


def main(arguments: Sequence[str]) -> int:
    """Parse the options and run; returns the exit code: 1 if something failed, also a check of the trainer's."""
    parser = argparse.ArgumentParser(
        prog="reasoning-gym-env demo",
        description="Train a tiny model on this machine, through Atropos' run-api and this environment's serve: half a "
        "million weights in numpy, whose accuracy on held-out questions is measured before, meanwhile and after. It "
        "ends with the first limit that is reached. No GPU, no network, less than two minutes.",
    )
    parser.add_argument(
        "--groups", type=positive, default=GROUPS, help=f"groups to generate and score (default: {GROUPS})"
    )
    parser.add_argument("--steps", type=positive, help="training steps to make (default: no limit)")
    parser.add_argument(
        "--max-seconds",
        type=float,
        default=MAX_SECONDS,
        help=f"seconds to train for, after set-up (default: {MAX_SECONDS:g})",
    )
    parser.add_argument("--seed", type=int, default=1918, help="seed of items and sampling (default: 1918)")
    parser.add_argument(
        "--dumps", type=Path, default=Path("data_dumps"), help="where rollouts go (default: data_dumps)"
    )
    options = parser.parse_args(arguments)
    if not options.max_seconds > 0:
        parser.error("--max-seconds must be positive")
    try:
        check_folder("--dumps", options.dumps)
    except EnvironmentSetupError as error:
        parser.error(str(error))
    # Matrices of this size are multiplied faster by one thread. Numpy, which is not loaded yet, looks once; so do the
    # processes started here.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    console = Output()
    try:
        return asyncio.run(_interruptible(_Demo(options, console).run()))
    except EnvironmentSetupError as error:
        console.print(f"The demo stopped: {error}", style="red", soft_wrap=True)
        return 1
    except (asyncio.CancelledError, KeyboardInterrupt):
        console.print("Stopped; nothing is left running.")
        return 130


async def _interruptible(work: Coroutine[Any, Any, int]) -> int:
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    return await task


class _Demo:
    def __init__(self, options: argparse.Namespace, console: Console) -> None:
        self._options = options
        self._console = console
        self._progress = Progress(options.groups, options.steps, options.max_seconds, tells=not console.is_terminal)
        self._logs = Path(tempfile.mkdtemp(prefix="reasoning-gym-demo-"))
        self._api = f"http://127.0.0.1:{free_port()}"
        self._is_ending = False

    async def run(self) -> int:
        """The whole demo, from first process to summary; returns the exit code."""
        work = asyncio.ensure_future(self._work())
        await watched(work, self._display())
        return print_summary(self._console, self._progress, work.result(), self._logs)

    async def _work(self) -> Checks:
        api_log, env_log = self._logs / "run-api.log", self._logs / "environment.log"
        async with contextlib.AsyncExitStack() as stack:
            arguments = ("--host", "127.0.0.1", "--port", self._api.rpartition(":")[2])
            api = await stack.enter_async_context(running("atroposlib.cli.run_api", *arguments, log=api_log))
            self._progress.enter("loading the model")
            learner = await stack.enter_async_context(await asyncio.to_thread(_load, self._options.seed))
            self._progress.enter("starting run-api and serve")
            reading, writing = os.pipe()
            environment = await stack.enter_async_context(
                running(
                    "reasoning_gym_environment.demo.environment",
                    *self._environment_arguments(learner.server.base_url),
                    log=env_log,
                    pass_fd=writing,
                    env={EVENTS_FD: str(writing), "WANDB_MODE": "disabled", "TRANSFORMERS_VERBOSITY": "error"},
                )
            )
            os.close(writing)
            await watched(
                self._train(learner, environment),
                self._read_events(reading),
                self._fail_if_it_ends(api, "run-api", api_log),
                self._fail_if_it_ends(environment, "serve", env_log),
            )
        return learner.checks

    def _environment_arguments(self, base_url: str) -> list[str]:
        from .learner import TINY_MODEL

        values = {
            "env.rollout_server_url": self._api,
            "env.tokenizer_name": str(TINY_MODEL),
            "env.seed": str(self._options.seed),
            "env.group_size": str(GROUP_SIZE),
            "env.batch_size": str(GROUP_SIZE * GROUPS_PER_BATCH),
            "env.max_token_length": str(MAX_TOKENS),
            "env.data_dumps_dir": str(self._options.dumps),
            "env.data_dir_to_save_evals": str(self._logs / "held-out"),
            "openai.base_url": base_url,
            "openai.model_name": "tiny",
        }
        flags = [text for name, value in values.items() for text in (f"--{name}", value)]
        return ["serve", "--config", str(CONFIG), *flags]

    async def _display(self) -> None:
        progress = self._progress
        if not self._console.is_terminal:
            while True:
                await asyncio.sleep(LINE_EVERY_S)
                if progress.is_training:
                    print(progress_line(progress), flush=True)
        with Live(console=self._console, refresh_per_second=4, transient=True) as live:
            while True:
                live.update(live_view(progress))
                await asyncio.sleep(0.25)

    async def _train(self, learner: Learner, environment: asyncio.subprocess.Process) -> None:
        """Register, then take batches and learn from them until a limit is reached; then have the model judged."""
        progress = self._progress
        async with aiohttp.ClientSession(self._api) as session:
            await self._register(session)
            while not (reason := progress.reason_to_end()):
                async with session.get("/batch") as response:
                    batch = (await response.json())["batch"]
                if batch is None:
                    await asyncio.sleep(POLL_S)
                    continue
                await learner.train(batch)
                progress.step += 1
                progress.sequences_trained += sum(len(group["tokens"]) for group in batch)
        progress.reason, self._is_ending = reason, True
        progress.enter("stopping the training")
        environment.send_signal(signal.SIGUSR1)
        try:
            await within(LAST_EVALUATION_S, progress.closed.wait())
        except asyncio.TimeoutError:
            raise EnvironmentSetupError(f"serve did not end within {LAST_EVALUATION_S:g} s.") from None
        if not progress.evaluations[-1].is_last:
            raise EnvironmentSetupError(f"The evaluation after training failed: {self._logs}/environment.log says why.")

    async def _register(self, session: aiohttp.ClientSession) -> None:
        registration = {
            "wandb_group": "demo",
            "wandb_project": "demo",
            "batch_size": GROUP_SIZE * GROUPS_PER_BATCH,
            "max_token_len": MAX_TOKENS,
            "checkpoint_dir": str(self._logs),
            "save_checkpoint_interval": 10,
            "starting_step": 0,
            # The environment must not end before its last evaluation.
            "num_steps": 1_000_000,
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
        try:
            async for line in reader:
                self._take(**json.loads(line))
        finally:
            transport.close()
            self._progress.closed.set()

    def _take(self, event: str, **details: Any) -> None:
        progress = self._progress
        if event == "setup":
            progress.enter("making tasks, levels, workers and held-out questions")
        elif event == "ready":
            progress.ready = details
        elif event == "group":
            progress.add_group(**details)
        elif event == "evaluating":
            progress.begin_evaluation(is_last=self._is_ending)
        elif event == "evaluation":
            if not progress.evaluations:
                # The next one is written to the same place.
                (self._logs / "held-out").rename(self._logs / "held-out-before")
            progress.add_evaluation(details["metrics"], is_last=details["last"])
        elif event == "closed":
            progress.dumps, progress.outcomes = details["dumps"], details["outcomes"]

    async def _fail_if_it_ends(self, process: asyncio.subprocess.Process, name: str, log: Path) -> None:
        """Raises when the process ends although it should still run."""
        code = await process.wait()
        if self._is_ending:
            return
        printed = await asyncio.to_thread(log.read_text, encoding="utf-8", errors="replace")
        last = (printed.strip().splitlines() or ["it printed nothing"])[-1]
        raise EnvironmentSetupError(f"{name} ended with code {code}: {last} (all of it: {log})")


def _load(seed: int) -> Learner:
    # Takes a second, which the display is there for.
    from .learner import Learner

    try:
        return Learner(group_size=GROUP_SIZE, seed=seed, rate=RATE)
    except (OSError, ValueError) as error:
        raise EnvironmentSetupError(f"The package's tiny model cannot be read: {error}") from error


async def watched(work: Any, *others: Any) -> None:
    """Wait for the end of `work`, then cancel the others; raises what any of all raises before."""
    tasks = [asyncio.ensure_future(one) for one in (work, *others)]
    try:
        pending = set(tasks)
        while not tasks[0].done():
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


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


# --- what was seen so far


@dataclass(frozen=True)
class Seen:
    """One scored group, as the `group` event tells of it; `level` is where its task stood then, 0 the easiest."""

    task: str
    level: int
    rewards: list[float]
    signal: bool
    at: float


@dataclass(frozen=True)
class Evaluated:
    """One evaluation: the training steps made when it began, and the environment's metrics."""

    step: int
    metrics: dict[str, float]
    is_last: bool

    def estimate(self, name: str = "exact", task: str = "") -> tuple[float, float, float]:
        """Value and 95 % interval of `exact` (the share of right answers) or `percent_correct` (the mean score)."""
        (key,) = [key for key in self.metrics if key.endswith(f"/{task}/{name}" if task else f"eval/{name}")]
        return self.metrics[key], self.metrics[f"{key}_low"], self.metrics[f"{key}_high"]


@dataclass
class Progress:
    """One demo run, which ends after so many groups, steps or seconds of training. `tells`: stages are printed."""

    most_groups: int
    most_steps: int | None = None
    most_seconds: float = MAX_SECONDS
    tells: bool = False
    step: int = 0
    sequences_trained: int = 0
    reason: str = ""
    ready: dict[str, Any] = field(default_factory=dict)
    evaluations: list[Evaluated] = field(default_factory=list)
    dumps: list[str] = field(default_factory=list)
    outcomes: str = ""
    seen: list[Seen] = field(default_factory=list)
    stages: list[tuple[str, float]] = field(default_factory=list)
    """Name and beginning of each."""
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the environment has nothing more to tell."""
    started: float = field(default_factory=time.monotonic)
    training_started: float | None = None
    _evaluating_at: int = 0

    def enter(self, stage: str) -> None:
        """A new stage begins, and the one before ends."""
        self.stages.append((stage, time.monotonic()))
        if self.tells:
            print(f"[{self.seconds:5.1f} s] {stage}", flush=True)

    def add_group(self, task: str, level: int, rewards: list[float], signal: bool) -> None:
        """Count one scored group; those that come after the end of the training do not count."""
        if not self.reason:
            self.seen.append(Seen(task, level, rewards, signal, time.monotonic()))

    def begin_evaluation(self, *, is_last: bool) -> None:
        self._evaluating_at = self.step
        if is_last or not self.evaluations:
            questions = f"{self.ready.get('questions', 0)} held-out questions"
            self.enter(f"{questions}, {'after' if is_last else 'before'} training")

    def add_evaluation(self, metrics: dict[str, float], *, is_last: bool) -> None:
        self.evaluations.append(Evaluated(self._evaluating_at, metrics, is_last))
        if self.training_started is None:
            self.enter("training")
            self.training_started = time.monotonic()
        elif is_last:
            self.enter("closing")

    def reason_to_end(self) -> str:
        """Which limit is reached; nothing if none is."""
        if self.most_steps is not None and self.step >= self.most_steps:
            return f"the {self.most_steps} steps of --steps are made"
        if len(self.seen) >= self.most_groups:
            return f"{self.most_groups} groups are generated and scored (--groups)"
        if self.seconds_trained >= self.most_seconds:
            return f"the {self.most_seconds:g} s of --max-seconds are over"
        return ""

    @property
    def is_training(self) -> bool:
        return self.training_started is not None and not self.reason

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    @property
    def seconds_trained(self) -> float:
        return 0.0 if self.training_started is None else time.monotonic() - self.training_started

    @property
    def done(self) -> float:
        """How much of the training lies behind, from 0 to 1, by the limit that is nearest."""
        steps = self.step / self.most_steps if self.most_steps else 0.0
        return min(1.0, max(steps, len(self.seen) / self.most_groups, self.seconds_trained / self.most_seconds))

    @property
    def recent_rate(self) -> float:
        """Groups per second over the last seconds."""
        recent = [group.at for group in self.seen if time.monotonic() - group.at <= RATE_WINDOW_S]
        return (len(recent) - 1) / max(1e-6, recent[-1] - recent[0]) if len(recent) > 1 else 0.0

    def of_task(self, task: str) -> list[Seen]:
        return [group for group in self.seen if group.task == task]


# --- the display


def live_view(progress: Progress) -> RenderableType:
    """The display of a running demo."""
    stage, since = progress.stages[-1] if progress.stages else ("starting", progress.started)
    head = Text.assemble(
        ("reasoning-gym environment demo  ", "bold"), (stage, "cyan"), f"  {progress.seconds:4.0f} s\n"
    )
    if progress.training_started is None:
        past = [
            f"  {name}: {end - start:.1f} s" for (name, start), (_, end) in zip(progress.stages, progress.stages[1:])
        ]
        return Group(head, *map(Text, past), Text(f"  {stage}: {time.monotonic() - since:.1f} s ..."))
    # A bar ends without a line break of its own; the grid gives it a line.
    line = Table.grid()
    line.add_row(ProgressBar(total=1.0, completed=progress.done, width=BAR))
    return Group(head, line, Text(f"{progress_line(progress)}\n"), task_table(progress), Text(), curve(progress))


def progress_line(progress: Progress) -> str:
    """The state of the run in one line."""
    signal, reward = _averages(progress.seen[-RECENT:])
    return (
        f"step {progress.step}  {len(progress.seen)} groups  {progress.recent_rate:.1f}/s  signal {signal}  reward "
        f"{reward}  levels {', '.join(f'{name} {level}' for name, level in levels(progress).items())}  "
        f"held-out {progress.evaluations[-1].estimate()[0]:.1%} (step {progress.evaluations[-1].step})"
    )


def levels(progress: Progress) -> dict[str, int]:
    """The level that each task has reached, by task."""
    return {task: seen[-1].level if (seen := progress.of_task(task)) else 0 for task in progress.ready["tasks"]}


def _averages(seen: Sequence[Seen]) -> tuple[str, str]:
    """Share of groups with a signal, and mean reward."""
    if not seen:
        return "-", "-"
    rewards = [reward for group in seen for reward in group.rewards]
    return f"{sum(group.signal for group in seen) / len(seen):.0%}", f"{sum(rewards) / len(rewards):.2f}"


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right")
    return table


def task_table(progress: Progress) -> Table:
    """What was trained on, by task."""
    table = _table(
        "task", "groups", "with signal", "level", f"reward, last {RECENT}", "held-out before", "held-out now"
    )
    for task, level in levels(progress).items():
        seen = progress.of_task(task)
        held_out = [f"{progress.evaluations[at].estimate(task=task)[0]:.1%}" for at in (0, -1)]
        table.add_row(task, str(len(seen)), _averages(seen)[0], str(level), _averages(seen[-RECENT:])[1], *held_out)
    return table


def curve(progress: Progress) -> Table:
    """The held-out questions answered right, by step."""
    table = Table.grid(padding=(0, 2))
    for one in progress.evaluations:
        value = one.estimate()[0]
        table.add_row(f"held-out, step {one.step}", Text("█" * round(BAR * value), "green"), _interval(one.estimate()))
    return table


def _interval(estimate: tuple[float, float, float], digits: str = ".1%") -> str:
    value, low, high = (format(number, digits) for number in estimate)
    return f"{value} [{low}, {high}]"


def print_summary(console: Console, progress: Progress, checks: Checks, logs: Path) -> int:
    """What happened, and where to look next; returns the exit code."""
    before, after = progress.evaluations[0], progress.evaluations[-1]
    has_risen = after.estimate()[1] > before.estimate()[2]
    signal, _ = _averages(progress.seen)
    console.print(f"\n[bold]Done in {progress.seconds:.0f} s,[/bold] because {progress.reason}.", soft_wrap=True)
    console.print(
        f"  {len(progress.seen)} groups of {GROUP_SIZE} generated and scored, {signal} with a learning signal; "
        f"{progress.step} training steps on {progress.sequences_trained} sequences from run-api, "
        f"{progress.seconds_trained:.0f} s\n  {progress.outcomes}\n",
        soft_wrap=True,
    )
    print_table(console, task_table(progress))
    console.print()
    console.print(curve(progress))
    console.print()
    print_table(console, before_and_after(progress, before, after))
    console.print(
        f"\nThe share of right answers {'rose' if has_risen else 'did not rise for certain'}: the 95% intervals before "
        f"and after {'do not ' if has_risen else ''}overlap. This shows that a model learns from what this environment "
        "sends, through the real run-api and serve; not what a large model would gain, for this one is tiny and mostly "
        "elicits what its warm start half knows.",
        soft_wrap=True,
    )
    faults = checks.faults or not checks.groups
    told = checks.describe() if checks.groups else "no batch came, so there was nothing to check and to learn from"
    style = "bold red" if faults else ""
    console.print(f"\nThe trainer's checks {'FAILED' if faults else 'passed'}: {told}.\n", style=style, soft_wrap=True)
    for path in progress.dumps:
        console.print(f"rollouts: {path}", soft_wrap=True)
    console.print(
        f"held-out: {logs}/held-out-before and {logs}/held-out, for `reasoning-gym-env report`", soft_wrap=True
    )
    console.print(f"logs:     {logs}", soft_wrap=True)
    console.print("next:     README.md, “Train a real model”")
    return 1 if faults else 0


def before_and_after(progress: Progress, before: Evaluated, after: Evaluated) -> Table:
    """Share of right answers and mean score, with 95 % intervals, of all held-out questions and by task."""
    table = _table(f"{progress.ready['questions']} held-out questions", "", "before", f"after {after.step} steps")
    for task in ("", *progress.ready["tasks"]):
        for what, name, digits in (("right", "exact", ".1%"), ("mean score", "percent_correct", ".3f")):
            told = [_interval(one.estimate(name, task), digits) for one in (before, after)]
            table.add_row((task or "all") if what == "right" else "", what, *told)
    return table
