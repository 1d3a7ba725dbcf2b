"""State is wrapped under one key with a version, and never half written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment import checkpoint
from reasoning_gym_environment.errors import EnvironmentSetupError


def test_envelope_has_one_key_and_opens_to_the_same_state() -> None:
    state = {"sampler": {"index": 3}}
    wrapped = checkpoint.envelope(state)
    assert list(wrapped) == [checkpoint.KEY]
    loaded = json.loads(json.dumps(wrapped))
    assert checkpoint.open_envelope(loaded[checkpoint.KEY], "file") == state


@pytest.mark.parametrize("data", [None, 3, [], {}, {"version": 1}, {"version": 1, "state": None}])
def test_what_is_no_envelope_is_refused_with_its_place(data: Any) -> None:
    with pytest.raises(EnvironmentSetupError, match=r"step-3\.json is not a checkpoint"):
        checkpoint.open_envelope(data, "step-3.json")


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_another_version_is_refused_with_both_versions(version: Any) -> None:
    with pytest.raises(EnvironmentSetupError, match=f"version {version!r}.* reads version 1"):
        checkpoint.open_envelope({"version": version, "state": {}}, "file")


def test_write_makes_folders_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "step-1.json"
    checkpoint.write_atomically(path, {"x": 1})
    checkpoint.write_atomically(path, {"x": 2})
    assert json.loads(path.read_text()) == {"x": 2}
    assert list(path.parent.iterdir()) == [path]


def test_failed_write_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "step-1.json"
    checkpoint.write_atomically(path, {"x": 1})
    with pytest.raises(TypeError):
        checkpoint.write_atomically(path, {"x": object()})
    assert json.loads(path.read_text()) == {"x": 1}
