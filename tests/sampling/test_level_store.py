"""A store of levels: any processes, in any order, give the levels that one curriculum would have."""

from __future__ import annotations

import json
import multiprocessing
import resource
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import takewhile
from pathlib import Path
from random import Random
from typing import Any

import pytest

from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.sampling.curriculum import Curriculum, GroupResult
from reasoning_gym_environment.sampling.level_store import LevelStore, StoreSettings

LEVELS = {"a": 5, "b": 3, "c": 1}
TASKS = sorted(LEVELS)
GROUP = 4


def new_store(path: Path, rows: int = 1000) -> LevelStore:
    return LevelStore.create(path, StoreSettings(rows, GROUP, 0.7), LEVELS)


def task_of(row: int) -> str:
    return TASKS[row % len(TASKS)]


def is_complete(store: LevelStore, row: int) -> bool:
    """Whether the curriculum has counted the group of a row, which was read."""
    return row not in takewhile(lambda incomplete: incomplete <= row, store.incomplete_rows())


def give_out(store: LevelStore, row: int) -> int:
    """Read a row, at the level that its task has now."""
    task = task_of(row)
    level = store.level_of(task)
    return int(store.keep(row, {"task": task, "level": level})["level"])


def state_of(store: LevelStore, task: str) -> Any:
    """The state of a task in the curriculum."""
    [(state,)] = execute(store, "SELECT state FROM tasks WHERE task = ?", task)
    return json.loads(state)


def execute(store: LevelStore, statement: str, *values: Any) -> list[Any]:
    with closing(sqlite3.connect(store.path)) as database, database:
        return database.execute(statement, values).fetchall()


def levels_of(store: LevelStore) -> dict[str, int]:
    return {task.task: task.level for task in store.summary().tasks}


@pytest.fixture
def store(tmp_path: Path) -> LevelStore:
    return new_store(tmp_path / "levels.sqlite")


@pytest.mark.parametrize("seed", range(3))
def test_the_levels_are_those_of_one_curriculum(store: LevelStore, seed: int) -> None:
    random = Random(seed)
    others = [store, LevelStore(store.path), LevelStore(store.path)]
    expected = Curriculum(LEVELS, 0.7)
    open_rows: dict[int, tuple[int, list[float | None]]] = {}
    next_row = 0
    for _ in range(500):
        if len(open_rows) < 6:
            open_rows[next_row] = (give_out(random.choice(others), next_row), [])
            next_row += 1
        row = random.choice(sorted(open_rows)[:4])
        level, rewards = open_rows[row]
        # Right on the first two levels, and on no other.
        reward = random.choice([float(level < 2), float(level < 2), None])
        random.choice(others).add(row, reward)
        rewards.append(reward)
        scored = tuple(reward for reward in rewards if reward is not None)
        if len(rewards) == GROUP:
            del open_rows[row]
            if scored:
                expected.observe(GroupResult(task_of(row), level, scored))
    for task in TASKS:
        assert state_of(store, task) == expected.state_dict()["tasks"][task]
    assert levels_of(store) == {task: expected.level(task) for task in TASKS}
    assert levels_of(store)["a"] in (1, 2)
    assert store.summary().complete == next_row - len(open_rows)


def test_the_first_reader_fixes_a_row(store: LevelStore) -> None:
    assert store.recipe(7) is None
    first = {"task": "b", "level": 0}
    assert store.keep(7, first) == first
    assert LevelStore(store.path).keep(7, {"task": "b", "level": 1}) == first
    assert store.recipe(7) == first


def test_a_group_counts_once_whatever_comes_after_it(store: LevelStore) -> None:
    give_out(store, 0)
    for _ in range(GROUP):
        store.add(0, 1.0)
    before = state_of(store, "a")
    # Training goes back to a checkpoint, and answers the row again.
    for _ in range(GROUP):
        store.add(0, 0.0)
    assert state_of(store, "a") == before
    assert store.summary().repeated == GROUP
    # A row of a file that was replaced.
    with pytest.raises(EnvironmentSetupError, match="row 99 has a reward, but this store has never given the row out"):
        store.add(99, 1.0)
    assert state_of(store, "a") == before


def test_unscored_completions_complete_a_group_and_are_no_evidence(store: LevelStore) -> None:
    for row in (0, 3):
        give_out(store, row)
    for reward in (None, None, 1.0, None):
        store.add(0, reward)
    for _ in range(GROUP):
        store.add(3, None)
    summary = store.summary()
    assert (summary.complete, summary.unscored) == (2, 7)
    assert [task.groups for task in summary.tasks] == [1, 0, 0]
    for wrong in (1.5, -0.1, float("nan")):
        with pytest.raises(ValueError, match="a number from 0 to 1"):
            store.add(0, wrong)


def test_a_run_that_continues_begins_with_the_rows_that_it_had_not_finished(store: LevelStore) -> None:
    for row in range(4):
        give_out(store, row)
    for row in (0, 2):
        for _ in range(GROUP):
            store.add(row, 0.0)
    rows = store.incomplete_rows()
    assert [next(rows) for _ in range(4)] == [1, 3, 4, 5]


def test_threads_of_a_process_write_in_turn(store: LevelStore) -> None:
    rows = range(40)
    for row in rows:
        give_out(store, row)
    with ThreadPoolExecutor(32) as threads:
        list(threads.map(store.add, [row for row in rows for _ in range(GROUP)], [1.0] * len(rows) * GROUP))
    assert store.summary().complete == len(rows)
    assert sum(task.groups for task in store.summary().tasks) == len(rows)


# --- files


def test_a_store_that_cannot_be_used_is_one_sentence(tmp_path: Path, store: LevelStore) -> None:
    with pytest.raises(EnvironmentSetupError, match=r"no such file.*levels create"):
        LevelStore(tmp_path / "missing.sqlite")
    assert not (tmp_path / "missing.sqlite").exists()
    with pytest.raises(EnvironmentSetupError, match="the file exists"):
        new_store(store.path)
    text = tmp_path / "text.sqlite"
    text.write_text("{}" * 1000)
    with pytest.raises(EnvironmentSetupError, match="not a database"):
        LevelStore(text)
    other = tmp_path / "other.sqlite"
    sqlite3.connect(other).execute("CREATE TABLE x (y)")
    with pytest.raises(EnvironmentSetupError, match="levels create"):
        LevelStore(other)
    store.path.unlink()
    with pytest.raises(EnvironmentSetupError, match="no such file"):
        store.add(0, 1.0)


@contextmanager
def a_full_disk() -> Iterator[None]:
    """No write beyond the first kilobyte of a file succeeds. Python ignores the signal that comes with it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_call_that_is_repeated_after_a_full_disk_counts_once(store: LevelStore) -> None:
    for row in range(40):
        give_out(store, row)
    long = [None] * (GROUP - 1)
    failed = []
    with a_full_disk():
        for row in range(40):
            try:
                store.add(row, *long)
            except EnvironmentSetupError as error:
                assert "cannot be used" in str(error)
                failed.append(row)
    assert failed
    for row in failed:
        store.add(row, *long)
    assert store.summary().unscored == 40 * len(long)
    assert store.summary().complete == 0


def test_a_disk_that_cannot_be_written_is_one_sentence(tmp_path: Path, store: LevelStore) -> None:
    with pytest.raises(EnvironmentSetupError, match="expected a folder that exists"):
        new_store(tmp_path / "none" / "levels.sqlite")
    with pytest.raises(EnvironmentSetupError, match="cannot be written"):
        new_store(Path("/proc/levels.sqlite"))
    # The lock of the store cannot be opened.
    lock = tmp_path / "levels.sqlite.lock"
    lock.unlink()
    lock.mkdir()
    with pytest.raises(EnvironmentSetupError, match="cannot be used"):
        give_out(store, 0)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE tasks SET state = '{'",
        """UPDATE tasks SET state = '{"level": "x"}'""",
        "UPDATE rows SET recipe = '{'",
        "UPDATE rows SET recipe = '3'",
        "UPDATE settings SET value = '{'",
        "UPDATE settings SET value = '{}'",
        "DELETE FROM settings",
    ],
)
def test_damaged_contents_are_one_sentence(store: LevelStore, change: str) -> None:
    give_out(store, 0)
    execute(store, change)
    with pytest.raises(EnvironmentSetupError, match=r"damaged|cannot be read|of this release"):
        opened = LevelStore(store.path)
        opened.recipe(0)
        opened.level_of("a")


def test_a_store_that_cannot_be_made_leaves_no_file(tmp_path: Path) -> None:
    unstorable: Any = object()
    with pytest.raises(EnvironmentSetupError, match="cannot be written"):
        LevelStore.create(tmp_path / "levels.sqlite", StoreSettings(10, GROUP, 0.7), {"a": unstorable})
    assert not list(tmp_path.iterdir())
    new_store(tmp_path / "levels.sqlite")


# --- the size of groups


def batch(store: LevelStore, rows: range, sampled: int, reward: float = 1.0) -> None:
    """A step of a trainer that samples this many completions, and interleaves those of its rows."""
    for row in rows:
        give_out(store, row)
    for _ in range(sampled):
        for row in rows:
            store.add(row, reward)


@pytest.mark.parametrize("sampled", [GROUP // 2, GROUP * 2])
def test_another_number_of_completions_is_noticed_and_groups_count_by_what_comes(
    store: LevelStore, sampled: int, caplog: pytest.LogCaptureFixture
) -> None:
    for step in range(8):
        batch(store, range(6 * step, 6 * step + 6), sampled)
        # Another process of the trainer is slow, and reads a row whose group has been answered.
        store.recipe(6 * step)
    assert caplog.text.count(f"the trainer samples {sampled}. From now on a group counts with {sampled}") == 1
    summary = LevelStore(store.path).summary()
    assert (summary.group_size, summary.complete, summary.short) == (sampled, 48, 0)
    assert levels_of(store)["a"] >= 1


def test_the_first_groups_that_are_answered_again_are_no_larger_groups(
    store: LevelStore, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        # The second run begins again without a checkpoint, and reads the rows again.
        for row in range(6):
            store.recipe(row)
        batch(store, range(6), GROUP)
    for step in range(1, 6):
        batch(store, range(6 * step, 6 * step + 6), GROUP)
    summary = store.summary()
    assert (summary.group_size, summary.complete, summary.repeated) == (GROUP, 36, 6 * GROUP)
    assert "the trainer samples" not in caplog.text


def test_a_group_that_loses_a_completion_counts_with_what_came(
    store: LevelStore, caplog: pytest.LogCaptureFixture
) -> None:
    give_out(store, 0)
    for _ in range(GROUP - 1):
        store.add(0, 1.0)
    give_out(store, 1)
    assert not is_complete(store, 0)
    for step in range(10):
        batch(store, range(6 * step + 6, 6 * step + 12), GROUP)
    assert is_complete(store, 0) and not is_complete(store, 1), "a row without a reward may still be answered"
    assert (store.summary().complete, store.summary().short) == (61, 1)
    # The completion was only late.
    store.add(0, 1.0)
    assert (store.summary().short, store.summary().repeated) == (0, 0)
    assert "the trainer samples" not in caplog.text


def test_a_forked_process_uses_the_store_of_its_parent(store: LevelStore) -> None:
    give_out(store, 0)
    child = multiprocessing.get_context("fork").Process(target=store.add, args=(0, 1.0, None))
    child.start()
    child.join()
    store.add(0, 1.0, None)
    assert (store.summary().complete, store.summary().unscored) == (1, 2)


def _complete(path: Path, rows: range) -> None:
    store = LevelStore(path)
    for row in rows:
        # A killed writer may have added any number of the rewards.
        while not is_complete(store, row):
            store.add(row, 1.0)


@pytest.mark.slow
def test_writers_that_are_killed_lose_no_group_and_count_none_twice(store: LevelStore) -> None:
    rows, kills, random = range(320), 30, Random(3)
    for row in rows:
        store.keep(row, {"task": task_of(row), "level": 0})
    context = multiprocessing.get_context("spawn")

    def begin(number: int) -> Any:
        writer = context.Process(target=_complete, args=(store.path, rows[number::16]))
        writer.start()
        return writer

    writers = [begin(number) for number in range(16)]
    while any(writer.is_alive() for writer in writers):
        time.sleep(random.uniform(0.02, 0.2))
        number = random.randrange(len(writers))
        if kills and writers[number].is_alive():
            writers[number].kill()
            writers[number].join()
            writers[number] = begin(number)
            kills -= 1
    assert (kills, [writer.exitcode for writer in writers]) == (0, [0] * len(writers))
    summary = store.summary()
    assert (summary.complete, summary.repeated) == (len(rows), 0)
    assert {task.task: task.groups for task in summary.tasks} == Counter(map(task_of, rows))
