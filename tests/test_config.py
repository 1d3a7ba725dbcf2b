"""What the settings may be, and what is refused. Their defaults are those of docs/configuration.md (tests/docs)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from atroposlib.envs.base import BaseEnvConfig
from pydantic import ValidationError

from reasoning_gym_environment.config import ReasoningGymEnvConfig, default_configs

from .support import parsed_command_line

VALUES = json.loads(Path(__file__).with_name("settings.json").read_text(encoding="utf-8"))
"""`invalid`: values of a setting that are refused. `the same`: a setting, what it becomes, and ways to give that."""


def test_every_setting_is_described_and_the_commands_start_from_settings_that_can_be_given() -> None:
    ours = ReasoningGymEnvConfig.model_fields.keys() - BaseEnvConfig.model_fields.keys()
    assert [name for name in ours if not ReasoningGymEnvConfig.model_fields[name].description] == []
    config, _ = default_configs()
    assert ReasoningGymEnvConfig(**config.model_dump()) == config


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


def test_a_threshold_of_exactly_one_warns_and_no_other_does(recwarn: pytest.WarningsRecorder) -> None:
    ReasoningGymEnvConfig(rollout_save_score_threshold=0.999999)
    assert not recwarn.list
    with pytest.warns(UserWarning, match=r"rollout_save_score_threshold is 1\.0"):
        ReasoningGymEnvConfig(rollout_save_score_threshold=1.0)


def test_an_unknown_setting_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ValidationError, match=r"Unknown setting 'dump_rollout'\. Did you mean .*\bdump_rollouts\b"):
        ReasoningGymEnvConfig(dump_rollout=1)


CONFIGS = Path(__file__).resolve().parent.parent / "reasoning_gym_environment" / "configs"


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_every_ready_config_is_accepted(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    config, _ = parsed_command_line(["serve", "--config", str(path)], monkeypatch)
    assert yaml.safe_load(path.read_text())["env"] and isinstance(config, ReasoningGymEnvConfig)
