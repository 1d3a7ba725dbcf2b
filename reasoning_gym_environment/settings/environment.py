"""Every setting of the environment: those of Atropos, of our components (components.py), of a run, and of its servers.

Settings come from YAML (`--config`, section `env:`) and from flags (`--env.NAME VALUE`). `default_configs` has the
values that the commands start with.
"""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from atroposlib.envs.base import APIServerConfig, BaseEnvConfig, EvalHandlingEnum
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from ..errors import SETTINGS_ARE_LISTED, unknown_name
from .components import EvaluationSettings, Parameter, SamplingSettings, TextOrFile, mapping_from_text


def _minus_one_or_more_than_zero(value: float) -> float:
    if value < 1 and value != -1:
        raise ValueError(f"expected -1, or a number of at least 1, got {value}")
    return value


AtLeastOne = Annotated[int, AfterValidator(_minus_one_or_more_than_zero)]
"""A number of which -1 means: the default, all, or no limit."""

UNUSED = ("max_eval_workers", "custom_thinking_prompt", "rolling_buffer_length", "health_check")
"""Settings of Atropos that are accepted and have no effect here."""

PACKAGE_DIR = Path(__file__).resolve().parent.parent
MAIN_FILE = "reasoning_gym_environment.py"
DUMPS = "data_dumps"


class ReasoningGymEnvConfig(SamplingSettings, EvaluationSettings, BaseEnvConfig):
    """Settings of ReasoningGymEnv. Invalid values and unknown names fail with the field's name."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    # Sampling for training.
    train_temperature: Parameter = Field(1.0, gt=0.0, le=2.0)
    """Sampling temperature of training. With another value than 1, configure the server to report log probabilities
    of the changed distribution, because servers report them for temperature 1 by default. With none, requests have no
    temperature, for providers that refuse one.
    """
    train_top_p: Parameter = Field(0.95, gt=0.0, le=1.0)
    """Training samples each token from the most probable tokens that together have this share of the probability
    (nucleus sampling). Use 1, all tokens, if the trainer computes importance ratios: smaller values bias them. With
    none, requests to chat servers have no top_p, for providers that refuse one; vllm and sglang servers get 1.
    """
    mask_too_long_completions: bool = True
    """Whether completions that the token limit cut off get zero advantage, so that the trainer does not learn from
    them.
    """
    max_staleness_steps: int = Field(8, ge=-1)
    """Drop a group if the trainer has made more steps than this since the sampling of the group began, because an
    older state of the model wrote it. With -1, keep groups of any age.
    """

    # Dumps and logs.
    dump_rollouts: bool = False
    """Whether to save the groups in which at least one score is higher than rollout_save_score_threshold. The files
    have the completions and their scores.
    """
    dump_failed_rollouts: bool = False
    """Whether to save the groups whose scores are all zero."""
    rollout_save_score_threshold: float = Field(0.7, ge=0.0, le=1.0)
    """dump_rollouts saves a group if at least one of its scores is higher than this (0 to 1)."""
    keep_for_report: bool = False
    """Whether to keep in data_dumps_dir what `report` shows of a run: every twentieth group that is not saved
    otherwise (fewer in a long run), and each evaluation, unless data_dir_to_save_evals is set.
    """
    data_dumps_dir: str | None = Field(None, min_length=1)
    """Folder for the files of dump_rollouts, dump_failed_rollouts and keep_for_report. Default: in a checkout, the
    folder `data_dumps` beside the program reasoning_gym_environment.py; otherwise `data_dumps` in the working
    directory.
    """
    debug_logging: bool = False
    """Whether to log, for each completion, the answer that was found in it and its score."""
    suppress_base_env_logs: bool = True
    """Whether to hide the status lines of Atropos itself."""

    # The chat template.
    chat_template: TextOrFile = None
    """A chat template in place of the tokenizer's own: the path of a file, the template itself, or the name of one of
    several templates that the tokenizer has.
    """
    chat_template_kwargs: Annotated[dict[str, Any], BeforeValidator(mapping_from_text)] = Field(default_factory=dict)
    """Values for the chat template, as a mapping, which is JSON on the command line: {"enable_thinking": false} for
    Qwen 3, {"reasoning_effort": "high"} for gpt-oss. Servers of type openai get them with each request.
    """

    # Limits of `evaluate` and `process`.
    limit_tokens: int | None = Field(None, ge=1)
    """Send no more requests after this many tokens, prompts included. The command then ends with the answers that
    it has. Requests in progress may exceed the limit. The short form is --limit-tokens.
    """

    # Resuming.
    run_id: str | None = Field(None, min_length=1)
    """Name of the run. A restarted `serve` finds its checkpoints by this name. Default: wandb_name and seed."""
    checkpoint_dir: str | None = Field(None, min_length=1)
    """Folder for the checkpoints of `serve`. Default: the checkpoint_dir with which the trainer has registered."""

    # Groups and lengths.
    group_size: int = Field(4, ge=1)
    """Completions for each item. Training compares the rewards within such a group."""
    max_token_length: int = Field(2048, ge=1)
    """Longest training sequence in tokens, prompt included. If a prompt takes more than half of it, or more than
    512 tokens of a short limit, an easier item replaces the item. Evaluations may use twice as many tokens.
    """
    total_steps: int = Field(1000, ge=-1)
    """For serve, the number of training steps; with -1, the trainer decides. If the trainer makes more steps, serve
    says so at its end, with exit code 1. For process, the number of groups.
    """
    ensure_scores_are_not_same: bool = True
    """Whether to drop groups whose scores are all equal. process keeps them."""
    include_messages: bool = False
    """Whether to send the conversation with the tokens. process does."""

    # The model's tokenizer, and reasoning at a provider.
    tokenizer_name: str = "NousResearch/DeepHermes-3-Llama-3-3B-Preview"
    """Tokenizer of the model: a hub name or a local folder. It needs a chat template. Default for the commands: the
    tokenizer of the model that openai.model_name names. Servers of type openai need none.
    """
    thinking_mode: bool = False
    """Whether to request reasoning from a provider that separates it from the answer (openai servers)."""
    reasoning_effort: str | None = None
    """Effort of such reasoning: none, minimal, low, medium, high or xhigh."""
    max_reasoning_tokens: int | None = Field(None, ge=1024, le=32000)
    """Limit of such reasoning in tokens, for providers that support one."""

    # Groups in progress, and the trainer.
    max_num_workers: AtLeastOne = -1
    """Groups in progress for all servers. With -1, max_num_workers_per_node for each server. There can be more with
    min_batch_allocation.
    """
    max_num_workers_per_node: int = Field(8, ge=1)
    """Groups in progress for each inference server."""
    worker_timeout: Annotated[float, AfterValidator(_minus_one_or_more_than_zero)] = 600
    """Training requests that have no answer after this number of seconds fail. With -1, never."""
    rollout_server_url: str = Field("http://localhost:8000", pattern="^https?://")
    """Address of the trajectory API (run-api)."""
    batch_size: AtLeastOne = -1
    """Sequences in a training batch. The number that the trainer registers replaces this value."""
    max_batches_offpolicy: int = Field(3, ge=1)
    """Batches that may wait in the queue of run-api before this environment pauses."""
    min_batch_allocation: float | None = Field(None, ge=0.0, le=1.0)
    """Share of every batch that is reserved for this environment. Groups for this share start even if
    max_num_workers groups are in progress.
    """
    inference_weight: float = Field(1.0, gt=0.0)
    """Weight of this environment among the environments that share a trainer."""

    # Evaluation during training.
    steps_per_eval: int = Field(100, ge=-1)
    """Training steps between two evaluations of serve. With 0, serve does not evaluate."""
    eval_handling: EvalHandlingEnum = EvalHandlingEnum.STOP_TRAIN
    """Effect of an evaluation on training: STOP_TRAIN, LIMIT_TRAIN or NONE."""
    eval_limit_ratio: float = Field(0.5, ge=0.0, le=1.0)
    """With LIMIT_TRAIN: the share of the workers that continue training during an evaluation."""
    data_dir_to_save_evals: str | None = None
    """Folder for the results of evaluations. The same command resumes an evaluation that has a folder."""

    # Files of groups, and wandb.
    data_path_to_save_groups: str | None = None
    """JSONL file for the groups that serve sends. process always writes such a file."""
    use_wandb: bool = True
    """Whether to log to wandb."""
    wandb_name: str | None = None
    """Name of the environment at run-api, and of the wandb run."""
    num_rollouts_to_keep: int = Field(32, ge=0)
    """Groups in the table train/rollouts."""
    num_rollouts_per_group_for_logging: AtLeastOne = 1
    """Rollouts of each group in the table train/rollouts. With -1, all of them."""
    min_items_sent_before_logging: int = Field(2, ge=0)
    """Log a step only after this many groups were sent."""

    @property
    def train_sampling(self) -> dict[str, Any]:
        """The sampling parameters of requests for training."""
        return {"temperature": self.train_temperature, "top_p": self.train_top_p}

    @property
    def keeps_groups(self) -> bool:
        """Whether some groups are saved in data_dumps_dir."""
        return self.dump_rollouts or self.dump_failed_rollouts or self.keep_for_report

    @property
    def dumps_folder(self) -> Path:
        """The folder that data_dumps_dir names, or its default."""
        return default_dumps_folder(PACKAGE_DIR) if self.data_dumps_dir is None else Path(self.data_dumps_dir)

    @model_validator(mode="before")
    @classmethod
    def _unknown_fields_fail_with_the_nearest_name(cls, values: Any) -> Any:
        names = values if isinstance(values, dict) else {}
        unknown = [str(name) for name in names if name not in cls.model_fields]
        if unknown:
            errors = [unknown_name("setting", name, cls.model_fields, SETTINGS_ARE_LISTED) for name in unknown]
            raise ValueError(" ".join(map(str, errors)))
        return values

    @field_validator("custom_thinking_prompt")
    @classmethod
    def _has_no_effect(cls, value: str | None) -> str | None:
        if value is not None:
            raise ValueError("expected none, got a text: Atropos never uses it, so set system_prompt to this text")
        return value

    @field_validator("rollout_server_url")
    @classmethod
    def _paths_can_be_appended(cls, value: str) -> str:
        return value.rstrip("/")

    @field_validator("rollout_save_score_threshold")
    @classmethod
    def _warn_if_nothing_can_exceed_it(cls, value: float) -> float:
        if value == 1.0:
            warnings.warn(
                "rollout_save_score_threshold is 1.0: no score is above it, nothing is dumped.",
                stacklevel=2,
            )
        return value

    def validate_config(self) -> None:
        """Checks of a subclass, which may raise ValueError. The environment calls this when it is constructed.

        Our own settings have been validated before.
        """


def default_dumps_folder(package: Path) -> Path:
    """The existing folder `data_dumps` beside a main file of this package, else a relative path.

    A checkout has the main file beside the package, and a copy of the package alone has it inside. A wheel does not
    have the folder, so nothing is written where packages are installed.
    """
    for folder in (package.parent, package):
        dumps = folder / DUMPS
        if (folder / MAIN_FILE).is_file() and dumps.is_dir():
            return dumps
    return Path(DUMPS)


DEFAULT_MODEL = "NousResearch/DeepHermes-3-Llama-3-8B-Preview"


def default_configs() -> tuple[ReasoningGymEnvConfig, list[APIServerConfig]]:
    """Return the values of `config_init`: a training set-up with one vLLM server on this machine.

    All other settings have the default of the class.
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
        "partial_credit": "exact",
        "keep_for_report": True,
        "min_batch_allocation": 0.1,
        # The trainer's importance ratio assumes that completions come from the whole distribution.
        "train_top_p": 1.0,
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


# --- an inference server

PLACEHOLDER = "x"
"""The key of the default settings, which is none."""

GIVE_AGAIN = "Give the setting again, as a flag"

STARS = "***"
"""Logs and files have this text in place of a key."""


class Server(APIServerConfig):
    """An inference server, whose key may be in an environment variable."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    model_name: str = "default"
    """The name under which the server has the model."""
    server_type: Literal["openai", "trl", "sglang", "vllm"] = "openai"
    """Type of the server: vllm, sglang or openai. serve needs vllm or sglang, because it needs token ids."""
    base_url: str | None = ""
    """Address of the server. It usually ends in /v1."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the API key. Default for openai servers: OPENAI_API_KEY."""
    api_key: str | None = ""
    """API key of the server. Prefer api_key_env."""
    tokenizer_name: str = "none"
    """Tokenizer of the server's model. With none, the tokenizer is env.tokenizer_name."""
    default_query: Annotated[dict[str, str], BeforeValidator(mapping_from_text)] = Field(default_factory=dict)
    """Parameters that each request has in its address, such as `{"api-version": "2024-10-21"}`."""
    default_headers: Annotated[dict[str, str], BeforeValidator(mapping_from_text)] = Field(default_factory=dict)
    """Headers that each request has, for a gateway that wants its own."""
    timeout: int = Field(1200, ge=1)
    """Requests that take longer than this number of seconds fail and are retried."""
    num_max_requests_at_once: int = Field(512, ge=1)
    """Largest number of training requests in progress at the same time."""
    num_requests_for_eval: int = Field(64, ge=1)
    """Largest number of evaluation requests in progress at the same time."""
    n_kwarg_is_ignored: bool = False
    """Whether the server makes a single completion for each request, whatever `n` says. The first request usually
    finds this out.
    """

    @field_validator("base_url")
    @classmethod
    def _is_address(cls, given: str | None) -> str | None:
        given = given and given.strip()
        if given and not given.startswith(("http://", "https://")):
            # The message leaves out what stands before an @, because it may be a password.
            address = given.rpartition("@")[2].rpartition("://")[2]
            raise ValueError(f"expected an address that begins with http:// or https://, such as http://{address}")
        if given and not _has_host(given):
            raise ValueError(
                "expected an address with a host, and a port below 65536, such as http://localhost:9001/v1"
            )
        if given and f"://{STARS}@" in given:
            raise ValueError(f"the name and the password are hidden in saved settings. {GIVE_AGAIN}")
        return given

    @field_validator("default_headers")
    @classmethod
    def _has_no_stars(cls, given: dict[str, str]) -> dict[str, str]:
        if STARS in given.values():
            raise ValueError(f"the values are hidden in saved settings. {GIVE_AGAIN}")
        return given

    @model_validator(mode="after")
    def _has_its_key(self) -> Server:
        # A key from a file or a secret often has a line break at its end.
        given = self.api_key and self.api_key.strip()
        self.api_key = PLACEHOLDER if given in (None, "", STARS) else given
        name = self.api_key_env
        if name is None:
            return self
        if self.api_key != PLACEHOLDER:
            raise ValueError("api_key and api_key_env both give a key: use one of them")
        if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
            # The message does not repeat the value, because it may be the key itself.
            raise ValueError("api_key_env: expected the name of an environment variable, such as OPENAI_API_KEY")
        self.api_key = os.environ.get(name, "").strip()
        if not self.api_key:
            raise ValueError(f"api_key_env: the environment variable {name} is not set, or it is empty")
        return self


def _has_host(address: str) -> bool:
    try:
        parts = urlsplit(address)
        # Python looks at the port only when it is read.
        return parts.port != 0 and bool(parts.hostname) and address.isprintable()
    except ValueError:
        return False
