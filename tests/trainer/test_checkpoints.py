"""A resumed run is the same run; what cannot be resumed is refused by name; no disk ends the training."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import math
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from reasoning_gym_environment import ReasoningGymEnv
from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.group import problem_of
from reasoning_gym_environment.sampling import item_stream
from reasoning_gym_environment.sampling.seeds import derive_seed
from reasoning_gym_environment.trainer import checkpoints as module
from reasoning_gym_environment.trainer.checkpoints import FORMAT, KEY, RunCheckpoints, write_atomically
from reasoning_gym_environment.trainer.run_api import RunState
from reasoning_gym_environment.utils.saved_state import load_into, state_of
from testing.env_support import RIGHT, WRONG, MakeEnv, ReadyEnv, rollout
from testing.json_values import changed, places
from testing.process_table import until

# --- the environment's state


async def score(env: ReasoningGymEnv, item: Any) -> None:
    """Score a group of the item; how many of it are right is a function of the item."""
    right = derive_seed(7, problem_of(*item[1:]).seed) % 5
    await env.score([rollout(item, RIGHT if number < right else WRONG) for number in range(4)])
    # As if its attempt had ended.
    env.run.stream.pending.finish(problem_of(*item[1:]))


async def proceed(env: ReasoningGymEnv, in_flight: list[Any], count: int) -> list[Any]:
    """Finish what is in flight, then draw and score one item after the other; returns all items in order."""
    items = list(in_flight)
    for item in in_flight:
        await score(env, item)
    for _ in range(count):
        items.append(await env.get_next_item())
        await score(env, items[-1])
    return [entry for _, entry, _ in items]


def known(env: ReasoningGymEnv) -> Any:
    """All that its parts know, but for the names of the dumps."""
    parts = {name: part for name, part in env.run.checkpoints.components.items() if name != "dumps"}
    return json.loads(json.dumps(state_of(parts)))


@pytest.mark.parametrize(
    ("prefetch", "weights", "mode"),
    [(0, {"gcd": 3.0}, "random"), (4, {}, "curriculum")],
)
async def test_the_next_fifty_items_and_all_state_are_those_of_the_run_that_was_not_stopped(
    make_env: MakeEnv,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str | None,
    weights: dict[str, float],
    prefetch: int,
) -> None:
    monkeypatch.setattr(item_stream, "PREFETCH", prefetch)

    def make() -> ReasoningGymEnv:
        env = make_env(
            include_tasks="chain_sum,gcd,lcm,products,spell_backward,number_sorting",
            task_weights=weights,
            complexity_mode=mode,
            instance_id="a",
        )
        env.state.checkpoint_dir, env.state.step = str(tmp_path), 5
        return env

    env, resumed = make(), make()
    await asyncio.gather(env.setup(), resumed.setup())
    env.run.stream.instance = "a"
    await proceed(env, [], 40)
    in_flight = [await env.get_next_item() for _ in range(3)]
    await env.save_checkpoint(5, {"more": "data"})
    expected = await proceed(env, in_flight, 50)
    env.run.checkpoints.leave()

    resumed.load_checkpoint()
    again = [await resumed.get_next_item() for _ in range(3)]
    assert [entry for _, entry, _ in again] == [entry for _, entry, _ in in_flight], "what was in flight comes first"
    assert await proceed(resumed, again, 50) == expected
    assert known(resumed) == known(env)
    path = tmp_path / "env_checkpoints/run-seed42-a/step-5.json"
    assert json.loads(path.read_text()).keys() == {"more", KEY}


# --- documents and what is chosen of them


class Part:
    """Its whole state is a number."""

    value = 0

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.value = int(state["value"])

    def metrics(self) -> dict[str, Any]:
        return {}


class Process:
    """The checkpoints of a process of one run, which is named `name`, and whose trainer is at `step`."""

    def __init__(
        self,
        folder: Path | str,
        step: int = 0,
        *,
        name: str | None = "a",
        number: int = 0,
        own_dir: str | None = None,
    ) -> None:
        config: Any = SimpleNamespace(run_id="run", seed=1, instance_id=name, checkpoint_dir=own_dir)
        self.run = RunState(4, 16, 9, env_id=number, step=step, checkpoint_dir=str(folder), checkpoint_interval=5)
        self.part = Part()
        self.checkpoints = RunCheckpoints(config, self.run, {"part": self.part})

    async def save(self, step: int, value: int) -> None:
        self.part.value = value
        await self.checkpoints.begin(step)

    def loaded(self) -> int | None:
        self.checkpoints.load()
        return self.part.value if self.checkpoints.is_resumed else None


Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """`start(step)`: the next process of a run; those before it have ended, unless it has another name."""
    monkeypatch.delenv("SLURM_PROCID", raising=False)
    started: list[Process] = []

    def make(step: int = 0, *, beside: bool = False, **options: Any) -> Process:
        for one in started if not beside else ():
            one.checkpoints.leave()
        started.append(Process(tmp_path, step, **options))
        return started[-1]

    yield make
    for one in started:
        one.checkpoints.leave()


def folder_of(tmp_path: Path) -> Path:
    return tmp_path / "env_checkpoints" / "run-a"


async def test_the_newest_up_to_the_trainers_step_is_resumed(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = start(0)
    assert first.loaded() is None
    for step in (5, 10, 15):
        await first.save(step, step)
    assert [start(step).loaded() for step in (4, 5, 14, 16)] == [None, 5, 10, 15]
    assert "has no checkpoint of step 4 or before. The item stream starts afresh" in caplog.text
    # Somebody keeps a copy.
    shutil.copy(folder_of(tmp_path) / "step-5.json", folder_of(tmp_path) / "step-5-old.json")
    assert start(5).loaded() == 5
    # A run that begins anew is newer than what an older one left at later steps.
    await start(0).save(10, 77)
    assert [start(step).loaded() for step in (16, 10, 9)] == [77, 77, 5]


GOOD: dict[str, Any] = {"version": FORMAT, "step": 9, "env_id": None, "mark": "", "state": {"part": {"value": 1}}}
ODD_VALUES: list[Any] = [math.inf, math.nan, True, 2.5, "9", "", [], {}, [[]], None, -1, 10**400, "\ud83d", {"a": None}]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{half", "cannot be read"),
        (json.dumps({KEY: {**GOOD, "state": {}}}), "the state of part is missing or malformed"),
        (json.dumps({KEY: {**GOOD, "version": 3}}), f"another release wrote it, in version 3 instead of {FORMAT}"),
        (
            json.dumps({KEY: {**GOOD, "state": {"part": {"value": math.inf}}}}),
            "the state of part is missing or malformed",
        ),
        (json.dumps({KEY: {**GOOD, "state": {"part": {"value": "text"}}}}), "invalid literal"),
        (json.dumps({KEY: {**GOOD, "step": -1}}), "cannot be read (1 validation error for Document step"),
        *[(json.dumps(document), "cannot be read") for document in (None, [KEY], {}, {KEY: [3]})],
        ("", "cannot be read"),
        (b"\xff\xfe{}", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        (json.dumps({KEY: GOOD}).replace("9", "9" * 5000), "cannot be read"),
    ],
)
async def test_a_damaged_or_foreign_checkpoint_is_named_and_the_one_before_it_used(
    content: str | bytes, said: str, start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await start(0).save(5, 5)
    data = content.encode() if isinstance(content, str) else content
    for name in ("latest.json", "step-9.json"):
        (folder_of(tmp_path) / name).write_bytes(data)
    assert start(10).loaded() == 5
    # Without a usable checkpoint, the start ends and leaves the files as they are.
    (folder_of(tmp_path) / "step-5.json").unlink()
    refused = start(10)
    with pytest.raises(EnvironmentSetupError, match="None of the checkpoints in"):
        refused.loaded()
    assert f"Cannot use the checkpoint {folder_of(tmp_path)}/step-9.json: " in caplog.text and said in caplog.text
    assert all(len(record.getMessage().splitlines()) == 1 for record in caplog.records)
    await refused.checkpoints.save_latest()
    assert (folder_of(tmp_path) / "latest.json").read_bytes() == data


async def test_no_value_in_a_checkpoint_ends_the_start_in_a_traceback(
    ready_env: ReadyEnv, caplog: pytest.LogCaptureFixture
) -> None:
    env = await ready_env(complexity_mode="curriculum")
    # A report with half a surrogate pair cannot travel between the processes of pytest.
    caplog.set_level(logging.CRITICAL, logger="reasoning_gym_environment")
    await proceed(env, [], 8)
    assert env.rng.random() < 1.0
    components = env.run.checkpoints.components
    good = json.loads(json.dumps(state_of(components)))
    refused = 0
    # The values in turn, so that each field gets some and each value comes to many fields.
    odd = itertools.cycle(ODD_VALUES)
    for path in places(good):
        for value in itertools.islice(odd, 5):
            try:
                load_into(components, changed(good, path, value))
            except EnvironmentSetupError:
                refused += 1
            else:
                # What was loaded can be saved and resumed.
                json.dumps(state_of(components))
                env.run.stream.metrics()
            # The checkpoint before it then replaces all that was loaded.
            load_into(components, good)
            assert json.loads(json.dumps(state_of(components))) == good, path
    assert refused > 70


# --- a process finds the folder of its run again, and never shares it with a living one


async def test_each_living_process_has_a_folder_and_finds_it_again(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def folders() -> list[str]:
        return sorted(path.name for path in (tmp_path / "env_checkpoints").iterdir())

    first, second = start(name=None), start(name=None, number=1, beside=True)
    await first.save(5, 1)
    await second.save(5, 2)
    assert folders() == ["run-0", "run-1"]
    first.checkpoints.leave()
    assert start(5, name=None, number=7, beside=True).loaded() == 1
    named = start(name="../b", beside=True)
    assert named.loaded() is None and folders()[0].startswith("run-.._b+")
    with pytest.raises(EnvironmentSetupError, match="Set a different instance_id for each process"):
        start(name="../b", beside=True).loaded()
    monkeypatch.setenv("SLURM_PROCID", "3")
    assert start(name=None, beside=True).loaded() is None and "run-slurm3" in folders()


async def test_a_checkpoint_that_the_disk_refuses_is_not_saved(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    process = start(0)
    process.loaded()
    monkeypatch.setattr(module, "write_atomically", Mock(side_effect=OSError("no space left")))
    await process.checkpoints.save_latest()
    assert not process.checkpoints.saved.is_set()


# --- a folder that cannot be used here


@pytest.mark.parametrize("registered", ["s3://bucket/run", "/dev/null/of-another-machine"])
def test_a_folder_of_the_trainer_that_is_none_here_is_named_and_another_can_be_set(
    registered: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EnvironmentSetupError) as caught:
        Process(registered).loaded()
    message = str(caught.value)
    assert message.startswith(f"The trainer has registered with the checkpoint_dir {registered}, where")
    assert "Set env.checkpoint_dir to a folder that this machine can write." in message
    assert list(tmp_path.iterdir()) == [], "an address is no folder in the working directory"
    process = Process(registered, own_dir=str(tmp_path / "own"))
    assert process.loaded() is None
    process.checkpoints.leave()
    assert [path.name for path in (tmp_path / "own").iterdir()] == ["env_checkpoints"]
    with pytest.raises(EnvironmentSetupError, match=r"env\.checkpoint_dir gs://x cannot be used"):
        Process(registered, own_dir="gs://x").loaded()


# --- a disk that refuses or hangs


async def test_a_folder_that_is_refused_ends_the_start_and_no_run(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "env_checkpoints").touch()
    refusal = f"The trainer has registered with the checkpoint_dir {tmp_path}, .* Set env.checkpoint_dir"
    with pytest.raises(EnvironmentSetupError, match=refusal):
        start(50).loaded()
    (tmp_path / "env_checkpoints").unlink()
    process = start(0)
    assert process.loaded() is None
    moved = folder_of(tmp_path).rename(tmp_path / "moved")
    await process.save(0, 7)
    moved.rename(folder_of(tmp_path))
    await process.save(0, 8)
    assert start(0).loaded() == 8
    assert caplog.text.count("The disk of the checkpoints is unavailable") == 1
    assert caplog.text.count("The disk of the checkpoints is back") == 1


class HangingDisk:
    """Writes nothing until it is released."""

    def __init__(self) -> None:
        self.is_writing = threading.Event()
        self.released = threading.Event()

    def write(self, path: Path, data: bytes) -> None:
        self.is_writing.set()
        assert self.released.wait(60)
        write_atomically(path, data)


async def test_training_and_its_end_do_not_wait_for_a_disk_that_hangs(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = HangingDisk()
    monkeypatch.setattr(module, "write_atomically", disk.write)
    monkeypatch.setattr(module, "SAVE_EVERY_S", 0.0)
    checkpoints = start(0).checkpoints
    checkpoints.load()
    for step in (5, 10):
        checkpoints.begin(step)
        checkpoints.begin_if_due()
        await until(disk.is_writing.is_set)
    assert caplog.text.count("The disk of the checkpoints is unavailable") == 1
    disk.released.set()
    await checkpoints.save_latest()
    await until(lambda: "The disk of the checkpoints is back" in caplog.text)
    assert {path.stem for path in folder_of(tmp_path).glob("*.json")} == {"latest", "step-10", "step-5"}
