"""The levels of a curriculum in a file, for trainers that read items in one process and grade completions in another.

    a process that reads    row ── LevelStore.level_of(its task) ──> level ──> item ── LevelStore.keep ──> its recipe
    a process that grades   row, reward ── LevelStore.add ──> with the group's last reward: Curriculum.observe

Any number of processes use the file at the same time. The first process that reads a row fixes its item, and all later
reads get the same item.

The curriculum counts a group once: when it has `group_size` rewards, or when it is left behind, because no more will
come. To see that, the store counts generations: a generation ends when as many rows have a reward as were read before
it began. The first groups that are some generations old also show how many completions the trainer really samples.

The file is an SQLite database with its ordinary journal. A process that is killed leaves no lock and no half of a
change. The processes may be on several machines if the file is on a disk that they share and whose locks work, as those
of NFS 4 do; SQLite's faster journal (WAL) does not work there. Before a change, a process waits for a lock on a second
file, PATH.lock. SQLite alone looks every tenth of a second whether the database is free, so that some of many waiting
processes would wait for more than a second.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mode
from typing import Any
from urllib.parse import quote

from pydantic import TypeAdapter

from ..errors import EnvironmentSetupError
from .curriculum import Curriculum, GroupResult

logger = logging.getLogger(__name__)

APPLICATION = 0x52475953
"""Marks a database as a store of levels (SQLite's application_id)."""

VERSION = 3

LEFT_BEHIND = 8
"""A group counts with the rewards that it has that many generations after its row was read. The slowest completion of a
group may come long after the others, so this is not small."""

SHOWN_AFTER = 3
"""Groups show how many completions the trainer samples that many generations after their rows were read."""
SHOWN_BY = 6
"""The number of groups that show it, if three quarters of them have the same size."""

PATIENCE_S = 60.0
"""A process waits so long for SQLite's own lock, which only a reader or another program can hold."""

SCHEMA = f"""
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {VERSION};
CREATE TABLE settings (value TEXT NOT NULL);
CREATE TABLE tasks (task TEXT PRIMARY KEY, levels INTEGER NOT NULL, state TEXT NOT NULL);
CREATE TABLE progress (
    generation INTEGER NOT NULL,
    read INTEGER NOT NULL,
    begun INTEGER NOT NULL,
    read_before INTEGER NOT NULL,
    group_size INTEGER NOT NULL,
    is_size_known INTEGER NOT NULL
);
CREATE TABLE rows (
    row INTEGER PRIMARY KEY,
    task TEXT NOT NULL,
    level INTEGER,
    recipe TEXT NOT NULL,
    generation INTEGER NOT NULL,
    rewards TEXT NOT NULL DEFAULT '[]',
    is_counted INTEGER NOT NULL DEFAULT 0,
    later INTEGER NOT NULL DEFAULT 0,
    is_read_again INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX uncounted ON rows (generation, row) WHERE NOT is_counted;
"""


@dataclass(frozen=True)
class StoreSettings:
    """The settings that all processes of a run share."""

    rows: int
    """The number of rows that the trainer may read."""
    group_size: int
    """The completions of a row, as the user has said."""
    target_accuracy: float
    tasks: Mapping[str, Any] = field(default_factory=dict)
    """Settings of `Tasks`."""
    seed: int = 42


_SETTINGS = TypeAdapter(StoreSettings)


@dataclass(frozen=True)
class TaskSummary:
    """The level of a task now."""

    task: str
    level: int
    last_level: int
    groups: int
    moves: int
    recent_accuracy: float | None


@dataclass(frozen=True)
class StoreSummary:
    """The counts and levels of a store."""

    rows: int
    """Rows that were read."""
    complete: int
    """Groups that the curriculum has counted."""
    short: int
    """Groups that it has counted with fewer rewards than a group has."""
    group_size: int
    """The completions of a group, as the first groups have shown."""
    unscored: int
    """Completions without a score."""
    repeated: int
    """Rewards beyond those of a group, for example because training went back to a checkpoint."""
    tasks: list[TaskSummary]


class LevelStore:
    """A store of levels. Any thread may call the methods. A forked process must open the store again."""

    def __init__(self, path: str | Path) -> None:
        """Open a store. Raises EnvironmentSetupError if the file is missing, or is no store of this release."""
        self.path = Path(path).absolute()
        self._turns = self.path.with_name(f"{self.path.name}.lock")
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self.unknown_rows = 0
        """Rewards for rows that this store has never given out."""
        self._check_exists()
        # SQLite would create a missing file.
        address = f"file:{quote(str(self.path))}?mode=rw"
        try:
            self._database = sqlite3.connect(
                address, uri=True, timeout=PATIENCE_S, isolation_level=None, check_same_thread=False
            )
            self.settings = self._read_settings()
        except (sqlite3.Error, ValueError) as error:
            raise EnvironmentSetupError(f"{self.path}: cannot be read as a store of levels ({error}).") from error

    @classmethod
    def create(cls, path: str | Path, settings: StoreSettings, levels: Mapping[str, int]) -> LevelStore:
        """Make a new store in which every task is at its lowest level. `levels` has the number of levels of each task.

        Raises EnvironmentSetupError if the file exists or cannot be written.
        """
        path = Path(path)
        check_is_new(path)
        # The file appears with its whole content, so no process sees half a store.
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            with contextlib.closing(sqlite3.connect(temporary)) as database:
                database.executescript(SCHEMA)
                database.execute("INSERT INTO settings VALUES (?)", (_SETTINGS.dump_json(settings).decode(),))
                rows = [(task, count, "{}") for task, count in sorted(levels.items())]
                database.executemany("INSERT INTO tasks VALUES (?, ?, ?)", rows)
                database.execute("INSERT INTO progress VALUES (0, 0, 0, 0, ?, 0)", (settings.group_size,))
                database.commit()
            os.link(temporary, path)
        except FileExistsError:
            check_is_new(path)
        except (sqlite3.Error, OSError) as error:
            raise EnvironmentSetupError(
                f"{path}: cannot be written ({error}). Name a file in a folder that exists, on a disk with room."
            ) from error
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
        return cls(path)

    def levels(self) -> dict[str, int]:
        """The number of levels of each task."""
        return dict(self._read("SELECT task, levels FROM tasks"))

    def level_of(self, task: str) -> int:
        """The level of this task now."""
        [(levels, state)] = self._read("SELECT levels, state FROM tasks WHERE task = ?", task)
        return self._curriculum(task, levels, state).level(task)

    def recipe(self, row: int) -> dict[str, Any] | None:
        """The recipe of the row's item; None if nobody has read the row."""
        found = self._read("SELECT recipe, is_counted AND NOT is_read_again FROM rows WHERE row = ?", row)
        if not found:
            return None
        [(recipe, is_return)] = found
        if is_return:
            # Further rewards of this row say nothing about the size of groups.
            with self._change():
                self._database.execute("UPDATE rows SET is_read_again = 1 WHERE row = ?", (row,))
        return self._loaded(recipe)

    def note_unmade(self, task: str, levels: Iterable[int]) -> None:
        """Note which levels could not give an item of this task."""
        with self._change(), self._changed_curriculum(task) as curriculum:
            for level in levels:
                curriculum.note_unmade(task, level)

    def keep(self, row: int, task: str, level: int | None, recipe: Mapping[str, Any]) -> dict[str, Any]:
        """Fix the item of a row, unless another process was faster. Returns the recipe that counts."""
        with self._change():
            if level is not None:
                with self._changed_curriculum(task) as curriculum:
                    curriculum.note_made(task, level)
            self._database.execute(
                "INSERT OR IGNORE INTO rows (row, task, level, recipe, generation) "
                "SELECT ?, ?, ?, ?, generation FROM progress",
                (row, task, level, json.dumps(recipe)),
            )
            self._database.execute("UPDATE progress SET read = read + changes()")
            [(kept,)] = self._database.execute("SELECT recipe FROM rows WHERE row = ?", (row,)).fetchall()
        return self._loaded(kept)

    def add(self, row: int, *rewards: float | None) -> None:
        """Add the rewards of completions of a row, in [0, 1], or None for an unscored completion.

        The rewards are in the file when this returns. A call that raises has added none of them, so the caller may
        repeat it. Raises ValueError for another reward, and EnvironmentSetupError if the file cannot be written.
        """
        for reward in rewards:
            if reward is not None and not 0.0 <= reward <= 1.0:
                raise ValueError(f"reward: expected a number from 0 to 1, or None, got {reward!r:.100}.")
        with self._change():
            for reward in rewards:
                self._add(row, reward)

    def is_complete(self, row: int) -> bool:
        """Whether the curriculum has counted the group of a row."""
        found = self._read("SELECT is_counted FROM rows WHERE row = ?", row)
        return bool(found and found[0][0])

    def incomplete_rows(self) -> Iterator[int]:
        """The rows whose groups are not counted: first the rows that were read before, then all later rows."""
        for (row,) in self._read("SELECT row FROM rows WHERE NOT is_counted ORDER BY row"):
            yield row
        [(last,)] = self._read("SELECT coalesce(max(row), -1) FROM rows")
        yield from range(last + 1, self.settings.rows)

    def summary(self) -> StoreSummary:
        """The levels now, and the counts."""
        [(size,)] = self._read("SELECT group_size FROM progress")
        [(rows, counted, short, repeated)] = self._read(
            "SELECT count(*), total(is_counted), total(is_counted AND came < ?), total(max(came - ?, 0)) "
            "FROM (SELECT is_counted, json_array_length(rewards) + later AS came FROM rows)",
            size,
            size,
        )
        [(unscored,)] = self._read(
            "SELECT count(*) FROM rows, json_each(rows.rewards) AS reward WHERE reward.type = 'null'"
        )
        tasks = []
        for task, levels, state in self._read("SELECT task, levels, state FROM tasks ORDER BY task"):
            details = self._curriculum(task, levels, state).stats()["tasks"].get(task, {})
            tasks.append(
                TaskSummary(
                    task,
                    details.get("level", 0),
                    levels - 1,
                    details.get("groups", 0),
                    details.get("adjustments", 0),
                    details.get("recent_accuracy"),
                )
            )
        return StoreSummary(rows, int(counted), int(short), size, unscored, int(repeated), tasks)

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        self._database.close()

    # --- rewards

    def _add(self, row: int, reward: float | None) -> None:
        """Within a change: add a reward to its group, and show the curriculum a group that is complete."""
        found = self._database.execute("SELECT rewards, is_counted FROM rows WHERE row = ?", (row,))
        known = found.fetchone()
        if known is None:
            self.unknown_rows += 1
            if self.unknown_rows == 1:
                logger.error(
                    "%s: row %d has a reward, but the store has never given this row out. Has the file been replaced "
                    "during the run? The curriculum learns nothing from such rows; further ones are only counted.",
                    self.path,
                    row,
                )
            return
        text, is_counted = known
        if is_counted:
            self._database.execute("UPDATE rows SET later = later + 1 WHERE row = ?", (row,))
            return
        rewards = [*json.loads(text), reward]
        self._database.execute("UPDATE rows SET rewards = ? WHERE row = ?", (json.dumps(rewards), row))
        if len(rewards) == 1:
            self._begin_group()
        [(size,)] = self._database.execute("SELECT group_size FROM progress").fetchall()
        if len(rewards) >= size:
            self._count(row)

    def _count(self, row: int) -> None:
        """Show the curriculum a group, once."""
        self._database.execute("UPDATE rows SET is_counted = 1 WHERE row = ?", (row,))
        found = self._database.execute("SELECT task, level, rewards FROM rows WHERE row = ?", (row,))
        [(task, level, text)] = found.fetchall()
        scored = tuple(reward for reward in json.loads(text) if reward is not None)
        if scored:
            with self._changed_curriculum(task) as curriculum:
                curriculum.observe(GroupResult(task, level, scored))

    def _begin_group(self) -> None:
        """Note the first reward of a group. At the end of a generation, older groups are looked at."""
        self._database.execute("UPDATE progress SET begun = begun + 1")
        [progress] = self._database.execute("SELECT * FROM progress").fetchall()
        generation, read, begun, read_before, size, is_size_known = progress
        if begun < read_before or read == read_before:
            return
        self._database.execute("UPDATE progress SET generation = generation + 1, read_before = read")
        if not is_size_known:
            self._learn_size(size, generation + 1 - SHOWN_AFTER)
        self._count_all("generation <= ? AND rewards != '[]'", generation + 1 - LEFT_BEHIND)

    def _count_all(self, condition: str, value: int) -> None:
        """Count the groups that meet an SQL condition and are not counted."""
        found = self._database.execute(f"SELECT row FROM rows WHERE NOT is_counted AND {condition}", (value,))
        for (row,) in found.fetchall():
            self._count(row)

    def _learn_size(self, expected: int, generation: int) -> None:
        """Compare the size of the first groups with the size that the user has said."""
        found = self._database.execute(
            "SELECT json_array_length(rewards) + later FROM rows "
            "WHERE generation <= ? AND rewards != '[]' AND NOT is_read_again",
            (generation,),
        )
        sizes = [size for (size,) in found.fetchall()]
        if expected in sizes:
            self._database.execute("UPDATE progress SET is_size_known = 1")
        elif len(sizes) >= SHOWN_BY and sizes.count(mode(sizes)) >= 0.75 * len(sizes):
            size = mode(sizes)
            logger.warning(
                "%s: expected %d completions of each row, as --group-size says, and the trainer samples %d. From now "
                "on a group counts with %d.",
                self.path,
                expected,
                size,
                size,
            )
            self._database.execute("UPDATE progress SET group_size = ?, is_size_known = 1", (size,))
            self._count_all("json_array_length(rewards) >= ?", size)

    @contextlib.contextmanager
    def _changed_curriculum(self, task: str) -> Iterator[Curriculum]:
        """Within a change: the curriculum of one task, whose state is written at the end of the block."""
        found = self._database.execute("SELECT levels, state FROM tasks WHERE task = ?", (task,))
        [(levels, state)] = found.fetchall()
        curriculum = self._curriculum(task, levels, state)
        yield curriculum
        own = curriculum.state_dict()["tasks"].get(task, {})
        self._database.execute("UPDATE tasks SET state = ? WHERE task = ?", (json.dumps(own), task))

    def _curriculum(self, task: str, levels: int, state: str) -> Curriculum:
        """The curriculum of one task."""
        curriculum = Curriculum({task: levels}, self.settings.target_accuracy)
        own = self._loaded(state)
        try:
            curriculum.load_state_dict({"tasks": {task: own} if own else {}})
        except ValueError as error:
            raise self._damaged(error) from error
        return curriculum

    def _loaded(self, text: str) -> dict[str, Any]:
        """JSON of the file. Raises EnvironmentSetupError if it is damaged."""
        try:
            return dict(json.loads(text))
        except (ValueError, TypeError) as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> EnvironmentSetupError:
        return EnvironmentSetupError(
            f"{self.path}: expected data that this package has written, but the file is damaged ({error!s:.100}). "
            "Continue with a copy of it, or begin with a new store."
        )

    # --- the database

    def _read_settings(self) -> StoreSettings:
        [(application,)] = self._database.execute("PRAGMA application_id").fetchall()
        [(version,)] = self._database.execute("PRAGMA user_version").fetchall()
        if (application, version) != (APPLICATION, VERSION):
            raise EnvironmentSetupError(
                f"{self.path}: expected a store of levels of this release, which `reasoning-gym-env levels create` "
                "makes."
            )
        [(settings,)] = self._database.execute("SELECT value FROM settings").fetchall()
        return _SETTINGS.validate_json(settings)

    def _read(self, query: str, *values: Any) -> list[Any]:
        with self._lock, self._errors():
            return self._database.execute(query, values).fetchall()

    @contextlib.contextmanager
    def _change(self) -> Iterator[None]:
        """A transaction. An error in the block takes the whole change back."""
        with self._lock, self._errors(), self._turns.open("a") as turns:
            # The end of the block closes the file, which lets the next process in.
            fcntl.flock(turns, fcntl.LOCK_EX)
            # The context manager of sqlite3 commits, or takes everything back after an error.
            with self._database:
                self._database.execute("BEGIN IMMEDIATE")
                yield

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        if os.getpid() != self._pid:
            raise EnvironmentSetupError(f"{self.path}: a forked process must open the store itself.")
        # SQLite does not notice that the file was removed.
        self._check_exists()
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise EnvironmentSetupError(
                f"{self.path}: cannot be used ({error}). Check that the disk has room and can be written, and that the "
                "locks of the file system work."
            ) from error

    def _check_exists(self) -> None:
        if not self.path.exists():
            raise EnvironmentSetupError(
                f"{self.path}: there is no such file. A run that continues needs the store that it began with. A new "
                "run needs a new store with every task at its lowest level: `reasoning-gym-env levels create`."
            )


def check_is_new(path: Path) -> None:
    """Raise EnvironmentSetupError if the file of a new store exists, or its folder does not."""
    if not path.absolute().parent.is_dir():
        raise EnvironmentSetupError(f"{path}: expected a folder that exists, but there is no {path.absolute().parent}.")
    if path.exists():
        raise EnvironmentSetupError(
            f"{path}: the file exists. A run that continues uses it as it is; a new run needs another name."
        )
