"""What Atropos needs around the flow of a problem: construction, logging, checkpoints, the three commands, the end.

`env.ReasoningGymEnv` adds the flow itself.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atroposlib.envs.base import APIServerConfig, ServerBaseline

from . import checkpoint, preflight
from .assembly import Components
from .breakdown import Breakdown
from .command_line import AtroposCommandLine
from .config import ReasoningGymEnvConfig
from .delivery import NotedDelivery
from .errors import EnvironmentSetupError
from .funnel import Funnel
from .groups import problem_of
from .lifecycle import quiet_base_env, run_to_the_end
from .metrics import TrainMetrics
from .problem_dataset import ProblemDataset
from .processing import process_groups
from .repeated import RepeatedEvents
from .reward_parts import RewardParts
from .rollout_table import ConversationLog, build_table, table_rows
from .rollout_writer import RolloutWriter

logger = logging.getLogger(__name__)


class EnvShell(AtroposCommandLine, NotedDelivery):
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
        self._is_resumed = False
        self.tries_items_again = True
        self.rollout_writer: RolloutWriter | None = None
        self.failed_rollout_writer: RolloutWriter | None = None

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
        """Flush the dumps and stop everything that was started. Safe to call twice."""
        for writer in (self.rollout_writer, self.failed_rollout_writer):
            if writer is not None:
                writer.close()
        if self.jsonl_writer is not None:
            self.jsonl_writer.close()
        self.train_metrics.summarise_violations()
        self.failures.summarise()
        self.funnel.summarise()
        if self.parts is not None:
            await self.parts.close()

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
        """Log everything counted since the last step, then Atropos' own metrics."""
        metrics = {**(wandb_metrics or {}), **self.train_metrics.drain(), **self.breakdown.drain()}
        metrics.update(self.reward_parts.drain())
        metrics.update(self.conversations.drain())
        metrics.update(self.eval_metrics)
        self.eval_metrics.clear()
        if self.parts is not None:
            metrics.update(self.parts.metrics())
        metrics.update(self.failures.metrics("train/failures"))
        metrics.update(self.funnel.metrics())
        await super().wandb_log(metrics)

    def get_curriculum_stats(self) -> dict[str, Any]:
        """Where the curriculum stands: totals, and per task level, recent accuracy and adjustments."""
        return {"mode": self.config.complexity_mode, **self._wired.curriculum.stats()}

    # --- checkpoints

    def save_checkpoint(self, step: int, data: dict[str, Any] | None = None) -> None:
        """Write what is needed to continue the item stream, under one key, where Atropos looks for it."""
        path = self._checkpoint_path(step)
        try:
            checkpoint.write_atomically(path, {**(data or {}), **checkpoint.envelope(self._wired.state_dict())})
        except OSError as error:
            # Atropos calls this inside its main loop: a full disk must not end the training.
            logger.error("The checkpoint of step %d could not be written to %s: %s", step, path, error)
            return
        logger.info("Checkpoint of step %d written to %s.", step, path)

    def load_checkpoint(self) -> None:
        """Continue from the checkpoint of the starting step; without one, start from the first item and say so."""
        path = self._checkpoint_path(self.curr_step)
        if not path.exists():
            logger.warning("No checkpoint at %s: the item stream starts from the beginning.", path)
            return
        self._wired.load_state_dict(checkpoint.read(path))
        self._is_resumed = True
        logger.info("Continuing from item %d, as saved in %s.", self.iter, path)

    def _checkpoint_path(self, step: int) -> Path:
        return Path(self.checkpoint_dir, "env_checkpoints", self.wandb_prepend or "", f"step-{step}.json")

    # --- the three commands

    async def register_env(self) -> None:
        """Register with the trajectory API; the number it gives names the item stream unless the config does.

        A run that continues from a checkpoint keeps the stream it had, whatever number it gets now.
        """
        await super().register_env()
        if not self._is_resumed:
            self._wired.name_instance(self.config.instance_id, self.env_id)

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
