"""A run that was stopped, however it was, goes on: where its checkpoints are, when they are written, how one is chosen.

registered ──> folder of this run taken ──> newest usable checkpoint up to the step, if any ──> items go on
every checkpoint step, every few seconds, at the end ──> state as of one moment ──> written by a thread
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atroposlib.envs.base import BaseEnv

from .checkpoint import LATEST, CheckpointFolder, Stateful, load_into, read, state_of
from .errors import EnvironmentSetupError
from .run_identity import Membership, join_run, run_name, slurm_procid

logger = logging.getLogger(__name__)

SAVE_EVERY_S = 15.0
"""What a killed process had done since then is done again."""


class Resuming(BaseEnv):
    """Mixin for a BaseEnv subclass: saves and loads the parts that `stateful` names."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._membership: Membership | None = None
        self._folder: CheckpointFolder | None = None
        self._saved_at = time.monotonic()
        self._has_refused = False
        self.is_resumed = False

    def stateful(self) -> Mapping[str, Stateful]:
        """The parts of the environment that go on after a restart, by name."""
        raise NotImplementedError

    def join_run(self) -> CheckpointFolder | None:
        """Take the folder of this run's checkpoints; None, with one line in the log, if it cannot be had.

        Raises EnvironmentSetupError if another living process has the same `instance_id`.
        """
        if self._folder is None and not self._has_refused:
            config = self.config
            root = Path(self.checkpoint_dir, "env_checkpoints")
            try:
                self._membership = join_run(
                    root,
                    run_name(config.run_id, config.wandb_name, config.seed),
                    instance_id=config.instance_id or None,
                    slurm_procid=slurm_procid(),
                    env_id=getattr(self, "env_id", 0),
                )
            except OSError as error:
                self._has_refused = True
                logger.error("No checkpoints can be kept in %s (%s): a restart would begin anew.", root, error)
                return None
            self._folder = CheckpointFolder(self._membership.folder)
        return self._folder

    @property
    def member(self) -> str | None:
        """What tells this process apart from others of the run: `instance_id`, else SLURM_PROCID; None if neither does.

        A SLURM_PROCID that another living process has too does not.
        """
        own = self.config.instance_id or slurm_procid()
        return own if self._membership is None else self._membership.member

    def stream_name(self) -> str:
        """What a new item stream is called: by the member's name, else by the API's number.

        A run that goes on keeps the name it had, and a restarted API counts anew: a number that another member's stream
        is called by gets that of the folder too.
        """
        if (member := self.member) is not None:
            return member
        name = str(self.env_id)
        folder = self._membership.folder if self._membership else None
        if folder is None or name not in _streams_beside(folder):
            return name
        return f"{name}.{folder.name.rpartition('-')[2]}"

    def leave_run(self) -> None:
        """Save nothing more, and let another process take the folder."""
        self._folder, self._has_refused = None, True
        if self._membership is not None:
            self._membership.release()

    # --- saving

    def save_checkpoint(self, step: int, data: dict[str, Any] | None = None) -> None:
        """Write the checkpoint of `step`, with `data` beside the state. A disk that refuses is reported."""
        if (folder := self.join_run()) is not None:
            self._write(folder, f"step-{step}.json", step, self._state_text(), data)

    async def checkpoint_now(self, step: int) -> None:
        """The same, without holding up the event loop."""
        await self._save(f"step-{step}.json", step)

    async def checkpoint_if_due(self) -> None:
        """Save the latest state if that has not been done for SAVE_EVERY_S."""
        if time.monotonic() - self._saved_at >= SAVE_EVERY_S:
            await self.checkpoint_latest()

    async def checkpoint_latest(self) -> None:
        """Save the latest state, if this run keeps checkpoints."""
        self._saved_at = time.monotonic()
        if self._folder is not None:
            await self._save(LATEST, self.curr_step)

    async def _save(self, name: str, step: int) -> None:
        if (folder := self.join_run()) is not None:
            await asyncio.to_thread(self._write, folder, name, step, self._state_text(), None)

    def _state_text(self) -> str:
        # As text: the parts change while a thread writes.
        return json.dumps(state_of(self.stateful()))

    def _write(self, folder: CheckpointFolder, name: str, step: int, state: str, data: dict[str, Any] | None) -> None:
        try:
            path = folder.write(name, state, step=step, extra=data)
        except OSError as error:
            # Called inside Atropos' main loop: a full disk must not end the training.
            logger.error("The checkpoint of step %d could not be written to %s: %s", step, folder.path, error)
            return
        logger.log(logging.DEBUG if name == LATEST else logging.INFO, "Checkpoint of step %d: %s.", step, path)

    # --- loading

    def load_checkpoint(self) -> None:
        """Continue from the newest usable checkpoint of the present step or before; without one, from the first item.

        Raises EnvironmentSetupError if there are checkpoints, and none of them can be used.
        """
        if (folder := self.join_run()) is None:
            return
        refused = 0
        for one in folder.up_to(self.curr_step):
            try:
                load_into(self.stateful(), one.state)
            except EnvironmentSetupError as error:
                logger.error("The checkpoint %s cannot be used: %s; trying the one before.", one.path, error)
                refused += 1
                continue
            self.is_resumed = True
            logger.info("Continuing from %s, written at step %d.", one.path, one.step)
            return
        # A part may have taken in half of a refused one; and a damaged one is no reason to forget a run's progress.
        if refused or (folder.damaged and self.curr_step > 0):
            # Nor may the end of this process write what would be the newest of them.
            self.leave_run()
            raise EnvironmentSetupError(
                f"None of the checkpoints in {folder.path} can be used, see above: remove them to start anew, or set "
                "env.run_id to give this run a name of its own."
            )
        if self.curr_step > 0 or folder.latest_step > 0:
            later = f" (there are some up to step {folder.latest_step})" if folder.latest_step > 0 else ""
            logger.warning(
                "No checkpoint for step %d or before in %s%s: the item stream starts from the beginning.",
                *(self.curr_step, folder.path, later),
            )


def _streams_beside(folder: Path) -> set[str]:
    """The names of the other members' item streams, by their latest states."""
    streams = set()
    for path in folder.parent.glob(f"{folder.name.rpartition('-')[0]}-*/{LATEST}"):
        if path.parent != folder:
            try:
                streams.add(str(read(path).state.get("sampler", {}).get("instance")))
            except EnvironmentSetupError as error:
                logger.warning("Which item stream %s belongs to cannot be read: %s.", path, error)
    return streams
