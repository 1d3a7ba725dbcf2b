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
import tempfile
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..errors import EnvironmentSetupError
from ..utils.aio import fail_if_it_ends, running, watched, within
from ..utils.terminal import Output, check_folder, positive, print_table

if TYPE_CHECKING:
    from .learner import Checks, Learner

GROUPS = 1500
MAX_SECONDS = 70.0
GROUP_SIZE = 8
GROUPS_PER_BATCH = 4
MAX_TOKENS = 256
"""Of prompt and completion; half of the model's context, because evaluation may use twice as much."""

CONFIG = Path(__file__).resolve().parent.parent / "configs" / "demo.yaml"
POLL_S = 0.05
LINE_EVERY_S = 3.0
LAST_EVALUATION_S = 120.0

EVENTS_FD = "REASONING_GYM_DEMO_EVENTS_FD"
"""Environment variable with the number of the file descriptor that takes events, as JSON lines."""

RECENT = 100
"""Groups over which reward, exact rate, signal and speed are shown while the demo runs."""

BAR = 40


def main(arguments: Sequence[str]) -> int:
    """Parse the options and run; returns the exit code: 1 if something failed, also a check of the trainer's."""
    parser = argparse.ArgumentParser(
        prog="reasoning-gym-env demo",
        description="Train a tiny model on this machine, through Atropos' run-api and this environment's serve: half a "
        "million weights in numpy, whose accuracy on held-out questions is measured before, meanwhile and after. It "
        "ends with the first limit that is reached. No GPU, no network, less than two minutes.",
    )
    for name, kind, default, text in (
        ("--groups", positive, GROUPS, f"groups to generate and score (default: {GROUPS})"),
        ("--steps", positive, None, "training steps to make (default: no limit)"),
        ("--max-seconds", float, MAX_SECONDS, f"seconds to train for, after set-up (default: {MAX_SECONDS:g})"),
        ("--seed", int, 1918, "seed of items and sampling (default: 1918)"),
        ("--dumps", Path, Path("data_dumps"), "where rollouts go (default: data_dumps)"),
    ):
        parser.add_argument(name, type=kind, default=default, help=text)
    given = parser.parse_args(arguments)
    if not given.max_seconds > 0:
        parser.error("--max-seconds must be positive")
    try:
        check_folder("--dumps", given.dumps)
    except EnvironmentSetupError as error:
        parser.error(str(error))
    # Matrices of this size are multiplied faster by one thread. Numpy, which is not loaded yet, looks once; so do the
    # processes started here.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    console = Output()
    try:
        return asyncio.run(_interruptible(_Demo(given, console).run()))
    except EnvironmentSetupError as error:
        console.print(f"The demo stopped: {error}", style="red", soft_wrap=True)
        return 1
    except (asyncio.CancelledError, KeyboardInterrupt):
        console.print("Stopped; nothing is left running.")
        return 130


async def _interruptible(work: Coroutine[Any, Any, int]) -> int:
    task = asyncio.ensure_future(work)
    loop, received = asyncio.get_running_loop(), asyncio.Event()

    def stop() -> None:
        # Tidying up takes seconds, and an impatient second signal must not leave it half done.
        if not received.is_set():
            received.set()
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    return await task


class _Demo:
    def __init__(self, options: argparse.Namespace, console: Console) -> None:
        self._options = options
        self._console = console
        self._progress = Progress(options.groups, options.steps, options.max_seconds, tells=not console.is_terminal)
        self._logs = Path(tempfile.mkdtemp(prefix="reasoning-gym-demo-"))
        self._api = f"http://127.0.0.1:{free_port()}"

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
                self._watch(api, "run-api", api_log),
                self._watch(environment, "serve", env_log),
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
                if progress.training_started and not progress.reason:
                    reached = ", ".join(f"{task} {level}" for task, level in levels(progress).items())
                    print(f"{progress_line(progress)}  levels: {reached}", flush=True)
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
        progress.reason = reason
        progress.enter("stopping the environment")
        os.kill(environment.pid, signal.SIGUSR1)
        try:
            await within(LAST_EVALUATION_S, progress.told_all.wait())
        except asyncio.TimeoutError:
            raise EnvironmentSetupError(f"serve did not end within {LAST_EVALUATION_S:g} s ({self._logs}).") from None
        if not progress.evaluations[-1].is_last:
            raise EnvironmentSetupError(f"The evaluation after training failed: {self._logs}/environment.log says why.")

    async def _register(self, session: aiohttp.ClientSession) -> None:
        names = {"wandb_group": "demo", "wandb_project": "demo", "checkpoint_dir": str(self._logs)}
        sizes = {"batch_size": GROUP_SIZE * GROUPS_PER_BATCH, "max_token_len": MAX_TOKENS}
        # So many that the environment does not end before it has evaluated the last weights.
        steps = {"starting_step": 0, "num_steps": 1_000_000, "save_checkpoint_interval": 10}
        while True:
            try:
                async with session.post("/register", json={**names, **sizes, **steps}) as response:
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
                self._progress.take(**json.loads(line))
        finally:
            transport.close()
            self._progress.told_all.set()

    async def _watch(self, process: asyncio.subprocess.Process, name: str, log: Path) -> None:
        """Raises when the process ends before the training does."""
        try:
            await fail_if_it_ends(process, name, log)
        except EnvironmentSetupError:
            if not self._progress.reason:
                raise


def _load(seed: int) -> Learner:
    # Takes a second, which the display is there for.
    from .learner import Learner

    try:
        return Learner(group_size=GROUP_SIZE, seed=seed)
    except (OSError, ValueError) as error:
        raise EnvironmentSetupError(f"The package's tiny model cannot be read: {error}") from error


def free_port() -> int:
    """A port of the loopback interface that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# --- what was seen so far


@dataclass(frozen=True)
class Seen:
    """One scored group, as the `group` event tells of it; `level` is where its task stood then, 0 the easiest.

    `scored` and `exact` are numbers of completions: those with a score, and of these the ones with full credit.
    """

    task: str
    level: int
    rewards: list[float]
    signal: bool
    scored: int
    exact: int
    at: float


@dataclass(frozen=True)
class Evaluated:
    """One evaluation: the training steps made when it began, and the environment's metrics."""

    step: int
    metrics: dict[str, float]
    is_last: bool

    def estimate(self, name: str = "exact", task: str = "") -> tuple[float, float, float]:
        """Value and 95 % interval of `exact` (the share with full credit) or `percent_correct` (the mean score)."""
        (key,) = [key for key in self.metrics if key.endswith(f"/{task}/{name}" if task else f"eval/{name}")]
        return self.metrics[key], self.metrics[f"{key}_low"], self.metrics[f"{key}_high"]


@dataclass
class Progress:
    """One demo run, which ends after so many groups, steps or seconds of training. `tells`: stages are printed."""

    most_groups: int
    most_steps: int | None
    most_seconds: float
    tells: bool = False
    step: int = 0
    sequences_trained: int = 0
    reason: str = ""
    """Why the training has ended; empty as long as it has not."""
    ready: dict[str, Any] = field(default_factory=dict)
    evaluations: list[Evaluated] = field(default_factory=list)
    closing: dict[str, Any] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    stages: list[tuple[str, float]] = field(default_factory=list)
    """Name and beginning of each."""
    told_all: asyncio.Event = field(default_factory=asyncio.Event)
    started: float = field(default_factory=time.monotonic)
    training_started: float | None = None
    _evaluating_at: int = 0

    def enter(self, stage: str) -> None:
        """A new stage begins, and the one before ends."""
        self.stages.append((stage, time.monotonic()))
        if self.tells:
            print(f"[{self.seconds:5.1f} s] {stage}", flush=True)

    def take(self, event: str, **details: Any) -> None:
        """One event of the environment."""
        if event == "setup":
            self.enter("making tasks, levels, workers and held-out questions")
        elif event == "ready":
            self.ready = details
        elif event == "evaluating":
            self._evaluating_at = self.step
            if self.reason or not self.evaluations:
                when = "after" if self.reason else "before"
                self.enter(f"asking {self.ready['questions']} held-out questions {when} training")
        elif event == "evaluation":
            self.evaluations.append(Evaluated(self._evaluating_at, details["metrics"], details["last"]))
            if self.training_started is None:
                self.enter("training")
                self.training_started = time.monotonic()
        elif event == "group" and not self.reason:
            self.seen.append(Seen(**details, at=time.monotonic()))
        elif event == "closed":
            self.closing = details

    def reason_to_end(self) -> str:
        """Which limit is reached; nothing if none is."""
        if self.most_steps is not None and self.step >= self.most_steps:
            return f"the {self.most_steps} steps of --steps are made"
        if len(self.seen) >= self.most_groups:
            return f"the {self.most_groups} groups of --groups are generated and scored"
        if self.seconds_trained >= self.most_seconds:
            return f"the {self.most_seconds:g} s of --max-seconds are over"
        return ""

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    @property
    def seconds_trained(self) -> float:
        return 0.0 if self.training_started is None else time.monotonic() - self.training_started


# --- the display


def live_view(progress: Progress) -> RenderableType:
    """The display of a running demo."""
    stage, since = progress.stages[-1] if progress.stages else ("starting", progress.started)
    head = Text.assemble(("reasoning-gym environment demo  ", "bold"), (stage, "cyan"), f"  {progress.seconds:.0f} s\n")
    if progress.training_started is None:
        spans = zip(progress.stages[:-1], progress.stages[1:], strict=True)
        lines = [f"  {name}: {end - start:.1f} s" for (name, start), (_, end) in spans]
        return Group(head, *map(Text, (*lines, f"  {stage}: {time.monotonic() - since:.1f} s ...")))
    line = "" if progress.reason else f"{progress_line(progress)}\n"
    return Group(head, Text(line), task_table(progress), Text(), curve(progress))


def progress_line(progress: Progress) -> str:
    """The state of the training in one line."""
    recent, judged = progress.seen[-RECENT:], progress.evaluations[-1]
    rate = len(recent) / (time.monotonic() - recent[0].at) if recent else 0.0
    signal, reward, exact = _averages(recent)
    return (
        f"{progress.seconds_trained:2.0f} s  step {progress.step}  {len(progress.seen)} groups, {rate:.1f}/s  "
        f"signal {signal}  reward {reward}  exact {exact}  "
        f"held-out exact {judged.estimate()[0]:.1%} (step {judged.step})"
    )


def levels(progress: Progress) -> dict[str, int]:
    """The level that each task has reached, by task."""
    return dict.fromkeys(progress.ready["tasks"], 0) | {group.task: group.level for group in progress.seen}


def _averages(seen: Sequence[Seen]) -> tuple[str, str, str]:
    """Share of groups with a signal, mean reward, and share of exact answers."""
    rewards = [reward for group in seen for reward in group.rewards]
    if not rewards:
        return "-", "-", "-"
    scored = sum(group.scored for group in seen)
    signal, reward = sum(group.signal for group in seen) / len(seen), sum(rewards) / len(rewards)
    return f"{signal:.0%}", f"{reward:.2f}", f"{sum(group.exact for group in seen) / scored:.0%}" if scored else "-"


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right")
    return table


def task_table(progress: Progress) -> Table:
    """What was trained on, by task; reward and exact rate are those at the level of the moment, which rises."""
    table = _table("trained on", "groups", "with signal", f"last {RECENT}: reward", "exact", "level reached")
    for task, level in levels(progress).items():
        seen = [group for group in progress.seen if group.task == task]
        table.add_row(task, str(len(seen)), _averages(seen)[0], *_averages(seen[-RECENT:])[1:], str(level))
    return table


def curve(progress: Progress) -> Table:
    """The share of exact answers to the held-out questions, by step."""
    table = Table.grid(padding=(0, 2))
    for one in progress.evaluations:
        bar = Text("█" * round(BAR * one.estimate()[0]), "green")
        table.add_row(f"held-out exact, step {one.step}", _interval(one.estimate()), bar)
    return table


def before_and_after(progress: Progress) -> Table:
    """Share of exact answers and mean score, with 95 % intervals, of all held-out questions and by task."""
    before, after = progress.evaluations[0], progress.evaluations[-1]
    table = _table(f"{progress.ready['questions']} held-out questions", "", "before", f"after {after.step} steps")
    for task in ("", *progress.ready["tasks"]):
        for what, name, digits in (("exact", "exact", ".1%"), ("mean score", "percent_correct", ".3f")):
            told = [_interval(one.estimate(name, task), digits) for one in (before, after)]
            table.add_row((task or "all") if what == "exact" else "", what, *told)
    return table


def _interval(estimate: tuple[float, float, float], digits: str = ".1%") -> str:
    value, low, high = (format(number, digits) for number in estimate)
    return f"{value} [{low}, {high}]"


def print_summary(console: Console, progress: Progress, checks: Checks, logs: Path) -> int:
    """What happened, and where to look next; returns the exit code."""
    has_risen = progress.evaluations[-1].estimate()[1] > progress.evaluations[0].estimate()[2]
    console.print(
        f"\n[bold]Done in {progress.seconds:.0f} s,[/bold] because {progress.reason}.\n"
        f"  {progress.ready['library']}, groups of {GROUP_SIZE}; {progress.step} training steps on "
        f"{progress.sequences_trained} sequences from run-api\n  {progress.closing.get('outcomes', '')}\n",
        soft_wrap=True,
    )
    for table in (task_table(progress), curve(progress), before_and_after(progress)):
        print_table(console, table)
        console.print()
    if has_risen:
        told = "rose, the 95 % intervals do not overlap: a model learns from what this environment sends"
    else:
        told = "did not rise for certain, the 95 % intervals overlap: this run alone shows no learning"
    console.print(
        f"The share of exact answers {told}. What a large model would gain it does not show: this is tiny, and mostly "
        "elicits what its warm start half knows.\n",
        soft_wrap=True,
    )
    has_failed = bool(checks.faults) or not checks.groups
    told = checks.describe() if checks.groups else "no batch came, so nothing was checked and nothing learned"
    line = f"The trainer's checks {'FAILED' if has_failed else 'passed'}: {told}.\n"
    console.print(line, style="bold red" if has_failed else None, soft_wrap=True)
    console.print(
        f"rollouts: {progress.closing.get('rollouts', 'none')}\nheld-out: {logs}/held-out\nlogs:     {logs}\n"
        "next:     reasoning-gym-env report for rollouts and held-out answers; README.md, “Train a real model”",
        soft_wrap=True,
    )
    return int(has_failed)
