"""Dumps that a killed run left behind: their parts are completed at the next start.

    <final name>.part of a dead writer ──> whole lines: <final name>      (never over a file that is there)
                                      └──> a torn last line: <final name>.torn

A living writer holds a lock on its part, which the kernel lets go of when the process ends, however it ends. So runs
that share a folder leave each other's parts alone. A file system without locks gives no answer, and its parts stay.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

logger = logging.getLogger(__name__)

PART_SUFFIX = ".part"


def hold(part: IO[bytes]) -> None:
    """Show that this part's writer lives; without effect where the file system has no locks.

    Waits for a start that has locked the part, which is empty yet, to see whether there is anything in it.
    """
    try:
        fcntl.flock(part.fileno(), fcntl.LOCK_EX)
    except OSError as error:
        logger.debug("No lock on %s (%s): another start could take it for a dead run's.", part.name, error)


def is_held(part: Path) -> bool | None:
    """Whether a living writer holds this part; None where the file system has no locks. Raises OSError.

    Not for an empty part: its writer may be about to lock it.
    """
    with part.open("rb") as file:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return True if error.errno in (errno.EWOULDBLOCK, errno.EACCES) else None
    return False


def recover_parts(directory: Path, stem: str) -> list[Path]:
    """Complete the parts of dead writers whose names start with `stem`. Returns the completed files."""
    completed = []
    for part in sorted(directory.glob(f"{stem}*{PART_SUFFIX}")):
        try:
            with part.open("r+b") as file, _locked(file) as is_dead:
                # An empty part may be one whose writer has not come to lock it yet.
                if is_dead and os.fstat(file.fileno()).st_size:
                    completed.append(_complete(part, file))
        except OSError as error:
            logger.error("The part %s of an earlier run could not be completed: %s", part, error)
    return completed


@contextmanager
def _locked(file: IO[bytes]) -> Iterator[bool]:
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        yield False
        return
    try:
        yield True
    finally:
        fcntl.flock(file.fileno(), fcntl.LOCK_UN)


def _complete(part: Path, file: IO[bytes]) -> Path:
    final = _free_name(part.with_name(part.name.removesuffix(PART_SUFFIX)))
    data = file.read()
    whole = _length_of_whole_lines(data)
    if torn := data[whole:]:
        part.with_name(f"{final.name}.torn").write_bytes(torn)
        file.truncate(whole)
        os.fsync(file.fileno())
    part.rename(final)
    logger.warning(
        "Completed %s: %d groups of a run that was killed%s.",
        final,
        data[:whole].count(b"\n"),
        f"; {len(torn)} bytes of a torn line are in {final.name}.torn" if torn else "",
    )
    return final


def _length_of_whole_lines(data: bytes) -> int:
    """How many bytes lead up to a last line that is not JSON, or not ended; all if there is none."""
    whole = data.rfind(b"\n") + 1
    if whole == 0:
        return 0
    start = data.rfind(b"\n", 0, whole - 1) + 1
    try:
        json.loads(data[start:whole])
    except ValueError:
        return start
    return whole


def _free_name(path: Path) -> Path:
    number, free = 1, path
    while free.exists():
        free = path.with_name(f"{path.stem}_{number}{path.suffix}")
        number += 1
    return free
