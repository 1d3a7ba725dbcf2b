"""When the disk of the checkpoints refuses or hangs, no run starts over unasked, and training goes on."""

from __future__ import annotations

import asyncio
import errno
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment import ReasoningGymEnv
from reasoning_gym_environment.atropos import checkpoints as resuming
from reasoning_gym_environment.atropos import shutdown
from reasoning_gym_environment.atropos.checkpoints import LATEST, CheckpointFolder
from reasoning_gym_environment.errors import EnvironmentSetupError

from ..env_support import RIGHT, MakeEnv, register_as, rollout

NAME = "run-seed42-a"


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resuming, "TRY_EVERY_S", 0.01)
    monkeypatch.setattr(shutdown, "STEP_S", 0.2)


@pytest.fixture
def start(make_env: MakeEnv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`await start(step)`: an environment of one run, registered with a trainer that is at this step."""

    async def start(step: int) -> ReasoningGymEnv:
        register_as(0, tmp_path, monkeypatch, step=step)
        env = make_env(instance_id="a", num_eval_samples_per_task=0)
        await env.setup()
        await env.register_env()
        return env

    return start


@pytest.fixture
async def ran(start: Any) -> None:
    """A run that has drawn three items by step 50, and was stopped."""
    env = await start(50)
    for _ in range(3):
        item = await env.get_next_item()
        await env.score([rollout(item, RIGHT)] * 4)
    await env.close()


class Disk:
    """The locks of checkpoint folders: it refuses the next `refusals` times that one is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refusals = 0
        opens = Path.open

        def refuse(path: Path, *arguments: Any, **options: Any) -> Any:
            if path.name == ".lock" and self.refusals > 0:
                self.refusals -= 1
                raise OSError(errno.ESTALE, "Stale file handle")
            return opens(path, *arguments, **options)

        monkeypatch.setattr(Path, "open", refuse)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


async def test_a_folder_that_is_refused_for_a_moment_is_tried_again(
    ran: None, start: Any, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    disk.refusals = 5
    assert (await start(50)).iter == 3
    assert caplog.text.count("No checkpoints can be kept") == caplog.text.count("Checkpoints are kept in") == 1


async def test_a_run_whose_folder_is_refused_does_not_start_over_unasked(
    ran: None, start: Any, disk: Disk, tmp_path: Path
) -> None:
    disk.refusals = 10**9
    with pytest.raises(EnvironmentSetupError, match=r"at step 50, and the checkpoints in .* cannot be reached"):
        await start(50)
    disk.refusals = 0
    assert (await start(50)).iter == 3


async def test_at_the_first_step_a_run_goes_on_and_keeps_checkpoints_as_soon_as_it_can(
    ran: None, start: Any, disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resuming, "SAVE_EVERY_S", 0.0)
    disk.refusals = 10**9
    env = await start(0)
    assert env.iter == 0
    env.status_dict = {"current_step": 0}
    await env.env_step_checks()
    await env.get_next_item()
    disk.refusals = 0
    await asyncio.sleep(0.05)
    await env.env_step_checks()
    await env.close()
    newest = next(CheckpointFolder(tmp_path / "env_checkpoints" / NAME).up_to(0))
    assert (newest.path.name, newest.step) == (LATEST, 0)
    assert newest.serial > 2, "newer than those of the run before"
    assert json.loads(newest.path.read_text())


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Until it is set, and cleared at first: every checkpoint hangs."""
    goes_on = threading.Event()
    write = CheckpointFolder.write

    def hang(folder: CheckpointFolder, *arguments: Any, **options: Any) -> Path:
        goes_on.wait(60)
        return write(folder, *arguments, **options)

    monkeypatch.setattr(CheckpointFolder, "write", hang)
    yield goes_on
    goes_on.set()


async def test_training_goes_on_while_the_disk_of_the_checkpoints_hangs(
    start: Any, tmp_path: Path, hanging: threading.Event, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    hanging.set()
    env = await start(0)
    hanging.clear()
    monkeypatch.setattr(resuming, "SAVE_EVERY_S", 0.0)
    for step in (0, 5, 10, 10, 15, 15):
        env.status_dict = {"current_step": step}
        await env.env_step_checks()
    assert env.curr_step == 15
    assert caplog.text.count("The disk of the checkpoints is away") == 1
    assert caplog.text.count("is left out: those before it") == 2
    hanging.set()
    await env.checkpoints.save_latest()
    while "The disk of the checkpoints is back" not in caplog.text:
        await asyncio.sleep(0.01)
        await env.env_step_checks()
    await env.close()
    folder = tmp_path / "env_checkpoints" / NAME
    assert sorted(path.name for path in folder.glob("*.json")) == [LATEST, "step-5.json"]


async def test_the_end_comes_while_the_disk_of_the_checkpoints_hangs(
    start: Any, hanging: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    hanging.set()
    env = await start(0)
    hanging.clear()
    await asyncio.wait_for(env.close(), 120)
    assert "At the end, writing the last checkpoint was left" in caplog.text
