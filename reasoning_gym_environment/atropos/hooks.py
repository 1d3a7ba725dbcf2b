"""The attributes and methods of an environment that the three commands use besides its Run.

A subclass may replace the methods. `ReasoningGymEnv` defines some of them, and inherits the rest from Atropos' BaseEnv.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol

from atroposlib.envs.server_handling.server_manager import ServerManager

from ..group import Item, TestItem
from ..inference.client import InferenceClient
from ..inference.prompts import Prompts
from ..run import Run
from ..settings.environment import ReasoningGymEnvConfig
from ..trainer.sinks import Sink


class Hooks(Protocol):
    """An environment as `serve`, `process` and `evaluate` see it."""

    config: ReasoningGymEnvConfig
    inference: InferenceClient
    prompts: Prompts
    server: ServerManager
    max_num_workers: int
    items_sent_this_step: int
    eval_metrics: list[tuple[str, Any]]
    test_items_with_scorers: list[TestItem]
    settings_as_yaml: str
    sink: Sink | None
    task_duration: list[float]
    succeeded_task_duration: list[float]
    failed_task_duration: list[float]

    @property
    def run(self) -> Run:
        """The run, once the environment is set up. Raises EnvironmentSetupError before."""

    async def setup(self) -> None:
        """Find the tasks and start the workers. Raises EnvironmentSetupError."""

    async def get_next_item(self) -> Item | None:
        """The next item to make a group of, or None if there is none now."""

    async def collect_trajectories(self, item: Any) -> tuple[Any, list[Any]]:
        """A scored group of this item, a list of groups, or None; and items to use again, or in place of this item."""

    async def postprocess_histories(self, trajectories: Any) -> Any:
        """The group, changed as a subclass wants it, or None if the subclass drops it."""

    async def handle_send_to_api(
        self,
        scored_data: Any,
        item: Any = None,
        do_send_to_api: bool = True,
        abort_on_any_max_length_exceeded: bool = True,
    ) -> None:
        """Deliver a scored group, or a list of groups, or only write it to the file of groups."""

    async def cleanup(self) -> None:
        """Called after each group."""

    async def evaluate(self) -> Any:
        """Evaluate the model once."""

    async def rollout_and_score_eval(self, test_item: TestItem) -> float | None:
        """The score of one question of an evaluation, or None if it could not be scored."""

    async def evaluate_log(
        self,
        metrics: dict[str, Any],
        *,
        start_time: float | None = None,
        end_time: float | None = None,
        generation_parameters: dict[str, Any] | None = None,
        samples: list[dict[str, Any]] | None = None,
        verbose: bool = True,
    ) -> None:
        """Write the results of an evaluation to `data_dir_to_save_evals`."""

    async def wandb_log(self, wandb_metrics: dict[str, Any] | None = None) -> None:
        """Log everything that was counted since the last log step."""

    def save_checkpoint(self, step: int, data: dict[str, Any] | None = None) -> Awaitable[Any] | None:
        """Begin to write the checkpoint of this step. A subclass may return nothing."""

    def load_checkpoint(self) -> None:
        """Continue from a checkpoint, if there is one. Raises EnvironmentSetupError."""

    async def setup_wandb(self) -> None:
        """Begin the wandb run."""
