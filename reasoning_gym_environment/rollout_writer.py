"""Rollouts on disk: JSON lines in numbered files, each complete before it gets its final name.

    group accepted ──> one line appended to <final name>.part ──(threshold groups, or close)──> <final name>

A line is in the operating system's hands when `add` returns, so killing the process loses none. A line that the
disk refuses is taken back, counted and reported; it never stays half written.
"""

from __future__ import annotations

import json
import logging
import math
import os
from pathlib import Path
from typing import IO, Any

from .part_recovery import PART_SUFFIX, hold
from .records import Rollout, RolloutGroup

logger = logging.getLogger(__name__)

FILE_STEM = "reasoning_gym_environment"
PROGRESS_LINES = 4
"""Log lines on the way to a full file."""


class RolloutWriter:
    """Appends groups to `{stem}_{kind}_{run_id}_{batch:04d}.jsonl` under `directory`, `threshold` a file."""

    def __init__(self, directory: Path, run_id: str, *, kind: str, threshold: int, version: str) -> None:
        self._directory = directory
        self._prefix = f"{FILE_STEM}_{kind}_{run_id}"
        self._kind = kind
        self._threshold = threshold
        self._version = version
        self._part: IO[bytes] | None = None
        self._in_part = 0
        self.batch = 0
        self.groups_written = 0
        self.groups_dropped = 0
        self.files: list[Path] = []

    def add(self, group: RolloutGroup) -> None:
        """Append one group. A disk that refuses it is reported once and counted; training goes on."""
        line = json.dumps(plain(group_record(group, self._version)), allow_nan=False) + "\n"
        try:
            self._append(line.encode("ascii"))
        except OSError as error:
            self.groups_dropped += 1
            if self.groups_dropped == 1:
                logger.error("Cannot write %s to %s, groups are dropped: %s", self._kind, self._directory, error)
            return
        self._in_part += 1
        self.groups_written += 1
        if self._in_part >= self._threshold:
            self.flush()
        elif self._in_part % max(1, self._threshold // PROGRESS_LINES) == 0:
            logger.info("%d of %d groups of %s for the next file.", self._in_part, self._threshold, self._kind)

    def flush(self) -> None:
        """Give the current part its final name; does nothing when there is none. Reports a disk that refuses."""
        if self._part is None:
            return
        part, self._part = self._part, None
        count, self._in_part = self._in_part, 0
        final = self._final_path()
        self.batch += 1
        try:
            # In this order, so that a part without a writer that holds it is never there.
            with part:
                Path(part.name).replace(final)
        except OSError as error:
            logger.error("Cannot finish %s with %d groups of %s: %s", final, count, self._kind, error)
            return
        logger.info("Wrote %d groups of %s to %s.", count, self._kind, final)
        self.files.append(final)

    def close(self) -> None:
        """Flush what is pending and report what could not be written. Raises nothing."""
        self.flush()
        if self.groups_dropped:
            logger.error("%d groups of %s could not be written.", self.groups_dropped, self._kind)

    def _append(self, data: bytes) -> None:
        if self._part is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._part = self._part_path().open("ab", buffering=0)
            hold(self._part)
        start = os.fstat(self._part.fileno()).st_size
        try:
            if self._part.write(data) != len(data):
                raise OSError("the disk took only part of a line")
        except OSError:
            os.ftruncate(self._part.fileno(), start)
            raise

    def _final_path(self) -> Path:
        return self._directory / f"{self._prefix}_{self.batch:04d}.jsonl"

    def _part_path(self) -> Path:
        return self._directory / f"{self._prefix}_{self.batch:04d}.jsonl{PART_SUFFIX}"


def group_record(group: RolloutGroup, version: str) -> dict[str, Any]:
    """One dump line. `item_id` and `rollouts[].{conversation, score}` are the format others read."""
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
    }


def _rollout_record(messages: list[dict[str, str]], rollout: Rollout) -> dict[str, Any]:
    completion, score = rollout.completion, rollout.score
    return {
        "conversation": [*messages, {"role": "assistant", "content": completion.text}],
        "score": rollout.reward,
        "raw_score": score.value,
        "native_score": score.native,
        "outcome": score.outcome.value,
        "format_failure": score.failure.value if score.failure else None,
        "answer": score.answer,
        "finish_reason": completion.finish_reason,
        "num_tokens": completion.num_tokens,
        "num_completion_tokens": completion.num_completion_tokens,
        "mask_reason": rollout.mask_reason,
    }


def plain(value: Any) -> Any:
    """The value as plain JSON data; configs hold tuples, other keys than strings, dates, infinities."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (str, int, float)):
        return value
    return str(value)
