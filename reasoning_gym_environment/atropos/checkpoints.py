"""How a run is resumed after it was stopped, by whatever: what is saved of it, when, and how it is found again.

    registered ──> this process takes its folder ──> newest usable checkpoint up to the trainer's step ──> resumed
    every checkpoint step, every few seconds, at the end ──> state of one moment ──> written in the background

A folder belongs to one process of one run:

    run       `run_id`, else wandb_name and seed
    member    which of the run's processes: `instance_id`, else SLURM_PROCID, else the first number that is free

A process holds its folder with a lock for as long as it lives, so two processes never write into one, and restarted
ones find the folders of those that ended. The folder holds step-50.json, step-100.json, ... (the trainer's checkpoint
steps), latest.json (every few seconds, and at the end) and registration.json (the number at the trajectory API, until
it is signed off).

A checkpoint has a version, the step, a serial number and a checksum of the state. A run at some step is resumed from
the newest checkpoint of that step or before, by serial number: an older run may have left later steps in the folder.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import itertools
import json
import logging
import os
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from ..errors import EnvironmentSetupError
from ..utils.aio import Background, in_background
from ..utils.outage_log import Outage
from .session import RunState

logger = logging.getLogger(__name__)

SAVE_EVERY_S = 15.0
"""A killed process does again what it had done since the last save."""

TRIES, TRY_EVERY_S = 20, 0.5
"""At the start: a network file system may be unavailable for a moment."""

MAX_UNWRITTEN = 2
REGISTRATION = "registration.json"
LATEST = "latest.json"
KEY = "reasoning_gym_environment"
"""The one key that is saved: Atropos sets every key of a checkpoint as an attribute of the environment."""

VERSION = 2


class RunCheckpoints:
    """The checkpoints of this process: the state of `parts`, which are given once they exist."""

    def __init__(
        self, run: RunState, *, run_id: str | None, wandb_name: str | None, seed: int, instance_id: str | None
    ) -> None:
        self.parts: Mapping[str, Stateful] = {}
        self.is_resumed = False
        self._run = run
        self._name = run_name(run_id, wandb_name, seed)
        self._instance_id = instance_id or None
        self._member: Member | None = None
        self._has_left = False
        self._serial: int | None = None
        self._begun_at = time.monotonic()
        self._writing = threading.Lock()
        self._disk = Background("checkpoints")
        self._outage = Outage(logger, "The disk of the checkpoints", first_delay_s=0.0, max_delay_s=0.0)

    # --- the folder

    def join(self) -> Path | None:
        """This process's folder, which is taken if it was not; None if the disk refuses it, or after `leave`.

        Raises EnvironmentSetupError if another living process has the same `instance_id`.
        """
        if self._member is None and not self._has_left:
            root = Path(self._run.checkpoint_dir, "env_checkpoints")
            try:
                self._member = join_run(root, self._name, self._instance_id, self._run.env_id or 0)
            except OSError as error:
                self._outage.failed(f"no folder in {root}: {error}", "training goes on without checkpoints")
        return None if self._has_left or self._member is None else self._member.folder

    async def find(self) -> None:
        """Take the folder, or try to for some seconds. Raises as `join`."""
        for _ in range(TRIES):
            if await self._disk.submit(self.join) is not None:
                return
            await asyncio.sleep(TRY_EVERY_S)

    def stream_name(self) -> str:
        """The name of a new item stream: that of this member of the run, else the API's number.

        A restarted API counts from 0 again: if another member's stream has the number as its name, the number of the
        folder is added.
        """
        member = self._member.name if self._member else self._instance_id or slurm_procid()
        if member is not None:
            return member
        name, folder = str(self._run.env_id), self._member.folder if self._member else None
        if folder is not None and name in _streams_beside(folder, self._name):
            return f"{name}.{folder.name.rpartition('-')[2]}"
        return name

    def leave(self) -> None:
        """Save nothing more, and let another process take the folder."""
        self._has_left = True
        if self._member is not None:
            self._member.release()

    # --- saving

    def save(self, step: int, data: Mapping[str, Any] | None = None) -> None:
        """Write the checkpoint of `step`, with `data` beside the state. A disk that refuses is reported."""
        self._write(f"step-{step}.json", step, self._state_text(), data or {})

    def begin(self, step: int) -> None:
        """Begin to write the checkpoint of `step`, without waiting for the disk."""
        if self._disk.unfinished < MAX_UNWRITTEN:
            self._begin(f"step-{step}.json", step)
        else:
            logger.error("The checkpoint of step %d is left out: those before it are still being written.", step)

    def begin_if_due(self) -> None:
        """Begin to write the latest state if none was begun for SAVE_EVERY_S, and none is being written."""
        if not self._are_kept or time.monotonic() - self._begun_at < SAVE_EVERY_S:
            return
        if self._disk.unfinished:
            self._outage.failed("a checkpoint is still being written", "training goes on without new ones")
        else:
            self._begin(LATEST, self._run.step)

    async def save_latest(self) -> None:
        """Write the latest state, after what is being written, if this run keeps checkpoints."""
        if self._are_kept:
            await self._begin(LATEST, self._run.step)

    @property
    def _are_kept(self) -> bool:
        return self._run.checkpoint_interval > 0 and not self._has_left

    def _begin(self, name: str, step: int) -> asyncio.Future[None]:
        self._begun_at = time.monotonic()
        return self._disk.submit(self._write, name, step, self._state_text(), {})

    def _state_text(self) -> str:
        # As text: the parts change while a thread writes.
        return json.dumps(state_of(self.parts))

    def _write(self, name: str, step: int, state: str, data: Mapping[str, Any]) -> None:
        try:
            with self._writing:
                if (folder := self.join()) is None:
                    return
                if self._serial is None:
                    self._serial = max(map(_serial, _documents(folder)), default=0)
                self._serial += 1
                write_atomically(folder / name, {**envelope(json.loads(state), step=step, serial=self._serial), **data})
        except (OSError, EnvironmentSetupError) as error:
            # Training goes on: neither a full disk ends it, nor another process that has taken the folder.
            logger.error("The checkpoint of step %d could not be written: %s", step, error)
        else:
            self._outage.over()
            logger.log(logging.DEBUG if name == LATEST else logging.INFO, "Wrote %s of step %d.", folder / name, step)

    # --- loading

    def load(self) -> None:
        """Resume from the newest usable checkpoint of the present step or before; without one, begin anew.

        Raises EnvironmentSetupError if there are such checkpoints, and none of them can be used; or if the trainer has
        taken steps, so that there must be some, and the disk refuses their folder.
        """
        step, later, refused = self._run.step, -1, 0
        if (folder := self.join()) is None:
            if step > 0:
                raise EnvironmentSetupError(
                    f"The trainer is at step {step}, and the checkpoints in {self._run.checkpoint_dir} cannot be "
                    "reached, see above: let this process read and write there and start it again, or let the trainer "
                    "ask for no checkpoints to start anew."
                )
            return
        for path in sorted(_documents(folder), key=_serial, reverse=True):
            number = path.stem.removeprefix("step-")
            if number.isdecimal() and int(number) > step:
                later = max(later, int(number))
                continue
            try:
                if (found := read(path)).step > step:
                    later = max(later, found.step)
                    continue
                load_into(self.parts, found.state)
            except EnvironmentSetupError as error:
                logger.error("The checkpoint %s cannot be used: %s. The one before it is tried.", path, error)
                refused += 1
                continue
            self.is_resumed = True
            logger.info("Resumed from %s, written at step %d.", path, found.step)
            return
        if refused:
            # A part may have taken in half of a refused state, so this process must not write a newer checkpoint.
            self.leave()
            raise EnvironmentSetupError(
                f"None of the checkpoints in {folder} can be used, see above: remove them to start anew, or set "
                "env.run_id to give this run a name of its own."
            )
        if step > 0 or later >= 0:
            beyond = f" (there are some up to step {later})" if later >= 0 else ""
            logger.warning(
                "No checkpoint for step %d or before in %s%s: the item stream starts from the beginning.",
                *(step, folder, beyond),
            )

    # --- the number at the trajectory API

    async def keep_number(self, api: Mapping[str, Any]) -> set[int]:
        """Keep the present number until it is signed off; returns the one before, if this API gave it.

        The API does not notice when an environment is killed: no batch is complete without the share that is reserved
        for it. So the next start signs the old number off. `api` tells APIs apart: address and trainer.
        """
        folder, number = self.join() if self._member else None, self._run.env_id
        if folder is None or number is None:
            return set()
        return await asyncio.to_thread(_replace_registration, folder / REGISTRATION, dict(api), number)

    async def forget_number(self) -> None:
        """The number has been signed off, or will be at the end of this process."""
        if self._member is None or self._has_left:
            return
        path = self._member.folder / REGISTRATION
        try:
            await in_background(lambda: path.unlink(missing_ok=True))
        except OSError as error:
            logger.warning("%s could not be removed: %s.", path, error)


def _replace_registration(path: Path, api: dict[str, Any], env_id: int) -> set[int]:
    try:
        old = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        old = None
    try:
        write_atomically(path, {"api": api, "env_id": env_id})
    except OSError as error:
        logger.warning("%s could not be written: %s. If this run is killed, its share of batches stays.", path, error)
    # The numbers of one API only grow: one that is not below the new one comes from before a restart.
    match old:
        case {"api": same, "env_id": int(number)} if same == api and number < env_id:
            return {number}
    return set()


def _streams_beside(folder: Path, run: str) -> set[str]:
    """The names of the other members' item streams, by their latest states."""
    streams = set()
    for path in folder.parent.glob(f"{run}-*/{LATEST}"):
        if path.parent != folder:
            try:
                streams.add(str(read(path).state.get("sampler", {}).get("instance")))
            except EnvironmentSetupError as error:
                logger.warning("The name of the item stream of %s cannot be read: %s.", path.parent, error)
    return streams


# --- the folder of a process


@dataclass
class Member:
    """A folder that is this process's own until `release`; `name` is None for one that has only a number."""

    folder: Path
    lock: IO[bytes] | None
    name: str | None = None

    def release(self) -> None:
        if self.lock is not None:
            self.lock.close()


def run_name(run_id: str | None, wandb_name: str | None, seed: int) -> str:
    """A folder name for the run."""
    return _safe(run_id) if run_id else f"{_safe(wandb_name or 'run')}-seed{seed}"


def slurm_procid() -> str | None:
    """SLURM's number of this task, or None outside a SLURM job."""
    return os.environ.get("SLURM_PROCID") or None


def join_run(root: Path, run: str, instance_id: str | None, env_id: int) -> Member:
    """Take the folder of this process under `root`. Raises OSError if it cannot be made.

    Raises EnvironmentSetupError if a living process has the same `instance_id`. SLURM_PROCID is 0 for every process
    that a batch script starts without srun: if its folder is held, a free number is taken, and the log says so.
    """
    procid = None if instance_id else slurm_procid()
    named = [(instance_id, instance_id)] if instance_id else [(f"slurm{procid}", procid)] if procid else []
    # A form that no SLURM_PROCID has.
    number_name = f"env{env_id}" if procid else None
    numbered = ((str(number), number_name) for number in itertools.count()) if not instance_id else ()
    for suffix, name in itertools.chain(named, numbered):
        if (member := _take(root / f"{run}-{_safe(suffix)}", env_id, name)) is not None:
            if name != procid and not instance_id:
                logger.warning(
                    "Another environment of run %r has SLURM_PROCID %s too (were they started without srun?): this one "
                    "gets a number of its own. Set instance_id to name it.",
                    *(run, procid),
                )
            return member
    raise EnvironmentSetupError(
        f"Another running environment of run {run!r} has instance_id {instance_id!r}: give each its own."
    )


def _take(folder: Path, env_id: int, name: str | None) -> Member | None:
    """The folder with its lock; None if a living process holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = (folder / ".lock").open("ab")
    try:
        fcntl.flock(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        return Member(folder, lock, name)
    except OSError as error:
        lock.close()
        if isinstance(error, BlockingIOError):
            return None
        if error.errno in (errno.EIO, errno.ESTALE):
            # The disk is in trouble, which says nothing about its locks.
            raise
        logger.warning(
            "%s has no file locks (%s): give each process an instance_id of its own, or another may write to its "
            "checkpoints, and this one may not find them after a restart.",
            *(folder.parent, error),
        )
        # The API's number, which no other environment has, keeps the folders apart.
        return Member(folder if name else folder.with_name(f"{folder.name}-env{env_id}"), None, name)


def _safe(name: str) -> str:
    """The name with everything replaced that could leave the folder."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name).lstrip(".") or "_"


# --- documents


class Stateful(Protocol):
    """A part of the environment that a restart resumes."""

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON data."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`. Raises EnvironmentSetupError if it is malformed."""

    def metrics(self) -> dict[str, Any]: ...


def state_of(parts: Mapping[str, Stateful]) -> dict[str, Any]:
    """Each part's state, by the part's name."""
    return {name: part.state_dict() for name, part in parts.items()}


OLD_NAMES = {"funnel": "group_outcomes"}
"""Names of parts in checkpoints of an older version."""


def load_into(parts: Mapping[str, Stateful], state: Mapping[str, Any]) -> None:
    """Hand each part its state. Raises EnvironmentSetupError if one is missing, or a part refuses its state."""
    state = {OLD_NAMES.get(name, name): value for name, value in state.items()}
    if missing := sorted(parts.keys() - state.keys()):
        raise EnvironmentSetupError(f"it holds no state of {', '.join(missing)}")
    for name, part in parts.items():
        try:
            part.load_state_dict(state[name])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise EnvironmentSetupError(f"its state of {name} is malformed ({error!r})") from error


@dataclass(frozen=True)
class Checkpoint:
    """A document that was read whole."""

    step: int
    serial: int
    state: dict[str, Any]


def envelope(state: dict[str, Any], *, step: int, serial: int) -> dict[str, Any]:
    """Wrap the states of the parts, plain JSON data, for saving."""
    return {KEY: {"version": VERSION, "step": step, "serial": serial, "sha256": _checksum(state), "state": state}}


def read(path: Path) -> Checkpoint:
    """Raises EnvironmentSetupError if the document cannot be read, is damaged, or is not of this environment."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EnvironmentSetupError(f"{path.name} cannot be read ({error})") from error
    match data.get(KEY) if isinstance(data, dict) else None:
        case {"version": version} if version != VERSION:
            raise EnvironmentSetupError(f"{path.name} has version {version!r}, and this release reads {VERSION}")
        case {"step": int(step), "serial": int(serial), "sha256": checksum, "state": dict(state)}:
            if checksum != _checksum(state):
                raise EnvironmentSetupError(f"{path.name} is damaged: its checksum does not match")
            return Checkpoint(step, serial, state)
    raise EnvironmentSetupError(f"{path.name} is not a checkpoint of this environment: no {KEY!r} state in it")


def _checksum(state: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode("utf-8")).hexdigest()


def _documents(folder: Path) -> list[Path]:
    return [path for path in (*folder.glob("step-*.json"), folder / LATEST) if path.exists()]


def _serial(path: Path) -> int:
    """By the first bytes, where they say it: after weeks there are thousands of checkpoints of half a megabyte."""
    try:
        with path.open("rb") as file:
            found = re.match(rb'\{"\w+": \{"version": \d+, "step": \d+, "serial": (\d+), ', file.read(200))
        return int(found[1]) if found else read(path).serial
    except (OSError, EnvironmentSetupError):
        return -1


def write_atomically(path: Path, data: dict[str, Any]) -> None:
    """Write JSON so that `path` holds either its old content or all of the new one. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(data, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
