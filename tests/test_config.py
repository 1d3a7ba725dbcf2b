"""What the settings may be, and what is refused. Their defaults are those of docs/configuration.md (tests/docs)."""

from __future__ import annotations

import json
import warnings
from typing import Any

import pytest
from atroposlib.envs.base import BaseEnvConfig
from pydantic import ValidationError

from reasoning_gym_environment.config import RETIRED, ReasoningGymEnvConfig, default_configs

INVALID: dict[str, list[Any]] = {
    "rollout_save_score_threshold": [-0.1, 1.1, "high"],
    "num_eval_samples_per_task": [-1, 1.5],
    "complexity_mode": ["hard", 3],
    "curriculum_target_accuracy": [0.0, 1.0],
    "difficulty_range": ["all"],
    "task_sampling": ["bandit"],
    "partial_credit": ["none"],
    "train_temperature": [0, -1, 2.1, "nan"],
    "train_top_p": [0, 1.01, "all"],
    "min_completion_tokens": [0, 1.5, None],
    "sandbox": ["on", True],
    "num_scoring_workers": [0],
    "scoring_timeout_s": [0],
    "verification": ["none"],
    "allow_unguarded_tasks": [5],
    "group_size": [0],
    "max_token_length": [0],
    "total_steps": [0, -5],
    "seed": ["x", None],
    "dump_rollouts": ["maybe"],
    "include_tasks": [5, [1]],
    "task_weights": [5, "countdown", "countdown=-1", {"countdown": "x"}, {"countdown": float("nan")}],
    "task_overrides": ["{not json", "[]", '"abc"', 5, {"chain_sum": None}],
    "eval_tasks": ["", "0", "20,gcd", ["all", "gcd"], None],
    "eval_complexity": ["1.5", -0.1, "medium", True, "nan"],
}


def test_every_setting_is_described_and_the_commands_start_from_settings_that_can_be_given() -> None:
    ours = ReasoningGymEnvConfig.model_fields.keys() - BaseEnvConfig.model_fields.keys()
    assert [name for name in ours if not ReasoningGymEnvConfig.model_fields[name].description] == []
    config, _ = default_configs()
    assert ReasoningGymEnvConfig(**config.model_dump()) == config


def test_each_owner_gets_its_settings() -> None:
    config = ReasoningGymEnvConfig(
        num_scoring_workers=3, task_modules="a,b", verification="native", complexity_mode="curriculum", eval_seed=9
    )
    assert config.follows_curriculum and config.tasks.with_levels and not config.is_strict
    assert (config.tasks.modules, config.eval_tasks) == (["a", "b"], ["20"])


def test_invalid_values_fail_with_the_name_of_their_field() -> None:
    for name, values in INVALID.items():
        for value in values:
            with pytest.raises(ValidationError) as caught:
                ReasoningGymEnvConfig(**{name: value})
            assert {error["loc"][0] for error in caught.value.errors()} == {name}, (name, value)


def test_what_can_be_written_in_several_ways_means_the_same() -> None:
    overrides = {"chain_sum": {"max_terms": 4}}
    for name, means, ways in [
        ("complexity_mode", None, [None, "none", "None", "NULL", "", " none "]),
        ("complexity_mode", "random", ["random"]),
        ("instance_id", "3", [3, "3"]),
        ("include_tasks", ["a", "b"], ["a, b,,a", ["a", "b"]]),
        ("exclude_tasks", ["c"], ["c", ["c"]]),
        ("task_modules", [], [None, "", []]),
        ("allow_unguarded_tasks", ["e", "f"], ["e,f"]),
        ("task_weights", {"a": 2.0, "category:logic": 0.5}, ["a=2, category:logic=0.5", ["a=2", "category:logic=.5"]]),
        ("task_weights", {"a": 2.0}, [{"a": 2}]),
        ("task_overrides", overrides, [overrides, json.dumps(overrides)]),
        ("task_overrides", {}, [None, "", {}]),
        ("eval_tasks", ["20"], [20, "20"]),
        ("eval_tasks", ["all"], ["all"]),
        ("eval_tasks", ["gcd", "category:logic"], ["gcd, category:logic"]),
        ("eval_complexity", None, [None, "none"]),
        ("eval_complexity", 0.5, ["0.5", 0.5]),
        ("eval_complexity", 1.0, [1]),
        ("eval_complexity", "easy", ["easy", "Easy"]),
    ]:
        for way in ways:  # type: ignore[attr-defined]
            assert getattr(ReasoningGymEnvConfig(**{name: way}), name) == means, (name, way)


def test_settings_that_were_removed_are_refused_with_what_replaces_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not RETIRED.keys() & ReasoningGymEnvConfig.model_fields.keys()
    monkeypatch.setitem(RETIRED, "old_name", "new_name does the same.")
    with pytest.raises(ValidationError, match="old_name was removed: new_name does the same"):
        ReasoningGymEnvConfig(old_name=1, unknown=2)


def test_unknown_setting_fails_with_the_nearest_names() -> None:
    for name, near in [("dump_rollout", "dump_rollouts"), ("evalseed", "eval_seed"), ("includetasks", "include_tasks")]:
        with pytest.raises(ValidationError, match=rf"Unknown setting '{name}'\. Did you mean .*\b{near}\b.*\?"):
            ReasoningGymEnvConfig(**{name: 1})
    with pytest.raises(ValidationError, match=r"Unknown setting 'zzzz'\."):
        ReasoningGymEnvConfig(zzzz=1)


def test_a_threshold_of_exactly_one_warns_and_no_other_does() -> None:
    with pytest.warns(UserWarning, match=r"rollout_save_score_threshold is 1\.0"):
        config = ReasoningGymEnvConfig(rollout_save_score_threshold=1.0)
    assert config.rollout_save_score_threshold == 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for value in (0.0, 0.99, 0.999999):
            ReasoningGymEnvConfig(rollout_save_score_threshold=value)


def test_off_without_quotes_which_yaml_reads_as_a_boolean_is_off() -> None:
    assert ReasoningGymEnvConfig(sandbox=False).sandbox == "off"  # type: ignore[arg-type]
