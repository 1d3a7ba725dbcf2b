"""What Atropos asks of an environment around the way of a problem: wandb, checkpoints, the trajectory API, commands.

The way of a problem is in env.py, whose class has this one as its base. Between them they replace Atropos' own loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import uuid
from collections.abc import Awaitable, Coroutine
from typing import Any

import wandb
from atroposlib.envs import base
from atroposlib.envs.base import BaseEnv, BaseEnvConfig

from ..errors import EnvironmentSetupError
from ..inference.client import InferenceClient, Spending
from ..inference.servers import ServerSettings, adapters_of
from ..parts import Parts
from ..sampling.item_stream import ItemStream, Sampler
from ..storage.json_lines import AppendLog
from ..telemetry.telemetry import Telemetry, build_table
from ..utils.resilience import Background, RepeatedEvents, watched, within
from . import command_line, preflight
from .checkpoints import RunCheckpoints
from .evaluate import evaluate_once
from .process import process
from .serve_loop import ServeLoop, is_passed
from .session import ApiSession, RunState

logger = logging.getLogger(__name__)

STEP_S = 5.0
"""How long one step of the end may take: a file system that hangs must not keep the process."""

TABLES = 100
"""The n-th log step has tables if n is a multiple of n // TABLES: the first 200 have, and later every hundredth.
Each table is a file of megabytes, which wandb keeps on the disk of the run."""


async def run_to_the_end(work: Coroutine[Any, Any, None], end: Coroutine[Any, Any, None]) -> None:
    """Run `work`, then `end`, whatever becomes of the work.

    Exits with 128 + its number if a signal ended it; a second one ends the process.
    """
    task, loop = asyncio.ensure_future(work), asyncio.get_running_loop()
    received: list[int] = []
    names: dict[int, str] = {number: number.name for number in (signal.SIGINT, signal.SIGTERM)}

    def stop(number: int) -> None:
        if received:
            os._exit(128 + number)
        received.append(number)
        logger.warning("%s: writing what is buffered and closing; once more to stop at once.", names[number])
        task.cancel()

    for number in names:
        # Only the main thread of the main interpreter can handle signals; elsewhere the host program does.
        with contextlib.suppress(RuntimeError, ValueError):
            loop.add_signal_handler(number, stop, number)
    try:
        await task
    except asyncio.CancelledError:
        if not received:
            task.cancel()
            raise
    finally:
        await end
        for number in names:
            loop.remove_signal_handler(number)
    if received:
        logger.info("Closed: stopped by %s.", names[received[0]])
        sys.exit(128 + received[0])


async def attempt(what: str, step: Awaitable[Any], limit_s: float | None = STEP_S) -> None:
    """Make one step of the end. If it fails or takes longer, a line says so, and the end goes on."""
    try:
        await within(limit_s, step)
    except asyncio.TimeoutError:
        logger.error("At the end, %s was left after %g s.", what, limit_s)
    except Exception as error:
        # A disk that refuses says all in one line; anything else is an error of ours.
        logger.error("At the end, %s failed: %s", what, error, exc_info=not isinstance(error, OSError))


class RunHooks(BaseEnv):
    """The run around an environment, and Atropos' hooks for it. `draw` and `work` of the loop are the environment's."""

    # Set by `setup` of the environment.
    parts: Parts | None = None
    sampler: Sampler
    items_sent_this_step: int

    def __init__(self, config: BaseEnvConfig, server_configs: preflight.ServerConfigs, **options: Any) -> None:
        debug = config.debug_logging
        logging.getLogger(base.__name__).setLevel(logging.WARNING if config.suppress_base_env_logs else logging.INFO)
        logging.getLogger(__package__.partition(".")[0]).setLevel(logging.DEBUG if debug else logging.NOTSET)
        # A line for each request of an OpenAI client would bury all others.
        for client in ("httpx", "httpx2", "openai"):
            logging.getLogger(client).setLevel(logging.NOTSET if debug else logging.WARNING)
        server_configs = preflight.prepare_servers(server_configs, config.tokenizer_name)
        # Atropos opens a file of groups at once, under another name if it exists, and empties what it opens.
        without_file = config.model_copy(update={"data_path_to_save_groups": None})
        with preflight.tokenizers_loaded_once(config, server_configs):
            super().__init__(without_file, server_configs, **options)
        self.config = config
        self.run_uuid = str(uuid.uuid4())
        self.eval_metrics: list[tuple[str, Any]] = []
        self.failures = RepeatedEvents(logger)
        self.log = Telemetry(config, self.run_uuid)
        drops = config.ensure_scores_are_not_same
        self.run = RunState(config.group_size, config.batch_size, config.total_steps, drops_equal_scores=drops)
        self.inference = InferenceClient(
            adapters_of(self.server.servers, self.tokenizer, ServerSettings.of(config)),
            self.tokenizer,
            config.tokenizer_name,
            spending=Spending(config.price_per_million, config.limit_tokens),
        )
        self.checkpoints = RunCheckpoints(config, self.run)
        self.session = ApiSession(config, self.run, self.failures)
        self.loop = ServeLoop(self)
        self._groups: AppendLog | None = None
        self._needs_questions = True
        self._log_steps = 0

    @property
    def started(self) -> Parts:
        """The parts. Raises EnvironmentSetupError before `setup`."""
        if self.parts is None:
            raise EnvironmentSetupError("The environment is not set up: await env.setup() first.")
        return self.parts

    @property
    def stream(self) -> ItemStream:
        """The training items. Raises EnvironmentSetupError before `setup`."""
        assert self.started
        return self.sampler.stream

    # --- wandb

    async def create_rollout_table(self, wandb_metrics: dict[str, Any]) -> dict[str, Any]:
        """Add the table of kept rollouts: full_text, score, expected_answer, task_name."""
        if self.rollouts_for_wandb and self.config.use_wandb:
            wandb_metrics["train/rollouts"] = build_table(self.rollouts_for_wandb)
        return wandb_metrics

    async def wandb_log(self, wandb_metrics: dict[str, Any] | None = None) -> None:
        """Log everything counted since the last step, then Atropos' own metrics.

        Whatever wandb raises is counted and costs this step's metrics, not the training.
        """
        self._log_steps += 1
        has_tables = self._log_steps % max(1, self._log_steps // TABLES) == 0
        if not has_tables:
            self.rollouts_for_wandb.clear()
        metrics = {**(wandb_metrics or {}), **self.log.drain(has_tables=has_tables), **dict(self.eval_metrics)}
        self.eval_metrics.clear()
        if self.parts is not None:
            metrics |= {**self.sampler.metrics(), **self.parts.metrics(), **self.inference.metrics()}
        metrics |= {**self.failures.metrics("train/failures"), **self.session.metrics()}
        # wandb drops what is below its last step, which a trainer that is restarted goes back to.
        self.curr_step = self.run.step + self.run.steps_again
        self.max_token_len, self.wandb_prepend = self.run.max_token_len, self.run.metrics_prefix
        # wandb's service is a process of its own, which can end; then every call fails, in undocumented ways.
        try:
            await super().wandb_log(metrics)
        except Exception as error:  # noqa: BLE001
            self.failures.note("metrics not logged to wandb", f"{type(error).__name__}: {error}")
        # Atropos keeps a number for every request of the run, and averages over all of them each step.
        for server in self.server.servers:
            for name in ("request_timings", "attempts_list", "eval_request_timings", "eval_attempts_list"):
                getattr(server, name, []).clear()

    async def setup_wandb(self) -> None:
        """Let Atropos start the wandb run, in the project of the trainer, which must have registered.

        While wandb is unavailable, its run is kept on disk: a restart in the middle of a run must not wait for it.
        """
        try:
            await super().setup_wandb()
        except wandb.errors.CommError as error:
            # What wandb refuses it says at once.
            if "timed out" not in str(error).lower():
                raise
            logger.warning("wandb is unavailable: metrics are kept in wandb/offline-run-*, `wandb sync` sends them.")
            wandb.setup(settings=wandb.Settings(mode="offline"))
            self.wandb_project = None
            await super().setup_wandb()

    # --- checkpoints

    def save_checkpoint(self, step: int, data: dict[str, Any] | None = None) -> Awaitable[None]:
        """Begin to write the checkpoint of `step`, with `data` beside the state; a disk that refuses is reported.

        To await what is returned is to wait for the disk.
        """
        return self.checkpoints.begin(step, data)

    def load_checkpoint(self) -> None:
        """Continue from the newest usable checkpoint; see `RunCheckpoints.load`."""
        self.checkpoints.load()
        if self.checkpoints.is_resumed:
            self.run_uuid = self.log.dumps.run_id
            logger.info("The next item is %d of stream %r.", self.stream.index, self.stream.instance)

    # --- the trajectory API

    async def register_env(self) -> None:
        """Register with the trajectory API, and continue this run; a new one gets the name of its item stream.

        A run that continues from a checkpoint keeps the stream it had, whatever number it gets now.
        """
        await self.session.register()
        if self.run.checkpoint_interval <= 0:
            logger.warning("The trainer asks for no checkpoints: after a restart the item stream would begin anew.")
        else:
            self.load_checkpoint()
        if not self.checkpoints.is_resumed:
            self.stream.instance = self.checkpoints.stream_name()
            logger.info("This instance draws item stream %r.", self.stream.instance)
        if (number := self.checkpoints.killed_number) is not None:
            logger.warning("Signing off environment %d, which this one was before it was killed.", number)
            await self.session.sign_off(number)
        # At once, so that a run that is killed early finds its own checkpoint and not an older run's.
        await self.checkpoints.save_latest()

    async def get_server_info(self) -> None:
        """Take over the trainer's limits. Raises EnvironmentSetupError if a group is larger than its batch."""
        await self.session.take_over_limits()

    async def get_status(self) -> None:
        """Ask the API where the run stands, for `status_dict`. Does not return while the API is unavailable."""
        self.status_dict = await self.session.status()
        await self.server.update_weight(self.status_dict["env_weight"])

    async def env_step_checks(self) -> None:
        """Heed the trainer's step in `status_dict`: evaluation, checkpoint, log. Called after each status."""
        before, now = self.run.step, self.status_dict["current_step"]
        interval = self.run.checkpoint_interval
        self.run.step = now
        if is_passed(before, now, self.config.steps_per_eval):
            self.loop.begin_evaluation()
        if is_passed(before, now, interval):
            self.save_checkpoint(now // interval * interval)
        if before != now and self.items_sent_this_step >= self.config.min_items_sent_before_logging:
            self.items_sent_this_step = 0
            await self.wandb_log({})
        self.checkpoints.begin_if_due()

    # --- the three commands, and their end

    @classmethod
    def cli(cls) -> None:
        """`serve`, `process` or `evaluate`, as the process's arguments say; see atropos.command_line."""
        command_line.run(cls, sys.argv[1:])

    async def env_manager(self) -> None:
        """`serve`: generate groups for a trainer until total_steps, then close."""
        await run_to_the_end(self._serve(), self._end())

    async def process_manager(self) -> None:
        """`process`: write exactly total_steps groups to a file, then close."""
        self._needs_questions = False
        await run_to_the_end(process(self), self._end())

    async def _run_evaluate(self, settings: str = "") -> None:
        """`evaluate`: score the held-out set once, then close. `settings` is kept beside the results, as YAML."""
        await run_to_the_end(evaluate_once(self, settings), self._end())

    async def _serve(self) -> None:
        await preflight.check_serve(self.config, self.inference)
        self._needs_questions = False
        await watched(self.setup(), preflight.check_first_request(self))
        self.stream.may_overtake = True
        await self.register_env()
        await self.get_server_info()
        await self.setup_wandb()
        await self.loop.run()

    async def _end(self) -> None:
        await attempt("stopping what is in progress", self.loop.stop(), None)
        await attempt("closing the environment", self.close(), None)
        # It may have much to send.
        await attempt("finishing the wandb run", asyncio.to_thread(wandb.finish), None)

    async def close(self) -> None:
        """Send what waits, flush the dumps, save the state and stop everything that was started. Safe to call twice.

        Every step is made, whatever becomes of the others; what fails or hangs is logged.
        """
        await attempt("leaving the trajectory API", self.session.close())
        await attempt("finishing the dumps", self.log.dumps.close())
        if self._groups is not None:
            await attempt("finishing the file of groups", Background("groups").submit(self._groups.close))
        self.failures.summarise()
        self.log.outcomes.summarise()
        if self.parts is not None:
            await attempt("writing the last checkpoint", self.checkpoints.save_latest())
        self.checkpoints.leave()
        if self.parts is not None:
            await attempt("stopping the item stream", self.stream.close(), None)
            await attempt("stopping the workers", self.parts.close(), None)
