"""The levels of a curriculum in a file, for trainers that read items in one process and grade completions in another.

    a process that reads    row ── LevelStore.level_of(its task) ──> level ──> item ── LevelStore.keep ──> its recipe
    a process that grades   row, reward ── LevelStore.add ──> with the group's last reward: Curriculum.observe

Any number of processes use the file at the same time. The first process that reads a row fixes its item, and all later
reads get the same item.

The curriculum counts a group once: when it has `group_size` rewards, or when it is left behind, because no more will
come. To see that, the store counts generations: a generation ends when as many rows have a reward as were read before
it began. The first groups that are some generations old also show how many completions the trainer really samples.

The file is an SQLite database with its ordinary journal, and each call is one transaction with a connection of its own.
A process that is killed leaves no lock and no half of a change. The processes may be on several machines if the file is
on a disk that they share and whose locks work, as those of NFS 4 do; SQLite's faster journal (WAL) does not work there.
Each call first waits for a lock on a second file, PATH.lock, because SQLite alone is unfair: of 16 writers, one waited
17 s without this lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mode
from typing import Any

from pydantic import TypeAdapter

from ..errors import EnvironmentSetupError
from .curriculum import Curriculum, GroupResult

logger = logging.getLogger(__name__)

APPLICATION = 0x52475953
"""Marks a database as a store of levels (SQLite's application_id)."""

VERSION = 4

LEFT_BEHIND = 8
"""A group counts with the rewards that it has that many generations after its row was read. The slowest completion of a
group may come long after the others, so this is not small."""

SHOWN_AFTER = 3
"""Groups show how many completions the trainer samples that many generations after their rows were read."""
SHOWN_BY = 6
"""The number of groups that show it, if three quarters of them have the same size."""

PATIENCE_S = 60.0
"""A call fails if other processes do not let it write for this long."""

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
    """A store of levels. Any thread of any process may call the methods."""

    def __init__(self, path: str | Path) -> None:
        """Raises EnvironmentSetupError if the file is missing, or is no store of this release."""
        self.path = Path(path).absolute()
        with self._transaction() as database:
            [(application,)] = database.execute("PRAGMA application_id").fetchall()
            [(version,)] = database.execute("PRAGMA user_version").fetchall()
            if (application, version) != (APPLICATION, VERSION):
                raise EnvironmentSetupError(
                    f"{self.path}: expected a store of levels of this release, which `reasoning-gym-env levels create` "
                    "makes."
                )
            [(settings,)] = database.execute("SELECT value FROM settings").fetchall()
            self.settings = _SETTINGS.validate_json(settings)

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
        with self._transaction() as database:
            return dict(database.execute("SELECT task, levels FROM tasks").fetchall())

    def level_of(self, task: str) -> int:
        """The level of this task now."""
        with self._transaction() as database:
            return self._curriculum(database, task).level(task)

    def recipe(self, row: int) -> dict[str, Any] | None:
        """The recipe of the row's item; None if nobody has read the row."""
        with self._transaction() as database:
            found = database.execute("SELECT recipe, is_counted FROM rows WHERE row = ?", (row,)).fetchone()
            if found is None:
                return None
            recipe, is_counted = found
            if is_counted:
                # Training may have gone back. Then further rewards of this row say nothing about the size of groups.
                database.execute("UPDATE rows SET is_read_again = 1 WHERE row = ? AND NOT is_read_again", (row,))
            return dict(json.loads(recipe))

    def note_unmade(self, task: str, levels: Iterable[int]) -> None:
        """Note which levels could not give an item of this task."""
        with self._transaction() as database, self._changed_curriculum(database, task) as curriculum:
            for level in levels:
                curriculum.note_unmade(task, level)

    def keep(self, row: int, recipe: Mapping[str, Any]) -> dict[str, Any]:
        """Fix the item of a row, unless another process was faster. Returns the recipe that counts."""
        task, level = recipe["task"], recipe["level"]
        with self._transaction() as database:
            if level is not None:
                with self._changed_curriculum(database, task) as curriculum:
                    curriculum.note_made(task, level)
            database.execute(
                "INSERT OR IGNORE INTO rows (row, task, level, recipe, generation) "
                "SELECT ?, ?, ?, ?, generation FROM progress",
                (row, task, level, json.dumps(recipe)),
            )
            database.execute("UPDATE progress SET read = read + changes()")
            [(kept,)] = database.execute("SELECT recipe FROM rows WHERE row = ?", (row,)).fetchall()
            return dict(json.loads(kept))

    def add(self, row: int, *rewards: float | None) -> None:
        """Add the rewards of completions of a row, in [0, 1], or None for an unscored completion.

        The rewards are in the file when this returns. A call that raises has added none of them, so the caller may
        repeat it. Raises ValueError for another reward, and EnvironmentSetupError if the file cannot be written, or if
        it has never given the row out.
        """
        for reward in rewards:
            if reward is not None and not 0.0 <= reward <= 1.0:
                raise ValueError(f"reward: expected a number from 0 to 1, or None, got {reward!r:.100}.")
        with self._transaction() as database:
            found = database.execute("SELECT rewards, is_counted FROM rows WHERE row = ?", (row,)).fetchone()
            if found is None:
                raise EnvironmentSetupError(
                    f"{self.path}: row {row} has a reward, but this store has never given the row out. Has the file "
                    "been replaced during the run? Continue with the file that the rows were read from."
                )
            text, is_counted = found
            if is_counted:
                database.execute("UPDATE rows SET later = later + ? WHERE row = ?", (len(rewards), row))
            elif rewards:
                known = json.loads(text)
                database.execute("UPDATE rows SET rewards = ? WHERE row = ?", (json.dumps([*known, *rewards]), row))
                if not known:
                    self._begin_group(database)
                [(size,)] = database.execute("SELECT group_size FROM progress").fetchall()
                self._count(database, "row = ? AND json_array_length(rewards) >= ?", row, size)

    def incomplete_rows(self) -> Iterator[int]:
        """The rows whose groups are not counted: first the rows that were read before, then all later rows."""
        with self._transaction() as database:
            rows = database.execute("SELECT row FROM rows WHERE NOT is_counted ORDER BY row").fetchall()
            [(last,)] = database.execute("SELECT coalesce(max(row), -1) FROM rows").fetchall()
        yield from (row for (row,) in rows)
        yield from range(last + 1, self.settings.rows)

    def summary(self) -> StoreSummary:
        """The levels now, and the counts."""
        with self._transaction() as database:
            [(size,)] = database.execute("SELECT group_size FROM progress").fetchall()
            [(rows, counted, short, repeated)] = database.execute(
                "SELECT count(*), total(is_counted), total(is_counted AND came < ?), total(max(came - ?, 0)) "
                "FROM (SELECT is_counted, json_array_length(rewards) + later AS came FROM rows)",
                (size, size),
            ).fetchall()
            [(unscored,)] = database.execute(
                "SELECT count(*) FROM rows, json_each(rows.rewards) AS reward WHERE reward.type = 'null'"
            ).fetchall()
            tasks = []
            for task, levels in database.execute("SELECT task, levels FROM tasks ORDER BY task").fetchall():
                details = self._curriculum(database, task).stats()["tasks"].get(task, {})
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

    # --- within a transaction

    def _begin_group(self, database: sqlite3.Connection) -> None:
        """Note the first reward of a group. At the end of a generation, older groups are looked at."""
        database.execute("UPDATE progress SET begun = begun + 1")
        [progress] = database.execute("SELECT * FROM progress").fetchall()
        generation, read, begun, read_before, size, is_size_known = progress
        if begun < read_before or read == read_before:
            return
        database.execute("UPDATE progress SET generation = generation + 1, read_before = read")
        if not is_size_known:
            self._learn_size(database, size, generation + 1 - SHOWN_AFTER)
        self._count(database, "generation <= ? AND rewards != '[]'", generation + 1 - LEFT_BEHIND)

    def _learn_size(self, database: sqlite3.Connection, expected: int, generation: int) -> None:
        """Compare the size of the first groups with the size that the user has said."""
        found = database.execute(
            "SELECT json_array_length(rewards) + later FROM rows "
            "WHERE generation <= ? AND rewards != '[]' AND NOT is_read_again",
            (generation,),
        )
        sizes = [size for (size,) in found.fetchall()]
        if expected in sizes:
            database.execute("UPDATE progress SET is_size_known = 1")
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
            database.execute("UPDATE progress SET group_size = ?, is_size_known = 1", (size,))
            self._count(database, "json_array_length(rewards) >= ?", size)

    def _count(self, database: sqlite3.Connection, condition: str, *values: int) -> None:
        """Show the curriculum the groups that meet an SQL condition and are not counted, each once."""
        query = f"SELECT row, task, level, rewards FROM rows WHERE NOT is_counted AND {condition}"
        for row, task, level, text in database.execute(query, values).fetchall():
            database.execute("UPDATE rows SET is_counted = 1 WHERE row = ?", (row,))
            scored = tuple(reward for reward in json.loads(text) if reward is not None)
            if scored:
                with self._changed_curriculum(database, task) as curriculum:
                    curriculum.observe(GroupResult(task, level, scored))

    @contextlib.contextmanager
    def _changed_curriculum(self, database: sqlite3.Connection, task: str) -> Iterator[Curriculum]:
        """The curriculum of one task, whose state is written at the end of the block."""
        curriculum = self._curriculum(database, task)
        yield curriculum
        own = curriculum.state_dict()["tasks"].get(task, {})
        database.execute("UPDATE tasks SET state = ? WHERE task = ?", (json.dumps(own), task))

    def _curriculum(self, database: sqlite3.Connection, task: str) -> Curriculum:
        """The curriculum of one task."""
        [(levels, state)] = database.execute("SELECT levels, state FROM tasks WHERE task = ?", (task,)).fetchall()
        curriculum = Curriculum({task: levels}, self.settings.target_accuracy)
        own = dict(json.loads(state))
        curriculum.load_state_dict({"tasks": {task: own} if own else {}})
        return curriculum

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """A connection with a transaction. An error in the block takes the whole change back."""
        if not self.path.exists():
            raise EnvironmentSetupError(
                f"{self.path}: there is no such file. A run that continues needs the store that it began with. A new "
                "run needs a new store with every task at its lowest level: `reasoning-gym-env levels create`."
            )
        try:
            with contextlib.ExitStack() as stack:
                turns = stack.enter_context(self.path.with_name(f"{self.path.name}.lock").open("a"))
                # The end of the block closes the file, which lets the next process in.
                fcntl.flock(turns, fcntl.LOCK_EX)
                address = f"{self.path.as_uri()}?mode=rw"
                connection = sqlite3.connect(address, uri=True, timeout=PATIENCE_S, isolation_level=None)
                stack.enter_context(contextlib.closing(connection))
                # The context manager of sqlite3 commits, or takes everything back after an error.
                stack.enter_context(connection)
                connection.execute("BEGIN IMMEDIATE")
                yield connection
        except (sqlite3.Error, OSError) as error:
            raise EnvironmentSetupError(
                f"{self.path}: cannot be used as a store of levels ({error}). Check that it is one, that the disk has "
                "room and can be written, and that the locks of the file system work."
            ) from error
        except (ValueError, TypeError) as error:
            raise EnvironmentSetupError(
                f"{self.path}: expected data that this package has written, but the file is damaged ({error!s:.100}). "
                "Continue with a copy of it, or begin with a new store."
            ) from error


def check_is_new(path: Path) -> None:
    """Raise EnvironmentSetupError if the file of a new store exists, or its folder does not."""
    if not path.absolute().parent.is_dir():
        raise EnvironmentSetupError(f"{path}: expected a folder that exists, but there is no {path.absolute().parent}.")
    if path.exists():
        raise EnvironmentSetupError(
            f"{path}: the file exists. A run that continues uses it as it is; a new run needs another name."
        )
