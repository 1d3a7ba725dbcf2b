"""The command: evaluate the tiny model, train it through run-api and `serve`, evaluate it again, and compare.

    learner (model, inference server, trainer)   in this process
    run-api, `serve`, `evaluate`                 processes of their own, the same that a real run has

What is served and evaluated stands in configs/demo.yaml, what is trained with at the head of this file.
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
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import aiohttp
from rich.table import Table

from ..evaluation.results import EvalResults, summarise
from ..utils.resilience import fail_if_it_ends, running, watched
from ..utils.terminal import Output, check_folder, positive, print_table

if TYPE_CHECKING:
    from .learner import Checks, Learner

STEPS = 240
MAX_SECONDS = 70.0
GROUP_SIZE = 8
GROUPS_PER_BATCH = 4
MAX_TOKENS = 256
"""Of prompt and completion; half of the model's context, because evaluation may use twice as much."""

CONFIG = Path(__file__).resolve().parent.parent / "configs" / "demo.yaml"
POLL_S = 0.05


def main(arguments: Sequence[str]) -> int:
    """Parse the options and run; returns the exit code: 1 if a check of the trainer's failed.

    Raises EnvironmentSetupError if a process ends that should not, or nothing can be written.
    """
    parser = argparse.ArgumentParser(
        prog="reasoning-gym-env demo",
        description="Train a tiny model on this machine, through Atropos' run-api and this environment's serve: half a "
        "million weights in numpy, whose accuracy on held-out questions is measured before and after. It "
        "ends with the first limit that is reached. No GPU, no network, less than two minutes.",
    )
    for name, kind, default, text in (
        ("--steps", positive, STEPS, f"training steps to make (default: {STEPS})"),
        ("--max-seconds", float, MAX_SECONDS, f"seconds to train for (default: {MAX_SECONDS:g})"),
        ("--seed", int, 1918, "seed of items and sampling (default: 1918)"),
        ("--dumps", Path, Path("data_dumps"), "where rollouts go (default: data_dumps)"),
        ("--groups", str, None, argparse.SUPPRESS),
    ):
        parser.add_argument(name, type=kind, default=default, help=text)
    given = parser.parse_args(arguments)
    if given.groups is not None:
        parser.error("--groups was removed: use --steps, each of which trains on 4 groups")
    if not given.max_seconds > 0:
        parser.error("--max-seconds must be positive")
    check_folder("--dumps", given.dumps)
    # One thread multiplies matrices of this size fastest. Numpy reads this once, and is not loaded yet.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        return asyncio.run(_interruptible(_Demo(given).run()))
    except (asyncio.CancelledError, KeyboardInterrupt):
        # The clean-up is done. A second Ctrl-C must not become a traceback while the interpreter ends.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("Stopped; nothing is left running.")
        return 130


async def _interruptible(work: Coroutine[Any, Any, int]) -> int:
    """Cancel the work at the first Ctrl-C. A second one must not interrupt the clean-up, which takes seconds."""
    task = asyncio.ensure_future(work)
    received = asyncio.Event()

    def stop() -> None:
        if not received.is_set():
            received.set()
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    return await task


class _Demo:
    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._logs = Path(tempfile.mkdtemp(prefix="reasoning-gym-demo-"))
        self._api = f"http://127.0.0.1:{free_port()}"
        self._started = time.monotonic()
        self._step = 0

    async def run(self) -> int:
        """The whole demo, from first process to summary; returns the exit code."""
        self._say("loading the model")
        from .learner import Learner

        async with Learner(group_size=GROUP_SIZE, seed=self._options.seed) as learner:
            before = await self._evaluate(learner, "before")
            reason = await self._train(learner)
            after = await self._evaluate(learner, "after")
        print(f"\nDone in {time.monotonic() - self._started:.0f} s. The training ended because {reason}.\n")
        print_table(Output(), before_and_after(before, after, self._step))
        return print_summary(before, after, learner.checks, self._options.dumps, self._logs)

    def _say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._started:5.1f} s] {text}", flush=True)

    async def _evaluate(self, learner: Learner, when: str) -> EvalResults:
        """Ask the held-out questions of the weights of this moment."""
        self._say(f"asking the held-out questions {when} training")
        folder, log = self._logs / f"held-out-{when}", self._logs / f"evaluate-{when}.log"
        command = self._command("evaluate", learner.base_url, {"env.data_dir_to_save_evals": str(folder)})
        async with running("reasoning_gym_environment", *command, log=log) as evaluating:
            if await evaluating.wait():
                await fail_if_it_ends(evaluating, "evaluate", log)
        return summarise([json.loads(line) for line in (folder / "samples.jsonl").read_text("utf-8").splitlines()])

    async def _train(self, learner: Learner) -> str:
        """Train until a limit is reached; returns which one."""
        self._say("starting run-api and serve")
        api_log, log = self._logs / "run-api.log", self._logs / "serve.log"
        async with contextlib.AsyncExitStack() as stack:
            arguments = ("--host", "127.0.0.1", "--port", self._api.rpartition(":")[2])
            api = await stack.enter_async_context(running("atroposlib.cli.run_api", *arguments, log=api_log))
            training = asyncio.ensure_future(self._learn(learner))
            command = self._command("serve", learner.base_url, {"env.rollout_server_url": self._api})
            serve = await stack.enter_async_context(running("reasoning_gym_environment", *command, log=log))
            await watched(training, fail_if_it_ends(api, "run-api", api_log), fail_if_it_ends(serve, "serve", log))
        return training.result()

    def _command(self, command: str, base_url: str, settings: dict[str, str]) -> list[str]:
        from .learner import TINY_MODEL

        values = {
            "env.tokenizer_name": str(TINY_MODEL),
            "env.seed": str(self._options.seed),
            "env.group_size": str(GROUP_SIZE),
            "env.batch_size": str(GROUP_SIZE * GROUPS_PER_BATCH),
            "env.max_token_length": str(MAX_TOKENS),
            "env.data_dumps_dir": str(self._options.dumps),
            "openai.base_url": base_url,
            "openai.model_name": "tiny",
            **settings,
        }
        flags = [text for name, value in values.items() for text in (f"--{name}", value)]
        return [command, "--config", str(CONFIG), *flags]

    async def _learn(self, learner: Learner) -> str:
        """Take batches of run-api and learn from them until a limit is reached; returns which one."""
        began, told = time.monotonic(), 0.0
        async with aiohttp.ClientSession(self._api) as session:
            await self._register(session)
            while self._step < self._options.steps:
                async with session.get("/batch") as response:
                    batch = (await response.json())["batch"]
                if batch is None:
                    # Nothing to learn from yet; before the first batch `serve` is still starting.
                    began = began if self._step else time.monotonic()
                    await asyncio.sleep(POLL_S)
                    continue
                await learner.train(batch)
                self._step += 1
                if (trained := time.monotonic() - began) >= self._options.max_seconds:
                    return f"the {self._options.max_seconds:g} s of --max-seconds are over"
                if trained - told >= 3.0:
                    told, groups = trained, self._step * GROUPS_PER_BATCH
                    reward = fmean(score for group in batch for score in group["scores"])
                    rate = groups / trained
                    self._say(f"training: step {self._step}, {groups} groups, {rate:.1f}/s, reward {reward:.2f}")
        return f"the {self._options.steps} steps of --steps are made"

    async def _register(self, session: aiohttp.ClientSession) -> None:
        names = {"wandb_group": "demo", "wandb_project": "demo", "checkpoint_dir": str(self._logs)}
        sizes = {"batch_size": GROUP_SIZE * GROUPS_PER_BATCH, "max_token_len": MAX_TOKENS}
        # More steps than will be made: the demo ends `serve` itself.
        steps = {"starting_step": 0, "num_steps": 1_000_000, "save_checkpoint_interval": 10}
        while True:
            try:
                async with session.post("/register", json={**names, **sizes, **steps}) as response:
                    response.raise_for_status()
                    return
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(POLL_S)


def free_port() -> int:
    """A port of the loopback interface that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# --- the summary


def before_and_after(before: EvalResults, after: EvalResults, steps: int) -> Table:
    """Share of right answers, with 95 % intervals, of all held-out questions and by task."""
    table = Table(box=None, pad_edge=False)
    for name in (f"{before.overall.questions} held-out questions", "before", f"after {steps} steps"):
        table.add_column(name, justify="left" if not table.columns else "right")
    for name, *sides in [
        ("all, right answers", before.overall.exact, after.overall.exact),
        *((was.name, was.exact, now.exact) for was, now in zip(before.tasks, after.tasks, strict=True)),
    ]:
        shown = (f"{one.value:.1%} [{one.low:.1%}, {one.high:.1%}]" if one else "-" for one in sides)
        table.add_row(name, *shown)
    return table


def print_summary(before: EvalResults, after: EvalResults, checks: Checks, dumps: Path, logs: Path) -> int:
    """What this shows and what not, the trainer's checks, and where to look next; returns the exit code."""
    was, now = before.overall.exact, after.overall.exact
    told = "did not rise for certain, the 95 % intervals overlap: this run alone shows no learning"
    if was and now and now.low > was.high:
        told = "rose, the 95 % intervals do not overlap: a model learns from what this environment sends"
    has_failed = bool(checks.faults) or not checks.groups
    print(
        f"\nThe share of right answers {told}. It does not show what a large model would gain: this one is tiny, and "
        f"mostly learns to give answers that it half knew.\n\nThe trainer's checks "
        f"{'FAILED' if has_failed else 'passed'}: {checks.describe()}.\n"
    )
    print(
        f"rollouts: {dumps}/*.jsonl\nheld-out: {logs}/held-out-before, held-out-after\nlogs:     {logs}\n"
        f"next:     reasoning-gym-env report {logs}/held-out-* {dumps}/*.jsonl -o report.html\n"
        "          README.md, “Train a real model”"
    )
    return int(has_failed)
