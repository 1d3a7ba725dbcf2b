"""Every setting of the environment: Atropos' own, the original environment's, and ours.

Settings come from YAML (`--config`, section `env:`) and from flags (`--env.NAME VALUE`). All are flat, and what is a
list or a mapping in YAML is also accepted as text. Each owner gets its own as one group:

    flat settings ── config.generation, .grading, .sampling, .evaluation, .training_log() ──> who does the work

At the end, the set-up of a training run for whoever gives no other.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import warnings
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from atroposlib.envs.base import APIServerConfig, BaseEnvConfig, EvalHandlingEnum
from pydantic import BeforeValidator, ConfigDict, Field, field_validator, model_validator

from .errors import nearest
from .evaluation import EvaluationSettings
from .evaluation.questions import PRESETS
from .records import MIN_COMPLETION_TOKENS, plain
from .sampling import SamplingSettings
from .sampling.seeds import Rule
from .tasks.catalog import TaskSettings
from .tasks.selectors import parse_names, parse_weights
from .training_log.training_log import TrainingLogSettings
from .workers import GenerationSettings, GradingSettings

# --- what a setting may look like as text


def _complexity_mode(given: Any) -> Any:
    return None if isinstance(given, str) and given.strip().lower() in ("none", "null", "") else given


def _overrides(given: Any) -> Any:
    if given is None or given == "":
        return {}
    expected = 'expected a mapping, or JSON such as {"chain_sum": {"max_terms": 4}}'
    try:
        overrides = json.loads(given) if isinstance(given, str) else given
    except json.JSONDecodeError as error:
        raise ValueError(f"{expected}: {error}, got {given!r}") from error
    if not isinstance(overrides, dict) or not all(isinstance(fields, dict) for fields in overrides.values()):
        raise ValueError(f"{expected}, got {given!r}")
    return overrides


def _tasks_to_evaluate(given: Any) -> list[str]:
    names = [str(given)] if isinstance(given, int) and not isinstance(given, bool) else parse_names(given)
    if not names or (len(names) > 1 and any(name.isdecimal() or name == "all" for name in names)):
        raise ValueError(f"expected a number of tasks, all, or names and globs, got {given!r}")
    if names[0] == "0":
        raise ValueError("expected at least 1 task; num_eval_samples_per_task 0 evaluates nothing")
    return names


def _eval_complexity(given: Any) -> float | str | None:
    text = str(given).strip().lower()
    if given is None or text in ("none", "null", "", "default"):
        return None
    if text in PRESETS:
        return text
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if isinstance(given, bool) or not 0.0 <= number <= 1.0:
        raise ValueError(f"expected none, a number from 0 to 1, {' or '.join(PRESETS)}, got {given!r}")
    return number


def _price(given: Any) -> Any:
    expected = "expected the prices of a million prompt and a million completion tokens, such as 0.3,1.2"
    if given is None or str(given).strip().lower() in ("none", "null", ""):
        return None
    parts = given.split(",") if isinstance(given, str) else given
    try:
        prompt, completion = (float(part) for part in parts)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{expected}, got {given!r}") from error
    if not (0.0 <= prompt < math.inf and 0.0 <= completion < math.inf):
        raise ValueError(f"{expected}, got {given!r}")
    return prompt, completion


Group = TypeVar("Group", GenerationSettings, GradingSettings, SamplingSettings, EvaluationSettings)
Names = Annotated[list[str], BeforeValidator(parse_names)]
ComplexityMode = Annotated[Literal["none", "curriculum", "random"] | None, BeforeValidator(_complexity_mode)]


class ReasoningGymEnvConfig(BaseEnvConfig):
    """Settings of ReasoningGymEnv. Invalid values and unknown names fail with the field's name."""

    model_config = ConfigDict(extra="forbid", validate_assignment=False)

    # What the original environment has, with its defaults.
    dump_rollouts: bool = Field(
        False, description="Write groups that have a rollout above rollout_save_score_threshold to data_dumps."
    )
    dump_failed_rollouts: bool = Field(False, description="Write groups whose scores are all zero to data_dumps.")
    seed: int = Field(42, description="Seed of the training stream: the same seed gives the same items.")
    debug_logging: bool = Field(False, description="Log extraction attempts, both formats' scores, the choice.")
    suppress_base_env_logs: bool = Field(True, description="Quiet Atropos' own status lines.")
    mask_too_long_completions: bool = Field(
        True, description="Send completions cut off by the token budget with their advantage set to zero."
    )
    rollout_save_score_threshold: float = Field(
        0.7, ge=0.0, le=1.0, description="A group is dumped if one of its rollouts scores above this (0 to 1)."
    )
    num_eval_samples_per_task: int = Field(
        5, ge=0, description="Questions of each task in the evaluation set; 0: none."
    )
    eval_seed: int = Field(123, description="Seed of the fixed evaluation set.")
    complexity_mode: ComplexityMode = Field(
        None,
        description="Difficulty: none (reasoning-gym's defaults), random (uniform over each task's levels) or "
        "curriculum (each task's level follows the model towards curriculum_target_accuracy).",
    )
    curriculum_target_accuracy: float = Field(
        0.7, gt=0.0, lt=1.0, description="Accuracy the curriculum holds each task at (between 0 and 1)."
    )
    partial_credit: Literal["native", "floor", "binary", "baseline"] = Field(
        "native",
        description="How a verifier's partial credit is read: native (as it is), baseline (only what is above the best "
        "wrong answer that needs no work on the item, and a tenth of that), floor (what it pays to garbage, 0.01 to "
        "0.1 in some tasks, is 0) or binary (1 from binary_threshold on, else 0).",
    )
    binary_threshold: float = Field(
        0.5, gt=0.0, le=1.0, description="Score from which an answer counts as right with partial_credit binary."
    )

    # How training samples, and which completions it learns from.
    train_temperature: float = Field(
        1.0,
        gt=0.0,
        le=2.0,
        description="Sampling temperature of training. Servers report log probabilities as of 1 unless told otherwise.",
    )
    train_top_p: float = Field(
        0.95,
        gt=0.0,
        le=1.0,
        description="Share of the probability that training samples from; below 1 the importance ratio is biased.",
    )
    min_completion_tokens: int = Field(
        MIN_COMPLETION_TOKENS,
        ge=1,
        description="Shorter completions are sent with their advantage set to zero; 1: only empty ones.",
    )

    # Which tasks are served.
    include_tasks: Names = Field(
        default_factory=list,
        description="Tasks to serve: names, globs (*_arithmetic) or category:logic, comma-separated or a list. "
        "Empty: all.",
    )
    exclude_tasks: Names = Field(default_factory=list, description="Tasks to leave out, written like include_tasks.")
    task_weights: Annotated[dict[str, float], BeforeValidator(lambda given: parse_weights(given or {}))] = Field(
        default_factory=dict,
        description="How often tasks are drawn, relative to 1: 'countdown=2.0,category:logic=0.5' or a mapping.",
    )
    task_sampling: Literal["uniform", "weighted", "learnability"] = Field(
        "weighted",
        description="How tasks are chosen: uniform (all alike), weighted (by task_weights) or learnability (by "
        "task_weights, and less often those at which the model stands still).",
    )
    task_floor: float = Field(
        0.12, ge=0.0, le=1.0, description="Share of the draws that learnability spreads evenly over all tasks."
    )
    task_overrides: Annotated[dict[str, dict[str, Any]], BeforeValidator(_overrides)] = Field(
        default_factory=dict,
        description="Per-task reasoning-gym config: a YAML mapping {task: {field: value}}, or the same as JSON.",
    )
    task_modules: Names = Field(
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
    prefetch_items: int = Field(
        4,
        ge=0,
        description="Items that are made ahead of the one asked for. In serve those that take long are overtaken, and "
        "made beside them, 128 in all at most.",
    )
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
    scoring_timeout_s: float = Field(
        2.0, gt=0.0, description="Seconds of processor time that a verifier may take for one answer."
    )
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
    allow_unguarded_tasks: Names = Field(
        default_factory=list,
        description="Tasks to serve although their verifier evaluates answers as code and no guard covers it.",
    )

    # What is evaluated, and how.
    eval_tasks: Annotated[list[str], BeforeValidator(_tasks_to_evaluate)] = Field(
        default_factory=lambda: ["20"],
        description="Tasks to evaluate, of those served: a number (so many, chosen by eval_seed), all, or names, globs "
        "and category:logic, comma-separated or a list.",
    )
    eval_completions: int = Field(
        1, ge=1, description="Completions of each evaluation item; with several, pass@k is reported too."
    )
    eval_complexity: Annotated[float | str | None, BeforeValidator(_eval_complexity)] = Field(
        None,
        description="Difficulty of the evaluation set: none (reasoning-gym's defaults), a number from 0 (easiest "
        "level) to 1 (hardest), or the configs of published results, easy or hard.",
    )
    eval_temperature: float = Field(0.1, ge=0.0, description="Sampling temperature of evaluation.")
    hold_out: Rule = Field(
        "content",
        description="What training leaves to evaluation: content (one question in ten, by a hash of its text, whatever "
        "the settings) or published (also what eval_complexity easy and hard would ask, with these eval_tasks, "
        "eval_seed and num_eval_samples_per_task: as the published results did, they ask what comes).",
    )

    # What `evaluate` and `process` may cost.
    price_per_million: Annotated[tuple[float, float] | None, BeforeValidator(_price)] = Field(
        None,
        description="Price of a million prompt tokens and of a million completion tokens, as '0.3,1.2': what is to be "
        "asked is told in money too.",
    )
    limit_tokens: int | None = Field(
        None,
        ge=1,
        description="Tokens, prompts included, after which nothing more is asked: the command ends with what it has. "
        "What is under way counts as long as completions are on average: process waits for its first group before it "
        "asks for others; evaluate asks for many at first, and may exceed it by their completions. --limit-tokens for "
        "short.",
    )
    dry_run: bool = Field(
        False, description="Say what would be asked, and what of it is there already; ask nothing. --dry-run for short."
    )

    # When a request to an inference server hangs.
    hang_factor: float = Field(
        2.0,
        description="A request hangs once it takes this many times what 99% of the last ones took: it is reported, and "
        "other groups take its place; some time later it is given up and asked again. -1: never.",
    )
    hang_floor_s: float = Field(30.0, gt=0.0, description="Seconds before which no request hangs.")

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
        description="A group is dropped if the trainer took more steps since its sampling began; -1: never.",
    )
    data_dumps_dir: str = Field("data_dumps", description="Folder for dumped rollouts.")
    process_format: Literal["messages", "prompt_completion", "dpo"] | None = Field(
        None,
        description="`process`: also write a dataset of this format, of completions with full credit, to a folder "
        "beside the groups, as `export` does. It needs include_messages.",
    )
    process_concurrency: int = Field(64, ge=1, description="`process`: groups sampled at once.")

    @model_validator(mode="before")
    @classmethod
    def _unknown_fields_fail_with_the_nearest_name(cls, values: Any) -> Any:
        if isinstance(values, dict):
            unknown = sorted(str(name) for name in values if name not in cls.model_fields)
            if unknown:
                raise ValueError("; ".join(f"unknown setting {name!r}{cls._did_you_mean(name)}" for name in unknown))
        return values

    @classmethod
    def _did_you_mean(cls, name: str) -> str:
        close = nearest(name, cls.model_fields)
        return f" (did you mean {' or '.join(close)}?)" if close else ""

    @field_validator("group_size", "max_token_length")
    @classmethod
    def _positive(cls, value: int) -> int:
        if value < 1:
            raise ValueError(f"must be at least 1, got {value}")
        return value

    @field_validator("hang_factor")
    @classmethod
    def _a_multiple_or_off(cls, value: float) -> float:
        if value < 1.0 and value != -1.0:
            raise ValueError(f"must be at least 1, or -1 for never, got {value:g}")
        return value

    @field_validator("sandbox", mode="before")
    @classmethod
    def _off_is_a_boolean_in_yaml(cls, value: Any) -> Any:
        return "off" if value is False else value

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

    # Each group as its owner takes it.

    @property
    def tasks(self) -> TaskSettings:
        """Which tasks are served."""
        return TaskSettings(
            include=self.include_tasks,
            exclude=self.exclude_tasks,
            weights=self.task_weights,
            overrides=self.task_overrides,
            modules=self.task_modules,
            allow_unguarded=self.allow_unguarded_tasks,
            quarantine=self.quarantine,
            strict=self.verification == "strict",
            with_levels=self.complexity_mode is not None,
        )

    @property
    def generation(self) -> GenerationSettings:
        """How items are made."""
        return self._group(
            GenerationSettings, num_workers=self.num_generation_workers or _a_quarter_of_the_cores(at_most=4)
        )

    @property
    def grading(self) -> GradingSettings:
        """How answers are graded."""
        return self._group(GradingSettings, num_workers=self.num_scoring_workers or _a_quarter_of_the_cores(at_most=8))

    @property
    def sampling(self) -> SamplingSettings:
        """Which item comes next."""
        return self._group(SamplingSettings)

    @property
    def evaluation(self) -> EvaluationSettings:
        """The held-out questions, and how they are asked."""
        return self._group(EvaluationSettings)

    def of_groups(self, model_name: str) -> dict[str, Any]:
        """What the groups of `process` follow from: a file of them is gone on with only under the same."""
        return {"model_name": model_name, **{name: plain(getattr(self, name)) for name in GROUPS_FOLLOW_FROM}}

    def training_log(self, run_id: str) -> TrainingLogSettings:
        """What is kept of the run that `run_id` names in its files."""
        return TrainingLogSettings(
            folder=Path(self.data_dumps_dir),
            run_id=run_id,
            dump_rollouts=self.dump_rollouts,
            dump_failed_rollouts=self.dump_failed_rollouts,
            save_threshold=self.rollout_save_score_threshold,
            conversations=self.num_rollouts_to_keep if self.use_wandb else 0,
            conversations_per_group=self.num_rollouts_per_group_for_logging,
        )

    def _group(self, kind: type[Group], **given: Any) -> Group:
        """A frozen group, whose fields have the names of settings but for those that are `given`."""
        names = [field.name for field in dataclasses.fields(kind) if field.name not in given]
        return kind(**{name: getattr(self, name) for name in names}, **given)


GROUPS_FOLLOW_FROM = (
    *("seed", "instance_id", "group_size", "max_token_length", "max_prompt_tokens", "train_temperature", "train_top_p"),
    *("include_tasks", "exclude_tasks", "task_weights", "task_overrides", "quarantine"),
    *("complexity_mode", "difficulty_range", "curriculum_target_accuracy", "task_sampling", "task_floor", "hold_out"),
    *("verification", "answer_normalization", "partial_credit", "binary_threshold", "mask_too_long_completions"),
)


def _a_quarter_of_the_cores(*, at_most: int) -> int:
    return min(at_most, max(1, (os.cpu_count() or 1) // 4))


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
        complexity_mode="curriculum",
        task_sampling="learnability",
        partial_credit="baseline",
        curriculum_target_accuracy=0.7,
        min_batch_allocation=0.1,
        # A trainer's importance ratio takes each completion for one of the whole distribution.
        train_top_p=1.0,
        # Short wrong completions could not be unlearned otherwise.
        min_completion_tokens=1,
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
