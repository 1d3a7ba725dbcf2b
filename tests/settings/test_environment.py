"""What the settings may be, and what is refused. Their defaults are those of docs/reference.md (tests/docs)."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import get_args

import pytest
import yaml
from atroposlib.envs.base import BaseEnvConfig
from openai import AsyncClient
from pydantic import BaseModel, ValidationError

from reasoning_gym_environment.settings.environment import (
    ReasoningGymEnvConfig,
    Server,
    default_configs,
    default_dumps_folder,
)
from testing.support import parsed_command_line

VALUES = json.loads(Path(__file__).with_name("values.json").read_text(encoding="utf-8"))
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


SEEDS = ("seed", "eval_seed")
MINUS_ONE = ("max_num_workers", "steps_per_eval", "batch_size", "num_rollouts_per_group_for_logging", "worker_timeout")
"""Settings for which -1 means: the default, all, or no limit."""
MAY_BE_NEGATIVE = {*SEEDS, "total_steps", "max_staleness_steps", *MINUS_ONE}
MAY_BE_ZERO = {"steps_per_eval", "eval_limit_ratio", "num_rollouts_to_keep", "complexity_mode"}
MAY_BE_ZERO |= {"min_items_sent_before_logging", "min_batch_allocation", "num_eval_samples_per_task"}
MAY_BE_ZERO |= {"eval_complexity", "eval_temperature", "rollout_save_score_threshold"}


WITHOUT_EFFECT = ("max_eval_workers", "rolling_buffer_length")


@pytest.mark.parametrize("kind", [ReasoningGymEnvConfig, Server])
def test_a_number_without_a_meaning_is_refused(kind: type[BaseModel]) -> None:
    checked = set()
    for name, field in kind.model_fields.items():
        is_number = {int, float} & {field.annotation, *get_args(field.annotation)}
        if not is_number or name in WITHOUT_EFFECT:
            continue
        for text in ("-5", "-1", "0", "nan", "inf", "-inf", "1e400"):
            try:
                value = getattr(kind(**{name: text}), name)
            except ValidationError:
                checked.add(name)
                continue
            assert math.isfinite(value), name
            assert value >= 0 or name in MAY_BE_NEGATIVE, (name, text)
            assert value != 0 or name in MAY_BE_ZERO | MAY_BE_NEGATIVE - set(MINUS_ONE), (name, text)
            assert value != -5 or name in SEEDS, (name, text)
    assert len(checked) >= 3, "the names of the settings"


def test_what_can_be_written_in_several_ways_means_the_same() -> None:
    for name, means, ways in VALUES["the same"]:
        for way in ways:
            assert getattr(ReasoningGymEnvConfig(**{name: way}), name) == means, (name, way)


@pytest.mark.parametrize("layout", ["repository", "package"])
def test_dumps_go_beside_the_main_file_of_a_checkout_and_otherwise_to_the_working_directory(
    tmp_path: Path, layout: str
) -> None:
    package = tmp_path / "reasoning_gym_environment"
    beside_main_file = tmp_path if layout == "repository" else package
    package.mkdir()
    (tmp_path / "data_dumps").mkdir()
    assert default_dumps_folder(package) == Path("data_dumps"), "a folder of another program"
    (beside_main_file / "reasoning_gym_environment.py").touch()
    (beside_main_file / "data_dumps").mkdir(exist_ok=True)
    assert default_dumps_folder(package) == beside_main_file / "data_dumps"
    (beside_main_file / "data_dumps").rmdir()
    assert default_dumps_folder(package) == Path("data_dumps")


def test_this_checkout_has_a_folder_for_dumps_and_a_setting_wins() -> None:
    assert ReasoningGymEnvConfig().dumps_folder == Path(__file__).resolve().parents[2] / "data_dumps"
    assert ReasoningGymEnvConfig(data_dumps_dir="elsewhere").dumps_folder == Path("elsewhere")


def test_the_overrides_that_the_help_shows_can_be_pasted() -> None:
    description = str(ReasoningGymEnvConfig.model_fields["task_overrides"].description)
    example = re.findall(r"\{.*\}", description)[0]
    assert ReasoningGymEnvConfig(task_overrides=example).task_overrides == {"chain_sum": {"max_terms": 4}}
    assert yaml.safe_load(example) == json.loads(example)


@pytest.mark.parametrize("text", ["[", '{"gcd": {"min_value": ' + "9" * 5000 + "}}"])
def test_overrides_that_are_no_json_are_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="expected a mapping, or JSON such as"):
        ReasoningGymEnvConfig(task_overrides=text)


def test_a_threshold_of_exactly_one_warns_and_no_other_does(recwarn: pytest.WarningsRecorder) -> None:
    ReasoningGymEnvConfig(rollout_save_score_threshold=0.999999)
    assert not recwarn.list
    with pytest.warns(UserWarning, match=r"rollout_save_score_threshold is 1\.0"):
        ReasoningGymEnvConfig(rollout_save_score_threshold=1.0)


def test_an_unknown_setting_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ValidationError, match=r"Unknown setting 'dump_rollout'\. Did you mean .*\bdump_rollouts\b"):
        ReasoningGymEnvConfig(dump_rollout=1)


CONFIGS = Path(__file__).resolve().parents[2] / "reasoning_gym_environment" / "configs"


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_every_ready_config_is_accepted(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    config, _ = parsed_command_line(["serve", "--config", str(path)], monkeypatch)
    assert yaml.safe_load(path.read_text())["env"] and isinstance(config, ReasoningGymEnvConfig)


MALFORMED_ADDRESSES = [
    *("localhost:9001/v1", "ftp://h/v1", "http://", "http:///v1", "http://:80/v1", "http://[::1/v1", "http://::1/v1"),
    *("http://h:port/v1", "http://h:99999/v1", "http://h:0/v1", "http://h:-1/v1", "http://h\t/v1", "http://h/v1\n/x"),
]


@pytest.mark.parametrize("address", MALFORMED_ADDRESSES)
def test_an_address_without_a_host_or_a_port_is_refused_and_a_password_is_not_shown(address: str) -> None:
    for given in (address, address.replace("//", "//me:secret@")):
        with pytest.raises(ValidationError, match="expected an address") as caught:
            Server(base_url=given)
        assert not [error["msg"] for error in caught.value.errors() if "secret" in error["msg"]]


@pytest.mark.parametrize("address", ["http://h/v1", "http://[::1]:9/v1", "https://u:p@h.example/a?b=c", "", None])
def test_an_address_that_a_client_takes_is_taken_without_blanks_around_it(address: str | None) -> None:
    assert Server(base_url=address).base_url == address
    if address:
        assert Server(base_url=f" {address}\n").base_url == address
        AsyncClient(base_url=address, api_key="x")


def test_the_line_break_after_a_key_is_no_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "sk-1\n")
    assert Server(api_key_env="A_KEY").api_key == Server(api_key=" sk-1\n").api_key == "sk-1"
    monkeypatch.setenv("A_KEY", "\n")
    with pytest.raises(ValidationError, match="A_KEY is not set, or it is empty"):
        Server(api_key_env="A_KEY")
