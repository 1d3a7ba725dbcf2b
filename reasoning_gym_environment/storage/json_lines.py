"""Files of JSON lines: their writer, their reader, and the form of a scored group as a line.

    AppendLog(path) ── lock ── read the lines of an earlier start ── drop a torn last line ──> `done`
          append(record) ──> a whole line in the operating system's hands, or an OSError and no line

    Group ── dump_record ──> {"item_id", "rollouts": [{"conversation", "score", ...}], ...}   a line of a dump
                 ── described ────> the trainer's tensors, and "rollout_details" in place of "rollouts"
    a line of either kind, of any version ── as_dumped ──> a checked line of a dump, with the keys of this version

A line survives kill -9 as soon as `append` returns. Two processes never write the same file: the lock ends with the
process, however the process ends. A resumed file must have the identity of the run that resumes it. A header line holds
the identity, or every line does in files that other programs read.

Other programs rely on `item_id` and on `rollouts[].{conversation, score}`. There `score` is the reward, as in the
environment that ships with Atropos. `reward` is the same number, and `verifier_score` is the score of the answer.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import re
import stat
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from .. import __version__
from ..errors import EnvironmentSetupError
from ..records import MASKED, Group, Outcome, Rollout, Score, to_json

logger = logging.getLogger(__name__)


class BrokenLineError(ValueError):
    """A line has the wrong content; the message says in a few words what is wrong."""


class AppendLog:
    """A file of JSON lines that this object alone writes until `close`.

    `identity` holds the settings that the records depend on. The constructor compares it, name by name, with the
    identity in the file. That has the key `identity_key`: in a header line if `has_header`, otherwise in every record,
    where the caller puts it. `done` maps `key(record)` to `keep(record)` for the records of earlier starts, without the
    records whose key is None. `count` is the number of records in the file, and `size` the number of bytes.

    The constructor creates the file, and `close` removes it if it has no record. Raises OSError, and
    EnvironmentSetupError if another process holds the file, if the file has another identity (the message names the
    differences), or if a line cannot be read. `remedy` is the last sentence of these messages: what the user can do.
    """

    def __init__(
        self,
        path: Path,
        identity: Mapping[str, Any] | None = None,
        *,
        identity_key: str = "identity",
        has_header: bool = False,
        key: Callable[[dict[str, Any]], Hashable] = lambda record: None,
        keep: Callable[[dict[str, Any]], Any] = lambda record: record,
        remedy: str = "Name another file.",
    ) -> None:
        self.path = path
        self.done: dict[Hashable, Any] = {}
        self.size = 0
        self.count = 0
        self.identity = identity
        self._identity_key = identity_key
        self._header = line_of({identity_key: dict(identity or {})}) if has_header else b""
        self._key = key
        self._keep = keep
        self._remedy = remedy
        self._is_torn = False
        """Whether the file may have a part of a line after its first `size` bytes."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] | None = _open_locked(path)
        # A pipe or a device has no earlier lines, and any number of writers.
        self._is_regular = _is_regular(self._file)
        try:
            if self._is_regular:
                self._resume()
        except BaseException:
            self._file.close()
            raise

    def append(self, record: dict[str, Any]) -> None:
        """Add a record of plain JSON data. Raises OSError; the file then ends with the previous line.

        A FileNotFoundError means that the file was removed or moved away, with the `count` records it has.
        """
        file = self._file
        if file is None:
            raise OSError(errno.EBADF, "it is closed", str(self.path))
        if self._is_regular and _is_removed(file, self.path):
            raise FileNotFoundError(errno.ENOENT, "it was removed or moved away while it was written", str(self.path))
        self._cut_torn_line(file)
        data = (b"" if self.size else self._header) + line_of(record)
        written = 0
        # An interrupt can end this call anywhere. The next call, or `close`, then removes what was written.
        self._is_torn = True
        try:
            while written < len(data):
                written += file.write(data[written:])
        except OSError:
            self._cut_torn_line(file)
            raise
        self.count += 1
        self.size += len(data)
        self._is_torn = False

    def close(self) -> None:
        """Release the file. Raises OSError. Safe to call twice."""
        if self._file is None:
            return
        file = self._file
        self._file = None
        with file:
            if not self._is_regular or _is_removed(file, self.path):
                return
            if not self.count:
                self.path.unlink()
                return
            self._cut_torn_line(file)
            os.fsync(file.fileno())

    def _cut_torn_line(self, file: IO[bytes]) -> None:
        if self._is_torn and self._is_regular:
            os.ftruncate(file.fileno(), self.size)
        self._is_torn = False

    def _resume(self) -> None:
        assert self._file is not None
        broken = ""
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if broken:
                    # Only the last line can be torn.
                    raise self._refusal(broken)
                try:
                    if not line.endswith(b"\n"):
                        raise BrokenLineError("it does not end")
                    record = read_object(line)
                except BrokenLineError as error:
                    broken = f"line {number}: {error}"
                    continue
                try:
                    self._take(record, is_header=bool(self._header) and number == 1)
                except (KeyError, TypeError, ValueError, AttributeError) as error:
                    why = f"line {number} does not say how it was made ({type(error).__name__}: {error})"
                    raise self._refusal(why) from error
                self.size += len(line)
        if broken:
            if not self.size and not line.startswith((b"{", b"\0")):
                # A writer of this class has begun no such line. It is the content of another program's file.
                raise self._refusal(broken)
            logger.warning(
                "%s, %s. This last line is torn because its writer was killed. It is dropped.", self.path, broken
            )
            os.ftruncate(self._file.fileno(), self.size)

    def _take(self, record: dict[str, Any], *, is_header: bool) -> None:
        if is_header or not self._header:
            changes = differences(record[self._identity_key], self.identity) if self.identity is not None else ""
            if changes:
                raise EnvironmentSetupError(f"{self.path} was made with other settings: {changes}. {self._remedy}")
        if is_header:
            return
        self.count += 1
        key = self._key(record)
        if key is not None:
            self.done[key] = self._keep(record)

    def _refusal(self, why: str) -> EnvironmentSetupError:
        return EnvironmentSetupError(f"{self.path} cannot be resumed: {why}. {self._remedy}")


def line_of(record: dict[str, Any]) -> bytes:
    """The record as a line: JSON in ASCII, with a newline."""
    return json.dumps(record).encode("ascii") + b"\n"


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The names in `new` whose value in `old` differs, with both values, as text; empty if there are none."""
    changed = [name for name in new if old.get(name) != new[name]]
    return ", ".join(f"{name} {old.get(name, 'unknown')} (now {new[name]})" for name in changed)


def _is_regular(file: IO[bytes]) -> bool:
    # The path says nothing about the open file, because another process can remove the path at any time.
    return stat.S_ISREG(os.fstat(file.fileno()).st_mode)


def _is_removed(file: IO[bytes], path: Path) -> bool:
    """Whether `path` no longer leads to an open file. Raises OSError."""
    try:
        return not os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except (FileNotFoundError, NotADirectoryError):
        return True


def free_name(path: Path) -> Path:
    """`path`, or the first of `path_1`, `path_2`, ... that does not exist."""
    number = 0
    free = path
    while free.exists():
        number += 1
        free = path.with_stem(f"{path.stem}_{number}")
    return free


# --- the reader: for files from any source, including files that are still being written


def read_object(line: bytes) -> dict[str, Any]:
    """The JSON object in a line. Raises BrokenLineError."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        # The bytes may not be UTF-8, be nested too deeply, or hold a number with more digits than Python reads.
        raise BrokenLineError("no JSON") from None
    if not isinstance(found, dict):
        raise BrokenLineError("no JSON object")
    return found


# --- locks


def _open_locked(path: Path) -> IO[bytes]:
    """The file at `path`, locked, to append to. Raises OSError, and EnvironmentSetupError if it is locked already."""
    while True:
        file = path.open("ab", buffering=0)
        try:
            if not _is_regular(file):
                return file
            lock(file.fileno(), path)
            if not _is_removed(file, path):
                return file
        except BaseException:
            file.close()
            raise
        # The previous writer replaced or removed the file after this process opened it.
        file.close()


def lock(descriptor: int, place: Path, *, waits: bool = False) -> None:
    """Lock this open file or folder, which is `place`, until it is closed or the process ends.

    If another process holds the lock, waits for it if `waits` is true, and otherwise raises EnvironmentSetupError. Has
    no effect on a file system without locks.
    """
    operation = fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB
    try:
        fcntl.flock(descriptor, operation)
    except BlockingIOError:
        raise EnvironmentSetupError(
            f"{place}: another run writes there. Wait for its end, or name another place."
        ) from None
    except OSError as error:
        logger.warning("Cannot lock %s (%s): do not start a second run that writes there.", place, error)


# --- a scored group as a line: of the dumps of `serve`, and of the file of groups (`data_path_to_save_groups`)

ROLLOUTS = "rollouts"
FAILED = "FAILED_rollouts"
FILE_STEM = "reasoning_gym_environment"
PART_SUFFIX = ".part"
DUMP_NAME = re.compile(
    rf"{FILE_STEM}_(?P<kind>{FAILED}|{ROLLOUTS})_(?P<run>[0-9A-Za-z.-]+)_\d{{4,}}(?:_\d+)?\.jsonl"
    rf"(?:{re.escape(PART_SUFFIX)})?"
)

LARGEST = 1e15
"""Numbers of this size or more are treated as invalid. Floats cannot represent all whole numbers beyond it."""


def dump_record(group: Group, version: str) -> dict[str, Any]:
    """The line of a dump, as plain JSON data; `version` is reasoning-gym's version."""
    problem = group.problem
    record = {
        "item_id": problem.task,
        "rollouts": [rollout_record(group.messages, rollout) for rollout in group.rollouts],
        "task": problem.task,
        "category": problem.category,
        "split": problem.split,
        "index": problem.index,
        "seed": problem.seed,
        "level": problem.level,
        "complexity": problem.complexity,
        "config": dict(problem.config),
        "expected_answer": problem.entry.get("answer"),
        "reasoning_gym_version": version,
        "sampled_at_step": group.sampled_at,
        "scored_at_step": group.scored_at,
    }
    found: dict[str, Any] = to_json(record)
    return found


def described(group: Group, version: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a line of the file of groups beside the trainer's tensors and messages."""
    record = dump_record(group, version)
    details = record.pop("rollouts")
    for rollout in details:
        del rollout["conversation"]
    return {
        **record,
        "rollout_details": details,
        "settings": dict(settings),
        "version": __version__,
    }


def rollout_record(messages: list[dict[str, str]], rollout: Rollout) -> dict[str, Any]:
    """One rollout of a line."""
    completion = rollout.completion
    return {
        "conversation": [*messages, {"role": "assistant", "content": completion.text}],
        **scored_fields(rollout.score, rollout.reward, rollout.base_reward),
        "finish_reason": completion.finish_reason,
        "num_tokens": len(completion.tokens),
        "num_completion_tokens": completion.num_completion_tokens,
        "mask_reason": rollout.mask_reason,
    }


def scored_fields(score: Score, reward: float, base_reward: float) -> dict[str, Any]:
    """The fields of a line about a completion's score, and about the reward that follows from it."""
    return {
        "score": reward,
        "reward": reward,
        "verifier_score": score.value,
        "native_score": score.native,
        "credit": base_reward,
        "outcome": score.outcome.value,
        "format_failure": score.failure.value if score.failure else None,
        "answer": score.answer,
    }


# --- the file of groups: written by `serve` on request, and resumed by `process`


@dataclass(frozen=True)
class WrittenGroup:
    """The part of a line that the curriculum needs. `credits` has the scored completions only."""

    index: int
    task: str
    level: int | None
    credits: tuple[float, ...]


def open_groups(path: Path, settings: Mapping[str, Any], *, is_resumed: bool) -> AppendLog:
    """Open the file of groups. If it is resumed, `done` maps each index in the file to its WrittenGroup.

    Otherwise an existing file keeps its content and the new file gets another name, as in Atropos. An index without a
    line was in progress, or gave no group: the caller draws it again. Raises EnvironmentSetupError if the file cannot
    be opened, has other settings, or belongs to another run that still writes.
    """
    if not is_resumed:
        free = free_name(path)
        if free != path:
            logger.info("Groups are written to %s, because %s exists.", free, path)
        return AppendLog(free)
    try:
        return AppendLog(
            path,
            to_json(dict(settings)),
            identity_key="settings",
            key=lambda record: int(record["index"]),
            keep=_written_group,
            remedy="Set env.data_path_to_save_groups to another file, or the settings to what they were.",
        )
    except OSError as error:
        raise EnvironmentSetupError(f"Cannot write groups to {path}: {error}.") from error


def _written_group(record: Mapping[str, Any]) -> WrittenGroup:
    details = record["rollout_details"]
    scored = [rollout for rollout in details if Outcome(rollout["outcome"]).is_scored]
    return WrittenGroup(
        index=int(record["index"]),
        task=str(record["task"]),
        level=record["level"],
        credits=tuple(float(rollout["credit"]) for rollout in scored),
    )


# --- reading a group, from a file of any source


def as_dumped(record: dict[str, Any]) -> dict[str, Any]:
    """The group of a line of either kind in the form of a dump's line. Raises BrokenLineError.

    Each of its `rollouts` has a `conversation` that ends with a question and a reply, which are mappings with
    `content`, and a number as `score`, the reward. Other keys may be missing, or have any value.
    """
    record = {"item_id": "unknown", **record}
    if "rollouts" not in record:
        record["rollouts"] = _beside_tensors(record)
    if not isinstance(record["item_id"], str):
        raise BrokenLineError("no item_id")
    if not isinstance(record["rollouts"], list) or not record["rollouts"]:
        raise BrokenLineError("no rollouts")
    for rollout in record["rollouts"]:
        if not isinstance(rollout, dict) or not _is_conversation(rollout.get("conversation")):
            raise BrokenLineError("a rollout without a conversation")
        if not is_number(rollout.get("score")):
            raise BrokenLineError("a rollout without a score")
    return record


def _beside_tensors(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rollouts of a line of the file of groups. A line that Atropos wrote has no `rollout_details`."""
    try:
        details = record.get("rollout_details") or [_length_of(mask) for mask in record["masks"]]
        rows = zip(details, record["messages"], record["scores"], strict=True)
        return [{**about, "conversation": messages, "score": score} for about, messages, score in rows]
    except (KeyError, TypeError, ValueError):
        raise BrokenLineError("no group") from None


def _length_of(mask: Sequence[Any]) -> dict[str, int]:
    return {"num_completion_tokens": sum(token != MASKED for token in mask)}


def _is_conversation(value: Any) -> bool:
    """Whether the value is a list of messages that ends with a question and a reply."""
    return (
        isinstance(value, list)
        and len(value) >= 2
        and all(isinstance(message, dict) and "content" in message for message in value[-2:])
    )


def is_number(value: Any) -> bool:
    """Whether the value is a number that a chart can show, unlike NaN, infinity and integers beyond any float."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < LARGEST
