"""How a run goes on after it was stopped, however it was: what is kept of it, when, and how it is found again.

    registered ──> folder of this process taken ──> newest usable checkpoint up to the step, if any ──> items go on
    every checkpoint step, every few seconds, at the end ──> state as of one moment ──> written in the background

A folder belongs to one process of one run, wherever the API counts:

    run       `run_id`, else wandb_name and seed
    member    which of the run's processes: `instance_id`, else SLURM_PROCID, else the first number nobody holds

It is held with a lock for as long as the process lives, so two processes never write into one. With several processes
that nothing tells apart, each takes the lowest number that is free, so restarted ones find the folders of those that
ended. A folder that the disk refuses is tried for a while at the start, and later before each write. In it are:

    step-50.json   step-100.json   ...    when the trainer passes a checkpoint step
    latest.json                           every few seconds, and at the end
    registration.json                     the number that the trajectory API gave, until it is signed off

A checkpoint carries a version, the step, a serial number and a checksum of the state. To continue at some step, the
newest one of that step or before is used, the newest by serial number: an old run may have left later steps in the same
folder. A damaged or foreign one is named and passed over.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import json
import logging
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from ..errors import EnvironmentSetupError
from ..utils.aio import Background, in_background
from ..utils.outage_log import Outage
from .session import RunState

logger = logging.getLogger(__name__)

SAVE_EVERY_S = 15.0
"""What a killed process had done since then is done again."""

TRIES = 20
"""How often the folder is tried at the start: a network file system may be away for a moment."""

TRY_EVERY_S = 0.5
MAX_UNWRITTEN = 2
"""Checkpoints that may be unwritten at a time: one being written, and one of a step behind it."""

REGISTRATION = "registration.json"


class RunCheckpoints:
    """The checkpoints of this process's part of a run: what `parts` hold, which are given when they are there.

    `run_id`, else `wandb_name` and `seed`, names the run; see run_folder.
    """

    def __init__(
        self, run: RunState, *, run_id: str | None, wandb_name: str | None, seed: int, instance_id: str | None
    ) -> None:
        self.parts: Mapping[str, Stateful] = {}
        self._run = run
        self._name = run_name(run_id, wandb_name, seed)
        self._instance_id = instance_id or None
        self._membership: Membership | None = None
        self._folder: CheckpointFolder | None = None
        self._begun_at = time.monotonic()
        self._has_left = False
        self._is_refused = False
        self._disk = Background("checkpoints")
        self._disk_outage = Outage(logger, "The disk of the checkpoints", first_delay_s=0.0, max_delay_s=0.0)
        self.is_resumed = False

    # --- the folder

    def join(self) -> CheckpointFolder | None:
        """Take the folder of this run's checkpoints; None if the disk refuses it now, which the log says once.

        Raises EnvironmentSetupError if another living process has the same `instance_id`.
        """
        if self._folder is not None or self._has_left:
            return self._folder
        root = Path(self._run.checkpoint_dir, "env_checkpoints")
        try:
            self._membership = join_run(
                root,
                self._name,
                instance_id=self._instance_id,
                slurm_procid=slurm_procid(),
                env_id=self._run.env_id or 0,
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

    async def find(self) -> None:
        """Take the folder, or try to for some seconds. Raises as `join`."""
        for _ in range(TRIES):
            if await self._disk.submit(self.join) is not None:
                return
            await asyncio.sleep(TRY_EVERY_S)

    def stream_name(self) -> str:
        """What a new item stream is called: by what tells this process apart from others, else by the API's number.

        That is `instance_id`, else SLURM_PROCID unless another living process of the run has the same. A run that goes
        on keeps the name it had, and a restarted API counts anew: a number that another member's stream is called by
        gets that of the folder too.
        """
        member = (self._instance_id or slurm_procid()) if self._membership is None else self._membership.member
        if member is not None:
            return member
        name = str(self._run.env_id)
        folder = self._membership.folder if self._membership else None
        if folder is None or name not in _streams_beside(folder):
            return name
        return f"{name}.{folder.name.rpartition('-')[2]}"

    def leave(self) -> None:
        """Save nothing more, and let another process take the folder."""
        self._folder, self._has_left = None, True
        if self._membership is not None:
            self._membership.release()

    # --- saving

    @property
    def are_kept(self) -> bool:
        """Whether the trainer asks for checkpoints, and this process still has its folder."""
        return self._run.checkpoint_interval > 0 and not self._has_left

    def save(self, step: int, data: Mapping[str, Any] | None = None) -> None:
        """Write the checkpoint of `step`, with `data` beside the state. A disk that refuses is reported."""
        self._write(f"step-{step}.json", step, self._state_text(), data)

    def begin(self, step: int) -> None:
        """Begin to write the checkpoint of `step`, without waiting for the disk."""
        if self._disk.unfinished < MAX_UNWRITTEN:
            self._begin(f"step-{step}.json", step)
        else:
            logger.error("The checkpoint of step %d is left out: those before it are still being written.", step)

    def begin_if_due(self) -> None:
        """Begin to write the latest state if no checkpoint was begun for SAVE_EVERY_S, and none is being written."""
        if not self.are_kept or time.monotonic() - self._begun_at < SAVE_EVERY_S:
            return
        if self._disk.unfinished:
            self._disk_outage.failed("a checkpoint is still being written", "training goes on without new ones")
        else:
            self._disk_outage.over()
            self._begin(LATEST, self._run.step)

    async def save_latest(self) -> None:
        """Write the latest state, after what is being written, if this run keeps checkpoints."""
        if self.are_kept:
            await self._begin(LATEST, self._run.step)

    def _begin(self, name: str, step: int) -> asyncio.Future[None]:
        self._begun_at = time.monotonic()
        return self._disk.submit(self._write, name, step, self._state_text(), None)

    def _state_text(self) -> str:
        # As text: the parts change while a thread writes.
        return json.dumps(state_of(self.parts))

    def _write(self, name: str, step: int, state: str, data: Mapping[str, Any] | None) -> None:
        try:
            if (folder := self.join()) is None:
                return
            path = folder.write(name, state, step=step, extra=data)
        except (OSError, EnvironmentSetupError) as error:
            # Training goes on: a full disk must not end it, nor another process that took the folder meanwhile.
            logger.error(
                "The checkpoint of step %d could not be written to %s: %s", step, self._run.checkpoint_dir, error
            )
            return
        logger.log(logging.DEBUG if name == LATEST else logging.INFO, "Checkpoint of step %d: %s.", step, path)

    # --- loading

    def load(self) -> None:
        """Continue from the newest usable checkpoint of the present step or before; without one, from the first item.

        Raises EnvironmentSetupError if there are checkpoints, and none of them can be used; or if the trainer has taken
        steps, so that there must be some, and the disk refuses their folder.
        """
        step = self._run.step
        if (folder := self.join()) is None:
            if step > 0:
                raise EnvironmentSetupError(
                    f"The trainer is at step {step}, and the checkpoints in {self._run.checkpoint_dir} cannot be "
                    "reached, see above: let this process read and write there and start it again, or let the trainer "
                    "ask for no checkpoints to start anew."
                )
            return
        refused = 0
        for one in folder.up_to(step):
            try:
                load_into(self.parts, one.state)
            except EnvironmentSetupError as error:
                logger.error("The checkpoint %s cannot be used: %s; trying the one before.", one.path, error)
                refused += 1
                continue
            self.is_resumed = True
            logger.info("Continuing from %s, written at step %d.", one.path, one.step)
            return
        # A part may have taken in half of a refused one; and a damaged one is no reason to forget a run's progress.
        if refused or (folder.damaged and step > 0):
            # Nor may the end of this process write what would be the newest of them.
            self.leave()
            raise EnvironmentSetupError(
                f"None of the checkpoints in {folder.path} can be used, see above: remove them to start anew, or set "
                "env.run_id to give this run a name of its own."
            )
        if step > 0 or folder.latest_step > 0:
            later = f" (there are some up to step {folder.latest_step})" if folder.latest_step > 0 else ""
            logger.warning(
                "No checkpoint for step %d or before in %s%s: the item stream starts from the beginning.",
                *(step, folder.path, later),
            )

    # --- the number at the trajectory API

    async def keep_number(self, api: Mapping[str, Any]) -> set[int]:
        """Keep the present number until it is signed off; returns the one of before, if this API gave it.

        The API never finds out that an environment was killed: its share of each batch (`min_batch_allocation`) stays
        reserved, and no batch is complete without it. So the run's next start signs the old number off. `api` is what
        tells APIs apart: address and trainer. A folder that refuses is reported.
        """
        folder, number = self._folder, self._run.env_id
        if folder is None or number is None:
            return set()
        return await asyncio.to_thread(_replace_registration, folder.path / REGISTRATION, api, number)

    async def forget_number(self) -> None:
        """It has been signed off, or will be at the end of this process."""
        if (folder := self._folder) is None:
            return
        path = folder.path / REGISTRATION
        try:
            await in_background(lambda: path.unlink(missing_ok=True))
        except OSError as error:
            logger.warning("%s could not be removed: %s.", path, error)


def _replace_registration(path: Path, api: Mapping[str, Any], env_id: int) -> set[int]:
    try:
        old = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        old = {}
    try:
        write_atomically(path, {"api": dict(api), "env_id": env_id})
    except OSError as error:
        logger.warning("%s could not be written: %s. If this run is killed, its share of batches stays.", path, error)
    if not isinstance(old, dict) or old.get("api") != dict(api):
        return set()
    # Numbers of one API only grow: one that is not below the new one comes from before a restart.
    number = old.get("env_id")
    return {number} if isinstance(number, int) and number < env_id else set()


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


# --- the folder of a process

LOCK = ".lock"
MAX_MEMBERS = 10_000


@dataclass
class Membership:
    """A folder that is this process's own until `release`; `member` is what names it, None for a mere number."""

    folder: Path
    lock: IO[bytes] | None
    member: str | None = None

    def release(self) -> None:
        if self.lock is not None:
            self.lock.close()
            self.lock = None


def run_name(run_id: str | None, wandb_name: str | None, seed: int) -> str:
    """A folder name for the run."""
    return _safe(run_id) if run_id else f"{_safe(wandb_name or 'run')}-seed{seed}"


def join_run(root: Path, name: str, *, instance_id: str | None, slurm_procid: str | None, env_id: int) -> Membership:
    """Take the folder of this process under `root`. Raises OSError if it cannot be made.

    Raises EnvironmentSetupError if a living process has the same `instance_id`. SLURM_PROCID is 0 for every process
    that a batch script starts without srun, so when its folder is held, a free number is taken and the log says so.
    """
    if instance_id is not None:
        membership = _take(root / f"{name}-{_safe(instance_id)}", env_id, instance_id)
        if membership is None:
            raise EnvironmentSetupError(
                f"Another running environment of run {name!r} has instance_id {instance_id!r}: give each its own."
            )
        return membership
    if slurm_procid is not None:
        membership = _take(root / f"{name}-slurm{_safe(slurm_procid)}", env_id, slurm_procid)
        if membership is not None:
            return membership
        logger.warning(
            "Another environment of run %r has SLURM_PROCID %s too (were they started without srun?): this one gets a "
            "number of its own. Set instance_id to name it.",
            name,
            slurm_procid,
        )
    for number in range(MAX_MEMBERS):
        # After a clash of SLURM_PROCIDs, the API's number in a form that no SLURM_PROCID has.
        membership = _take(root / f"{name}-{number}", env_id, None if slurm_procid is None else f"env{env_id}")
        if membership is not None:
            return membership
    raise EnvironmentSetupError(f"{MAX_MEMBERS} environments of run {name!r} are running under {root}.")


def _take(folder: Path, env_id: int, member: str | None) -> Membership | None:
    """The folder with its lock; None if a living process holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = (folder / LOCK).open("ab")
    try:
        fcntl.flock(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    except OSError as error:
        lock.close()
        if error.errno in (errno.EIO, errno.ESTALE):
            # Trouble with the disk, which says nothing of its locks.
            raise
        if member is not None:
            logger.warning(
                "%s has no file locks (%s): nothing keeps another process called %r out of it.", folder, error, member
            )
            return Membership(folder, None, member)
        # The API's number, which no other environment has, keeps the folders apart.
        logger.warning(
            "%s has no file locks (%s): checkpoints are kept by the API's number %d and may not be found again after a "
            "restart. Set instance_id.",
            folder.parent,
            error,
            env_id,
        )
        return Membership(folder.with_name(f"{folder.name}-env{env_id}"), None, member)
    return Membership(folder, lock, member)


def _safe(name: str) -> str:
    """The name with everything that could leave the folder replaced."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name).lstrip(".") or "_"


def slurm_procid() -> str | None:
    """SLURM's number of this task, or None outside a SLURM job."""
    return os.environ.get("SLURM_PROCID") or None


# --- documents

KEY = "reasoning_gym_environment"
"""The one key saved. Atropos sets every key of a checkpoint as an attribute on the environment."""

VERSION = 2
LATEST = "latest.json"


class Stateful(Protocol):
    """A part of the environment that goes on after a restart as if nothing had been."""

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON data."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`. Raises EnvironmentSetupError if it is malformed."""

    def metrics(self) -> dict[str, Any]: ...


def state_of(parts: Mapping[str, Stateful]) -> dict[str, Any]:
    """Each part's state, by the part's name."""
    return {name: part.state_dict() for name, part in parts.items()}


def load_into(parts: Mapping[str, Stateful], state: Mapping[str, Any]) -> None:
    """Hand each part its state. Raises EnvironmentSetupError if the names differ or a part refuses its state."""
    if parts.keys() != state.keys():
        raise EnvironmentSetupError(f"it holds the state of {sorted(state)}, expected {sorted(parts)}")
    for name, part in parts.items():
        part.load_state_dict(state[name])


@dataclass(frozen=True)
class Checkpoint:
    """A document that was read whole."""

    path: Path
    step: int
    serial: int
    state: dict[str, Any]


def envelope(state: dict[str, Any], *, step: int, serial: int) -> dict[str, Any]:
    """Wrap component states, plain JSON data, for saving."""
    return {KEY: {"version": VERSION, "step": step, "serial": serial, "sha256": _checksum(state), "state": state}}


def read(path: Path) -> Checkpoint:
    """Raises EnvironmentSetupError if the document cannot be read, is damaged, or is not of this environment."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EnvironmentSetupError(f"{path} cannot be read ({error})") from error
    match data.get(KEY) if isinstance(data, dict) else None:
        case {"version": version} if version != VERSION:
            raise EnvironmentSetupError(f"{path} has checkpoint version {version!r}, this release reads {VERSION}")
        case {"step": int(step), "serial": int(serial), "sha256": checksum, "state": dict(state)}:
            if checksum != _checksum(state):
                raise EnvironmentSetupError(f"{path} is damaged: its checksum does not match")
            return Checkpoint(path, step, serial, state)
    raise EnvironmentSetupError(f"{path} is not a checkpoint of this environment: no {KEY!r} state in it")


def _checksum(state: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode("utf-8")).hexdigest()


class CheckpointFolder:
    """The checkpoints of one run in `path`. All methods touch the disk: call them from a thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damaged = 0
        self.latest_step = -1
        self._serial: int | None = None
        self._writing = threading.Lock()

    def write(self, name: str, state: str, *, step: int, extra: Mapping[str, Any] | None = None) -> Path:
        """Write a document, newer than all before it; `state` is JSON, as of one moment. Raises OSError."""
        path = self.path / name
        with self._writing:
            if self._serial is None:
                self._look()
            self._serial = (self._serial or 0) + 1
            write_atomically(path, {**(extra or {}), **envelope(json.loads(state), step=step, serial=self._serial)})
        return path

    def up_to(self, step: int) -> Iterator[Checkpoint]:
        """The documents of `step` and before, newest first. Names those that cannot be used, in the log.

        At the end `damaged` is how many there were of those, and `latest_step` the highest step that was found.
        """
        self.damaged = 0
        for head in sorted(self._look(), key=lambda one: one.serial, reverse=True):
            if head.step <= step and (found := self._whole(head.path)) is not None:
                yield found

    def _look(self) -> list[_Head]:
        """Where the documents stand, each by its first bytes: after weeks there are thousands, of half a megabyte."""
        heads = []
        for path in [*sorted(self.path.glob("step-*.json")), self.path / LATEST]:
            if not path.exists():
                continue
            if (head := _head(path)) is None and (found := self._whole(path)) is not None:
                head = _Head(path, found.step, found.serial)
            if head is not None:
                heads.append(head)
        self.latest_step = max((one.step for one in heads), default=-1)
        self._serial = max([self._serial or 0, *(one.serial for one in heads)])
        return heads

    def _whole(self, path: Path) -> Checkpoint | None:
        try:
            return read(path)
        except EnvironmentSetupError as error:
            self.damaged += 1
            logger.error("A checkpoint is passed over: %s.", error)
            return None


@dataclass(frozen=True)
class _Head:
    """Where a document stands among the others; whether it is whole is not known."""

    path: Path
    step: int
    serial: int


_HEAD = re.compile(rb'\{"%b": \{"version": %d, "step": (\d+), "serial": (\d+), ' % (KEY.encode(), VERSION))


def _head(path: Path) -> _Head | None:
    """None for a document that does not begin as `envelope` does: damaged, foreign, or with extra data in front."""
    try:
        with path.open("rb") as file:
            found = _HEAD.match(file.read(200))
    except OSError:
        return None
    return None if found is None else _Head(path, int(found[1]), int(found[2]))


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
