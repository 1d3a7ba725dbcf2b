"""The dumps of a run: groups as JSON lines in numbered files, each complete before it gets its final name.

    group ──> its line, in memory ──> appended by the one thread that writes ──> handed on to the trainer
                                │                └──(the disk hangs for PATIENCE_S)──┘
                                └──> <final name>.part ──(threshold groups, or close)──> <final name>

A line is in the operating system's hands when `write` returns, so killing the process loses none. A slow disk holds up
the groups it is given, and nobody else. A line that the disk refuses is taken back and waits in memory, up to a limit;
it never stays half written in a finished file. A file that cannot be finished is tried again with each further group.
One that somebody has removed, or moved away, is noticed with the next group, which begins another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ..errors import EnvironmentSetupError
from ..records import Rollout, RolloutGroup, Score, plain
from ..utils.aio import Background
from ..utils.outage_log import Outage
from .dump_files import FAILED, FILE_STEM, PART_SUFFIX, ROLLOUTS, hold, recover_parts

logger = logging.getLogger(__name__)

GROUPS_PER_FILE = {ROLLOUTS: 100, FAILED: 50}

PATIENCE_S = 2.0
"""How long a disk that hangs may hold up a group."""

PROGRESS_LINES = 4
"""Log lines on the way to a full file."""

MAX_WAITING_BYTES = 64 * 2**20
"""Lines that wait for the disk; at some 10 kB to 1 MB a group, hundreds of groups at least."""

MAX_UNFINISHED = 8
"""Parts kept open to be finished later. Those that are left are completed at the next start."""


class RolloutDumps:
    """Writes groups of the wanted `kinds` under `directory`; a kind that is not wanted is not written.

    `run_id` stands in the files' names: that of the earlier run when it is continued.
    """

    def __init__(self, directory: Path, run_id: str, *, kinds: Iterable[str]) -> None:
        self._directory = directory
        self._writers = {
            kind: RolloutWriter(directory, run_id, kind=kind, threshold=GROUPS_PER_FILE[kind]) for kind in kinds
        }
        self.run_id = run_id
        # Two, in the same order: what hangs on the disk must not keep groups, many times as large as their lines.
        self._lines, self._disk = Background("dump-lines"), Background("dumps")
        self._outage = Outage(logger, "The disk of the dumps", first_delay_s=0.0, max_delay_s=0.0)

    @property
    def files(self) -> list[Path]:
        """The files finished so far."""
        return [path for writer in self._writers.values() for path in writer.files]

    async def open(self, version: str) -> None:
        """Complete what dead runs left in the folder, and name this version of reasoning-gym in every line."""
        for writer in self._writers.values():
            writer.version = version
        if self._writers:
            await asyncio.to_thread(recover_parts, self._directory)

    async def add(self, group: RolloutGroup, kind: str) -> None:
        """Returns when the group is in the operating system's hands, or waits in memory for a disk that refuses it.

        A disk that hangs is waited for PATIENCE_S; then the group waits in memory too, and is written when it goes on.
        """
        if (writer := self._writers.get(kind)) is None:
            return
        await self._lines.submit(writer.take, group)
        written = self._disk.submit(writer.write)
        await asyncio.wait([written], timeout=PATIENCE_S)
        if written.done():
            self._outage.over()
            written.result()
        else:
            self._outage.failed(f"no answer for {PATIENCE_S:g} s", "groups wait in memory, training goes on")
            writer.drop_excess()

    async def close(self) -> None:
        """Finish the files. Safe to call twice."""
        for writer in self._writers.values():
            await self._disk.submit(writer.close)

    def metrics(self) -> dict[str, float]:
        """Groups written since the start of the run; those that wait or are lost, and outages of the disk, if any.

        `removed` are those that were written, and whose file went away before it was finished.
        """
        values = self._outage.metrics("dumps/disk")
        for kind, writer in self._writers.items():
            values[f"dumps/{kind}_written"] = float(writer.groups_written)
            if writer.groups_removed:
                values[f"dumps/{kind}_removed"] = float(writer.groups_removed)
            if writer.groups_waiting or writer.groups_dropped:
                values[f"dumps/{kind}_waiting"] = float(writer.groups_waiting)
                values[f"dumps/{kind}_dropped"] = float(writer.groups_dropped)
        return values

    def state_dict(self) -> dict[str, Any]:
        return {"run_id": self.run_id, "kinds": {kind: one.state_dict() for kind, one in self._writers.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the files of an earlier run. Raises EnvironmentSetupError if the state is malformed."""
        run_id, kinds = state.get("run_id"), state.get("kinds")
        if not isinstance(run_id, str) or not run_id.replace("-", "").isalnum() or not isinstance(kinds, dict):
            raise EnvironmentSetupError(f"The state of the dumps has a run id and kinds, got {dict(state)!r:.200}.")
        self.run_id = run_id
        for kind, writer in self._writers.items():
            writer.run_id = run_id
            if kind in kinds:
                writer.load_state_dict(kinds[kind])


@dataclass
class _Part:
    """A file that is written: `size` bytes of whole lines, of so many groups. More bytes are a torn line."""

    file: IO[bytes]
    size: int = 0
    groups: int = 0
    is_reported: bool = False


class RolloutWriter:
    """Appends groups to `{stem}_{kind}_{run_id}_{batch:04d}.jsonl` under `directory`, `threshold` a file.

    `take` and `drop_excess` do not touch the disk, and may be called while another thread is in `write` or `close`.
    """

    def __init__(self, directory: Path, run_id: str, *, kind: str, threshold: int) -> None:
        self._directory = directory
        self.run_id = run_id
        self._kind = kind
        self._threshold = threshold
        self.version = ""
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._counting = threading.Lock()
        self._is_refused = False
        self._part: _Part | None = None
        self._unfinished: list[_Part] = []
        self.batch = 0
        self.groups_written = 0
        self.groups_dropped = 0
        self.groups_removed = 0
        self.files: list[Path] = []

    @property
    def groups_waiting(self) -> int:
        """Groups in memory that the disk has not taken so far."""
        return len(self._waiting)

    def take(self, group: RolloutGroup) -> None:
        """Keep one group's line in memory, behind those that wait."""
        line = line_of(group, self.version)
        with self._counting:
            self._waiting.append(line)
            self._waiting_bytes += len(line)

    def write(self) -> None:
        """Append what waits, oldest first. Raises nothing for a disk that refuses; training goes on."""
        self._write_waiting()
        self._finish_parts()
        self.drop_excess()

    def drop_excess(self) -> None:
        """Drop the newest of the groups that wait, as far as they are too much for memory."""
        with self._counting:
            # The first one may be on its way to the disk.
            while self._waiting_bytes > MAX_WAITING_BYTES and len(self._waiting) > 1:
                self._waiting_bytes -= len(self._waiting.pop())
                self.groups_dropped += 1
                if self.groups_dropped == 1:
                    logger.error(
                        "No more room for waiting %s: groups are dropped from here on, and counted.", self._kind
                    )

    def _write_waiting(self) -> None:
        try:
            while self._waiting:
                self._append(self._waiting[0])
                with self._counting:
                    self._waiting_bytes -= len(self._waiting.popleft())
                self._note_written()
        except OSError as error:
            if not self._is_refused:
                self._is_refused = True
                logger.error(
                    "Cannot write %s to %s (%s): groups wait in memory, up to %.0f MB, until it takes them.",
                    *(self._kind, self._directory, error, MAX_WAITING_BYTES / 2**20),
                )
            return
        if self._is_refused:
            self._is_refused = False
            logger.warning("%s takes %s again; those that waited are written.", self._directory, self._kind)

    def _append(self, line: bytes) -> None:
        if self._part is not None and _is_gone(self._part):
            self._count_removed(self._part)
            self._part = None
        part = self._part = self._part or _Part(self._open_part())
        try:
            if part.file.write(line) != len(line):
                raise OSError("the disk took only part of a line")
        except OSError:
            try:
                os.ftruncate(part.file.fileno(), part.size)
            except OSError:
                # The next line must not stand behind a torn one; and a file that is stale stays so for good.
                self._set_aside()
            raise
        part.size += len(line)
        part.groups += 1

    def _note_written(self) -> None:
        self.groups_written += 1
        groups = self._part.groups if self._part else 0
        if groups >= self._threshold:
            self._set_aside()
        elif groups % max(1, self._threshold // PROGRESS_LINES) == 0:
            logger.info("%d of %d groups of %s for the next file.", groups, self._threshold, self._kind)

    def _set_aside(self) -> None:
        """The present part is to be finished; what comes next is for another one."""
        if self._part is not None:
            self._unfinished.append(self._part)
            self._part = None
            self.batch += 1

    def _finish_parts(self) -> None:
        for part in list(self._unfinished):
            final = Path(part.file.name.removesuffix(PART_SUFFIX))
            try:
                if _is_gone(part):
                    self._unfinished.remove(part)
                    self._count_removed(part)
                    continue
                _finish(part, final)
            except OSError as error:
                if not part.is_reported:
                    part.is_reported = True
                    logger.error("Cannot finish %s with %d groups of %s: %s", final, part.groups, self._kind, error)
                continue
            self._unfinished.remove(part)
            if part.groups:
                logger.info("Wrote %d groups of %s to %s.", part.groups, self._kind, final)
                self.files.append(final)
        while len(self._unfinished) > MAX_UNFINISHED:
            self._leave(self._unfinished.pop(0))

    def _count_removed(self, part: _Part) -> None:
        self.groups_removed += part.groups
        logger.error(
            "%s was removed or moved away: %d groups of %s are not where they were written, %d so far.",
            *(part.file.name, part.groups, self._kind, self.groups_removed),
        )
        with contextlib.suppress(OSError):
            part.file.close()

    def _leave(self, part: _Part) -> None:
        logger.error(
            "%s stays as it is, with %d groups: the next start that dumps to this folder completes it.",
            *(part.file.name, part.groups),
        )
        with contextlib.suppress(OSError):
            part.file.close()

    def close(self) -> None:
        """Write what waits, finish the last part, and report what could not be written. Raises nothing."""
        self._write_waiting()
        self._set_aside()
        self._finish_parts()
        for part in self._unfinished:
            self._leave(part)
        self._unfinished.clear()
        with self._counting:
            self.groups_dropped += len(self._waiting)
            self._waiting.clear()
            self._waiting_bytes = 0
        if self.groups_dropped:
            logger.error("%d groups of %s could not be written.", self.groups_dropped, self._kind)

    def _open_part(self) -> IO[bytes]:
        """The part of the next batch whose name nobody has used: a run that is continued may have left some."""
        self._directory.mkdir(parents=True, exist_ok=True)
        while True:
            final = self._directory / f"{FILE_STEM}_{self._kind}_{self.run_id}_{self.batch:04d}.jsonl"
            if not final.exists():
                path = final.with_name(final.name + PART_SUFFIX)
                try:
                    part = open(path, "xb", buffering=0, opener=_append_only)  # noqa: SIM115
                except FileExistsError:
                    pass
                else:
                    hold(part)
                    return part
            self.batch += 1

    def state_dict(self) -> dict[str, Any]:
        """Where the dump stands, to go on with the same names and counts."""
        return {"batch": self.batch, "groups_written": self.groups_written, "groups_dropped": self.groups_dropped}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`. Raises EnvironmentSetupError if it is malformed."""
        numbers = [state.get(name) for name in ("batch", "groups_written", "groups_dropped")]
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise EnvironmentSetupError(f"A dump's state has three counts, got {dict(state)!r:.200}.")
        self.batch, self.groups_written, self.groups_dropped = (int(number or 0) for number in numbers)


def _is_gone(part: _Part) -> bool:
    """Whether what is written to a part can be found under its name no more. Raises OSError."""
    # No link: deleted. No such file: also moved, or deleted over a network, where the server keeps what is open.
    return os.fstat(part.file.fileno()).st_nlink == 0 or not Path(part.file.name).exists()


def _finish(part: _Part, final: Path) -> None:
    """Give a part its final name, with whole lines only; one without any is removed. Raises OSError."""
    path = Path(part.file.name)
    if part.groups:
        if os.fstat(part.file.fileno()).st_size > part.size:
            os.ftruncate(part.file.fileno(), part.size)
        os.fsync(part.file.fileno())
        path.replace(final)
    else:
        # Opened for a line that the disk refused.
        path.unlink(missing_ok=True)
    # Last, so that a part without a writer that holds it is never there.
    with contextlib.suppress(OSError):
        part.file.close()


def _append_only(path: str, flags: int) -> int:
    """Writes go to the end of the file, also after it was cut."""
    return os.open(path, flags | os.O_APPEND, 0o666)


# --- a group as a line


def line_of(group: RolloutGroup, version: str) -> bytes:
    """The line of a group made with this version of reasoning-gym: JSON in ASCII, ended."""
    return json.dumps(plain(group_record(group, version)), allow_nan=False).encode("ascii") + b"\n"


def group_record(group: RolloutGroup, version: str) -> dict[str, Any]:
    """What a line holds. `item_id` and `rollouts[].{conversation, score}` are the format others read."""
    problem = group.problem
    return {
        "item_id": problem.task,
        "rollouts": [_rollout_record(group.messages, rollout) for rollout in group.rollouts],
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
        "sampled_at_step": group.steps[0] if group.steps else None,
        "scored_at_step": group.steps[1] if group.steps else None,
    }


def _rollout_record(messages: list[dict[str, str]], rollout: Rollout) -> dict[str, Any]:
    completion, score = rollout.completion, rollout.score
    return {
        "conversation": [*messages, {"role": "assistant", "content": completion.text}],
        **scored_fields(score, rollout.reward, rollout.credit),
        "finish_reason": completion.finish_reason,
        "num_tokens": completion.num_tokens,
        "num_completion_tokens": completion.num_completion_tokens,
        "mask_reason": rollout.mask_reason,
    }


def scored_fields(score: Score, reward: float, credit: float) -> dict[str, Any]:
    """What a line says of a rollout's score, and of what was made of it."""
    return {
        "score": reward,
        "raw_score": score.value,
        "native_score": score.native,
        "baseline": score.baseline,
        "credit": credit,
        "outcome": score.outcome.value,
        "format_failure": score.failure.value if score.failure else None,
        "answer": score.answer,
    }
