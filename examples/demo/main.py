"""The demo: evaluate the tiny model, train it through run-api and `serve`, evaluate it again, and compare.

    learner (model, inference server, trainer)   in this process
    run-api, `serve`, `evaluate`                 separate processes, as in a real run

demo.yaml has the settings of `serve` and `evaluate`. The constants below have the sizes of the training.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Coroutine, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import aiohttp
from rich.table import Table

from reasoning_gym_environment.evaluation.results import EvalResults, summarise
from reasoning_gym_environment.evaluation.statistics import Estimate
from reasoning_gym_environment.utils.resilience import supervise
from reasoning_gym_environment.utils.terminal import Output, check_folder, positive, print_table
from testing.inference_server import free_port
from testing.processes import fail_if_it_ends, running

if TYPE_CHECKING:
    from .learner import Checks, Learner

STEPS = 240
MAX_SECONDS = 70.0
GROUP_SIZE = 8
GROUPS_PER_BATCH = 4
MAX_TOKENS = 256
"""Limit of prompt and completion together: half of the model's context, because evaluation may use twice as much."""

CONFIG = Path(__file__).resolve().parent / "demo.yaml"
POLL_S = 0.05
REPORT_S = 3.0
"""Seconds between two lines about the training."""


def main(arguments: Sequence[str]) -> int:
    """Parse the options and run; returns the exit code: 1 if one of the trainer's checks failed, 130 after Ctrl-C.

    Raises EnvironmentSetupError if a process ends too early, or if a folder cannot be written.
    """
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo",
        description="Train a tiny model on this machine, through Atropos' run-api and this environment's serve: half a "
        "million weights in numpy. The demo measures its accuracy on held-out questions before and after the training, "
        "which ends at the first of the limits below. No GPU, no network, about two minutes.",
    )
    steps_help = f"training steps (default: {STEPS})"
    seconds_help = f"seconds of training (default: {MAX_SECONDS:g})"
    dumps_help = "the folder for rollouts (default: data_dumps)"
    parser.add_argument("--steps", type=positive, default=STEPS, help=steps_help)
    parser.add_argument("--max-seconds", type=float, default=MAX_SECONDS, help=seconds_help)
    parser.add_argument("--seed", type=int, default=1918, help="seed of items and sampling (default: 1918)")
    parser.add_argument("--dumps", type=Path, default=Path("data_dumps"), help=dumps_help)
    given = parser.parse_args(arguments)
    if not given.max_seconds > 0:
        parser.error("--max-seconds must be positive")
    check_folder("--dumps", given.dumps)
    # One thread multiplies matrices of this size fastest. Numpy reads this variable at its import, which is later.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Transformers loads only the tokenizer, so its advice to install PyTorch does not matter.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        return asyncio.run(_interruptible(_Demo(given).run()))
    except (asyncio.CancelledError, KeyboardInterrupt):
        # The cleanup is complete. A second Ctrl-C must not become a traceback while the interpreter ends.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("Stopped. All processes of the demo have ended.")
        return 130


async def _interruptible(work: Coroutine[Any, Any, int]) -> int:
    """Cancel the work at the first Ctrl-C. A second one must not interrupt the cleanup, which takes seconds."""
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
        self._began_at = time.time()
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
        print_table(Output(), before_and_after(before, after, self._step, self._last_levels()))
        return print_summary(before, after, learner.checks, self._options.dumps, self._logs)

    def _say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._started:5.1f} s] {text}", flush=True)

    async def _evaluate(self, learner: Learner, when: str) -> EvalResults:
        """Evaluate the present weights on the held-out questions."""
        self._say(f"evaluating the held-out questions {when} training")
        folder = self._logs / f"held-out-{when}"
        log = self._logs / f"evaluate-{when}.log"
        command = self._command("evaluate", learner.base_url, {"env.data_dir_to_save_evals": str(folder)})
        async with running("reasoning_gym_environment", *command, log=log) as evaluating:
            if await evaluating.wait():
                await fail_if_it_ends(evaluating, "evaluate", log)
        lines = (folder / "samples.jsonl").read_text("utf-8").splitlines()
        return summarise([json.loads(line) for line in lines])

    async def _train(self, learner: Learner) -> str:
        """Train until a limit is reached; returns which one."""
        self._say("starting run-api and serve")
        api_log = self._logs / "run-api.log"
        log = self._logs / "serve.log"
        async with contextlib.AsyncExitStack() as stack:
            arguments = ("--host", "127.0.0.1", "--port", self._api.rpartition(":")[2])
            api = await stack.enter_async_context(running("atroposlib.cli.run_api", *arguments, log=api_log))
            training = asyncio.ensure_future(self._learn(learner))
            command = self._command("serve", learner.base_url, {"env.rollout_server_url": self._api})
            serve = await stack.enter_async_context(running("reasoning_gym_environment", *command, log=log))
            await supervise(training, fail_if_it_ends(api, "run-api", api_log), fail_if_it_ends(serve, "serve", log))
        return training.result()

    def _last_levels(self) -> dict[str, int]:
        """The level of the newest group of each task."""
        groups = []
        for path in self._options.dumps.glob("*.jsonl"):
            # The folder may have dumps of earlier runs.
            if path.stat().st_mtime > self._began_at:
                groups += [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        groups.sort(key=itemgetter("scored_at_step", "index"))
        return {group["task"]: group["level"] for group in groups}

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
        flags = [f"--{name}={value}" for name, value in values.items()]
        return [command, "--config", str(CONFIG), *flags]

    async def _learn(self, learner: Learner) -> str:
        """Train on the batches of run-api until a limit is reached; returns the name of that limit."""
        began = time.monotonic()
        reported_s = 0.0
        async with aiohttp.ClientSession(self._api) as session:
            await self._register(session)
            while self._step < self._options.steps:
                async with session.get("/batch") as response:
                    batch = (await response.json())["batch"]
                if batch is None:
                    if self._step == 0:
                        # `serve` is still starting: the time does not count.
                        began = time.monotonic()
                    await asyncio.sleep(POLL_S)
                    continue
                await learner.train(batch)
                self._step += 1
                trained_s = time.monotonic() - began
                if trained_s >= self._options.max_seconds:
                    return f"it reached the limit of {self._options.max_seconds:g} s (--max-seconds)"
                if trained_s - reported_s >= REPORT_S:
                    reported_s = trained_s
                    groups = self._step * GROUPS_PER_BATCH
                    reward = fmean(fmean(group["scores"]) for group in batch)
                    rate = groups / trained_s
                    self._say(f"training: step {self._step}, {groups} groups, {rate:.1f}/s, reward {reward:.2f}")
        return f"it reached the limit of {self._options.steps} steps (--steps)"

    async def _register(self, session: aiohttp.ClientSession) -> None:
        names = {"wandb_group": "demo", "wandb_project": "demo", "checkpoint_dir": str(self._logs)}
        sizes = {"batch_size": GROUP_SIZE * GROUPS_PER_BATCH, "max_token_len": MAX_TOKENS}
        # The number of steps is never reached, because the demo ends `serve` itself.
        steps = {"starting_step": 0, "num_steps": 1_000_000, "save_checkpoint_interval": 10}
        while True:
            try:
                async with session.post("/register", json={**names, **sizes, **steps}) as response:
                    response.raise_for_status()
                    return
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(POLL_S)


# --- the summary


def before_and_after(before: EvalResults, after: EvalResults, steps: int, levels: Mapping[str, int]) -> Table:
    """Share of right answers, with 95 % intervals, of all held-out questions and by task.

    `levels` has the level of each task at the end. All tasks begin at level 0.
    """
    table = Table(box=None, pad_edge=False)
    for name in (f"{before.overall.questions} held-out questions", "before", f"after {steps} steps", "level"):
        table.add_column(name, justify="left" if not table.columns else "right")
    table.add_row("all, right answers", _share(before.overall.exact), _share(after.overall.exact), "")
    for was, now in zip(before.tasks, after.tasks, strict=True):
        table.add_row(was.name, _share(was.exact), _share(now.exact), f"0 to {levels.get(was.name, 0)}")
    return table


def _share(estimate: Estimate | None) -> str:
    if estimate is None:
        return "-"
    return f"{estimate.value:.1%} [{estimate.low:.1%}, {estimate.high:.1%}]"


def print_summary(before: EvalResults, after: EvalResults, checks: Checks, dumps: Path, logs: Path) -> int:
    """Print what the run shows, the result of the trainer's checks, and the next steps; returns the exit code."""
    was = before.overall.exact
    now = after.overall.exact
    if was and now and now.low > was.high:
        finding = "The share of right answers rose, and the 95 % intervals do not overlap: the model learned."
    else:
        finding = "The 95 % intervals of the share of right answers overlap: this run alone does not show learning."
    has_failed = bool(checks.faults) or not checks.groups
    result = "FAILED" if has_failed else "passed"
    print(f"\n{finding}")
    print("A large model may gain more or less: this tiny model starts with partial skill at these tasks.")
    print(f"\nThe trainer's checks {result}: {checks.describe()}.\n")
    print(f"rollouts: {dumps}/*.jsonl")
    print(f"held-out: {logs}/held-out-before, held-out-after")
    print(f"logs:     {logs}")
    # `make demo` does not activate the virtual environment.
    command = os.path.relpath(Path(sys.executable).with_name("reasoning-gym-env"))
    compared = f"--compare {logs}/held-out-before {logs}/held-out-after"
    print(f"next:     {command} report {compared} {dumps}/*.jsonl -o report.html")
    print("          README.md, “Train a real model”")
    return int(has_failed)
