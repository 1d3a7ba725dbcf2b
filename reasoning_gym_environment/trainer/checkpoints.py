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

A checkpoint has a version and the step. A run resumes from latest.json, unless the trainer has gone back behind it;
then it resumes from the newest checkpoint up to the trainer's step. An older run may have left later checkpoints.
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
from typing import IO, Any, Literal

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from ..errors import EnvironmentSetupError
from ..settings.environment import ReasoningGymEnvConfig
from ..storage.append_log import lock
from ..storage.files import file_name, write_atomically
from ..utils.clock import now
from ..utils.resilience import BackgroundCalls, Outage
from ..utils.saved_state import Stateful, load_into, state_of
from .marks import MARKS
from .run_state import RunState

logger = logging.getLogger(__name__)

SAVE_EVERY_S = 15.0
"""A killed process repeats what it has done since the last save."""

LATEST = "latest.json"
KEY = "reasoning_gym_environment"
"""The one key that is ours: every other key of a checkpoint becomes an attribute of the environment, as in Atropos."""


class Registration(BaseModel):
    """The number of a process at run-api, None without one, and the mark that it leaves to its successor (marks.py)."""

    model_config = ConfigDict(strict=True)

    number: int | None
    mark: str = ""


class Document(BaseModel):
    """The data of this environment in a checkpoint. `state` has the state of each component."""

    model_config = ConfigDict(strict=True)

    version: Literal[3]
    step: NonNegativeInt
    registration: Registration | None = None
    state: dict[str, Any]


class RunCheckpoints:
    """The checkpoints of this process: the state of the run's `components`, by name.

    `predecessor` is the registration of an earlier process of this folder that did not sign off: its number at run-api,
    and the mark that it has left.
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
        """The documents to write next, by file name."""
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
            version=3,
            step=self._state.step if step is None else step,
            registration=Registration(number=self._state.env_id, mark=self._state.successor_mark),
            state=state_of(self.components),
        )
        beside = self._data if data is None else dict(data)
        # As text, because the components change while a thread writes.
        text = json.dumps({**beside, KEY: document.model_dump()})
        self._data = beside
        documents = {LATEST: text} if step is None else {f"step-{step}.json": text, LATEST: text}
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_in_turn(documents))
        elif step is None:
            self._waiting.update(documents)
        else:
            self._waiting = documents
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

    async def _write_in_turn(self, documents: Mapping[str, str]) -> None:
        """Write documents, and afterwards the documents that wait by then."""
        while documents:
            try:
                if await self._disk.submit(self._write, documents):
                    self.saved.set()
            except OSError as error:
                # The system has no further thread.
                self._note_refused(error)
            documents = self._waiting
            self._waiting = {}

    def _note_refused(self, error: Exception) -> None:
        self._outage.failed(str(error), "training continues without new checkpoints")

    def _write(self, documents: Mapping[str, str]) -> bool:
        """Write documents by file name. Returns whether the disk has them."""
        if self._has_left:
            return False
        try:
            for name, text in documents.items():
                write_atomically(self._folder / name, text.encode())
        except (OSError, EnvironmentSetupError) as error:
            # Neither a full disk nor another process that has locked the folder ends the training.
            self._note_refused(error)
            return False
        self._outage.over()
        names = list(documents)
        logger.log(
            logging.DEBUG if len(names) == 1 else logging.INFO,
            "Wrote the checkpoint %s.",
            names[0],
        )
        return True

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
        step = self._state.step
        names = [path.stem.removeprefix("step-") for path in folder.glob("step-*.json")]
        # A user may have kept a copy, such as step-50-old.json.
        steps = sorted((int(name) for name in names if name.isdecimal()), reverse=True)
        earlier = [folder / f"step-{number}.json" for number in steps if number <= step]
        is_refused = False
        for path in [folder / LATEST, *earlier]:
            if not path.exists():
                continue
            try:
                self._has_loaded = self._resume_from(path)
            except EnvironmentSetupError as error:
                logger.error(
                    "The checkpoint %s cannot be used: %s. Trying the checkpoint before it.",
                    path,
                    " ".join(str(error).split()),
                )
                is_refused = True
            if self._has_loaded:
                self.is_resumed = True
                return self._data
        if is_refused:
            # This process has the state of no checkpoint, so it must not write a newer one.
            self.leave()
            raise EnvironmentSetupError(
                f"None of the checkpoints in {folder} can be used: remove them to start anew, or set env.run_id."
            )
        if step > 0 or steps:
            logger.warning("%s has no checkpoint of step %d or before. The item stream starts afresh.", folder, step)
        self._has_loaded = True
        return {}

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
        registration = document.registration
        if path.name == LATEST and registration and registration.number is not None:
            self.predecessor = (registration.number, registration.mark)
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

    Raises EnvironmentSetupError if the document cannot be read, is damaged, or is not of this environment.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        # The bytes may not be UTF-8, be nested too deeply, or hold a number with more digits than Python reads.
        raise EnvironmentSetupError(f"it cannot be read ({error!r:.200})") from error
    document = data.pop(KEY, None) if isinstance(data, dict) else None
    if not isinstance(document, dict):
        raise EnvironmentSetupError(f"it cannot be read (expected an object with the key {KEY})")
    try:
        return Document.model_validate(document), data
    except ValidationError as error:
        problem = error.errors()[0]
        name = problem["loc"][0]
        raise EnvironmentSetupError(f"its {name} is damaged ({problem['msg']}, got {problem['input']!r:.60})") from None
