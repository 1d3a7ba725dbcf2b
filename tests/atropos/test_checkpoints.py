"""State is wrapped under one key with version and checksum, never half written, and chosen by step and age."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment.atropos import checkpoints as checkpoint
from reasoning_gym_environment.atropos.checkpoints import LATEST, CheckpointFolder
from reasoning_gym_environment.errors import EnvironmentSetupError

STATE = {"sampler": {"index": 3}}


def saved(tmp_path: Path, data: Any) -> Path:
    path = tmp_path / "step-3.json"
    path.write_text(json.dumps(data))
    return path


def test_envelope_has_one_key_and_opens_to_the_same_state(tmp_path: Path) -> None:
    wrapped = checkpoint.envelope(STATE, step=3, serial=8)
    assert list(wrapped) == [checkpoint.KEY]
    path = saved(tmp_path, wrapped)
    assert checkpoint.read(path) == checkpoint.Checkpoint(path, 3, 8, STATE)


@pytest.mark.parametrize("data", [None, 3, [], {}, {"version": 2}, {"version": 2, "step": 3, "state": None}])
def test_what_is_no_envelope_is_refused_with_its_place(tmp_path: Path, data: Any) -> None:
    for content in (data, {checkpoint.KEY: data}):
        with pytest.raises(EnvironmentSetupError, match=r"step-3\.json is not a checkpoint"):
            checkpoint.read(saved(tmp_path, content))


@pytest.mark.parametrize("version", [0, 1, 3, "2", None])
def test_another_version_is_refused_with_both_versions(tmp_path: Path, version: Any) -> None:
    wrapped = checkpoint.envelope(STATE, step=3, serial=1)
    wrapped[checkpoint.KEY]["version"] = version
    with pytest.raises(EnvironmentSetupError, match=f"version {version!r}.* reads 2"):
        checkpoint.read(saved(tmp_path, wrapped))


def test_a_changed_state_is_refused(tmp_path: Path) -> None:
    wrapped = checkpoint.envelope(STATE, step=3, serial=1)
    wrapped[checkpoint.KEY]["state"] = {"sampler": {"index": 4}}
    with pytest.raises(EnvironmentSetupError, match="checksum"):
        checkpoint.read(saved(tmp_path, wrapped))


@pytest.mark.parametrize("content", [b"{half", b"\xff\xfe", b""])
def test_what_is_no_json_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "step-3.json"
    path.write_bytes(content)
    with pytest.raises(EnvironmentSetupError, match="cannot be read"):
        checkpoint.read(path)


def folder_with(tmp_path: Path, *names: str) -> CheckpointFolder:
    """Documents written in this order; `latest` is of the step named after a colon."""
    folder = CheckpointFolder(tmp_path)
    for name in names:
        name, _, step = name.partition(":")
        file = LATEST if step else f"step-{name}.json"
        folder.write(file, json.dumps({"written": name}), step=int(step or name))
    return folder


def steps_up_to(tmp_path: Path, step: int) -> list[int]:
    return [one.step for one in CheckpointFolder(tmp_path).up_to(step)]


def test_the_newest_up_to_the_step_comes_first(tmp_path: Path) -> None:
    folder_with(tmp_path, "5", "10", "15", "latest:17")
    assert steps_up_to(tmp_path, 16) == [15, 10, 5]
    assert steps_up_to(tmp_path, 17) == [17, 15, 10, 5]
    assert steps_up_to(tmp_path, 4) == []


def test_what_an_older_run_left_at_later_steps_is_not_preferred(tmp_path: Path) -> None:
    folder_with(tmp_path, "50", "100")
    again = CheckpointFolder(tmp_path)
    assert [one.step for one in again.up_to(0)] == []
    again.write(LATEST, "{}", step=0)
    again.write("step-50.json", '{"run": "new"}', step=50)
    first, second, *_ = CheckpointFolder(tmp_path).up_to(120)
    assert (first.step, first.state) == (50, {"run": "new"})
    assert second.step == 0


def test_damaged_ones_are_named_and_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = folder_with(tmp_path, "5", "10", "15")
    (tmp_path / "step-15.json").write_text("{half")
    (tmp_path / "step-10.json").write_bytes(b"\0" * 100)
    assert [one.step for one in folder.up_to(20)] == [5]
    assert folder.damaged == 2
    assert "step-15.json cannot be read" in caplog.text and "step-10.json cannot be read" in caplog.text


def test_of_thousands_only_the_one_that_is_used_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder_with(tmp_path, *map(str, range(300)), "latest:300")
    whole: list[str] = []
    monkeypatch.setattr(checkpoint, "read", lambda path, read=checkpoint.read: whole.append(path.name) or read(path))
    again = CheckpointFolder(tmp_path)
    assert next(again.up_to(298)).step == 298
    assert whole == ["step-298.json"]
    assert again.latest_step == 300
    path = CheckpointFolder(tmp_path).write(LATEST, "{}", step=301)
    assert whole == ["step-298.json"]
    assert checkpoint.read(path).serial == 302


def test_a_checkpoint_with_extra_data_is_found_by_its_serial_number_too(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    for step, extra in ((5, None), (10, {"mine": 1}), (15, None)):
        folder.write(f"step-{step}.json", "{}", step=step, extra=extra)
    assert steps_up_to(tmp_path, 15) == [15, 10, 5]


def test_extra_data_stands_beside_the_state(tmp_path: Path) -> None:
    path = CheckpointFolder(tmp_path).write("step-1.json", "{}", step=1, extra={"mine": 1})
    assert json.loads(path.read_text()).keys() == {"mine", checkpoint.KEY}


class Part:
    def __init__(self) -> None:
        self.value = 0

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.value = state["value"]

    def metrics(self) -> dict[str, Any]:
        return {}


def test_each_part_gets_its_own_state() -> None:
    parts = {"a": Part(), "b": Part()}
    parts["a"].value, parts["b"].value = 1, 2
    fresh = {"b": Part(), "a": Part()}
    checkpoint.load_into(fresh, checkpoint.state_of(parts))
    assert (fresh["a"].value, fresh["b"].value) == (1, 2)


@pytest.mark.parametrize("names", [["a"], ["a", "b", "c"], ["a", "c"], []])
def test_other_parts_are_refused_with_both_sides(names: list[str]) -> None:
    state = {name: {"value": 1} for name in names}
    with pytest.raises(EnvironmentSetupError) as caught:
        checkpoint.load_into({"b": Part(), "a": Part()}, state)
    assert str(names) in str(caught.value) and "['a', 'b']" in str(caught.value)


def test_write_makes_folders_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "step-1.json"
    checkpoint.write_atomically(path, {"x": 1})
    checkpoint.write_atomically(path, {"x": 2})
    assert json.loads(path.read_text()) == {"x": 2}
    assert list(path.parent.iterdir()) == [path]


def test_failed_write_leaves_the_old_content_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "step-1.json"
    checkpoint.write_atomically(path, {"x": 1})
    with pytest.raises(TypeError):
        checkpoint.write_atomically(path, {"x": object()})
    assert json.loads(path.read_text()) == {"x": 1}
    assert list(tmp_path.iterdir()) == [path]
