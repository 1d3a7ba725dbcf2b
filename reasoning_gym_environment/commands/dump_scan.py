"""What rollout dumps hold, counted in one pass: of a line nothing is kept but numbers and the hash of its item.

    files ──by the run in their names──> RunTally ──by task──> TaskTally (groups, rollouts, rewards, item hashes)

An item is a task and a seed, 8 bytes of memory for each group, so folders of many gigabytes can be read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from ..errors import EnvironmentSetupError
from ..report.load import is_number
from ..training_log.part_recovery import PART_SUFFIX, is_held
from ..training_log.rollout_writer import FILE_STEM

TORN_SUFFIX = ".torn"
LONGEST_LINE = 256 * 2**20
"""Bytes. A longer line is malformed, and is passed over without being held in memory."""

_NAME = re.compile(
    rf"{FILE_STEM}_(?P<kind>FAILED_rollouts|rollouts)_(?P<run>[0-9A-Za-z.-]+)_\d{{4,}}(?:_\d+)?\.jsonl"
    rf"(?P<suffix>{re.escape(PART_SUFFIX)}|{re.escape(TORN_SUFFIX)})?"
)


@dataclass(frozen=True)
class DumpFile:
    """One file of a run, as its name describes it. `modified` is seconds since the epoch, `size` bytes."""

    path: Path
    run: str
    is_failed: bool
    suffix: str
    size: int
    modified: float


@dataclass
class TaskTally:
    """Groups of one task in one run; `items` has a hash for every group that names its seed."""

    groups: int = 0
    failed_groups: int = 0
    rollouts: int = 0
    reward_sum: float = 0.0
    items: array[int] = field(default_factory=lambda: array("Q"))


@dataclass
class RunTally:
    """All files of one run. `malformed` maps a file to how many lines, and which line was the first (from 1)."""

    run: str
    folders: set[str] = field(default_factory=set)
    files: int = 0
    bytes: int = 0
    parts_held: int = 0
    parts_left: int = 0
    parts_unknown: int = 0
    torn_files: int = 0
    torn_bytes: int = 0
    unended_bytes: int = 0
    groups_without_seed: int = 0
    modified: list[float] = field(default_factory=list)
    malformed: dict[str, tuple[int, int]] = field(default_factory=dict)
    tasks: dict[str, TaskTally] = field(default_factory=dict)


def find_dumps(paths: Sequence[Path]) -> tuple[list[DumpFile], list[Path]]:
    """Dumps under folders (at any depth) and among files, each once; and the .jsonl files that are none.

    Raises EnvironmentSetupError for a path that is missing or cannot be looked into, and if there is no dump at all.
    """
    found: dict[Path, DumpFile] = {}
    others: dict[Path, None] = {}
    for path in paths:
        for file in _candidates(path):
            dump = _described(file)
            if dump is not None:
                found.setdefault(file.resolve(), dump)
            elif file.suffix == ".jsonl" or file == path:
                others[file] = None
    if not found:
        names = ", ".join(str(path) for path in paths)
        raise EnvironmentSetupError(
            f"No dumps in {names}: expected files named {FILE_STEM}_rollouts_*.jsonl; env.dump_rollouts writes them."
        )
    return sorted(found.values(), key=lambda dump: (dump.run, str(dump.path))), list(others)


def scan(dumps: Sequence[DumpFile], advance: Callable[[int], Any] = lambda count: None) -> list[RunTally]:
    """Read every line; `advance` is told of the bytes. Raises EnvironmentSetupError for a file that cannot be read."""
    runs: dict[str, RunTally] = {}
    known = {dump.path for dump in dumps}
    for dump in dumps:
        run = runs.setdefault(dump.run, RunTally(dump.run))
        try:
            _count_file(dump, run)
            if dump.suffix == TORN_SUFFIX:
                advance(dump.size)
            else:
                _read(dump, known, run, advance)
        except OSError as error:
            raise _unreadable(dump.path, error) from error
    return list(runs.values())


def _candidates(path: Path) -> list[Path]:
    if not path.is_dir():
        if not path.exists():
            raise EnvironmentSetupError(f"{path} does not exist: expected a folder of rollout dumps, or dumps.")
        return [path]
    try:
        return sorted(_files_below(path))
    except OSError as error:
        raise _unreadable(Path(error.filename or path), error) from error


def _files_below(folder: Path) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        raise error

    for root, _, names in os.walk(folder, onerror=refuse):
        yield from (Path(root, name) for name in names if ".jsonl" in name)


def _described(file: Path) -> DumpFile | None:
    match = _NAME.fullmatch(file.name)
    if match is None:
        return None
    try:
        info = file.stat()
    except OSError as error:
        raise _unreadable(file, error) from error
    # Opening a pipe would wait for ever.
    if not stat.S_ISREG(info.st_mode):
        return None
    is_failed = match["kind"].startswith("FAILED")
    return DumpFile(file, match["run"], is_failed, match["suffix"] or "", info.st_size, info.st_mtime)


def _unreadable(path: Path, error: OSError) -> EnvironmentSetupError:
    return EnvironmentSetupError(f"Cannot read {path}: {error.strerror or error}.")


def _count_file(dump: DumpFile, run: RunTally) -> None:
    run.folders.add(str(dump.path.parent))
    run.files += 1
    run.bytes += dump.size
    run.modified = [min([dump.modified, *run.modified]), max([dump.modified, *run.modified])]
    if dump.suffix == TORN_SUFFIX:
        run.torn_files += 1
        run.torn_bytes += dump.size
    elif dump.suffix == PART_SUFFIX:
        with contextlib.suppress(FileNotFoundError):  # it has its final name now
            held = is_held(dump.path) if dump.size else None
            run.parts_held += held is True
            run.parts_left += held is False
            run.parts_unknown += held is None


def _read(dump: DumpFile, known: set[Path], run: RunTally, advance: Callable[[int], Any]) -> None:
    file = _open(dump, known)
    if file is None:
        return
    with file:
        for number, line, length in _lines(file):
            advance(length)
            if line is not None and not line.strip():
                continue
            if line is not None and not line.endswith(b"\n") and dump.suffix == PART_SUFFIX:
                # A living writer is at it; of a dead one it is set aside at the next start.
                run.unended_bytes += length
            elif line is None or not _count_group(line, run, is_failed=dump.is_failed):
                count, first = run.malformed.get(file.name, (0, number))
                run.malformed[file.name] = (count + 1, first)


def _open(dump: DumpFile, known: set[Path]) -> IO[bytes] | None:
    """The file, under its final name if a part got that since it was listed; None if that one is listed too."""
    try:
        return dump.path.open("rb")
    except FileNotFoundError:
        final = dump.path.with_suffix("")
        # A part that was empty may be gone for good.
        if final in known or (dump.suffix == PART_SUFFIX and not dump.size and not final.exists()):
            return None
        if dump.suffix != PART_SUFFIX:
            raise
        return final.open("rb")


def _lines(file: IO[bytes]) -> Iterator[tuple[int, bytes | None, int]]:
    """Every line's number, its bytes (None if it is longer than LONGEST_LINE) and its length."""
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


def _count_group(line: bytes, run: RunTally, *, is_failed: bool) -> bool:
    """Add one dumped group; False if the line is none."""
    try:
        group = json.loads(line)
    except (ValueError, RecursionError):
        return False
    rewards = _rewards(group)
    if rewards is None:
        return False
    tally = run.tasks.setdefault(group["item_id"], TaskTally())
    tally.groups += 1
    tally.failed_groups += is_failed
    tally.rollouts += len(rewards)
    tally.reward_sum += sum(rewards)
    seed = group.get("seed")
    if isinstance(seed, int) and not isinstance(seed, bool):
        tally.items.append(item_hash(group["item_id"], seed))
    else:
        run.groups_without_seed += 1
    return True


def _rewards(group: Any) -> list[float] | None:
    """The rewards of a dumped group's rollouts, or None if it is no dumped group."""
    if not isinstance(group, dict) or not isinstance(group.get("item_id"), str):
        return None
    rollouts = group.get("rollouts")
    if not isinstance(rollouts, list) or not rollouts or not all(map(_is_rollout, rollouts)):
        return None
    return [float(rollout["score"]) for rollout in rollouts]


def _is_rollout(rollout: Any) -> bool:
    return (
        isinstance(rollout, dict) and isinstance(rollout.get("conversation"), list) and is_number(rollout.get("score"))
    )


def item_hash(task: str, seed: int) -> int:
    """64 bits that stand for an item."""
    text = f"{seed}:{task}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
