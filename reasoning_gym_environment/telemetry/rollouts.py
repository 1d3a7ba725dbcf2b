"""Rollouts for other programs and for people: the dumps of a run, and its tables in wandb.

    group ──> a line of {stem}_{kind}_{run_id}_{batch:04d}.jsonl ──(it has enough groups)──> the next file

A group is on disk as soon as it is scored. A resumed run goes on in the file where it stopped. A group that the disk
refuses is lost to the dumps, which is logged and counted. A disk that does not answer holds up a group for PATIENCE_S;
until it answers, further groups are lost to the dumps. Training goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import wandb

from ..errors import EnvironmentSetupError
from ..records import Episode
from ..storage.json_lines import FAILED, FILE_STEM, ROLLOUTS, AppendLog, dump_record, rollout_record
from ..utils.resilience import Background, Outage

logger = logging.getLogger(__name__)

GROUPS_PER_FILE = {ROLLOUTS: 100, FAILED: 50}
PATIENCE_S = 2.0


class RolloutDumps:
    """Writes groups of the wanted `kinds` to `folder`; `version` of reasoning-gym stands in every line.

    A resumed run keeps the `run_id` of the earlier one.
    """

    def __init__(self, folder: Path, run_id: str, *, kinds: Iterable[str]) -> None:
        self.run_id = run_id
        self.version = ""
        self._folder = folder
        self._counts = {kind: Counter[str]() for kind in kinds}
        self._logs: dict[str, AppendLog] = {}
        # A call to a disk that hangs must not hold up the event loop, nor the end of the process.
        self._disk = Background("dumps")
        self._outage = Outage(logger, "The disk of the dumps", first_delay_s=0.0, max_delay_s=0.0)
        self._overdue: asyncio.Task[None] | None = None

    async def add(self, group: Episode, kind: str) -> None:
        """Write a group; see above for a disk that refuses it or hangs."""
        if kind not in self._counts:
            return
        if self._overdue is not None and not self._overdue.done():
            self._note_lost(kind, "it does not answer")
            return
        writing = asyncio.ensure_future(self._write(group, kind))
        await asyncio.wait([writing], timeout=PATIENCE_S)
        if not writing.done():
            self._overdue = writing
            self._outage.failed(f"no answer for {PATIENCE_S:g} s", "training goes on, and groups are not dumped")

    async def _write(self, group: Episode, kind: str) -> None:
        try:
            await self._disk.submit(self._append, group, kind)
        except (OSError, EnvironmentSetupError) as error:
            self._note_lost(kind, str(error))
        else:
            self._outage.over()

    def _note_lost(self, kind: str, why: str) -> None:
        self._counts[kind]["groups_dropped"] += 1
        self._outage.failed(why, f"groups of {kind} are lost to the dumps, and counted")

    async def close(self) -> None:
        """Release the files. Safe to call twice."""
        for kind, counts in self._counts.items():
            await self._disk.submit(self._close, kind)
            if lost := counts["groups_dropped"]:
                logger.warning("%d groups of %s could not be written: they are not in the dumps.", lost, kind)

    def metrics(self) -> dict[str, float]:
        """Groups written, removed and dropped since the start of the run; outages of the disk, if any.

        `removed` are groups that were written to a file that was removed or moved before the run had left it.
        """
        values = self._outage.metrics("dumps/disk")
        for kind, counts in self._counts.items():
            for what in ("written", "removed", "dropped"):
                values[f"dumps/{kind}_{what}"] = float(counts[f"groups_{what}"])
        return values

    def state_dict(self) -> dict[str, Any]:
        return {"run_id": self.run_id, "kinds": {kind: dict(counts) for kind, counts in self._counts.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue names and counts of an earlier run."""
        self.run_id = str(state["run_id"])
        for kind in self._counts.keys() & state["kinds"].keys():
            self._counts[kind] = Counter({name: int(n) for name, n in state["kinds"][kind].items()})

    # --- in the thread that waits for the disk

    def _append(self, group: Episode, kind: str) -> None:
        """Raises OSError, and EnvironmentSetupError if another run holds the file."""
        record = dump_record(group, self.version)
        log = self._logs.get(kind) or self._open(kind)
        try:
            log.append(record)
        except FileNotFoundError:
            self._close(kind)
            log = self._open(kind)
            log.append(record)
        self._counts[kind]["groups_written"] += 1
        if log.count >= GROUPS_PER_FILE[kind]:
            self._close(kind)

    def _open(self, kind: str) -> AppendLog:
        """The first file that is not full: a run that is resumed may have left some."""
        while True:
            name = f"{FILE_STEM}_{kind}_{self.run_id}_{self._counts[kind]['batch']:04d}.jsonl"
            log = AppendLog(self._folder / name)
            if log.count < GROUPS_PER_FILE[kind]:
                self._logs[kind] = log
                return log
            log.close()
            self._counts[kind]["batch"] += 1

    def _close(self, kind: str) -> None:
        if log := self._logs.pop(kind, None):
            if log.path.exists():
                logger.info("Wrote %d groups of %s to %s.", log.count, kind, log.path)
            elif log.count:
                self._counts[kind]["groups_removed"] += log.count
                logger.error("%s was removed or moved away with %d groups of %s.", log.path, log.count, kind)
            try:
                log.close()
            except OSError as error:
                logger.error("%s may have lost groups: %s.", log.path, error)


# --- tables in wandb

COLUMNS = ["full_text", "score", "expected_answer", "task_name"]
ALL = -1
"""As a number of rollouts to keep of a group: every one."""


def table_rows(
    scored_data: Mapping[str, Any], *, decode: Callable[[list[int]], str], keep: int, expected_answer: Any, task: str
) -> list[tuple[str, float, str, str]]:
    """The first `keep` rollouts of a group (ALL: every one) as rows of `train/rollouts`."""
    count = None if keep == ALL else keep
    rows = zip(scored_data["tokens"][:count], scored_data["scores"][:count], strict=True)
    return [(decode(tokens), score, str(expected_answer), task) for tokens, score in rows]


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
        problem, rows = group.problem, []
        about = {"task": problem.task, "category": problem.category, "level": problem.level}
        for rollout in group.rollouts[: self._per_group]:
            record = rollout_record(group.messages, rollout)
            texts = {"question": problem.question, "reply": record.pop("conversation")[-1]["content"]}
            rows.append({**about, **texts, "expected_answer": str(problem.entry.get("answer")), **record})
        self._groups.append(rows)

    def drain(self) -> dict[str, Any]:
        """The table since the last call, if there is anything in it."""
        rows = [row for group in self._groups for row in group]
        self._groups.clear()
        if not rows:
            return {}
        return {"train/conversations": wandb.Table(columns=list(rows[0]), data=[list(row.values()) for row in rows])}
