"""A run that was stopped, however it was, goes on: where its checkpoints are, when they are written, how one is chosen.

registered ──> folder of this run taken ──> newest usable checkpoint up to the step, if any ──> items go on
every checkpoint step, every few seconds, at the end ──> state as of one moment ──> written in the background

A folder that the disk refuses is tried for a while at the start, and later before each write.
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

from ..errors import EnvironmentSetupError
from ..utils.background import Background
from ..utils.outages import Outage
from .checkpoints import LATEST, CheckpointFolder, Stateful, load_into, read, state_of
from .run_folder import Membership, join_run, run_name, slurm_procid

logger = logging.getLogger(__name__)

SAVE_EVERY_S = 15.0
"""What a killed process had done since then is done again."""

TRIES = 20
"""How often the folder is tried at the start: a network file system may be away for a moment."""

TRY_EVERY_S = 0.5
MAX_UNWRITTEN = 2
"""Checkpoints that may be unwritten at a time: one being written, and one of a step behind it."""


class Resuming(BaseEnv):
    """Mixin for a BaseEnv subclass: saves and loads the parts that `stateful` names."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._membership: Membership | None = None
        self._folder: CheckpointFolder | None = None
        self._begun_at = time.monotonic()
        self._has_left = False
        self._is_refused = False
        self._disk = Background("checkpoints")
        self._disk_outage = Outage(logger, "The disk of the checkpoints", first_delay_s=0.0, max_delay_s=0.0)
        self.is_resumed = False

    def stateful(self) -> Mapping[str, Stateful]:
        """The parts of the environment that go on after a restart, by name."""
        raise NotImplementedError

    def join_run(self) -> CheckpointFolder | None:
        """Take the folder of this run's checkpoints; None if the disk refuses it now, which the log says once.

        Raises EnvironmentSetupError if another living process has the same `instance_id`.
        """
        if self._folder is not None or self._has_left:
            return self._folder
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
            if not self._is_refused:
                logger.error("No checkpoints can be kept in %s (%s): tried again until they can.", root, error)
            self._is_refused = True
            return None
        self._folder = CheckpointFolder(self._membership.folder)
        if self._is_refused:
            self._is_refused = False
            logger.warning("Checkpoints are kept in %s now.", self._folder.path)
        return self._folder

    async def find_run(self) -> None:
        """Take the folder, or try to for some seconds. Raises as `join_run`."""
        for _ in range(TRIES):
            if await self._disk.submit(self.join_run) is not None:
                return
            await asyncio.sleep(TRY_EVERY_S)

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
        self._folder, self._has_left = None, True
        if self._membership is not None:
            self._membership.release()

    # --- saving

    def save_checkpoint(self, step: int, data: dict[str, Any] | None = None) -> None:
        """Write the checkpoint of `step`, with `data` beside the state. A disk that refuses is reported."""
        self._write(f"step-{step}.json", step, self._state_text(), data)

    def checkpoint_now(self, step: int) -> None:
        """Begin to write the checkpoint of `step`, without waiting for the disk."""
        if self._disk.unfinished < MAX_UNWRITTEN:
            self._begin(f"step-{step}.json", step)
        else:
            logger.error("The checkpoint of step %d is left out: those before it are still being written.", step)

    def checkpoint_if_due(self) -> None:
        """Begin to write the latest state if no checkpoint was begun for SAVE_EVERY_S, and none is being written."""
        if not self._keeps_checkpoints or time.monotonic() - self._begun_at < SAVE_EVERY_S:
            return
        if self._disk.unfinished:
            self._disk_outage.failed("a checkpoint is still being written", "training goes on without new ones")
        else:
            self._disk_outage.over()
            self._begin(LATEST, self.curr_step)

    async def checkpoint_latest(self) -> None:
        """Write the latest state, after what is being written, if this run keeps checkpoints."""
        if self._keeps_checkpoints:
            await self._begin(LATEST, self.curr_step)

    @property
    def _keeps_checkpoints(self) -> bool:
        return self.checkpoint_interval > 0 and not self._has_left

    def _begin(self, name: str, step: int) -> asyncio.Future[None]:
        self._begun_at = time.monotonic()
        return self._disk.submit(self._write, name, step, self._state_text(), None)

    def _state_text(self) -> str:
        # As text: the parts change while a thread writes.
        return json.dumps(state_of(self.stateful()))

    def _write(self, name: str, step: int, state: str, data: dict[str, Any] | None) -> None:
        try:
            if (folder := self.join_run()) is None:
                return
            path = folder.write(name, state, step=step, extra=data)
        except (OSError, EnvironmentSetupError) as error:
            # Training goes on: a full disk must not end it, nor another process that took the folder meanwhile.
            logger.error("The checkpoint of step %d could not be written to %s: %s", step, self.checkpoint_dir, error)
            return
        logger.log(logging.DEBUG if name == LATEST else logging.INFO, "Checkpoint of step %d: %s.", step, path)

    # --- loading

    def load_checkpoint(self) -> None:
        """Continue from the newest usable checkpoint of the present step or before; without one, from the first item.

        Raises EnvironmentSetupError if there are checkpoints, and none of them can be used; or if the trainer has taken
        steps, so that there must be some, and the disk refuses their folder.
        """
        if (folder := self.join_run()) is None:
            if self.curr_step > 0:
                raise EnvironmentSetupError(
                    f"The trainer is at step {self.curr_step}, and the checkpoints in {self.checkpoint_dir} cannot be "
                    "reached, see above: let this process read and write there and start it again, or let the trainer "
                    "ask for no checkpoints to start anew."
                )
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
