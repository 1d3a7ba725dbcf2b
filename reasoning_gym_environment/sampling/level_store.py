"""The levels of a curriculum in a file, for trainers that read items in one process and grade completions in another.

    a process that reads    row ── LevelStore.level_of(its task) ──> level ──> item ── LevelStore.keep ──> its recipe
    a process that grades   row, reward ── LevelStore.add ──> with the group's last reward: Curriculum.observe

Any number of processes use the file at the same time. The first process that reads a row fixes its item, and all later
reads get the same item. A group is complete when it has `group_size` rewards, and the curriculum sees it once.

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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..errors import EnvironmentSetupError
from .curriculum import Curriculum, GroupResult

logger = logging.getLogger(__name__)

APPLICATION = 0x52475953
"""Marks a database as a store of levels (SQLite's application_id)."""

VERSION = 1

PATIENCE_S = 60.0
"""A process waits so long for SQLite's own lock, which only a reader or another program can hold."""

SCHEMA = f"""
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {VERSION};
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE tasks (task TEXT PRIMARY KEY, levels INTEGER NOT NULL, state TEXT NOT NULL);
CREATE TABLE skipped (reason TEXT PRIMARY KEY, draws INTEGER NOT NULL);
CREATE TABLE rows (
    row INTEGER PRIMARY KEY,
    task TEXT NOT NULL,
    level INTEGER,
    recipe TEXT NOT NULL,
    rewards TEXT NOT NULL DEFAULT '[]',
    is_complete INTEGER NOT NULL DEFAULT 0,
    repeated INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX incomplete ON rows (row) WHERE NOT is_complete;
"""


@dataclass(frozen=True)
class StoreSettings:
    """The settings that all processes of a run share."""

    rows: int
    """The number of rows that the trainer may read."""
    group_size: int
    """The completions of a row."""
    target_accuracy: float
    tasks: Mapping[str, Any] = field(default_factory=dict)
    """Settings of `Tasks`."""
    seed: int = 42


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
    """Rows whose group has all its rewards."""
    unscored: int
    """Completions without a score."""
    skipped: dict[str, int]
    """Draws that gave no item, by reason."""
    repeated: int
    """Rewards that came for a complete group, for example because training went back to a checkpoint."""
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
        except sqlite3.Error as error:
            raise EnvironmentSetupError(f"{self.path}: cannot be read as a store of levels ({error}).") from error

    @classmethod
    def create(cls, path: str | Path, settings: StoreSettings, levels: Mapping[str, int]) -> LevelStore:
        """Make a new store in which every task is at its lowest level. `levels` has the number of levels of each task.

        Raises EnvironmentSetupError if the file exists.
        """
        path = Path(path)
        check_is_new(path)
        # The file appears with its whole content, so no process sees half a store.
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            with contextlib.closing(sqlite3.connect(temporary)) as database:
                database.executescript(SCHEMA)
                given = [(name, json.dumps(value)) for name, value in asdict(settings).items()]
                database.executemany("INSERT INTO settings VALUES (?, ?)", given)
                rows = [(task, count, "{}") for task, count in sorted(levels.items())]
                database.executemany("INSERT INTO tasks VALUES (?, ?, ?)", rows)
                database.commit()
            os.link(temporary, path)
        except FileExistsError:
            check_is_new(path)
        finally:
            temporary.unlink(missing_ok=True)
        return cls(path)

    def levels(self) -> dict[str, int]:
        """The number of levels of each task."""
        return dict(self._read("SELECT task, levels FROM tasks"))

    def level_of(self, task: str) -> int:
        """The level of this task now."""
        [(levels, state)] = self._read("SELECT levels, state FROM tasks WHERE task = ?", task)
        return self._curriculum(task, levels, state).level(task)

    def recipe(self, row: int) -> str | None:
        """The recipe of the row's item; None if nobody has read the row."""
        found = self._read("SELECT recipe FROM rows WHERE row = ?", row)
        return found[0][0] if found else None

    def note_item(self, task: str, *, unmade: Iterable[int], made: int | None, skipped: str = "") -> None:
        """Note which levels could not give an item of this task, and the level that gave it.

        Without such a level, `skipped` is the reason.
        """
        with self._change(), self._changed_curriculum(task) as curriculum:
            for level in unmade:
                curriculum.note_unmade(task, level)
            if made is not None:
                curriculum.note_made(task, made)
            if skipped:
                self._database.execute(
                    "INSERT INTO skipped VALUES (?, 1) ON CONFLICT (reason) DO UPDATE SET draws = draws + 1", (skipped,)
                )

    def keep(self, row: int, task: str, level: int | None, recipe: str) -> str:
        """Fix the item of a row, unless another process was faster. Returns the recipe that counts."""
        with self._change():
            self._database.execute(
                "INSERT OR IGNORE INTO rows (row, task, level, recipe) VALUES (?, ?, ?, ?)", (row, task, level, recipe)
            )
            [(kept,)] = self._database.execute("SELECT recipe FROM rows WHERE row = ?", (row,)).fetchall()
        return str(kept)

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
        """Whether the group of a row has all its rewards."""
        found = self._read("SELECT is_complete FROM rows WHERE row = ?", row)
        return bool(found and found[0][0])

    def incomplete_rows(self) -> Iterator[int]:
        """The rows whose groups are not complete: first the rows that were read before, then all later rows."""
        for (row,) in self._read("SELECT row FROM rows WHERE NOT is_complete ORDER BY row"):
            yield row
        [(last,)] = self._read("SELECT coalesce(max(row), -1) FROM rows")
        yield from range(last + 1, self.settings.rows)

    def summary(self) -> StoreSummary:
        """The levels now, and the counts."""
        [counts] = self._read("SELECT count(*), coalesce(sum(is_complete), 0), coalesce(sum(repeated), 0) FROM rows")
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
        read, complete, repeated = counts
        skipped = dict(self._read("SELECT reason, draws FROM skipped ORDER BY draws DESC, reason"))
        return StoreSummary(read, complete, unscored, skipped, repeated, tasks)

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        self._database.close()

    # --- rewards

    def _add(self, row: int, reward: float | None) -> None:
        """Within a change: add a reward to its group, and show the curriculum a group that is complete."""
        found = self._database.execute("SELECT task, level, rewards, is_complete FROM rows WHERE row = ?", (row,))
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
        task, level, text, is_complete = known
        if is_complete:
            self._database.execute("UPDATE rows SET repeated = repeated + 1 WHERE row = ?", (row,))
            return
        rewards = [*json.loads(text), reward]
        is_complete = len(rewards) >= self.settings.group_size
        self._database.execute(
            "UPDATE rows SET rewards = ?, is_complete = ? WHERE row = ?", (json.dumps(rewards), is_complete, row)
        )
        scored = tuple(reward for reward in rewards if reward is not None)
        if is_complete and scored:
            with self._changed_curriculum(task) as curriculum:
                curriculum.observe(GroupResult(task, level, scored))

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
        own = json.loads(state)
        curriculum.load_state_dict({"tasks": {task: own} if own else {}})
        return curriculum

    # --- the database

    def _read_settings(self) -> StoreSettings:
        [(application,)] = self._database.execute("PRAGMA application_id").fetchall()
        [(version,)] = self._database.execute("PRAGMA user_version").fetchall()
        if (application, version) != (APPLICATION, VERSION):
            raise EnvironmentSetupError(
                f"{self.path}: expected a store of levels of this release, which `reasoning-gym-env levels create` "
                "makes."
            )
        values = {name: json.loads(value) for name, value in self._database.execute("SELECT * FROM settings")}
        return StoreSettings(**values)

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
        except sqlite3.Error as error:
            raise EnvironmentSetupError(
                f"{self.path}: cannot be used ({error}). Check the disk, and that the locks of the file system work."
            ) from error

    def _check_exists(self) -> None:
        if not self.path.exists():
            raise EnvironmentSetupError(
                f"{self.path}: there is no such file. A run that continues needs the store that it began with. A new "
                "run needs a new store with every task at its lowest level: `reasoning-gym-env levels create`."
            )


def check_is_new(path: Path) -> None:
    """Raise EnvironmentSetupError if the file of a new store exists."""
    if path.exists():
        raise EnvironmentSetupError(
            f"{path}: the file exists. A run that continues uses it as it is; a new run needs another name."
        )
