"""Every setting of the environment: Atropos' own, those of its parts (settings.py), and those of a training run.

Settings come from YAML (`--config`, section `env:`) and from flags (`--env.NAME VALUE`); all are flat. At the end, the
set-up of a training run for whoever gives no other.
"""

from __future__ import annotations

import warnings
from typing import Annotated, Any, Literal

from atroposlib.envs.base import APIServerConfig, BaseEnvConfig, EvalHandlingEnum
from pydantic import BeforeValidator, ConfigDict, Field, field_validator, model_validator

from .errors import unknown_name
from .records import MIN_COMPLETION_TOKENS
from .settings import EvaluationSettings, SamplingSettings


def _parts(given: Any) -> Any:
    return given.split(",") if isinstance(given, str) else given


Price = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Prices = Annotated[tuple[Price, Price], BeforeValidator(_parts)]

RETIRED: dict[str, str] = {
    "answer_normalization": "verification: strict reads answers without their decoration, always.",
    "binary_threshold": "partial_credit: exact pays right answers alone.",
    "quarantine": "every task is served unless exclude_tasks names it; verification: strict pays no wrong answers.",
    "hang_factor": "requests that take longer than request_timeout_s fail, and are made again.",
    "task_floor": "learnability always spreads 12 % of the draws evenly over all tasks.",
    "hang_floor_s": "requests that take longer than request_timeout_s fail, and are made again.",
}
"""Settings of the release before this one that no longer exist, each with a sentence that says what replaces it."""


class ReasoningGymEnvConfig(SamplingSettings, EvaluationSettings, BaseEnvConfig):
    """Settings of ReasoningGymEnv. Invalid values and unknown names fail with the field's name."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    # How training samples, and which completions it learns from.
    train_temperature: float = Field(1.0, gt=0.0, le=2.0)
    """Sampling temperature of training. Servers report log probabilities as of 1 unless told otherwise."""
    train_top_p: float = Field(0.95, gt=0.0, le=1.0)
    """Share of the probability that training samples from; below 1 the importance ratio is biased."""
    max_prompt_tokens: int | None = Field(None, ge=1)
    """A level with a longer prompt is not used, and its item drawn from a lower one. Default: half of max_token_length.
    """
    min_completion_tokens: int = Field(MIN_COMPLETION_TOKENS, ge=1)
    """Shorter completions are sent with their advantage set to zero; 1: only empty ones."""
    mask_too_long_completions: bool = True
    """Send completions cut off by the token budget with their advantage set to zero."""
    max_staleness_steps: int = Field(8, ge=-1)
    """A group is dropped if the trainer took more steps since its sampling began; -1: never."""

    # What is written and logged.
    dump_rollouts: bool = False
    """Write groups that have a rollout above rollout_save_score_threshold to data_dumps."""
    dump_failed_rollouts: bool = False
    """Write groups whose scores are all zero to data_dumps."""
    rollout_save_score_threshold: float = Field(0.7, ge=0.0, le=1.0)
    """A group is dumped if one of its rollouts scores above this (0 to 1)."""
    data_dumps_dir: str = "data_dumps"
    """Folder for dumped rollouts."""
    debug_logging: bool = False
    """Log extraction attempts, both formats' scores, the choice."""
    suppress_base_env_logs: bool = True
    """Quiet Atropos' own status lines."""

    # How inference servers are asked.
    request_timeout_s: float = Field(1200.0, gt=0.0)
    """Seconds after which a request that has no answer fails, and is made again."""
    n_per_request: int | None = Field(None, ge=1)
    """Completions that one request asks for at most. Default: as many as the server is found to give."""
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] | None = None
    """openai servers: what the limit of a completion is called. Default: as the server asks for it."""
    context_length: int | None = Field(None, ge=1)
    """Tokens that a prompt and its completion may have together. Default: what the server says, if it does."""

    # What `evaluate` and `process` may cost, and what `process` writes.
    price_per_million: Prices | None = None
    """Price of a million prompt tokens and of a million completion tokens, as '0.3,1.2': what is to be asked is told in
    money too.
    """
    limit_tokens: int | None = Field(None, ge=1)
    """Tokens, prompts included, after which nothing more is asked: the command ends with what it has. What is under way
    may exceed it. --limit-tokens for short.
    """
    dry_run: bool = False
    """Say what would be asked, and what of it is there already; ask nothing. --dry-run for short."""
    process_format: Literal["messages", "prompt_completion", "dpo"] | None = None
    """`process`: also write a dataset of this format, of completions with full credit, to a folder beside the groups,
    as `export` does. It needs include_messages.
    """
    process_concurrency: int = Field(64, ge=1)
    """`process`: groups sampled at once."""

    # How the run is found again.
    run_id: str | None = Field(None, min_length=1)
    """Names this run, so that its checkpoints are found after a restart. Default: wandb_name and seed."""

    # Atropos' own, which would take anything.
    group_size: int = Field(4, ge=1)
    """Completions sampled for one problem and scored together."""
    max_token_length: int = Field(2048, ge=1)
    """Longest training sequence in tokens, prompt included; evaluation may use twice this."""
    total_steps: int = Field(1000, ge=-1)
    """serve: training steps to run, -1: as many as the trainer registers; process: groups to write."""
    rollout_server_url: str = Field("http://localhost:8000", pattern="^https?://")
    """Address of the trajectory API (run-api)."""

    @model_validator(mode="before")
    @classmethod
    def _unknown_fields_fail_with_the_nearest_name(cls, values: Any) -> Any:
        for name in values if isinstance(values, dict) else ():
            if name in RETIRED:
                raise ValueError(f"{name} was removed: {RETIRED[name]}")
            if name not in cls.model_fields:
                raise ValueError(str(unknown_name("setting", str(name), cls.model_fields)))
        return values

    @field_validator("rollout_save_score_threshold")
    @classmethod
    def _warn_if_nothing_can_exceed_it(cls, value: float) -> float:
        if value == 1.0:
            warnings.warn("rollout_save_score_threshold is 1.0: no score is above it, nothing is dumped.", stacklevel=2)
        return value


DEFAULT_MODEL = "NousResearch/DeepHermes-3-Llama-3-8B-Preview"


def default_configs() -> tuple[ReasoningGymEnvConfig, list[APIServerConfig]]:
    """The values of `config_init`: a ready training set-up with one vLLM server on this machine.

    What is not named here is as the class has it.
    """
    values: dict[str, Any] = {
        "tokenizer_name": DEFAULT_MODEL,
        "group_size": 8,
        "use_wandb": True,
        "rollout_server_url": "http://localhost:8000",
        "total_steps": 250,
        "seed": 1918,
        "batch_size": 1024,
        "steps_per_eval": 25,
        "max_token_length": 8192,
        "inference_weight": 4.0,
        "wandb_name": "reasoning_gym_think",
        "eval_handling": EvalHandlingEnum.NONE,
        "eval_limit_ratio": 0.1,
        "num_rollouts_per_group_for_logging": 4,
        "num_rollouts_to_keep": 50,
        "rollout_save_score_threshold": 0.51,
        "complexity_mode": "curriculum",
        "task_sampling": "learnability",
        "partial_credit": "exact",
        "min_batch_allocation": 0.1,
        # A trainer's importance ratio takes each completion for one of the whole distribution.
        "train_top_p": 1.0,
        # Short wrong completions could not be unlearned otherwise.
        "min_completion_tokens": 1,
    }
    server = APIServerConfig(
        model_name=DEFAULT_MODEL,
        base_url="http://localhost:9004/v1",
        api_key="x",
        num_max_requests_at_once=128,
        num_requests_for_eval=256,
        server_type="vllm",
    )
    return ReasoningGymEnvConfig(**values), [server]
