"""Where groups go: to the trainer, or to a file. `put` returns how the group ended.

    serve      TrainerSink    run-api, and on request a file of groups beside it
    process    FileSink       the file of groups

The task of a group waits for `put`. So no other code has to learn later what became of the group.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from ..errors import EnvironmentSetupError
from ..records import Group, GroupOutcome
from ..storage.append_log import AppendLog
from ..storage.disk_queue import DiskQueue
from ..storage.lines import described, open_groups
from ..utils.resilience import RepeatedEvents
from .run_api import TrajectoryApi

NOT_WRITTEN = "group_not_written_to_data_path_to_save_groups"
"""The failure of a group that the file of `serve` lacks."""


WITHOUT_TOKENS = {"tokens": None, "masks": None}
"""What the line of a group has in place of token ids that the server did not report."""


class Sink(Protocol):
    """Takes the groups of a run."""

    async def put(
        self, payload: Mapping[str, Any], group: Group | None, *, sampled_at: int | None, to_api: bool
    ) -> GroupOutcome:
        """Take a group, and return how it ended. `group` is None if other code has made it.

        `sampled_at` is the trainer's step at which the sampling of the group began; None means the current step.
        """

    async def close(self) -> None:
        """Finish the files. Safe to call twice. Raises OSError."""


class TrainerSink:
    """Delivers groups to the trainer. If there is a `path`, it also appends each group to the file there."""

    def __init__(self, api: TrajectoryApi, path: str | None, failures: RepeatedEvents) -> None:
        self._api = api
        self._path = path
        self._failures = failures
        self._log: AppendLog | None = None
        remedy = "training continues, and the file gets the groups later"
        self._queue = DiskQueue(self._append, name="groups", remedy=remedy)

    async def put(
        self, payload: Mapping[str, Any], group: Group | None, *, sampled_at: int | None, to_api: bool
    ) -> GroupOutcome:
        """Deliver a group, unless only its line is wanted."""
        if self._path is not None:
            await self._write(dict(payload))
        if not to_api:
            return GroupOutcome.WRITTEN
        return await self._api.put(payload, sampled_at)

    async def close(self) -> None:
        """Write the groups that wait, and release the file. Safe to call twice. Raises OSError."""
        await self._queue.close(self._close)

    async def _write(self, payload: dict[str, Any]) -> None:
        why = "the disk does not take it"
        try:
            if await self._queue.offer(payload):
                return
        except (EnvironmentSetupError, TypeError, ValueError) as error:
            why = str(error)
        what = "group not written to data_path_to_save_groups, sending it anyway"
        self._failures.note(NOT_WRITTEN, what, f"{self._path}: {why}")

    # --- methods that run in a thread

    def _append(self, payload: dict[str, Any]) -> None:
        if self._log is None:
            self._log = open_groups(Path(str(self._path)), {}, is_resumed=False)
        self._log.append(payload)

    def _close(self) -> None:
        if self._log is not None:
            self._log.close()


class FileSink:
    """Appends each group to the file of `process`, with its item and the settings of the run."""

    def __init__(self, groups: AppendLog, version: str, *, has_tokens: bool) -> None:
        """`version` is the release of reasoning-gym. `has_tokens` is whether the servers report token ids."""
        self._groups = groups
        self._version = version
        self._has_tokens = has_tokens
        remedy = "process starts no further group and tries again every few seconds. Free some space"
        self.queue = DiskQueue(groups.append, name="groups", remedy=remedy)

    async def put(
        self, payload: Mapping[str, Any], group: Group | None, *, sampled_at: int | None, to_api: bool
    ) -> GroupOutcome:
        """Write a group. If the command must end while the disk refuses it, its item is made again later."""
        details: dict[str, Any] = {}
        if group is not None:
            details = described(group, self._version, self._groups.settings or {})
        if not self._has_tokens:
            details |= WITHOUT_TOKENS
        is_written = await self.queue.put({**payload, **details})
        return GroupOutcome.WRITTEN if is_written else GroupOutcome.CANCELLED

    async def close(self) -> None:
        """Release the file. Safe to call twice. Raises OSError."""
        await self.queue.close(self._groups.close)
