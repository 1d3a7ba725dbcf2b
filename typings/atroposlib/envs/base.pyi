# What this project uses of atroposlib 0.4.

from collections.abc import Sequence
from enum import Enum
from typing import Any, TypedDict

from pydantic import BaseModel

from .server_handling.server_baseline import APIServerConfig as APIServerConfig
from .server_handling.server_baseline import ServerBaseline as ServerBaseline
from .server_handling.server_manager import ServerManager

AutoTokenizer: Any

class ScoredDataGroup(TypedDict):
    tokens: list[list[int]]
    masks: list[list[int]]
    scores: list[float]
    advantages: list[list[float]] | None
    ref_logprobs: list[list[float]] | None
    messages: list[list[Any]] | None
    generation_params: dict[str, Any] | None
    inference_logprobs: list[list[float]] | None
    group_overrides: dict[str, Any] | None
    overrides: list[dict[str, Any]] | None
    images: Any | None
    distill_token_ids: list[list[list[int]]] | None
    distill_logprobs: list[list[list[float]]] | None

class EvalHandlingEnum(Enum):
    STOP_TRAIN = ...
    LIMIT_TRAIN = ...
    NONE = ...

class BaseEnvConfig(BaseModel):
    group_size: int
    max_num_workers: int
    max_eval_workers: int
    max_num_workers_per_node: int
    steps_per_eval: int
    max_token_length: int
    eval_handling: EvalHandlingEnum
    eval_limit_ratio: float
    inference_weight: float
    batch_size: int
    max_batches_offpolicy: int
    tokenizer_name: str
    use_wandb: bool
    rollout_server_url: str
    total_steps: int
    wandb_name: str | None
    num_rollouts_to_keep: int
    num_rollouts_per_group_for_logging: int
    ensure_scores_are_not_same: bool
    data_path_to_save_groups: str | None
    data_dir_to_save_evals: str | None
    min_items_sent_before_logging: int
    include_messages: bool
    min_batch_allocation: float | None
    worker_timeout: float
    thinking_mode: bool
    reasoning_effort: str | None
    max_reasoning_tokens: int | None
    custom_thinking_prompt: str | None

class BaseEnv:
    name: str | None
    env_config_cls: type[BaseEnvConfig]
    config: BaseEnvConfig
    server: ServerManager
    tokenizer: Any
    items_sent_this_step: int
    max_num_workers: int
    max_token_len: int
    curr_step: int
    completion_lengths: list[int]
    rollouts_for_wandb: list[Any]
    task_duration: list[float]
    succeeded_task_duration: list[float]
    failed_task_duration: list[float]
    wandb_prepend: str | None
    wandb_project: str | None
    def __init__(
        self,
        config: BaseEnvConfig,
        server_configs: ServerBaseline | Sequence[APIServerConfig],
        slurm: bool = False,
        testing: bool = False,
    ) -> None: ...
    async def setup(self) -> None: ...
    async def setup_wandb(self) -> None: ...
    async def postprocess_histories(self, trajectories: Any) -> Any: ...
    async def evaluate_log(
        self,
        metrics: dict[str, Any],
        task_name: str | None = None,
        model_name: str | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
        generation_parameters: dict[str, Any] | None = None,
        samples: list[dict[str, Any]] | None = None,
        verbose: bool = True,
    ) -> None: ...
    async def wandb_log(self, wandb_metrics: dict[str, Any] | None = None) -> None: ...
    async def cleanup(self) -> None: ...
