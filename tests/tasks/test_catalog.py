from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from reasoning_gym_environment.errors import EnvironmentSetupError, NoTasksError, UnknownNameError
from reasoning_gym_environment.records import to_json
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.tasks.catalog import Catalog, Task, config_from_json, config_of, discover
from reasoning_gym_environment.tasks.difficulty_ladder import build_ladder

USER_MODULE = """
from dataclasses import dataclass, field
from reasoning_gym import register_dataset
from reasoning_gym.dataset import ProceduralDataset

@dataclass
class Config:
    seed: int = 0
    size: int = 1
    parts: list = field(default_factory=lambda: [1])
    derived: int = field(init=False, default=0)

class UsersDataset(ProceduralDataset):
    def __init__(self, config):
        {init}
        super().__init__(config, config.seed, config.size)
    def __getitem__(self, index):
        return {{"question": "?", "answer": "x" * len(self.config.parts), "metadata": {{}}}}

register_dataset("users_task", UsersDataset, Config)
"""


@pytest.fixture
def write_module(tmp_path: Path, own_datasets: None) -> Callable[..., str]:
    """Writes a module that registers a dataset."""

    def write(init: str = "pass") -> str:
        path = tmp_path / "users_task.py"
        path.write_text(USER_MODULE.format(init=init))
        return str(path)

    return write


@pytest.fixture(scope="module")
def everything() -> Catalog:
    return discover()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_every_registered_task_but_composite_is_served(everything: Catalog) -> None:
    assert set(everything.names) == set(library.registry()) - {"composite"}
    assert len(everything) >= 105
    assert list(everything.excluded) == ["composite"]
    assert everything.names == sorted(everything.names) == [task.name for task in everything.tasks]
    assert everything["countdown"] == Task("countdown", "games", 1.0, {})
    with pytest.raises(UnknownNameError, match="mixes other datasets"):
        everything["composite"]


def test_include_exclude_and_weights_decide_what_is_served() -> None:
    catalog = discover(
        include=["category:games", "*_arithmetic", "lcm"],
        exclude=["category:games", "basic_arithmetic"],
        weights={"*_arithmetic": 2.0, "lcm": 0.5, "bitwise_arithmetic": 0},
    )
    weights = {task.name: task.weight for task in catalog.tasks}
    assert weights["lcm"] == 0.5 and weights["calendar_arithmetic"] == 2.0
    assert catalog.excluded["countdown"] == "excluded by exclude_tasks"
    assert catalog.excluded["basic_arithmetic"] == "excluded by exclude_tasks"
    assert catalog.excluded["bitwise_arithmetic"] == "its weight is 0"
    assert catalog.excluded["gcd"] == "not in include_tasks"
    with pytest.raises(UnknownNameError, match=r"^The task gcd is not served: not in include_tasks\.$"):
        catalog["gcd"]
    assert set(weights) | set(catalog.excluded) == set(library.registry())


def test_a_known_task_that_is_not_served_is_not_called_unknown() -> None:
    catalog = discover(include=["lcm", "category:games"], exclude=["countdown"])
    assert catalog.select(["lcm", "category:arithmetic"]) == ["lcm"]
    assert catalog.select(["all"]) == catalog.names
    for wanted, message in (
        ("chain_sum", r"^The task chain_sum is not served: not in include_tasks\.$"),
        ("countdown", r"^The task countdown is not served: excluded by exclude_tasks\.$"),
        ("category:graphs", r"^The tasks .* and \d more are not served: not in include_tasks\.$"),
        ("chain_smu", r"^Unknown task 'chain_smu'\. Did you mean chain_sum"),
    ):
        with pytest.raises(UnknownNameError, match=message):
            catalog.select([wanted])


def test_composite_by_name_is_served_with_overrides_and_else_left_out_loudly(caplog: pytest.LogCaptureFixture) -> None:
    specs = [{"name": "lcm", "weight": 1.0, "config": {}}]
    catalog = discover(include=["composite"], overrides={"composite": {"datasets": specs}})
    config = config_of("composite", catalog["composite"].overrides)
    item = library.create_dataset("composite", seed=3, size=1, **config)[0]
    assert item["metadata"]["source_dataset"] == "lcm" and not warnings(caplog)
    assert discover(include=["composite", "lcm"]).names == ["lcm"]
    assert warnings(caplog)[0].startswith("composite is excluded")
    with pytest.raises(NoTasksError, match="mixes other datasets"):
        discover(include=["composite"])


def test_overrides_as_yaml_has_them_become_what_the_config_declares() -> None:
    config = config_of("time_intervals", {"min_time": "08:30", "max_date": "2020-02-01"})
    assert config["min_time"] == datetime.time(8, 30)
    assert config["max_date"] == datetime.date(2020, 2, 1)
    config = config_of("word_sorting", {"transformation": "uppercase"})
    assert library.create_dataset("word_sorting", seed=0, size=1, **config)[0]["answer"].isupper()
    assert config_from_json("word_sorting", json.loads(json.dumps(to_json(config)))) == config
    config = config_of("arc_agi", {"board_format_opts": {"alphabet": list("ABCDEFGHIJ")}})
    assert config["board_format_opts"].alphabet == list("ABCDEFGHIJ")
    assert library.create_dataset("arc_agi", seed=0, size=1, **config)[0]["answer"][0] in "ABCDEFGHIJ"
    assert config_of("arc_agi", config) == config


def test_mistake_in_overrides_names_task_and_field() -> None:
    for overrides, message in (
        ({"seed": 1}, "'seed' of chain_sum cannot be overridden"),
        ({"min_term": 1}, "config field of chain_sum 'min_term'. Did you mean min_terms"),
        ({"min_terms": "many"}, "overrides of chain_sum are not valid: min_terms='many': TypeError"),
        ([1], "overrides of chain_sum must map config fields, got [1]"),
        ({"min_terms": 9, "max_terms": 8}, "overrides of chain_sum are not valid: min_terms=9, max_terms=8"),
    ):
        with pytest.raises(EnvironmentSetupError, match=re.escape(message)):
            discover(include=["chain_sum"], overrides={"chain_sum": overrides})  # type: ignore[dict-item]
    with pytest.raises(EnvironmentSetupError, match="overrides of time_intervals are not valid: min_time="):
        discover(include=["time_intervals"], overrides={"time_intervals": {"min_time": "8 o'clock"}})


def test_users_dataset_is_served_as_other(write_module: Callable[..., str]) -> None:
    path, parts = write_module(), [1, 2]
    catalog = discover(include=["category:other"], modules=[path], overrides={"users_task": {"parts": parts}})
    assert catalog.names == ["users_task"]
    config = config_of("users_task", catalog["users_task"].overrides)
    assert config == {"parts": [1, 2]}
    assert library.create_dataset("users_task", seed=0, size=1, **config)[0]["answer"] == "xx"
    config["parts"].append(3)
    assert parts == [1, 2], "a config is a copy"


def test_task_that_cannot_be_built_is_left_out_by_name(
    write_module: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    path = write_module('raise OSError("words.txt is missing")')
    catalog = discover(include=["users_task", "lcm"], modules=[path])
    assert catalog.names == ["lcm"]
    assert warnings(caplog) == ["users_task is excluded because it cannot be built: OSError: words.txt is missing"]
    with pytest.raises(NoTasksError, match="users_task cannot be built: OSError"):
        discover(include=["users_task"], modules=[path])


@pytest.mark.parametrize("task", ["word_sorting", "rearc", "number_sorting", "aiw"])
def test_a_level_s_config_is_the_same_after_json(task: str) -> None:
    """Enums, tuples, dictionaries, and an integer where the default is a float."""
    config = dict(build_ladder(task).levels[0].config)
    again = config_from_json(task, json.loads(json.dumps(to_json(config))))
    assert repr(again) == repr(config)


def test_the_config_of_a_mixture_is_the_same_after_json() -> None:
    """Its datasets are dataclasses within a list."""
    config = config_of("composite", {"datasets": [{"name": "gcd", "weight": 2, "config": {"max_value": 9}}]})
    again = config_from_json("composite", json.loads(json.dumps(to_json(config))))
    assert repr(again) == repr(config)
