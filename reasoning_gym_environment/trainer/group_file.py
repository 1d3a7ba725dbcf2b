"""The file of groups that `serve` writes on request (`data_path_to_save_groups`).

A thread writes it. A disk that hangs must not stop the event loop, which follows the trainer and handles signals.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from ..records import Group
from ..storage.append_log import AppendLog
from ..storage.lines import open_groups
from ..utils.resilience import BackgroundCalls, RepeatedEvents

MOST_WAITING = 64
"""While this many groups wait for the disk, further groups are not written."""


class GroupSink(Protocol):
    """Receives the groups of a run, for example to write them to a file."""

    def write(self, payload: Mapping[str, Any], group: Group | None) -> None:
        """Write a group, or begin to write it. `group` is None if other code has made the item."""

    async def close(self) -> None:
        """Finish the file. Safe to call twice. Raises OSError."""


class GroupFile:
    """Appends groups to the file at `path`, or nowhere if it is None. `failures` counts groups that are not written."""

    def __init__(self, path: str | None, failures: RepeatedEvents) -> None:
        self._path = path
        self._failures = failures
        self._log: AppendLog | None = None
        self._disk = BackgroundCalls("groups")
        self._writes: set[asyncio.Future[None]] = set()

    def write(self, payload: Mapping[str, Any], group: Group | None = None) -> None:
        """Begin to append a group. If the disk refuses it or hangs, log that."""
        if self._path is None:
            return
        if len(self._writes) >= MOST_WAITING:
            self._note_lost(f"{MOST_WAITING} groups wait for the disk")
            return
        write = self._disk.submit(self._append, Path(self._path), dict(payload))
        self._writes.add(write)
        write.add_done_callback(self._note_end)

    async def close(self) -> None:
        """Write the groups that wait, and release the file. Safe to call twice. Raises OSError."""
        if self._path is not None:
            await self._disk.submit(self._close)

    def _note_end(self, write: asyncio.Future[None]) -> None:
        self._writes.discard(write)
        if not write.cancelled() and write.exception() is not None:
            self._note_lost(str(write.exception()))

    def _note_lost(self, why: str) -> None:
        what = "group not written to data_path_to_save_groups, sending it anyway"
        self._failures.note("group_not_written_to_data_path_to_save_groups", what, f"{self._path}: {why}")

    # --- methods that run in the thread of `_disk`

    def _append(self, path: Path, payload: dict[str, Any]) -> None:
        if self._log is None:
            self._log = open_groups(path, {}, is_resumed=False)
        self._log.append(payload)

    def _close(self) -> None:
        if self._log is not None:
            self._log.close()
