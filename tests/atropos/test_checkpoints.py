"""State is wrapped under one key with version and checksum, never half written, and chosen by step and age."""

from __future__ import annotations

import errno
import fcntl
import json
import multiprocessing
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment.atropos import checkpoints as checkpoint
from reasoning_gym_environment.atropos.checkpoints import LATEST, CheckpointFolder, Membership, join_run, run_name
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


class Part:
    def __init__(self) -> None:
        self.value = 0

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.value = state["value"]

    def metrics(self) -> dict[str, Any]:
        return {}


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


# --- a process finds the folder of its run again, and never shares it with a living one


def join(root: Path, **fields: Any) -> Membership:
    values: dict[str, Any] = {"instance_id": None, "slurm_procid": None, "env_id": 3, **fields}
    return join_run(root, "run", **values)


@pytest.mark.parametrize(
    ("run_id", "wandb_name", "name"),
    [
        ("mine", "x", "mine"),
        (None, "think", "think-seed42"),
        (None, None, "run-seed42"),
        ("../../etc/x", None, "_.._etc_x"),
        ("a b/ü", None, "a_b__"),
        ("..", None, "_"),
    ],
)
def test_the_name_comes_from_the_config_and_is_a_file_name(
    run_id: str | None, wandb_name: str | None, name: str
) -> None:
    assert run_name(run_id, wandb_name, 42) == name


def test_processes_that_nothing_tells_apart_get_a_number_each_and_find_it_again(tmp_path: Path) -> None:
    first, second = join(tmp_path, env_id=0), join(tmp_path, env_id=1)
    assert [one.folder.name for one in (first, second)] == ["run-0", "run-1"]
    assert first.member is None
    first.release()
    assert join(tmp_path, env_id=2).folder.name == "run-0"
    second.release()


@pytest.mark.parametrize(("fields", "name"), [({"instance_id": "a"}, "run-a"), ({"slurm_procid": "5"}, "run-slurm5")])
def test_a_named_process_has_a_folder_by_its_name(tmp_path: Path, fields: dict[str, str], name: str) -> None:
    one = join(tmp_path, **fields)
    assert (one.folder.name, one.member) == (name, next(iter(fields.values())))
    one.release()
    one.release()
    join(tmp_path, **fields).release()


def test_two_living_processes_with_one_instance_id_are_refused(tmp_path: Path) -> None:
    one = join(tmp_path, instance_id="a")
    with pytest.raises(EnvironmentSetupError, match="instance_id 'a': give each its own"):
        join(tmp_path, instance_id="a")
    one.release()


def test_two_processes_with_one_slurm_procid_are_told_apart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one, other = join(tmp_path, slurm_procid="0"), join(tmp_path, slurm_procid="0", env_id=4)
    assert (one.folder.name, one.member) == ("run-slurm0", "0")
    assert (other.folder.name, other.member) == ("run-0", "env4")
    assert "were they started without srun" in caplog.text
    one.release()
    other.release()


def hold_until_killed(root: Path, ready: Any) -> None:
    membership = join(root)
    ready.put(membership.folder.name)
    ready.close()
    ready.join_thread()
    while True:
        time.sleep(1)


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready = context.Queue()
    process = context.Process(target=hold_until_killed, args=(tmp_path, ready))
    process.start()
    try:
        assert ready.get(timeout=60) == "run-0"
        second = join(tmp_path)
        assert second.folder.name == "run-1"
        second.release()
    finally:
        process.kill()
        process.join()
    join(tmp_path).release()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run-0", "run-1"]


@pytest.mark.parametrize("fields", [{}, {"instance_id": "a"}])
def test_a_disk_in_trouble_is_not_one_without_file_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, str]
) -> None:
    def refuse(*arguments: Any) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OSError, match="Stale"):
        join(tmp_path, **fields)


def test_without_file_locks_the_api_s_number_keeps_folders_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*arguments: Any) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert join(tmp_path, env_id=6).folder.name == "run-0-env6"
    assert "Set instance_id" in caplog.text
    for _ in range(2):
        assert join(tmp_path, env_id=6, instance_id="a").folder.name == "run-a"
    assert "nothing keeps another process called 'a' out" in caplog.text
