"""The files of rollout dumps: their names, how a line is read, and what a killed run left behind.

    one line ──read_group──> DumpedGroup, or BrokenLineError with what is wrong with the line

    <final name>.part of a dead writer ──> whole lines: <final name>      (never over a file that is there)
                                      └──> a torn last line: <final name>.torn

`dumps` writes them. A living writer holds a lock on its part, which the kernel lets go of when the process ends,
however it ends. So runs that share a folder leave each other's parts alone. A file system without locks gives no
answer, and its parts stay.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

logger = logging.getLogger(__name__)

ROLLOUTS = "rollouts"
FAILED = "FAILED_rollouts"

FILE_STEM = "reasoning_gym_environment"
PART_SUFFIX = ".part"
TORN_SUFFIX = ".torn"
DUMP_NAME = re.compile(
    rf"{FILE_STEM}_(?P<kind>{FAILED}|{ROLLOUTS})_(?P<run>[0-9A-Za-z.-]+)_\d{{4,}}(?:_\d+)?\.jsonl"
    rf"(?P<suffix>{re.escape(PART_SUFFIX)}|{re.escape(TORN_SUFFIX)})?"
)

LONGEST_LINE = 256 * 2**20
"""Bytes. A longer line is broken, and is passed over without being held in memory."""
LARGEST = 1e15
"""No score, level or count is as large; beyond it, floats no longer tell whole numbers apart."""


# --- a line as a group


class BrokenLineError(ValueError):
    """A line that is not what a dump holds; says what is wrong with it in a few words."""


@dataclass(frozen=True)
class DumpedGroup:
    """One line of a dump, as far as a reader may rely on it. The file may come from anyone.

    `rollouts` stand as in the line: each has a `conversation` that ends with a question and a reply, which are
    mappings with `content`, and a number as `score`, the reward. Other keys may be missing, or hold anything.
    """

    task: str
    rollouts: list[dict[str, Any]]
    fields: Mapping[str, Any]

    @property
    def rewards(self) -> tuple[float, ...]:
        return tuple(float(rollout["score"]) for rollout in self.rollouts)

    @property
    def seed(self) -> int | None:
        """None unless it is a whole number."""
        value = self.fields.get("seed")
        return value if isinstance(value, int) and not isinstance(value, bool) else None


def read_group(line: bytes | None) -> DumpedGroup:
    """One dumped group. Raises BrokenLineError for a line that is none (None: it was longer than LONGEST_LINE)."""
    return group_of(as_dumped(read_object(line)))


def read_object(line: bytes | None) -> dict[str, Any]:
    """The JSON object in a line, of whatever command. Raises BrokenLineError."""
    if line is None:
        raise BrokenLineError(f"longer than {LONGEST_LINE} bytes")
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        # Also for what is no UTF-8, nested too deeply, or a number with more digits than Python reads.
        raise BrokenLineError("no JSON") from None
    if not isinstance(found, dict):
        raise BrokenLineError("no JSON object")
    return found


def as_dumped(record: dict[str, Any]) -> dict[str, Any]:
    """A line of `process` that says what it is as the line of a dump; any other record as it is."""
    lists = [record.get(name) for name in ("rollout_details", "messages", "scores")]
    rows = [one for one in lists if isinstance(one, list)]
    if "rollouts" in record or len(rows) < len(lists) or len({len(one) for one in rows}) > 1:
        return record
    rollouts = [
        {**told, "conversation": conversation, "score": score}
        for told, conversation, score in zip(*rows, strict=True)
        if isinstance(told, dict)
    ]
    return {**record, "rollouts": rollouts}


def group_of(fields: Mapping[str, Any]) -> DumpedGroup:
    """The group that a line's object stands for. Raises BrokenLineError."""
    task, rollouts = fields.get("item_id"), fields.get("rollouts")
    if not isinstance(task, str):
        raise BrokenLineError("no item_id")
    if not isinstance(rollouts, list) or not rollouts:
        raise BrokenLineError("no rollouts")
    for rollout in rollouts:
        if not isinstance(rollout, dict) or not is_conversation(rollout.get("conversation")):
            raise BrokenLineError("a rollout without a conversation")
        if not is_number(rollout.get("score")):
            raise BrokenLineError("a rollout without a score")
    return DumpedGroup(task, rollouts, fields)


def is_conversation(value: Any) -> bool:
    """Whether it is a list of messages that ends with a question and a reply."""
    return (
        isinstance(value, list)
        and len(value) >= 2
        and all(isinstance(message, dict) and "content" in message for message in value[-2:])
    )


def is_number(value: Any) -> bool:
    """Whether it is a number that can be drawn; NaN, infinity and integers beyond any float are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < LARGEST


def numbered_lines(file: IO[bytes]) -> Iterator[tuple[int, bytes | None, int]]:
    """Every line's number from 1, its bytes (None if it is longer than LONGEST_LINE) and its length."""
    number = 0
    while chunk := file.readline(LONGEST_LINE):
        number += 1
        if len(chunk) < LONGEST_LINE or chunk.endswith(b"\n"):
            yield number, chunk, len(chunk)
            continue
        length = len(chunk)
        while not chunk.endswith(b"\n") and (chunk := file.readline(LONGEST_LINE)):
            length += len(chunk)
        yield number, None, length


# --- parts: who writes them, and what a killed run left behind


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


def recover_parts(directory: Path) -> list[Path]:
    """Complete the parts that dead writers left in this folder. Returns the completed files."""
    completed = []
    for part in sorted(directory.glob(f"{FILE_STEM}*{PART_SUFFIX}")):
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
        part.with_name(f"{final.name}{TORN_SUFFIX}").write_bytes(torn)
        file.truncate(whole)
        os.fsync(file.fileno())
    part.rename(final)
    logger.warning(
        "Completed %s: %d groups of a run that was killed%s.",
        final,
        data[:whole].count(b"\n"),
        f"; {len(torn)} bytes of a torn line are in {final.name}{TORN_SUFFIX}" if torn else "",
    )
    return final


def _length_of_whole_lines(data: bytes) -> int:
    """How many bytes lead up to a last line that is not JSON, or not ended; all if there is none."""
    whole = data.rfind(b"\n") + 1
    start = data.rfind(b"\n", 0, max(0, whole - 1)) + 1
    try:
        read_object(data[start:whole])
    except BrokenLineError:
        return start
    return whole


def _free_name(path: Path) -> Path:
    number, free = 1, path
    while free.exists():
        free = path.with_name(f"{path.stem}_{number}{path.suffix}")
        number += 1
    return free
