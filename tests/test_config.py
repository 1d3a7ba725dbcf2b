"""What the settings may be, and what is refused. Their defaults are those of docs/configuration.md (tests/docs)."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
from atroposlib.envs.base import BaseEnvConfig
from pydantic import ValidationError

from reasoning_gym_environment.config import RETIRED, ReasoningGymEnvConfig, default_configs

VALUES = json.loads(Path(__file__).with_name("settings.json").read_text(encoding="utf-8"))
"""`invalid`: values of a setting that are refused. `the same`: a setting, what it becomes, and ways to give that."""


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
    for name, values in VALUES["invalid"].items():
        for value in values:
            with pytest.raises(ValidationError) as caught:
                ReasoningGymEnvConfig(**{name: value})
            assert {error["loc"][0] for error in caught.value.errors()} == {name}, (name, value)


def test_what_can_be_written_in_several_ways_means_the_same() -> None:
    for name, means, ways in VALUES["the same"]:
        for way in ways:
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
