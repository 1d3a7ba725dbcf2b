"""A resumed run is the same run; what cannot be resumed is refused by name; no disk ends the training."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment import ReasoningGymEnv
from reasoning_gym_environment.atropos import checkpoints as module
from reasoning_gym_environment.atropos.checkpoints import (
    KEY,
    RunCheckpoints,
    envelope,
    join_run,
    load_into,
    read,
    run_name,
    state_of,
    write_atomically,
)
from reasoning_gym_environment.atropos.conversions import problem_of
from reasoning_gym_environment.atropos.session import RunState
from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.sampling.seeds import derive_seed

from ..env_support import RIGHT, WRONG, MakeEnv, rollout
from ..process_table import until

# --- the environment's state


async def score(env: ReasoningGymEnv, item: Any) -> None:
    """Score a group of the item; how many of it are right is a function of the item."""
    right = derive_seed(7, problem_of(*item[1:]).seed) % 5
    group = await env.score([rollout(item, RIGHT if number < right else WRONG) for number in range(4)])
    if group is not None:
        # As if the trajectory API had taken it.
        env.stream.ledger.done(problem_of(*item[1:]))


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
    return json.loads(
        json.dumps(state_of({name: part for name, part in env.checkpoints.parts.items() if name != "dumps"}))
    )


QUICK = [(4, "uniform", None), (0, "weighted", "random"), (4, "learnability", "curriculum")]
"""Each value of each setting once; all of their combinations are the slow tier's."""
ALL = product((0, 4), ("uniform", "weighted", "learnability"), (None, "random", "curriculum"))


@pytest.mark.parametrize(
    ("prefetch", "sampling", "mode"),
    [*QUICK, *(pytest.param(*one, marks=pytest.mark.slow) for one in ALL if one not in QUICK)],
)
async def test_the_next_fifty_items_and_all_state_are_those_of_the_run_that_was_not_stopped(
    make_env: MakeEnv, tmp_path: Path, mode: str | None, sampling: str, prefetch: int
) -> None:
    def make() -> ReasoningGymEnv:
        env = make_env(
            include_tasks="chain_sum,gcd,lcm,products,spell_backward,number_sorting",
            task_weights="gcd=3" if sampling == "weighted" else "",
            complexity_mode=mode,
            task_sampling=sampling,
            prefetch_items=prefetch,
            instance_id="a",
        )
        env.run.checkpoint_dir, env.run.step = str(tmp_path), 5
        return env

    env, resumed = make(), make()
    await asyncio.gather(env.setup(), resumed.setup())
    env.stream.instance = "a"
    await proceed(env, [], 40)
    in_flight = [await env.get_next_item() for _ in range(3)]
    env.save_checkpoint(5, {"more": "data"})
    expected = await proceed(env, in_flight, 50)
    env.checkpoints.leave()

    resumed.load_checkpoint()
    again = [await resumed.get_next_item() for _ in range(3)]
    assert [entry for _, entry, _ in again] == [entry for _, entry, _ in in_flight], "what was in flight comes first"
    assert await proceed(resumed, again, 50) == expected
    assert known(resumed) == known(env)
    path = tmp_path / "env_checkpoints/run-seed42-a/step-5.json"
    assert json.loads(path.read_text()).keys() == {"more", KEY}


async def test_a_checkpoint_of_the_version_before_is_resumed(make_env: MakeEnv, tmp_path: Path) -> None:
    old = Path(__file__).parent / "data" / "checkpoint-version-2.json"
    folder = tmp_path / "env_checkpoints" / "run-seed42-a"
    folder.mkdir(parents=True)
    (folder / "step-5.json").write_text(old.read_text())
    settings = {"complexity_mode": "curriculum", "task_sampling": "learnability", "prefetch_items": 0}
    env = make_env(include_tasks="chain_sum,gcd", instance_id="a", num_eval_samples_per_task=0, **settings)
    env.run.checkpoint_dir, env.run.step = str(tmp_path), 7
    await env.setup()
    env.load_checkpoint()
    assert (env.iter, env.run_uuid) == (12, "a4fb1afe-78a8-45e3-b4a6-9ac90dae1309")
    drawn = [problem_of(*(await env.get_next_item())[1:]) for _ in range(4)]
    assert [(one.index, one.task, one.seed) for one in drawn] == [
        *[(12, "gcd", 590849369), (13, "gcd", 3166642751)],
        *[(14, "chain_sum", 2981901165), (15, "chain_sum", 316528914)],
    ]
    assert env.log.outcomes.by_task()["gcd"] == {"equal_scores": 1, "all_zero": 2}


@pytest.mark.parametrize(("before", "after"), [((None, "weighted"), ("curriculum", "learnability"))] * 1)
async def test_a_run_is_resumed_under_other_settings_and_tasks(make_env: MakeEnv, before: Any, after: Any) -> None:
    def make(settings: Any, tasks: str) -> ReasoningGymEnv:
        mode, sampling = settings
        return make_env(include_tasks=tasks, complexity_mode=mode, task_sampling=sampling, num_eval_samples_per_task=0)

    for one, other in ((before, after), (after, before)):
        env, resumed = make(one, "chain_sum,gcd,acre"), make(other, "chain_sum,gcd,lcm")
        await asyncio.gather(env.setup(), resumed.setup())
        await proceed(env, [], 12)
        first = env.stream.index
        load_into(resumed.checkpoints.parts, json.loads(json.dumps(state_of(env.checkpoints.parts))))
        indices = [problem_of(*(await resumed.get_next_item())[1:]).index for _ in range(12)]
        assert indices == sorted(indices) and indices[0] >= first


# --- documents and what is chosen of them


class Part:
    """Its whole state is a number."""

    def __init__(self) -> None:
        self.value = 0

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.value = int(state["value"])

    def metrics(self) -> dict[str, Any]:
        return {}


Start = Callable[[int], RunCheckpoints]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """`start(step)`: the checkpoints of a process of one run whose trainer is at this step."""
    monkeypatch.setattr(module, "TRY_EVERY_S", 0.01)
    started: list[RunCheckpoints] = []

    def make(step: int) -> RunCheckpoints:
        for one in started:
            one.leave()
        run = RunState(4, 16, 9, True, env_id=0, step=step, checkpoint_dir=str(tmp_path), checkpoint_interval=5)
        made = RunCheckpoints(run, run_id="run", wandb_name=None, seed=1, instance_id="a")
        made.parts = {"part": Part()}
        started.append(made)
        return made

    yield make
    for one in started:
        one.leave()


def save(checkpoints: RunCheckpoints, step: int, value: int) -> None:
    checkpoints.parts["part"].value = value  # type: ignore[attr-defined]
    checkpoints.save(step)


def loaded(checkpoints: RunCheckpoints) -> int | None:
    checkpoints.load()
    return checkpoints.parts["part"].value if checkpoints.is_resumed else None  # type: ignore[attr-defined]


def folder_of(tmp_path: Path) -> Path:
    return tmp_path / "env_checkpoints" / "run-a"


def test_the_newest_up_to_the_trainers_step_is_resumed(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    first = start(0)
    assert loaded(first) is None
    for step in (5, 10, 15):
        save(first, step, step)
    assert [loaded(start(step)) for step in (4, 5, 14, 16)] == [None, 5, 10, 15]
    assert "No checkpoint for step 4 or before" in caplog.text and "up to step 15" in caplog.text
    # A run that begins anew is newer than what an older one left at later steps.
    save(start(0), 10, 77)
    assert [loaded(start(step)) for step in (16, 10, 9)] == [77, 77, 5]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{half", "cannot be read"),
        ("\0" * 50, "cannot be read"),
        ("[]", "is not a checkpoint"),
        (json.dumps({KEY: {"version": 2, "step": 3, "state": None}}), "is not a checkpoint"),
        (
            json.dumps(envelope({"part": {"value": 1}}, step=9, serial=9)).replace('"value": 1', '"value": 2'),
            "checksum",
        ),
        (json.dumps(envelope({"part": {}}, step=9, serial=9)).replace('"version": 2', '"version": 3'), "version 3"),
        (json.dumps(envelope({"other": {"value": 1}}, step=9, serial=9)), "holds no state of part"),
    ],
)
def test_a_damaged_or_foreign_checkpoint_is_named_and_the_one_before_it_used(
    content: str, said: str, start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(start(0), 5, 5)
    (folder_of(tmp_path) / "step-9.json").write_text(content)
    assert loaded(start(10)) == 5
    # Without a usable one nothing is begun anew unasked, nor written over it.
    (folder_of(tmp_path) / "step-5.json").unlink()
    with pytest.raises(EnvironmentSetupError, match="None of the checkpoints in"):
        (refused := start(10)).load()
    assert said in caplog.text
    save(refused, 12, 1)
    assert [path.name for path in folder_of(tmp_path).glob("*.json")] == ["step-9.json"]


def test_of_thousands_only_the_one_that_is_used_is_read_whole(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    first = start(0)
    for step in range(100):
        save(first, step, step)
    whole: list[str] = []
    monkeypatch.setattr(module, "read", lambda path, read=read: whole.append(path.name) or read(path))
    assert loaded(start(98)) == 98 and whole == ["step-98.json"]


def test_a_failed_write_leaves_the_old_content_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a" / "step-1.json"
    write_atomically(path, {"x": 1})
    with pytest.raises(TypeError):
        write_atomically(path, {"x": object()})
    assert json.loads(path.read_text()) == {"x": 1} and list(path.parent.iterdir()) == [path]


# --- a process finds the folder of its run again, and never shares it with a living one


@pytest.mark.parametrize(
    ("run_id", "wandb_name", "name"),
    [
        ("mine", "x", "mine"),
        (None, "think", "think-seed42"),
        (None, None, "run-seed42"),
        ("../../etc/x", None, "_.._etc_x"),
    ],
)
def test_the_name_of_a_run_is_a_file_name(run_id: str | None, wandb_name: str | None, name: str) -> None:
    assert run_name(run_id, wandb_name, 42) == name


def test_each_living_process_has_a_folder_and_finds_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("SLURM_PROCID", raising=False)
    members = [join_run(tmp_path, "run", None, number) for number in range(2)]
    assert [(one.folder.name, one.name) for one in members] == [("run-0", None), ("run-1", None)]
    members[0].release()
    again = join_run(tmp_path, "run", None, 7)
    assert again.folder.name == "run-0"
    named = join_run(tmp_path, "run", "a", 3)
    assert (named.folder.name, named.name) == ("run-a", "a")
    with pytest.raises(EnvironmentSetupError, match="instance_id 'a': give each its own"):
        join_run(tmp_path, "run", "a", 4)
    monkeypatch.setenv("SLURM_PROCID", "0")
    of_slurm = [join_run(tmp_path, "run", None, 4) for _ in range(2)]
    assert [(one.folder.name, one.name) for one in of_slurm] == [("run-slurm0", "0"), ("run-2", "env4")]
    assert caplog.text.count("were they started without srun") == 1
    for one in (*members, again, named, *of_slurm):
        one.release()


def hold_until_killed(root: Path, ready: Any) -> None:
    member = join_run(root, "run", "a", 0)
    ready.put(member.folder.name)
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
        assert ready.get(timeout=120) == "run-a"
        with pytest.raises(EnvironmentSetupError):
            join_run(tmp_path, "run", "a", 0)
    finally:
        process.kill()
        process.join()
    join_run(tmp_path, "run", "a", 0).release()


def test_without_file_locks_the_apis_number_keeps_folders_apart_and_a_disk_in_trouble_is_no_such_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("SLURM_PROCID", raising=False)
    codes = [errno.ENOLCK, errno.ENOLCK, errno.ESTALE]

    def refuse(*arguments: Any) -> None:
        raise OSError(codes.pop(0), "refused")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert join_run(tmp_path, "run", None, 6).folder.name == "run-0-env6"
    assert join_run(tmp_path, "run", "a", 6).folder.name == "run-a"
    assert "has no file locks" in caplog.text
    with pytest.raises(OSError, match="refused"):
        join_run(tmp_path, "run", None, 6)


# --- a disk that refuses or hangs


@pytest.fixture
def refusals(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often the disk refuses the lock of a folder from now on."""
    left, opens = [0], Path.open

    def refuse(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.name == ".lock" and left[0] > 0:
            left[0] -= 1
            raise OSError(errno.ESTALE, "Stale file handle")
        return opens(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", refuse)
    return left


async def test_a_run_whose_folder_is_refused_tries_again_and_does_not_begin_anew_unasked(
    start: Start, refusals: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save(start(0), 50, 3)
    refusals[0] = 5
    await (again := start(50)).find()
    assert loaded(again) == 3
    refusals[0] = 10**9
    await (again := start(50)).find()
    with pytest.raises(EnvironmentSetupError, match=r"at step 50, and the checkpoints in .* cannot be reached"):
        again.load()
    # At the first step it begins, and keeps checkpoints as soon as it can.
    again = start(0)
    again.load()
    refusals[0] = 0
    save(again, 0, 8)
    assert loaded(start(0)) == 8
    assert caplog.text.count("The disk of the checkpoints is back") == 1


async def test_training_and_its_end_do_not_wait_for_a_disk_that_hangs(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    released = threading.Event()
    monkeypatch.setattr(module, "write_atomically", lambda *data, w=write_atomically: released.wait(60) and w(*data))
    monkeypatch.setattr(module, "SAVE_EVERY_S", 0.0)
    checkpoints = start(0)
    for step in (5, 10, 15):
        checkpoints.begin(step)
        checkpoints.begin_if_due()
    assert caplog.text.count("The disk of the checkpoints is unavailable") == 1
    assert caplog.text.count("is left out: those before it") == 1
    released.set()
    await checkpoints.save_latest()
    await until(lambda: "The disk of the checkpoints is back" in caplog.text)
    assert sorted(path.name for path in folder_of(tmp_path).glob("*.json")) == [
        *("latest.json", "step-10.json", "step-5.json")
    ]
