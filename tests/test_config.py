"""Every field, its default, and what is refused."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from atroposlib.envs.base import EvalHandlingEnum
from pydantic import ValidationError

from reasoning_gym_environment.config import ReasoningGymEnvConfig, default_configs

DEFAULTS = {
    "dump_rollouts": False,
    "dump_failed_rollouts": False,
    "seed": 42,
    "debug_logging": False,
    "suppress_base_env_logs": True,
    "mask_too_long_completions": True,
    "rollout_save_score_threshold": 0.7,
    "num_eval_samples_per_task": 5,
    "eval_seed": 123,
    "complexity_mode": None,
    "curriculum_target_accuracy": 0.7,
    "include_tasks": [],
    "exclude_tasks": [],
    "task_weights": {},
    "task_sampling": "weighted",
    "task_floor": 0.12,
    "partial_credit": "native",
    "binary_threshold": 0.5,
    "task_overrides": {},
    "task_modules": [],
    "num_generation_workers": None,
    "generation_timeout_s": 5.0,
    "prefetch_items": 4,
    "max_prompt_tokens": None,
    "sandbox": "auto",
    "num_scoring_workers": None,
    "scoring_timeout_s": 2.0,
    "verification": "strict",
    "quarantine": True,
    "answer_normalization": "none",
    "allow_unguarded_tasks": [],
    "difficulty_range": "level",
    "instance_id": None,
    "data_dumps_dir": "data_dumps",
    "run_id": None,
    "max_staleness_steps": 8,
    "eval_tasks": ["20"],
    "eval_completions": 1,
    "eval_complexity": None,
    "eval_temperature": 0.1,
    "process_concurrency": 64,
}
CONFIG_INIT = {
    "tokenizer_name": "NousResearch/DeepHermes-3-Llama-3-8B-Preview",
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
    "num_eval_samples_per_task": 5,
    "eval_seed": 123,
    "complexity_mode": "random",
    "curriculum_target_accuracy": 0.7,
    "task_sampling": "learnability",
    "partial_credit": "floor",
    "min_batch_allocation": 0.1,
}
SERVER = {
    "model_name": "NousResearch/DeepHermes-3-Llama-3-8B-Preview",
    "base_url": "http://localhost:9004/v1",
    "api_key": "x",
    "num_max_requests_at_once": 128,
    "num_requests_for_eval": 256,
    "server_type": "vllm",
}


@pytest.mark.parametrize("name", sorted(DEFAULTS))
def test_default_of_each_field(name: str) -> None:
    assert getattr(ReasoningGymEnvConfig(), name) == DEFAULTS[name]


def test_no_field_of_ours_is_missing_here() -> None:
    from atroposlib.envs.base import BaseEnvConfig

    assert ReasoningGymEnvConfig.model_fields.keys() - BaseEnvConfig.model_fields.keys() == DEFAULTS.keys()


@pytest.mark.parametrize("name", sorted(CONFIG_INIT))
def test_value_of_config_init(name: str) -> None:
    assert getattr(default_configs()[0], name) == CONFIG_INIT[name]


def test_what_config_init_does_not_name_keeps_its_default() -> None:
    config = default_configs()[0].model_dump()
    assert {name: config[name] for name in config.keys() - CONFIG_INIT.keys()} == {
        name: value for name, value in ReasoningGymEnvConfig().model_dump().items() if name not in CONFIG_INIT
    }


def test_config_init_has_one_vllm_server() -> None:
    [server] = default_configs()[1]
    assert {name: getattr(server, name) for name in SERVER} == SERVER


def test_every_field_is_described() -> None:
    assert [n for n in DEFAULTS if not ReasoningGymEnvConfig.model_fields[n].description] == []


@pytest.mark.parametrize("value", [None, "none", "None", "NULL", "", " none "])
def test_no_complexity_mode_can_be_written_in_many_ways(value: str | None) -> None:
    assert ReasoningGymEnvConfig(complexity_mode=value).complexity_mode is None


@pytest.mark.parametrize("value", ["curriculum", "random"])
def test_complexity_modes_are_kept(value: str) -> None:
    assert ReasoningGymEnvConfig(complexity_mode=value).complexity_mode == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rollout_save_score_threshold", -0.1),
        ("rollout_save_score_threshold", 1.1),
        ("rollout_save_score_threshold", "high"),
        ("num_eval_samples_per_task", -1),
        ("num_eval_samples_per_task", 1.5),
        ("complexity_mode", "hard"),
        ("complexity_mode", 3),
        ("curriculum_target_accuracy", 0.0),
        ("curriculum_target_accuracy", 1.0),
        ("difficulty_range", "all"),
        ("task_sampling", "bandit"),
        ("task_floor", -0.01),
        ("task_floor", 1.01),
        ("partial_credit", "none"),
        ("binary_threshold", 0.0),
        ("binary_threshold", 1.5),
        ("sandbox", "on"),
        ("sandbox", False),
        ("num_scoring_workers", 0),
        ("scoring_timeout_s", 0),
        ("verification", "none"),
        ("answer_normalization", True),
        ("allow_unguarded_tasks", 5),
        ("group_size", 0),
        ("max_token_length", 0),
        ("total_steps", 0),
        ("total_steps", -5),
        ("seed", "x"),
        ("seed", None),
        ("dump_rollouts", "maybe"),
        ("include_tasks", 5),
        ("include_tasks", [1]),
        ("task_weights", 5),
        ("task_weights", "countdown"),
        ("task_weights", "countdown=-1"),
        ("task_weights", {"countdown": "x"}),
        ("task_weights", {"countdown": float("nan")}),
        ("task_overrides", "{not json"),
        ("task_overrides", "[]"),
        ("task_overrides", '"abc"'),
        ("task_overrides", 5),
        ("task_overrides", {"chain_sum": None}),
    ],
)
def test_invalid_value_fails_with_the_name_of_its_field(name: str, value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        ReasoningGymEnvConfig(**{name: value})
    assert {error["loc"][0] for error in caught.value.errors()} == {name}


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("dump_rollout", "dump_rollouts"),
        ("complexitymode", "complexity_mode"),
        ("evalseed", "eval_seed"),
        ("max_token_len", "max_token_length"),
        ("includetasks", "include_tasks"),
    ],
)
def test_unknown_setting_fails_with_the_nearest_names(name: str, near: str) -> None:
    with pytest.raises(ValidationError, match=rf"unknown setting '{name}' \(did you mean .*\b{near}\b.*\?\)"):
        ReasoningGymEnvConfig(**{name: 1})


def test_unknown_setting_without_a_near_one_is_still_refused() -> None:
    with pytest.raises(ValidationError, match="unknown setting 'zzzz'"):
        ReasoningGymEnvConfig(zzzz=1)


def test_instance_id_may_be_a_number() -> None:
    assert ReasoningGymEnvConfig(instance_id=3).instance_id == "3"


def test_threshold_of_exactly_one_warns() -> None:
    with pytest.warns(UserWarning, match=r"rollout_save_score_threshold is 1\.0"):
        config = ReasoningGymEnvConfig(rollout_save_score_threshold=1.0)
    assert config.rollout_save_score_threshold == 1.0


@pytest.mark.parametrize("value", [0.0, 0.99, 0.999999])
def test_other_thresholds_do_not_warn(value: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ReasoningGymEnvConfig(rollout_save_score_threshold=value)


def test_names_come_as_text_or_as_a_list() -> None:
    config = ReasoningGymEnvConfig(
        include_tasks="a, b,,a", exclude_tasks=["c", "d"], task_modules=None, allow_unguarded_tasks="e,f"
    )
    assert (config.include_tasks, config.exclude_tasks, config.task_modules) == (["a", "b"], ["c", "d"], [])
    assert config.allow_unguarded_tasks == ["e", "f"]


@pytest.mark.parametrize("value", ["a=2, category:logic=0.5", ["a=2", "category:logic=0.5"]])
def test_weights_come_as_text_or_as_a_list(value: Any) -> None:
    assert ReasoningGymEnvConfig(task_weights=value).task_weights == {"a": 2.0, "category:logic": 0.5}


def test_weights_come_as_a_mapping() -> None:
    assert ReasoningGymEnvConfig(task_weights={"a": 2}).task_weights == {"a": 2.0}


def test_overrides_come_as_a_mapping_or_as_json() -> None:
    overrides = {"chain_sum": {"max_terms": 4}}
    assert ReasoningGymEnvConfig(task_overrides=overrides).task_overrides == overrides
    assert ReasoningGymEnvConfig(task_overrides='{"chain_sum": {"max_terms": 4}}').task_overrides == overrides


def test_defaults_are_not_shared_between_configs() -> None:
    one, other = ReasoningGymEnvConfig(), ReasoningGymEnvConfig()
    one.task_overrides["x"] = {}  # type: ignore[index]
    assert other.task_overrides == {}


def test_dumped_config_validates_again() -> None:
    config, _ = default_configs()
    assert ReasoningGymEnvConfig(**config.model_dump()) == config


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (20, ["20"]),
        ("20", ["20"]),
        ("all", ["all"]),
        ("gcd, category:logic", ["gcd", "category:logic"]),
        (["a"], ["a"]),
    ],
)
def test_tasks_to_evaluate_are_a_number_all_or_selectors(given: Any, kept: list[str]) -> None:
    assert ReasoningGymEnvConfig(eval_tasks=given).eval_tasks == kept


@pytest.mark.parametrize("given", ["", "0", "20,gcd", ["all", "gcd"], None])
def test_tasks_to_evaluate_that_mean_nothing_are_refused(given: Any) -> None:
    with pytest.raises(ValidationError, match="eval_tasks"):
        ReasoningGymEnvConfig(eval_tasks=given)


@pytest.mark.parametrize(
    ("given", "kept"), [(None, None), ("none", None), ("0.5", 0.5), (1, 1.0), ("easy", "easy"), ("Hard", "hard")]
)
def test_evaluation_complexity_is_a_number_or_a_preset(given: Any, kept: Any) -> None:
    assert ReasoningGymEnvConfig(eval_complexity=given).eval_complexity == kept


@pytest.mark.parametrize("given", ["1.5", -0.1, "medium", True, "nan"])
def test_other_evaluation_complexities_are_refused(given: Any) -> None:
    with pytest.raises(ValidationError, match=r"none, a number from 0 to 1, easy or hard"):
        ReasoningGymEnvConfig(eval_complexity=given)
