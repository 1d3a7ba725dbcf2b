"""Which run this process is, so that it finds its own checkpoints after a restart, whatever number the API gives it.

    run name   `run_id`, else wandb_name and seed
    member     which of the run's processes: `instance_id`, else SLURM_PROCID, else the first number nobody holds

A member's folder is held with a lock for as long as the process lives, so two processes never write into one. With
several processes that nothing tells apart, each takes the lowest number that is free, so restarted ones find the
folders of those that ended.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ..errors import EnvironmentSetupError

logger = logging.getLogger(__name__)

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
