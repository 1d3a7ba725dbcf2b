"""Checkpoints of a run: what is saved, when, and how a restarted process finds its own.

    registered ──> this process locks its folder ──> newest usable checkpoint up to the trainer's step ──> resumed
    every checkpoint step, every few seconds, at shutdown ──> state of one moment ──> written in the background

A folder belongs to one process of one run:

    run       `run_id`, else wandb_name and seed
    member    which of the run's processes: `instance_id`, else SLURM_PROCID, else the first number that is free

A process locks its folder for as long as it lives. Two processes therefore never write into the same folder, and a
restarted process finds the folder of the process that it replaces. The folder holds step-50.json, step-100.json, ...
(the trainer's checkpoint steps) and latest.json, the newest state. latest.json is also written every few seconds and at
shutdown.

A run resumes from latest.json, unless the trainer has gone back behind it; then it resumes from the newest checkpoint
up to the trainer's step. An older run may have left later checkpoints. If a checkpoint cannot be used, the run resumes
from the checkpoint before it. If none can be used, the start ends with an error and leaves the files as they are.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from pydantic import BaseModel, ConfigDict, NonNegativeInt

from ..errors import EnvironmentSetupError
from ..settings.environment import ReasoningGymEnvConfig
from ..storage.append_log import lock
from ..storage.files import file_name, write_atomically
from ..utils.clock import now
from ..utils.resilience import BackgroundCalls, Outage
from ..utils.saved_state import Stateful, load_into, state_of
from .run_state import RunState
from .transport import MARKS

logger = logging.getLogger(__name__)

SAVE_EVERY_S = 15.0
"""A killed process repeats what it has done since the last save."""

LATEST = "latest.json"
FORMAT = 5
"""The version of a Document. A checkpoint of another version is from another release."""

KEY = "reasoning_gym_environment"
"""The one key that is ours: every other key of a checkpoint becomes an attribute of the environment, as in Atropos."""


class Document(BaseModel):
    """The data of this environment in a checkpoint."""

    model_config = ConfigDict(strict=True)

    version: int
    step: NonNegativeInt
    env_id: int | None
    """The number of the process at run-api, or None if it has signed off."""
    mark: str
    """The mark that the process leaves to its successor (transport.py)."""
    state: dict[str, Any]
    """The state of each component, by name."""


class RunCheckpoints:
    """The checkpoints of this process: the state of the run's `components`, by name.

    `predecessor` is an earlier process of this folder that did not sign off: its number at run-api, and the mark that
    it has left.
    """

    def __init__(
        self,
        config: ReasoningGymEnvConfig,
        state: RunState,
        components: Mapping[str, Stateful],
    ) -> None:
        self.components = components
        self.is_resumed = False
        self.predecessor: tuple[int, str] | None = None
        self.saved = asyncio.Event()
        """Set once this process has a checkpoint on the disk."""
        self._state = state
        self._own_dir = config.checkpoint_dir
        self._run_name = config.run_id or f"{config.wandb_name or 'run'}-seed{config.seed}"
        self._instance_id = config.instance_id or None
        self._procid = os.environ.get("SLURM_PROCID") or None
        self._lock: IO[bytes] | None = None
        self._data: dict[str, Any] = {}
        """The data that a subclass saves beside the state. Every checkpoint has it."""
        self._has_loaded = False
        """Whether `load` has returned. Before, this process has a fresh state, which must not replace a saved state."""
        self._has_left = False
        self._begun_at = now()
        self._disk = BackgroundCalls("checkpoints")
        self._writing: asyncio.Task[None] | None = None
        self._waiting: dict[str, str] = {}
        """The documents to write next: the text by the file name."""
        self._outage = Outage(logger, "The disk of the checkpoints", first_delay_s=0.0, max_delay_s=0.0)

    def stream_name(self) -> str:
        """The name of a new item stream: `instance_id`, else SLURM_PROCID, else a number, 0 for the first environment.

        run-api numbers the marks of an environment before the environment itself. A restarted API counts from 0 again,
        so a stream that begins later has its first step in its name.
        """
        number = (self._state.env_id or 0) - MARKS
        step = f".{self._state.step}" if self._state.step > 0 else ""
        return self._instance_id or self._procid or f"{number}{step}"

    def leave(self) -> None:
        """Save nothing more, and unlock the folder for another process."""
        self._has_left = True
        if self._lock is not None:
            self._lock.close()

    @cached_property
    def _folder(self) -> Path:
        """This process's folder, which is locked now.

        Raises OSError if the disk refuses it, and EnvironmentSetupError if another living process has the same name.
        """
        given = self._own_dir or self._state.checkpoint_dir
        if "://" in given:
            # As a path it would be a folder of this name in the working directory.
            raise NotADirectoryError(f"{given} is an address and not a folder")
        root = Path(given, "env_checkpoints")
        name = self._instance_id or (f"slurm{self._procid}" if self._procid else None)
        for member in itertools.count() if name is None else [name]:
            folder = root / file_name(f"{self._run_name}-{member}")
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = (folder / ".lock").open("ab")
            try:
                lock(self._lock.fileno(), folder)
                if name is None and member:
                    logger.warning(
                        "Another process of this run is alive, so this process is environment number %d of the run. "
                        "If you did not mean this, stop it, or give it another run_id.",
                        member,
                    )
                return folder
            except EnvironmentSetupError:
                self._lock.close()
        raise EnvironmentSetupError(f"Another process uses {folder}. Set a different instance_id for each process.")

    # --- saving

    def begin(self, step: int | None = None, data: Mapping[str, Any] | None = None) -> asyncio.Future[None]:
        """Begin to write the latest state, with `data` beside it. With `step`, also write the checkpoint of this step.

        Without `data`, the checkpoint has the data of the previous checkpoint. Raises TypeError if `data` is not JSON.

        While a write is in progress, only the newest state and the newest checkpoint step wait for the disk: they
        replace older ones, whose files are not written. The future of a replaced state ends when the newest is written.
        """
        if not self._is_writing:
            # Checkpoint steps may follow each other quickly, and must not hide that the disk hangs.
            self._begun_at = now()
        document = Document(
            version=FORMAT,
            step=self._state.step if step is None else step,
            env_id=self._state.env_id,
            mark=self._state.successor_mark,
            state=state_of(self.components),
        )
        beside = self._data if data is None else dict(data)
        # As text, because the components change while a thread writes.
        text = json.dumps({**beside, KEY: document.model_dump()})
        self._data = beside
        if step is None:
            self._waiting[LATEST] = text
        else:
            self._waiting = {f"step-{step}.json": text, LATEST: text}
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_waiting())
        # A caller that gives up waiting must not withdraw the state of other callers.
        return asyncio.shield(self._writing)

    def begin_if_due(self) -> None:
        """Begin to write the latest state if none was begun for SAVE_EVERY_S, and none is being written."""
        if self._are_kept and now() - self._begun_at >= SAVE_EVERY_S:
            if self._is_writing:
                self._outage.failed(
                    "a checkpoint is still being written",
                    "training continues without new ones",
                )
            else:
                self.begin()

    def begin_latest(self) -> None:
        """Begin to write the latest state, if this run keeps checkpoints."""
        if self._are_kept:
            self.begin()

    async def save_latest(self) -> None:
        """Write the latest state, after what is being written, if this run keeps checkpoints."""
        if self._are_kept:
            await self.begin()

    @property
    def _is_writing(self) -> bool:
        return self._writing is not None and not self._writing.done()

    @property
    def _are_kept(self) -> bool:
        return self._state.checkpoint_interval > 0 and self._has_loaded and not self._has_left

    async def _write_waiting(self) -> None:
        """Write the documents that wait, and then the documents that wait by then."""
        while self._waiting and not self._has_left:
            documents = self._waiting
            self._waiting = {}
            try:
                await self._disk.submit(self._write, documents)
            except (OSError, EnvironmentSetupError) as error:
                # Neither a full disk nor another process that has locked the folder ends the training.
                self._outage.failed(str(error), "training continues without new checkpoints")
            else:
                self._outage.over()
                self.saved.set()

    def _write(self, documents: Mapping[str, str]) -> None:
        for name, text in documents.items():
            write_atomically(self._folder / name, text.encode())
            if name != LATEST:
                logger.debug("Wrote the checkpoint %s.", name)

    # --- loading

    def load(self) -> Mapping[str, Any]:
        """Resume from the newest usable checkpoint of the present step or before; without one, start afresh.

        Returns the data that were saved beside the state. Raises EnvironmentSetupError if there are such checkpoints
        and all are unusable, or if the disk refuses their folder.
        """
        try:
            folder = self._folder
        except OSError as error:
            raise EnvironmentSetupError(self._why_no_folder(error)) from error
        is_one_unusable = False
        for path in self._newest_first(folder):
            try:
                self.is_resumed = self._resume_from(path)
            except EnvironmentSetupError as error:
                logger.warning("Cannot use the checkpoint %s: %s. Trying the checkpoint before it.", path, error)
                is_one_unusable = True
            if self.is_resumed:
                break
        if is_one_unusable and not self.is_resumed:
            raise EnvironmentSetupError(
                f"None of the checkpoints in {folder} can be used: remove them to start anew, or set env.run_id."
            )
        if self._state.step > 0 and not self.is_resumed:
            logger.warning(
                "%s has no checkpoint of step %d or before. The item stream starts afresh.", folder, self._state.step
            )
        self._has_loaded = True
        return self._data

    def _newest_first(self, folder: Path) -> list[Path]:
        """The checkpoints that this run may resume from. Other files may be copies, such as step-50-old.json."""
        numbers = [path.stem.removeprefix("step-") for path in folder.glob("step-*.json")]
        steps = sorted(int(number) for number in numbers if number.isdecimal())
        earlier = [folder / f"step-{step}.json" for step in reversed(steps) if step <= self._state.step]
        latest = folder / LATEST
        return [latest, *earlier] if latest.exists() else earlier

    def _why_no_folder(self, error: OSError) -> str:
        if self._own_dir is not None:
            return f"env.checkpoint_dir {self._own_dir} cannot be used: {error}."
        return (
            f"The trainer has registered with the checkpoint_dir {self._state.checkpoint_dir}, where this environment "
            f"cannot keep its checkpoints: {error}. Set env.checkpoint_dir to a folder that this machine can write."
        )

    def _resume_from(self, path: Path) -> bool:
        """Load a checkpoint, unless it is of a later step. Returns whether it was loaded.

        Raises EnvironmentSetupError if it cannot be used.
        """
        document, data = read(path)
        if path.name == LATEST and document.env_id is not None:
            self.predecessor = (document.env_id, document.mark)
        if document.step > self._state.step:
            return False
        load_into(self.components, document.state)
        self._data = data
        logger.info("Resumed from %s, written at step %d.", path, document.step)
        return True

    def check_loaded(self) -> None:
        """Raise EnvironmentSetupError unless `load` was called: `load_checkpoint` of a subclass may not do so."""
        if not self._has_loaded:
            raise EnvironmentSetupError(
                "load_checkpoint() of the environment's class loaded no checkpoint, so the run would start afresh and "
                "write over its saved state: call super().load_checkpoint() there."
            )


def read(path: Path) -> tuple[Document, dict[str, Any]]:
    """The document of this environment, and the data that a subclass has saved beside it.

    Raises EnvironmentSetupError if the file cannot be read, is damaged, or is from another release.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        document = data.pop(KEY)
        version = document["version"]
        if version == FORMAT:
            return Document.model_validate(document), data
    except (OSError, ValueError, RecursionError, AttributeError, LookupError, TypeError) as error:
        # The bytes may not be UTF-8, be nested too deeply, or hold a number with more digits than Python reads.
        raise EnvironmentSetupError(f"it cannot be read ({' '.join(str(error).split()):.200})") from error
    raise EnvironmentSetupError(f"another release wrote it, in version {version!r:.20} instead of {FORMAT}")
