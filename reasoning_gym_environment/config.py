"""Every setting of the environment: Atropos' own, the original environment's, and ours. All flat.

Settings come from YAML (`--config`, section `env:`) and from flags (`--env.NAME VALUE`); pydantic-cli takes no
nested models on the command line, so what is a list or a mapping in YAML is also accepted as text.

The set-up of a training run for whoever gives no other.
"""

from __future__ import annotations

import json
import warnings
from typing import Any, Literal, cast

from atroposlib.envs.base import APIServerConfig, BaseEnvConfig, EvalHandlingEnum
from pydantic import ConfigDict, Field, field_validator, model_validator

from .errors import nearest
from .evaluation.published_results import PRESETS
from .tasks.catalog import TaskSettings
from .tasks.selectors import parse_names, parse_weights


class ReasoningGymEnvConfig(BaseEnvConfig):
    """Settings of ReasoningGymEnv. Invalid values and unknown names fail with the field's name."""

    model_config = ConfigDict(extra="forbid", validate_assignment=False)

    # What the original environment has, with its defaults.
    dump_rollouts: bool = Field(
        False,
        description="Write groups that have a rollout above rollout_save_score_threshold to data_dumps.",
    )
    dump_failed_rollouts: bool = Field(False, description="Write groups whose scores are all zero to data_dumps.")
    seed: int = Field(42, description="Seed of the training stream: the same seed gives the same items.")
    debug_logging: bool = Field(False, description="Log extraction attempts, both formats' scores, the choice.")
    suppress_base_env_logs: bool = Field(True, description="Quiet Atropos' own status lines.")
    mask_too_long_completions: bool = Field(
        True, description="Send completions cut off by the token budget with their advantage set to zero."
    )
    rollout_save_score_threshold: float = Field(
        0.7,
        ge=0.0,
        le=1.0,
        description="A group is dumped if one of its rollouts scores above this (0 to 1).",
    )
    num_eval_samples_per_task: int = Field(5, ge=0, description="Items per task in the evaluation set; 0: none.")
    eval_seed: int = Field(123, description="Seed of the fixed evaluation set.")
    complexity_mode: Literal["none", "curriculum", "random"] | None = Field(
        None,
        description="Difficulty: none (reasoning-gym's defaults), random (uniform over each task's levels) or "
        "curriculum (each task's level follows the model towards curriculum_target_accuracy).",
    )
    curriculum_target_accuracy: float = Field(
        0.7, gt=0.0, lt=1.0, description="Accuracy the curriculum holds each task at (between 0 and 1)."
    )
    partial_credit: Literal["native", "floor", "binary"] = Field(
        "native",
        description="How a verifier's partial credit is read: native (as it is), floor (what it pays to garbage, "
        "0.01 to 0.1 in some tasks, is 0) or binary (1 from binary_threshold on, else 0).",
    )
    binary_threshold: float = Field(
        0.5, gt=0.0, le=1.0, description="Score from which an answer counts as right with partial_credit binary."
    )

    # Which tasks are served.
    include_tasks: list[str] | str = Field(
        default_factory=list,
        description="Tasks to serve: names, globs (*_arithmetic) or category:logic, comma-separated or a list. "
        "Empty: all.",
    )
    exclude_tasks: list[str] | str = Field(
        default_factory=list, description="Tasks to leave out, written like include_tasks."
    )
    task_weights: dict[str, float] | list[str] | str = Field(
        default_factory=dict,
        description="How often tasks are drawn, relative to 1: 'countdown=2.0,category:logic=0.5' or a mapping.",
    )
    task_sampling: Literal["uniform", "weighted", "learnability"] = Field(
        "weighted",
        description="How tasks are chosen: uniform (all alike), weighted (by task_weights) or learnability (by "
        "task_weights, and preferring tasks whose groups are likely to differ in reward).",
    )
    task_floor: float = Field(
        0.12, ge=0.0, le=1.0, description="Share of the draws that learnability spreads evenly over all tasks."
    )
    task_overrides: dict[str, dict[str, Any]] | str = Field(
        default_factory=dict,
        description="Per-task reasoning-gym config: a YAML mapping {task: {field: value}}, or the same as JSON.",
    )
    task_modules: list[str] | str = Field(
        default_factory=list,
        description="Modules (dotted names or .py files) to import first; they register your own datasets.",
    )

    # How items are generated.
    num_generation_workers: int | None = Field(
        None, ge=1, description="Generating processes. Default: one for every four cores, at least one, at most four."
    )
    generation_timeout_s: float = Field(
        5.0,
        gt=0.0,
        description="Seconds of processor time that making one item may take; beyond, a lower level is tried.",
    )
    prefetch_items: int = Field(4, ge=0, description="Items that are made ahead of the one asked for.")
    max_prompt_tokens: int | None = Field(
        None,
        ge=1,
        description="A level with a longer prompt is not used, and its item drawn from a lower one. Default: half of "
        "max_token_length.",
    )

    # How answers are scored.
    sandbox: Literal["auto", "require", "off"] = Field(
        "auto",
        description="Kernel protection of the scoring workers: auto (what the machine offers), require (refuse to "
        "start without filtered system calls) or off (trusted debugging only).",
    )
    num_scoring_workers: int | None = Field(
        None, ge=1, description="Scoring processes. Default: one for every four cores, at least one, at most eight."
    )
    scoring_timeout_s: float = Field(2.0, gt=0.0, description="Seconds that a verifier may take for one answer.")
    verification: Literal["strict", "native"] = Field(
        "strict",
        description="strict (refuse wrong answers that a few tasks' verifiers pay in full, see docs/verifiers.md) "
        "or native (reasoning-gym's own scores); the native score is dumped either way.",
    )
    quarantine: bool = Field(
        True,
        description="Leave out tasks whose verifier, under this verification, was measured to pay garbage or to refuse "
        "its own oracle, unless include_tasks names them. With strict there are none.",
    )
    answer_normalization: Literal["none", "lossless"] = Field(
        "none",
        description="lossless: an answer also counts without its decoration, such as \\boxed{}, ** or a final period.",
    )
    allow_unguarded_tasks: list[str] | str = Field(
        default_factory=list,
        description="Tasks to serve although their verifier evaluates answers as code and no guard covers it.",
    )

    # What is evaluated, and how.
    eval_tasks: list[str] | str = Field(
        default_factory=lambda: ["20"],
        description="Tasks to evaluate, of those served: a number (so many, chosen by eval_seed), all, or names, globs "
        "and category:logic, comma-separated or a list.",
    )
    eval_completions: int = Field(
        1, ge=1, description="Completions of each evaluation item; with several, pass@k is reported too."
    )
    eval_complexity: float | str | None = Field(
        None,
        description="Difficulty of the evaluation set: none (reasoning-gym's defaults), a number from 0 (easiest "
        "level) to 1 (hardest), or the configs of published results, easy or hard.",
    )
    eval_temperature: float = Field(0.1, ge=0.0, description="Sampling temperature of evaluation.")

    # How the run is laid out.
    difficulty_range: Literal["level", "cumulative"] = Field(
        "level", description="Whether a level draws from its own range only, or from all ranges up to it."
    )
    instance_id: str | None = Field(
        None,
        coerce_numbers_to_str=True,
        description="Names this instance's item stream. Default: SLURM_PROCID, else the number that the API gives.",
    )
    run_id: str | None = Field(
        None,
        min_length=1,
        description="Names this run, so that its checkpoints are found after a restart. Default: wandb_name and seed.",
    )
    max_staleness_steps: int = Field(
        8,
        ge=-1,
        description="A group is dropped if the trainer takes more steps while it waits for the API; -1: never.",
    )
    data_dumps_dir: str = Field("data_dumps", description="Folder for dumped rollouts.")
    process_concurrency: int = Field(64, ge=1, description="`process`: groups sampled at once.")

    @model_validator(mode="before")
    @classmethod
    def _unknown_fields_fail_with_the_nearest_name(cls, values: Any) -> Any:
        if isinstance(values, dict):
            unknown = sorted(str(name) for name in values if name not in cls.model_fields)
            if unknown:
                raise ValueError("; ".join(f"unknown setting {name!r}{_did_you_mean(name)}" for name in unknown))
        return values

    @field_validator("complexity_mode", mode="before")
    @classmethod
    def _none_can_be_written_out(cls, value: Any) -> Any:
        return None if isinstance(value, str) and value.strip().lower() in ("none", "null", "") else value

    @field_validator("eval_tasks", mode="before")
    @classmethod
    def _a_number_of_tasks_is_text_too(cls, value: Any) -> Any:
        names = [str(value)] if isinstance(value, int) and not isinstance(value, bool) else parse_names(value)
        if not names or (len(names) > 1 and any(name.isdecimal() or name == "all" for name in names)):
            raise ValueError(f"expected a number of tasks, all, or names and globs, got {value!r}")
        if names[0] == "0":
            raise ValueError("expected at least 1 task; num_eval_samples_per_task 0 evaluates nothing")
        return names

    @field_validator("eval_complexity", mode="before")
    @classmethod
    def _complexity_is_a_number_or_a_preset(cls, value: Any) -> Any:
        text = str(value).strip().lower()
        if value is None or text in ("none", "null", "", "default"):
            return None
        if text in PRESETS:
            return text
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if isinstance(value, bool) or not 0.0 <= number <= 1.0:
            raise ValueError(f"expected none, a number from 0 to 1, {' or '.join(PRESETS)}, got {value!r}")
        return number

    @field_validator("include_tasks", "exclude_tasks", "task_modules", "allow_unguarded_tasks", mode="before")
    @classmethod
    def _names_from_text(cls, value: Any) -> Any:
        return parse_names(value)

    @field_validator("task_weights", mode="before")
    @classmethod
    def _weights_from_text(cls, value: Any) -> Any:
        return parse_weights(value or {})

    @field_validator("task_overrides", mode="before")
    @classmethod
    def _overrides_from_json(cls, value: Any) -> Any:
        if value is None or value == "":
            return {}
        expected = 'expected a mapping, or JSON such as {"chain_sum": {"max_terms": 4}}'
        try:
            overrides = json.loads(value) if isinstance(value, str) else value
        except json.JSONDecodeError as error:
            raise ValueError(f"{expected}: {error}, got {value!r}") from error
        if not isinstance(overrides, dict) or not all(isinstance(fields, dict) for fields in overrides.values()):
            raise ValueError(f"{expected}, got {value!r}")
        return overrides

    @field_validator("group_size", "max_token_length")
    @classmethod
    def _positive(cls, value: int) -> int:
        if value < 1:
            raise ValueError(f"must be at least 1, got {value}")
        return value

    @field_validator("rollout_server_url")
    @classmethod
    def _address_has_a_scheme(cls, value: str) -> str:
        if not value.startswith(("http://", "https://")):
            raise ValueError(f"expected an address such as http://localhost:8000, got {value!r}")
        return value

    @field_validator("total_steps")
    @classmethod
    def _steps_are_counted_or_left_to_the_trainer(cls, value: int) -> int:
        if value < 1 and value != -1:
            raise ValueError(f"must be at least 1, or -1 for as many as the trainer registers, got {value}")
        return value

    @field_validator("rollout_save_score_threshold")
    @classmethod
    def _warn_if_nothing_can_exceed_it(cls, value: float) -> float:
        if value == 1.0:
            warnings.warn(
                "rollout_save_score_threshold is 1.0: no score is above it, so no rollout will be dumped. "
                "Use 0.99 to keep groups with a correct rollout.",
                stacklevel=2,
            )
        return value

    @property
    def task_settings(self) -> TaskSettings:
        """Which tasks to serve, for `tasks.catalog.served_tasks`."""
        return TaskSettings(
            include=parse_names(self.include_tasks),
            exclude=parse_names(self.exclude_tasks),
            weights=parse_weights(self.task_weights),
            overrides=cast(dict[str, dict[str, Any]], self.task_overrides),
            modules=parse_names(self.task_modules),
            allow_unguarded=parse_names(self.allow_unguarded_tasks),
            quarantine=self.quarantine,
            strict=self.verification == "strict",
            with_levels=self.complexity_mode is not None,
        )


def _did_you_mean(name: str) -> str:
    close = nearest(name, ReasoningGymEnvConfig.model_fields)
    return f" (did you mean {' or '.join(close)}?)" if close else ""


DEFAULT_MODEL = "NousResearch/DeepHermes-3-Llama-3-8B-Preview"
DEFAULT_SERVER_URL = "http://localhost:9004/v1"


def default_configs() -> tuple[ReasoningGymEnvConfig, list[APIServerConfig]]:
    """The values of `config_init`: a ready training set-up with one vLLM server on this machine."""
    config = ReasoningGymEnvConfig(
        tokenizer_name=DEFAULT_MODEL,
        group_size=8,
        use_wandb=True,
        rollout_server_url="http://localhost:8000",
        total_steps=250,
        seed=1918,
        batch_size=1024,
        steps_per_eval=25,
        max_token_length=8192,
        inference_weight=4.0,
        wandb_name="reasoning_gym_think",
        eval_handling=EvalHandlingEnum.NONE,
        eval_limit_ratio=0.1,
        num_rollouts_per_group_for_logging=4,
        num_rollouts_to_keep=50,
        rollout_save_score_threshold=0.51,
        num_eval_samples_per_task=5,
        eval_seed=123,
        complexity_mode="random",
        task_sampling="learnability",
        partial_credit="floor",
        curriculum_target_accuracy=0.7,
        min_batch_allocation=0.1,
    )
    server = APIServerConfig(
        model_name=DEFAULT_MODEL,
        base_url=DEFAULT_SERVER_URL,
        api_key="x",
        num_max_requests_at_once=128,
        num_requests_for_eval=256,
        server_type="vllm",
    )
    return config, [server]
