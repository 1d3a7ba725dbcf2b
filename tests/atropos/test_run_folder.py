"""A process finds the folder of its run again, and never shares it with a living one."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import time
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment.atropos.checkpoints import Membership, join_run, run_name
from reasoning_gym_environment.errors import EnvironmentSetupError


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
