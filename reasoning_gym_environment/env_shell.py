"""What Atropos needs around the flow of a problem: construction, logging, checkpoints, the three commands, the end.

`env.ReasoningGymEnv` adds the flow itself.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from atroposlib.envs.base import APIServerConfig, ServerBaseline

from .atropos import preflight
from .atropos.checkpoints import Resuming, Stateful, forget_registration, replace_registration
from .atropos.command_line import AtroposCommandLine
from .atropos.conversions import ProblemDataset, problem_of
from .atropos.session import ApiLink
from .atropos.shutdown import attempt, freeze_memory, quiet_base_env, run_to_the_end
from .atropos.steps import StepChecks
from .atropos.trajectory_api import ApiUnavailableError
from .components import Components
from .config import ReasoningGymEnvConfig
from .errors import EnvironmentSetupError
from .inference.availability import InferenceHealth
from .process import process_groups
from .records import Problem
from .training_log.dumps import RolloutDumps
from .training_log.group_outcomes import Funnel
from .training_log.metrics import Breakdown, RewardParts, TrainMetrics
from .training_log.wandb_tables import ConversationLog, build_table, table_rows
from .utils.aio import in_background
from .utils.outage_log import Outage, RepeatedEvents

logger = logging.getLogger(__name__)


DELIVERY_GRACE_S = 2.0
"""How long groups that wait for the trajectory API may hold up the end."""


class EnvShell(AtroposCommandLine, ApiLink, Resuming, StepChecks):
    """A BaseEnv that starts with clear errors, logs, continues from checkpoints, and always closes."""

    config: ReasoningGymEnvConfig

    def __init__(
        self,
        config: ReasoningGymEnvConfig,
        server_configs: ServerBaseline | Sequence[APIServerConfig],
        slurm: bool = False,
        testing: bool = False,
    ) -> None:
        quiet_base_env(config.suppress_base_env_logs, debug=config.debug_logging)
        server_configs = preflight.prepare_servers(server_configs, config.tokenizer_name)
        if (client := preflight.server_class(server_configs)) is not None:
            self.server_cls = client
        preflight.check_tokenizers(config, server_configs)
        super().__init__(config, server_configs, slurm=slurm, testing=testing)
        self.run_uuid = str(uuid.uuid4())
        self.datadumps_dir = Path(config.data_dumps_dir)
        self.eval_metrics: list[tuple[str, Any]] = []
        self.test_items_with_scorers: list[tuple[dict[str, Any], ProblemDataset]] = []
        self.task_names: list[str] = []
        self.parts: Components | None = None
        self.train_metrics = TrainMetrics()
        self.breakdown = Breakdown()
        self.reward_parts = RewardParts()
        self.conversations = ConversationLog(
            groups=config.num_rollouts_to_keep if config.use_wandb else 0,
            per_group=config.num_rollouts_per_group_for_logging,
        )
        self.funnel = Funnel()
        self.failures = RepeatedEvents(logger)
        self.tries_items_again = True
        self.inference_health = InferenceHealth()
        self.inference_limit_s: float | None = None
        self.group_limit_s = config.worker_timeout if config.worker_timeout > 0 else None
        self.servers_outage = Outage(logger, "Every inference server", first_delay_s=0.0, max_delay_s=0.0)
        self.dumps: RolloutDumps | None = None

    @property
    def iter(self) -> int:
        """Index of the next training item."""
        return self.parts.sampler.index if self.parts else 0

    @property
    def percent_correct_buffer(self) -> list[float]:
        """1.0 or 0.0 for each rollout since the last log step: whether its score is at least 0.5."""
        return self.train_metrics.percent_correct

    @property
    def _wired(self) -> Components:
        if self.parts is None:
            raise EnvironmentSetupError("The environment is not set up: await env.setup() first.")
        return self.parts

    async def close(self) -> None:
        """Send what waits, flush the dumps, save the state and stop everything that was started. Safe to call twice.

        Every step is made, whatever becomes of the others; what fails or hangs is logged.
        """
        try:
            grace_s = 0.0 if self._api_outage.is_on else DELIVERY_GRACE_S
            await attempt("sending the groups that wait", lambda: self.outbox.close(grace_s))
            if self.dumps is not None:
                await attempt("finishing the dumps", self.dumps.close)
            if (groups := self.jsonl_writer) is not None:
                await attempt("finishing the file of groups", lambda: in_background(groups.close))
            if self.parts is not None:
                await attempt("writing the last checkpoint", self.checkpoint_latest)
            self.train_metrics.summarise_violations()
            self.failures.summarise()
            self.funnel.summarise()
        finally:
            if (folder := self._folder) is not None:
                forget = partial(forget_registration, folder.path)
                await attempt("giving up the number at the trajectory API", lambda: in_background(forget))
            self.leave_run()
            if (parts := self.parts) is not None:
                await attempt("stopping the workers", parts.close, is_limited=False)

    # --- wandb

    async def add_rollouts_for_wandb(self, scored_data: Any, item: Any = None) -> None:
        """Keep some rollouts of a group for the table `train/rollouts`."""
        expected, task = ("", "") if item is None else (item[1].get("answer"), problem_of(*item[1:]).task)
        rows = table_rows(
            scored_data,
            decode=self.tokenizer.decode,
            keep=self.config.num_rollouts_per_group_for_logging,
            expected_answer=expected,
            task=task,
        )
        self.rollouts_for_wandb.append(rows)
        del self.rollouts_for_wandb[: -self.config.num_rollouts_to_keep or None]

    async def create_rollout_table(self, wandb_metrics: dict[str, Any]) -> dict[str, Any]:
        """Add the table of kept rollouts: full_text, score, expected_answer, task_name."""
        if self.rollouts_for_wandb and self.config.use_wandb:
            wandb_metrics["train/rollouts"] = build_table(self.rollouts_for_wandb)
        return wandb_metrics

    async def wandb_log(self, wandb_metrics: dict[str, Any] | None = None) -> None:
        """Log everything counted since the last step, then Atropos' own metrics.

        Whatever wandb raises is counted and costs this step's metrics, not the training.
        """
        metrics = {**(wandb_metrics or {}), **self.train_metrics.drain(), **self.breakdown.drain()}
        metrics.update(self.reward_parts.drain())
        metrics.update(self.conversations.drain())
        metrics.update(self.eval_metrics)
        self.eval_metrics.clear()
        if self.parts is not None:
            metrics.update(self.parts.metrics())
        metrics.update(self.failures.metrics("train/failures"))
        for part in (self.funnel, self.dumps, self.inference_health):
            metrics.update(part.metrics() if part is not None else {})
        metrics.update(self._link_metrics())
        metrics.update(self.servers_outage.metrics("inference/all_servers"))
        # Its service is a process of its own, which can end; then every call fails, in ways that nobody documents.
        try:
            await super().wandb_log(metrics)
        except Exception as error:  # noqa: BLE001
            self.failures.note("metrics not logged to wandb", f"{type(error).__name__}: {error}")
        self._forget_what_was_logged()

    def _forget_what_was_logged(self) -> None:
        """Atropos keeps a number for every request and group of the run, and averages over all of them each step."""
        for server in self.server.servers:
            for name in ("request_timings", "attempts_list", "eval_request_timings", "eval_attempts_list"):
                getattr(server, name, []).clear()
        self.task_successful.clear()

    def get_curriculum_stats(self) -> dict[str, Any]:
        """Where the curriculum stands: totals, and per task level, recent accuracy and adjustments."""
        return {"mode": self.config.complexity_mode, **self._wired.curriculum.stats()}

    # --- checkpoints

    def stateful(self) -> Mapping[str, Stateful]:
        """Everything that a checkpoint holds, by name."""
        assert self.dumps is not None, "set up with the components"
        return {**self._wired.stateful, "funnel": self.funnel, "dumps": self.dumps}

    def load_checkpoint(self) -> None:
        """Continue from the newest usable checkpoint; see `Resuming`."""
        super().load_checkpoint()
        if self.is_resumed and self.dumps is not None:
            self.run_uuid = self.dumps.run_id
            logger.info("The next item is %d of stream %r.", self.iter, self._wired.sampler.instance)

    def _settled(self, problem: Problem) -> None:
        self._wired.sampler.ledger.done(problem)

    def _not_sent(self, problem: Problem) -> None:
        self._wired.sampler.ledger.requeue(problem, is_counted=False)

    async def env_step_checks(self) -> None:
        """Called by Atropos a few times a second, after each status of the trajectory API."""
        await super().env_step_checks()
        # Its clients wait for a server that fails its health check without a word.
        if any(server.server_healthy for server in self.server.servers):
            self.servers_outage.over()
        else:
            self.servers_outage.failed("no health check succeeds", "items wait")

    # --- the three commands

    async def register_env(self) -> None:
        """Register with the trajectory API, and continue this run; a new one gets the name of its item stream.

        A run that continues from a checkpoint keeps the stream it had, whatever number it gets now.
        """
        # Atropos goes by a clock that can be set, and forgets the items of late groups. `group_limit_s` is kept here.
        self.config.worker_timeout = -1
        await super().register_env()
        if self.checkpoint_interval <= 0:
            logger.warning("The trainer asks for no checkpoints: after a restart the item stream would begin anew.")
        else:
            await self.find_run()
            self.load_checkpoint()
        if not self.is_resumed:
            self._wired.name_instance(await asyncio.to_thread(self.stream_name))
        await self.has_registered()
        # From the first moment on, so that a run that is killed early finds its own and not an older run's.
        await self.checkpoint_latest()
        freeze_memory()

    async def has_registered(self, *old: int) -> None:
        """Keep the number with the run, and sign off the one that it had when it was killed."""
        before = set(old)
        if self._folder is not None:
            try:
                api = {"url": self._api.url, **await self._api.trainer()}
            except ApiUnavailableError as error:
                logger.warning("The API did not name its trainer (%s): a number of before stays registered.", error)
            else:
                before |= await asyncio.to_thread(replace_registration, self._folder.path, api, self.env_id)
        await super().has_registered(*sorted(before))

    async def env_manager(self) -> None:
        """`serve`: generate groups for a trainer until total_steps, then close."""
        await run_to_the_end(self, self._serve())

    async def process_manager(self) -> None:
        """`process`: write exactly total_steps groups to a file, then close."""
        await run_to_the_end(self, self._process())

    async def _run_evaluate(self) -> None:
        """`evaluate`: score the held-out set once, then close."""
        await run_to_the_end(self, self._evaluate_once())

    async def _serve(self) -> None:
        await preflight.check_serve(self.config, self.server)
        await super().env_manager()

    async def _process(self) -> None:
        await preflight.check_offline_use(self.config, self.server)
        await process_groups(self)

    async def _evaluate_once(self) -> None:
        await preflight.check_offline_use(self.config, self.server)
        # Nothing is trained on: the ladders of all tasks, which take seconds to build, would not be used.
        self.config.complexity_mode = None
        await self.setup()
        with preflight.wandb_run(self.config, str(self.name)):
            await self._evaluate(show_progress=True)
            await self.wandb_log()
