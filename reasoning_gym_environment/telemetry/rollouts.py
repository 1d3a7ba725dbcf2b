"""Rollouts for other programs and for people: the dumps of a run, and its tables in wandb.

    group ──> a line of <final name>.part ──(enough groups, or the end of the run)──> <final name>

A file has its final name once it is complete. What a killed run left as a part is completed by the next start that
dumps to the folder. A group that the disk refuses is lost to the dumps, which is logged and counted. A disk that does
not answer holds up a group for PATIENCE_S; until it answers, further groups are lost to the dumps. Training goes on.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import wandb

from ..errors import EnvironmentSetupError
from ..records import Episode
from ..storage.append_log import AppendLog, free_name
from ..storage.group_lines import FAILED, FILE_STEM, PART_SUFFIX, ROLLOUTS, dump_record, scored_fields
from ..utils.aio import Background
from ..utils.outage_log import Outage

logger = logging.getLogger(__name__)

GROUPS_PER_FILE = {ROLLOUTS: 100, FAILED: 50}
PATIENCE_S = 2.0


@dataclass
class _Files:
    """The files of one kind: the one that is written, and counts, of which `batch` is its number."""

    kind: str
    part: AppendLog | None = None
    counts: Counter[str] = field(default_factory=Counter)


class RolloutDumps:
    """Writes groups of the wanted `kinds` to `folder`, as `{stem}_{kind}_{run_id}_{batch:04d}.jsonl`.

    A resumed run keeps the `run_id` of the earlier one.
    """

    def __init__(self, folder: Path, run_id: str, *, kinds: Iterable[str]) -> None:
        self.run_id = run_id
        self._folder = folder
        self._version = ""
        self._files = {kind: _Files(kind) for kind in kinds}
        # A call to a disk that hangs must not hold up the event loop, nor the end of the process.
        self._disk = Background("dumps")
        self._outage = Outage(logger, "The disk of the dumps", first_delay_s=0.0, max_delay_s=0.0)
        self._overdue: asyncio.Task[None] | None = None

    async def open(self, version: str) -> None:
        """Complete the parts of dead runs; `version` of reasoning-gym stands in every line."""
        self._version = version
        if self._files:
            await self._disk.submit(complete_parts, self._folder)

    async def add(self, group: Episode, kind: str) -> None:
        """Write a group; see above for a disk that refuses it or hangs."""
        if (files := self._files.get(kind)) is None:
            return
        if self._overdue is not None and not self._overdue.done():
            self._note_lost(files, "it does not answer")
            return
        writing = asyncio.ensure_future(self._write(files, group))
        await asyncio.wait([writing], timeout=PATIENCE_S)
        if not writing.done():
            self._overdue = writing
            self._outage.failed(f"no answer for {PATIENCE_S:g} s", "training goes on, and groups are not dumped")

    async def _write(self, files: _Files, group: Episode) -> None:
        try:
            await self._disk.submit(self._append, files, group)
        except (OSError, EnvironmentSetupError) as error:
            self._note_lost(files, str(error))
        else:
            self._outage.over()

    def _note_lost(self, files: _Files, why: str) -> None:
        files.counts["groups_dropped"] += 1
        self._outage.failed(why, f"groups of {files.kind} are lost to the dumps, and counted")

    async def close(self) -> None:
        """Give the last files their final names. Safe to call twice."""
        for files in self._files.values():
            await self._disk.submit(self._finish, files)
            if files.counts["groups_dropped"]:
                logger.error("%d groups of %s could not be written.", files.counts["groups_dropped"], files.kind)

    def metrics(self) -> dict[str, float]:
        """Groups written since the start of the run; those dropped or removed, and outages of the disk, if any.

        `removed` are groups that were written to a file that was removed or moved before it was complete.
        """
        values = self._outage.metrics("dumps/disk")
        for kind, files in self._files.items():
            values[f"dumps/{kind}_written"] = float(files.counts["groups_written"])
            for lost in ("removed", "dropped"):
                if count := files.counts[f"groups_{lost}"]:
                    values[f"dumps/{kind}_{lost}"] = float(count)
        return values

    def state_dict(self) -> dict[str, Any]:
        return {"run_id": self.run_id, "kinds": {kind: dict(files.counts) for kind, files in self._files.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue names and counts of an earlier run. Raises EnvironmentSetupError if the state is malformed."""
        try:
            if not re.fullmatch(r"[\w-]+", state["run_id"]):
                raise ValueError(state["run_id"])
            for kind in self._files.keys() & state["kinds"].keys():
                self._files[kind].counts = Counter({name: int(n) for name, n in state["kinds"][kind].items()})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise EnvironmentSetupError(f"The state of the dumps is malformed: {dict(state)!r:.200}.") from error
        self.run_id = state["run_id"]

    # --- in the thread that waits for the disk

    def _append(self, files: _Files, group: Episode) -> None:
        """Raises OSError, and EnvironmentSetupError if another run holds the file."""
        record = dump_record(group, self._version)
        try:
            files.part = files.part or self._next_part(files)
            files.part.append(record)
        except FileNotFoundError:
            if files.part is None:
                raise
            self._note_removed(files, files.part)
            files.part = self._next_part(files)
            files.part.append(record)
        files.counts["groups_written"] += 1
        if files.part.count >= GROUPS_PER_FILE[files.kind]:
            self._finish(files)

    def _next_part(self, files: _Files) -> AppendLog:
        """The part of the next batch whose final name is free: a run that is resumed may have left some."""
        while True:
            final = self._folder / f"{FILE_STEM}_{files.kind}_{self.run_id}_{files.counts['batch']:04d}.jsonl"
            if not final.exists():
                return AppendLog(final.with_name(final.name + PART_SUFFIX))
            files.counts["batch"] += 1

    def _finish(self, files: _Files) -> None:
        """Give the present part its final name, if there is one. Raises nothing."""
        if (part := files.part) is None:
            return
        files.part = None
        files.counts["batch"] += 1
        final = part.path.with_suffix("")
        try:
            part.close(final)
        except OSError as error:
            logger.error("%s keeps its name (%s): the next start that dumps here completes it.", part.path, error)
            return
        if final.exists():
            logger.info("Wrote %d groups of %s to %s.", part.count, files.kind, final)
        elif part.count:
            self._note_removed(files, part)

    def _note_removed(self, files: _Files, part: AppendLog) -> None:
        files.part = None
        files.counts["groups_removed"] += part.count
        logger.error("%s was removed or moved away with %d groups of %s.", part.path, part.count, files.kind)
        part.close()


def complete_parts(folder: Path) -> None:
    """Give the parts that dead runs left their final names, or free ones next to them, without a torn last line."""
    for part in sorted(folder.glob(f"{FILE_STEM}*{PART_SUFFIX}")):
        try:
            # The writer of an empty part may be about to lock it.
            if not part.stat().st_size or is_held(part) is not False:
                continue
            log = AppendLog(part)
            log.close(final := free_name(part.with_suffix("")))
            logger.warning("Completed %s: %d groups of a run that was killed.", final, log.count)
        except (OSError, EnvironmentSetupError) as error:
            logger.error("%s of an earlier run could not be completed: %s", part, error)


def is_held(part: Path) -> bool | None:
    """Whether a living run writes this part; None where the file system has no locks. Raises OSError."""
    with part.open("rb") as file:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return True if error.errno in (errno.EWOULDBLOCK, errno.EACCES) else None
    return False


# --- tables in wandb

COLUMNS = ["full_text", "score", "expected_answer", "task_name"]
CONVERSATIONS = "train/conversations"
ALL = -1
"""As a number of rollouts to keep of a group: every one."""


def table_rows(
    scored_data: Mapping[str, Any], *, decode: Callable[[list[int]], str], keep: int, expected_answer: Any, task: str
) -> list[tuple[str, float, str, str]]:
    """The first `keep` rollouts of a group (ALL: every one) as rows of `train/rollouts`."""
    count = None if keep == ALL else keep
    return [
        (decode(tokens), score, str(expected_answer), task)
        for tokens, score in zip(scored_data["tokens"][:count], scored_data["scores"][:count], strict=True)
    ]


def build_table(groups: list[list[tuple[str, float, str, str]]]) -> wandb.Table:
    """The table of the groups that were kept."""
    return wandb.Table(columns=COLUMNS, data=[list(row) for group in groups for row in group])


class ConversationLog:
    """The last groups' conversations as they were, for the wandb table `train/conversations`."""

    def __init__(self, groups: int, per_group: int) -> None:
        """Keep that many groups, and the first `per_group` rollouts of each (ALL: every one)."""
        self._groups: deque[list[dict[str, Any]]] = deque(maxlen=max(0, groups))
        self._per_group = None if per_group == ALL else per_group

    def observe(self, group: Episode) -> None:
        problem = group.problem
        about = {"task": problem.task, "category": problem.category, "level": problem.level}
        self._groups.append(
            [
                {
                    **about,
                    "question": problem.question,
                    "reply": rollout.completion.text,
                    "expected_answer": str(problem.entry.get("answer")),
                    **scored_fields(rollout.score, rollout.reward, rollout.credit),
                    "finish_reason": rollout.completion.finish_reason,
                    "completion_tokens": rollout.completion.num_completion_tokens,
                }
                for rollout in group.rollouts[: self._per_group]
            ]
        )

    def drain(self) -> dict[str, Any]:
        """The table since the last call, if there is anything in it."""
        rows = [row for group in self._groups for row in group]
        self._groups.clear()
        if not rows:
            return {}
        return {CONVERSATIONS: wandb.Table(columns=list(rows[0]), data=[list(row.values()) for row in rows])}
