"""`reasoning-gym-env dumps`: one summary over the rollout dumps of one run or many, as a table or as JSON.

    files ──by the run in their names──> RunTally ──by task──> TaskTally ──> plain records ──> tables and notes

They are counted in one pass: of a line nothing is kept but numbers and the hash of its item. An item is a task and a
seed, 8 bytes of memory for each group, so folders of many gigabytes can be read.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import stat
import sys
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.table import Table
from rich.text import Text
from tqdm import tqdm

from ..errors import EnvironmentSetupError
from ..training_log.dump_files import (
    DUMP_NAME,
    FAILED,
    FILE_STEM,
    PART_SUFFIX,
    TORN_SUFFIX,
    BrokenLineError,
    is_held,
    numbered_lines,
    read_group,
    read_object,
)
from ..utils.terminal import Output, print_table, printable

Hashes = NDArray[np.uint64]

DEFAULT_FOLDER = "data_dumps"
SHOWN = 10
"""Malformed files and pairs of runs that are named in print; JSON names all."""
PROGRESS_AFTER_S = 1.0
RUN_COLUMNS = {
    "files": "files",
    "groups": "groups",
    "failed": "failed_groups",
    "rollouts": "rollouts",
    "tasks": "tasks",
    "reward": "mean_reward",
    "items": "distinct_items",
    "repeated": "repeated_items",
}
"""Head of a column -> key in a record."""
TASK_COLUMNS = {head: key for head, key in RUN_COLUMNS.items() if head not in ("files", "tasks")}
LEGEND = """failed: all-zero groups (FAILED files). reward: mean over the dumped rollouts, which are a choice: not the
accuracy of training. items: distinct ones, an item being a task and a seed. repeated: items dumped more than once;
in the total also those that two runs share."""


def main(arguments: Sequence[str]) -> int:
    """Exit code 0, or 2 for paths that cannot be summed up."""
    options = _parser().parse_args(arguments)
    try:
        dumps, others = find_dumps([Path(path) for path in options.paths])
        size = sum(dump.size for dump in dumps)
        with tqdm(
            total=size, desc="dumps", unit="B", unit_scale=True, disable=None, leave=False, delay=PROGRESS_AFTER_S
        ) as bar:
            runs = scan(dumps, bar.update)
    except EnvironmentSetupError as error:
        print(f"reasoning-gym-env dumps: {error}", file=sys.stderr)
        return 2
    summary = summarise(runs)
    if others:
        summary["files_left_out"] = [str(path) for path in others]
    if options.json:
        print(json.dumps(summary, indent=1))
        return 0
    _show(summary, by_task=options.by_task)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="reasoning-gym-env dumps",
        description="Sum up rollout dumps: by run and in total, how many groups, rollouts, tasks and distinct items; "
        "what was dumped twice, or by two runs; parts that are still open, torn and malformed lines. Reads while "
        "runs write, and changes nothing.",
        epilog="Runs of one seed share no items (instance_id), unless one starts again without its checkpoint. A run "
        "that is continued from a checkpoint does what came after it again: such items are repeated.",
    )
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="DIR",
        default=[DEFAULT_FOLDER],
        help=f"folders, searched at any depth, or single files; groups of process too (default: {DEFAULT_FOLDER})",
    )
    parser.add_argument("--by-task", action="store_true", help="also a table by task, over all runs")
    parser.add_argument("--json", action="store_true", help="everything, by run and by task, as JSON")
    return parser


# --- which files there are


@dataclass(frozen=True)
class DumpFile:
    """One file of a run, as its name describes it. `modified` is seconds since the epoch, `size` bytes."""

    path: Path
    run: str
    is_failed: bool
    suffix: str
    size: int
    modified: float


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
    match = DUMP_NAME.fullmatch(file.name)
    if match is None and file.suffix != ".jsonl":
        return None
    try:
        info = file.stat()
        # Opening a pipe would wait for ever.
        if not stat.S_ISREG(info.st_mode) or (match is None and not _is_of_process(file)):
            return None
    except OSError as error:
        raise _unreadable(file, error) from error
    if match is None:
        return DumpFile(file, file.stem, is_failed=False, suffix="", size=info.st_size, modified=info.st_mtime)
    return DumpFile(file, match["run"], match["kind"] == FAILED, match["suffix"] or "", info.st_size, info.st_mtime)


def _is_of_process(file: Path) -> bool:
    """Whether its first line is a group of `process` that says what it is."""
    with file.open("rb") as lines:
        first = next((line for _, line, _ in numbered_lines(lines)), None)
    try:
        return "rollout_details" in read_object(first)
    except BrokenLineError:
        return False


def _unreadable(path: Path, error: OSError) -> EnvironmentSetupError:
    return EnvironmentSetupError(f"Cannot read {path}: {error.strerror or error}.")


# --- what they hold


PART_STATES = {True: "being_written", False: "left_by_a_dead_run", None: "unknown"}
"""By whether a living writer holds the part, which cannot be told of an empty one, nor without locks."""


@dataclass
class TaskTally:
    """Groups of one task in one run; `items` has 64 bits that stand for the item, for every group with a seed."""

    groups: int = 0
    failed_groups: int = 0
    rollouts: int = 0
    reward_sum: float = 0.0
    items: array[int] = field(default_factory=lambda: array("Q"))


@dataclass
class MalformedLines:
    """Lines of one file that are no groups; `first` (from 1) and its `fault`."""

    first: int
    fault: str
    count: int = 0


@dataclass
class RunTally:
    """All files of one run. `malformed` is by file."""

    run: str
    folders: set[str] = field(default_factory=set)
    files: int = 0
    bytes: int = 0
    open_parts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PART_STATES.values(), 0))
    torn_files: int = 0
    torn_bytes: int = 0
    unended_bytes: int = 0
    groups_without_seed: int = 0
    modified: list[float] = field(default_factory=list)
    malformed: dict[str, MalformedLines] = field(default_factory=dict)
    tasks: dict[str, TaskTally] = field(default_factory=dict)


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
            elif (file := _open(dump, known)) is not None:
                with file:
                    _read(file, dump, run, advance)
        except OSError as error:
            raise _unreadable(dump.path, error) from error
    return list(runs.values())


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
            run.open_parts[PART_STATES[is_held(dump.path) if dump.size else None]] += 1


def _read(file: IO[bytes], dump: DumpFile, run: RunTally, advance: Callable[[int], Any]) -> None:
    for number, line, length in numbered_lines(file):
        advance(length)
        if line is not None and not line.strip():
            continue
        if line is not None and not line.endswith(b"\n") and dump.suffix == PART_SUFFIX:
            # A living writer is at it; of a dead one it is set aside at the next start.
            run.unended_bytes += length
            continue
        try:
            _count_group(line, run, is_failed=dump.is_failed)
        except BrokenLineError as error:
            run.malformed.setdefault(file.name, MalformedLines(number, str(error))).count += 1


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


def _count_group(line: bytes | None, run: RunTally, *, is_failed: bool) -> None:
    """Add one dumped group. Raises BrokenLineError if the line is none."""
    group = read_group(line)
    tally = run.tasks.setdefault(group.task, TaskTally())
    tally.groups += 1
    tally.failed_groups += is_failed
    tally.rollouts += len(group.rollouts)
    tally.reward_sum += sum(group.rewards)
    if group.seed is None:
        run.groups_without_seed += 1
    else:
        item = f"{group.seed}:{group.task}".encode("utf-8", "surrogatepass")
        tally.items.append(int.from_bytes(hashlib.blake2b(item, digest_size=8).digest(), "big"))


# --- the summary


def summarise(runs: Sequence[RunTally]) -> dict[str, Any]:
    """Plain records: `runs` and `tasks`, the `total`, and the pairs of runs that share items (`shared_by`)."""
    records = [_run_record(run) for run in runs]
    items = [_distinct(run.tasks.values())[0] for run in runs]
    found, counts = _counted(items)
    shared = found[counts > 1]
    tasks = sorted({task for run in runs for task in run.tasks})
    return {
        "runs": records,
        "total": {**_total(runs, records), "items_shared_by_runs": len(shared)},
        "shared_by": _pairs([run.run for run in runs], items, shared),
        "tasks": [{"task": task, **_counts([run.tasks[task] for run in runs if task in run.tasks])} for task in tasks],
    }


def _counted(hashes: Sequence[Any]) -> tuple[Hashes, NDArray[np.intp]]:
    """The distinct hashes, sorted, and how often each is there."""
    found, counts = np.unique(np.concatenate([np.empty(0, np.uint64), *hashes]), return_counts=True)
    return found, counts


def _distinct(tallies: Iterable[TaskTally]) -> tuple[Hashes, int]:
    """The distinct items, and how many of them are there more than once."""
    found, counts = _counted([np.frombuffer(tally.items, dtype=np.uint64) for tally in tallies])
    return found, int(np.count_nonzero(counts > 1))


def _pairs(names: Sequence[str], sets: Sequence[Hashes], shared: Hashes) -> list[dict[str, Any]]:
    """Which runs share how many items, most first."""
    held = {
        name: common
        for name, items in zip(names, sets, strict=True)
        if len(common := np.intersect1d(shared, items, assume_unique=True))
    }
    pairs = [
        {"runs": [first, second], "items": len(np.intersect1d(held[first], held[second], assume_unique=True))}
        for place, first in enumerate(held)
        for second in list(held)[place + 1 :]
    ]
    return sorted((pair for pair in pairs if pair["items"]), key=lambda pair: -pair["items"])


def _run_record(run: RunTally) -> dict[str, Any]:
    return {
        "run": run.run,
        "folders": sorted(run.folders),
        "files": run.files,
        "bytes": run.bytes,
        "tasks": len(run.tasks),
        **_counts(run.tasks.values()),
        "groups_without_seed": run.groups_without_seed,
        "open_parts": run.open_parts,
        "unended_bytes": run.unended_bytes,
        "torn_files": run.torn_files,
        "torn_bytes": run.torn_bytes,
        "malformed_lines": sum(lines.count for lines in run.malformed.values()),
        "malformed": [
            {"file": file, "lines": lines.count, "first_line": lines.first, "first_fault": lines.fault}
            for file, lines in run.malformed.items()
        ],
        "first_modified": _time(run.modified[0]),
        "last_modified": _time(run.modified[-1]),
    }


def _counts(tallies: Collection[TaskTally]) -> dict[str, Any]:
    rollouts = sum(tally.rollouts for tally in tallies)
    distinct, repeated = _distinct(tallies)
    return {
        "groups": sum(tally.groups for tally in tallies),
        "failed_groups": sum(tally.failed_groups for tally in tallies),
        "rollouts": rollouts,
        "mean_reward": sum(tally.reward_sum for tally in tallies) / rollouts if rollouts else None,
        "distinct_items": len(distinct),
        "repeated_items": repeated,
    }


def _total(runs: Sequence[RunTally], records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    summed = ("files", "bytes", "groups_without_seed", "unended_bytes", "torn_files", "torn_bytes", "malformed_lines")
    return {
        "runs": len(runs),
        **{name: sum(record[name] for record in records) for name in summed},
        "tasks": len({task for run in runs for task in run.tasks}),
        # What two runs share is repeated, whether or not one of them has it twice.
        **_counts([tally for run in runs for tally in run.tasks.values()]),
        "open_parts": {state: sum(run.open_parts[state] for run in runs) for state in PART_STATES.values()},
        "first_modified": min(record["first_modified"] for record in records),
        "last_modified": max(record["last_modified"] for record in records),
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")


def _show(summary: Mapping[str, Any], *, by_task: bool) -> None:
    total = summary["total"]
    console = Output()
    table = _table("run", RUN_COLUMNS)
    for record in summary["runs"]:
        _add(table, record["run"][:8], record, RUN_COLUMNS)
    if total["runs"] > 1:
        table.add_section()
        _add(table, f"{total['runs']} runs", total, RUN_COLUMNS)
    print_table(console, table)
    if by_task:
        tasks = _table("task", TASK_COLUMNS)
        for record in summary["tasks"]:
            _add(tasks, record["task"], record, TASK_COLUMNS)
        print_table(console, tasks)
    for note in notes(summary):
        print(note)
    print(LEGEND)


def _table(name: str, columns: Mapping[str, str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0))
    table.add_column(name, no_wrap=True)
    for head in columns:
        table.add_column(head, justify="right", no_wrap=True)
    return table


def _add(table: Table, name: str, record: Mapping[str, Any], columns: Mapping[str, str]) -> None:
    table.add_row(Text(printable(name, 60)), *(_cell(record[key]) for key in columns.values()))


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}" if isinstance(value, float) else f"{value:,}"


def notes(summary: Mapping[str, Any]) -> list[str]:
    """One line for everything that a person should know beyond the table."""
    total, parts = summary["total"], summary["total"]["open_parts"]
    lines = _first([_written(record) for record in summary["runs"]], "runs")
    if total["runs"] > 1:
        lines.append(
            f"items that two runs share: {total['items_shared_by_runs']:,} (0, unless one seed was begun anew)"
        )
        lines += _first(
            [f"  {' and '.join(pair['runs'])}: {pair['items']:,}" for pair in summary["shared_by"]], "pairs of runs"
        )
    if any(parts.values()):
        lines.append(
            f"open parts: {parts['being_written']} being written, {parts['left_by_a_dead_run']} left by a dead run "
            f"(completed at the next start), {parts['unknown']} unknown (empty, or no locks here)"
        )
    if total["unended_bytes"]:
        lines.append(f"unended last lines of parts, not counted: {total['unended_bytes']:,} bytes")
    if total["torn_files"]:
        lines.append(f"torn lines set aside: {total['torn_bytes']:,} bytes in {total['torn_files']} .torn files")
    if total["groups_without_seed"]:
        lines.append(f"groups without a seed, which are not among the items: {total['groups_without_seed']:,}")
    malformed = [one for record in summary["runs"] for one in record["malformed"]]
    lines += _first(
        [
            f"malformed: {one['lines']:,} lines of {one['file']}, first line {one['first_line']:,} "
            f"({one['first_fault']})"
            for one in malformed
        ],
        "files with malformed lines",
    )
    if others := summary.get("files_left_out"):
        lines.append(f"left out: {len(others)} files that are no dumps by their name, such as {others[0]}")
    return [printable(line, 400) for line in lines]


def _written(record: Mapping[str, Any]) -> str:
    start, end = (record[when][:16].replace("T", " ") for when in ("first_modified", "last_modified"))
    return f"{record['run']}: written {start} to {end} UTC, in {', '.join(record['folders'])}"


def _first(lines: list[str], what: str) -> list[str]:
    more = len(lines) - SHOWN
    return [*lines[:SHOWN], f"  and {more} more {what}"] if more > 0 else lines
