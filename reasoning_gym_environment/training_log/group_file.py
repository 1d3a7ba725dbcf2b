"""The file of scored groups, `data_path_to_save_groups`: what `process` makes, and `serve` if it is told to.

    group ── to_scored_data + description ──> a line, in the system's hands at once ──> FILE
    FILE of an earlier start ──> its lines, if they were made with the same settings ──> only the rest is made

A line is what the trajectory API would get, and says what it is: task, level, seed, config and answer of the item,
what came of each completion, and the settings. An index that has no line was in progress, or gave no group: it is
drawn again. A finished file stands in the order of its items, whichever was finished first.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from weakref import WeakValueDictionary

from .. import __version__
from ..errors import EnvironmentSetupError
from ..records import Outcome, RolloutGroup, has_signal, plain
from ..utils.terminal import claim
from .dumps import group_record

logger = logging.getLogger(__name__)

_held_here: WeakValueDictionary[str, GroupFile] = WeakValueDictionary()
"""By path: a run that was not closed does not keep the next one of its own process from its file."""


def described(group: RolloutGroup, version: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a line says beside what the trainer gets; `rollout_details` has what a dump has, without the texts."""
    record = plain(group_record(group, version))
    details = [{k: v for k, v in one.items() if k != "conversation"} for one in record.pop("rollouts")]
    return {**record, "rollout_details": details, "settings": dict(settings), "version": __version__}


@dataclass(frozen=True)
class WrittenGroup:
    """What a line tells those who choose tasks and levels. `credits` are of the completions that were scored."""

    index: int
    task: str
    level: int | None
    credits: tuple[float, ...]
    has_signal: bool


class GroupFile:
    """Appends lines to `path`; `written` are those that are there. Holds the file until `close`, or until another of
    this process takes it over.

    With `goes_on`, groups of an earlier start with the same `settings` count, and the file is made at once, to be held;
    it goes again if nothing is written. Without, a file that is there is left alone, and another name taken, as Atropos
    does. Raises EnvironmentSetupError if the file cannot be gone on with, or another run holds it.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], *, goes_on: bool) -> None:
        self.settings = plain(dict(settings))
        self.written: list[WrittenGroup] = []
        self.path = path if goes_on else _free_name(path)
        self._file: BinaryIO | None = None
        self._goes_on = goes_on
        # Index, first byte and length of each line, of a file that is put in order: `serve` would keep them for weeks.
        self._places: list[tuple[int, int, int]] = []
        self._size = 0
        self._is_made = False
        # A pipe or a device is for any number of runs, and has nothing to go on with.
        if goes_on and (path.is_file() or not path.exists()):
            try:
                self._file = self._held()
                self._take_over()
            except BaseException as error:
                self.close()
                if isinstance(error, OSError):
                    raise EnvironmentSetupError(f"Cannot go on with {self.path}: {error}.") from error
                raise

    def write(self, line: Mapping[str, Any]) -> None:
        """Raises OSError."""
        if self._file is None:
            self._file = self._held()
        data = json.dumps(line).encode("ascii") + b"\n"
        # Flushed, so that a process that is killed has lost nothing that it wrote.
        self._file.write(data)
        self._file.flush()
        if self._goes_on:
            self._places.append((line.get("index", 0), self._size, len(data)))
        self._size += len(data)

    def close(self) -> None:
        """Raises OSError. Safe to call twice."""
        if self._file is not None:
            file, self._file = self._file, None
            with file:
                if self._is_made and not self._size:
                    self.path.unlink(missing_ok=True)

    def put_in_order(self) -> None:
        """Sort the lines by the index of their items. A disk that has no room for that leaves them as they came."""
        places = sorted(self._places)
        if places == self._places:
            return
        in_order = self.path.with_name(f"{self.path.name}.in-order")
        try:
            with self.path.open("rb") as file, in_order.open("wb") as target:
                for _, start, size in places:
                    file.seek(start)
                    target.write(file.read(size))
            # Whoever comes meets the one file held, or the other.
            held = self._held(in_order)
            in_order.replace(self.path)
            self.close()
            self._file = held
        except OSError as error:
            in_order.unlink(missing_ok=True)
            logger.warning("%s has its groups in the order in which they were finished: %s.", self.path, error)

    def _held(self, path: Path | None = None) -> BinaryIO:
        path = path or self.path
        if (other := _held_here.get(str(path.resolve()))) is not None and other is not self:
            other.close()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._is_made |= not path.exists()
        file = path.open("ab")
        try:
            if path.is_file():
                claim(file.fileno(), path)
                # It may have been put in order, or removed, in between.
                if not os.path.samestat(path.stat(), os.fstat(file.fileno())):
                    raise EnvironmentSetupError(f"{path}: another run has just ended there. Start again.")
        except BaseException:
            file.close()
            raise
        _held_here[str(self.path.resolve())] = self
        return file

    def _take_over(self) -> None:
        with self.path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self.written.append(self._read(line))
                self._places.append((self.written[-1].index, self._size, len(line)))
                self._size += len(line)
        if self._size < self.path.stat().st_size:
            # Killed while it wrote: that group is made again.
            os.truncate(self.path, self._size)

    def _read(self, line: bytes) -> WrittenGroup:
        elsewhere = "Set env.data_path_to_save_groups to another file"
        try:
            record = json.loads(line)
            settings, details = record["settings"], record["rollout_details"]
            scored = [one for one in details if Outcome(one["outcome"]).is_scored]
            group = WrittenGroup(
                index=int(record["index"]),
                task=str(record["task"]),
                level=record["level"],
                credits=tuple(float(one["credit"]) for one in scored),
                has_signal=has_signal(record["scores"], [one["mask_reason"] is not None for one in details]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise EnvironmentSetupError(
                f"{self.path} has lines that do not say how they were made ({type(error).__name__}: {error}), so it "
                f"cannot be gone on with. {elsewhere}."
            ) from error
        if different := [name for name in self.settings if settings.get(name) != self.settings[name]]:
            changes = ", ".join(f"{name} {settings.get(name)} (now {self.settings[name]})" for name in different)
            raise EnvironmentSetupError(
                f"{self.path} holds groups of other settings: {changes}. {elsewhere}, or the settings to what they "
                "were to go on."
            )
        return group


def _free_name(path: Path) -> Path:
    number, free = 0, path
    while free.exists():
        number += 1
        free = path.with_stem(f"{path.stem}_{number}")
    if number:
        logger.info("Groups are written to %s, because %s is there already.", free, path)
    return free
