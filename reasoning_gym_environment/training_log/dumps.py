"""The dumps of a run, by kind, off the event loop: a slow disk holds up the groups it is given, and nobody else.

group ──> its line, in memory ──> appended by the one thread that writes ──> handed on to the trainer
                            └──(the disk hangs for PATIENCE_S)─────────────────┘
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import EnvironmentSetupError
from ..records import RolloutGroup
from ..utils.aio import Background
from ..utils.outage_log import Outage
from .rollout_writer import RolloutWriter

logger = logging.getLogger(__name__)

ROLLOUTS = "rollouts"
FAILED = "FAILED_rollouts"
GROUPS_PER_FILE = {ROLLOUTS: 100, FAILED: 50}

PATIENCE_S = 2.0
"""How long a disk that hangs may hold up a group."""


class RolloutDumps:
    """Writes groups of the wanted `kinds` under `directory`; a kind that is not wanted is not written."""

    def __init__(self, directory: Path, run_id: str, *, kinds: Iterable[str], version: str) -> None:
        self._writers = {
            kind: RolloutWriter(directory, run_id, kind=kind, threshold=GROUPS_PER_FILE[kind], version=version)
            for kind in kinds
        }
        self._run_id = run_id
        # Two, in the same order: what hangs on the disk must not keep groups, many times as large as their lines.
        self._lines, self._disk = Background("dump-lines"), Background("dumps")
        self._outage = Outage(logger, "The disk of the dumps", first_delay_s=0.0, max_delay_s=0.0)

    @property
    def run_id(self) -> str:
        """The id in the files' names; that of the earlier run when it is continued."""
        return self._run_id

    @property
    def files(self) -> list[Path]:
        """The files finished so far."""
        return [path for writer in self._writers.values() for path in writer.files]

    async def add(self, group: RolloutGroup, kind: str) -> None:
        """Returns when the group is in the operating system's hands, or waits in memory for a disk that refuses it.

        A disk that hangs is waited for PATIENCE_S; then the group waits in memory too, and is written when it goes on.
        """
        if (writer := self._writers.get(kind)) is None:
            return
        await self._lines.submit(writer.take, group)
        written = self._disk.submit(writer.write)
        await asyncio.wait([written], timeout=PATIENCE_S)
        if written.done():
            self._outage.over()
            written.result()
        else:
            self._outage.failed(f"no answer for {PATIENCE_S:g} s", "groups wait in memory, training goes on")
            writer.drop_excess()

    async def close(self) -> None:
        """Finish the files. Safe to call twice."""
        for writer in self._writers.values():
            await self._disk.submit(writer.close)

    def metrics(self) -> dict[str, float]:
        """Groups written since the start of the run; those that wait or are lost, and outages of the disk, if any."""
        values = self._outage.metrics("dumps/disk")
        for kind, writer in self._writers.items():
            values[f"dumps/{kind}_written"] = float(writer.groups_written)
            if writer.groups_waiting or writer.groups_dropped:
                values[f"dumps/{kind}_waiting"] = float(writer.groups_waiting)
                values[f"dumps/{kind}_dropped"] = float(writer.groups_dropped)
        return values

    def state_dict(self) -> dict[str, Any]:
        return {"run_id": self._run_id, "kinds": {kind: one.state_dict() for kind, one in self._writers.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the files of an earlier run. Raises EnvironmentSetupError if the state is malformed."""
        run_id, kinds = state.get("run_id"), state.get("kinds")
        if not isinstance(run_id, str) or not run_id.replace("-", "").isalnum() or not isinstance(kinds, dict):
            raise EnvironmentSetupError(f"The state of the dumps has a run id and kinds, got {dict(state)!r:.200}.")
        self._run_id = run_id
        for kind, writer in self._writers.items():
            writer.run_id = run_id
            if kind in kinds:
                writer.load_state_dict(kinds[kind])
