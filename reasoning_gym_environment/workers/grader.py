"""Grades answers in worker processes that a hostile answer cannot leave, slow down or deceive.

    SandboxGrader ── a pool of ──> GradingWorker ── socket ──> grading_worker.py ── fork per group ──> child

A group has a worker to itself. If that worker dies, another one grades the group once more; if that one dies too, the
answers are CRASHED, which means not scored, and the group is logged. Equal answers of a group are graded once.

The worker holds every answer to its deadline by itself. The limit here is for a worker that does not answer at all.
"""

from __future__ import annotations

import logging
from asyncio import StreamReader
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ..errors import EnvironmentSetupError
from ..records import Status, Verdict
from ..utils.outage_log import RepeatedEvents
from ..verification import eval_guards
from . import Sandbox
from .grading_worker import WALL_FACTOR
from .pool import START_ALLOWANCE_S, PoolClosedError, WorkerDiedError, WorkerPool, WorkerProcess
from .protocol import (
    RECORD_SIZE,
    GradingStart,
    GroupRequest,
    Imports,
    ProtocolError,
    Record,
    RecordKind,
    pack_frame,
    unpack_record,
)

logger = logging.getLogger(__name__)

MAX_ANSWER_CHARS = 1_000_000
ATTEMPTS = 2
GROUP_ALLOWANCE_S, ANSWER_ALLOWANCE_S = 60.0, 5.0
"""How long beyond its answers' deadlines a worker may take for a group before it counts as dead."""


_CHEAP_TO_FORK = {"PYTHONMALLOC": "malloc", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""All memory from glibc, on huge pages where the kernel has them: a fork copies the table of pages, and a child takes a
fault for each that it touches, which cost more than grading most groups. Elsewhere these say nothing, or little."""


class SandboxGrader:
    """An `AnswerGrader` over `num_workers` processes; `timeout_s` is the deadline of each answer.

    `sandbox`: "auto" uses what the machine offers, "require" refuses to start without system calls being
    filtered, "off" leaves only guard and deadline. `library_path` is the folder reasoning-gym is to be
    imported from (a checkout's root or the installed package); `task_modules` are imported as well.
    Tasks whose verifier evaluates text unguarded are refused, except those in `allow_unguarded`, of which
    every answer gets a process of its own. `strict`: answers are right or wrong by the forms and solvers.
    """

    def __init__(
        self,
        *,
        num_workers: int,
        timeout_s: float = 2.0,
        sandbox: Sandbox = "auto",
        library_path: str | None = None,
        task_modules: Sequence[str] = (),
        allow_unguarded: Collection[str] = (),
        strict: bool = False,
    ) -> None:
        if num_workers < 1:
            raise EnvironmentSetupError(f"num_workers must be at least 1, got {num_workers}")
        if not timeout_s > 0:
            raise EnvironmentSetupError(f"timeout_s must be positive, got {timeout_s}")
        self._timeout_s = timeout_s
        self._sandbox = sandbox
        self._allow_unguarded = frozenset(allow_unguarded)
        start = GradingStart(sandbox != "off", Imports.as_here(library_path, task_modules), strict)
        self._workers = [GradingWorker(start) for _ in range(num_workers)]
        self._counts: Counter[str] = Counter()
        self._pool = WorkerPool(self._workers, self._counts, logger)
        self._refusals = RepeatedEvents(logger)

    async def start(self) -> None:
        """Start every worker, in parallel. Raises EnvironmentSetupError if one cannot, or `require` fails."""
        await self._pool.start()
        if self._sandbox == "require" and not all(worker.is_confined for worker in self._workers):
            offered = self._workers[0].description
            await self.close()
            raise EnvironmentSetupError(
                "sandbox: require needs seccomp (Linux on x86-64 or arm64, permitted by the container), "
                f"got {offered}. Use sandbox: auto to run with less."
            )
        if self._sandbox == "off":
            logger.warning("The scoring sandbox is OFF: a verifier runs with this user's rights.")
        logger.info("Scoring sandbox: %s", self.describe())

    def describe(self) -> str:
        """One line on what protects this machine, for the setup log."""
        worker = self._workers[0]
        layers = worker.description or "not started"
        refused = sorted(set(worker.unguarded) - self._allow_unguarded)
        unguarded = f"; refused as unguarded: {', '.join(refused)}" if refused else ""
        count = len(self._workers)
        return (
            f"{count} scoring worker{'s' * (count != 1)}, sandbox {self._sandbox}: {layers} + "
            f"{len(eval_guards.GUARDS)} guarded verifiers + {self._timeout_s:g} s deadline per answer{unguarded}"
        )

    async def grade(
        self, task: str, config: Mapping[str, Any], entry: dict[str, Any], answers: Sequence[str]
    ) -> list[Verdict]:
        """One verdict per answer, in order, whatever the answers do.

        Raises EnvironmentSetupError for a task that is refused or a config no dataset can be built from,
        and what pickle raises if config or entry cannot be pickled.
        """
        isolate = self._refuse_or_isolate(task, config)
        verdicts: dict[str, Verdict] = {}
        waiting = []
        for answer in dict.fromkeys(answers):
            if len(answer) <= MAX_ANSWER_CHARS:
                waiting.append(answer)
            else:
                detail = f"expected at most {MAX_ANSWER_CHARS} characters, got {len(answer)}"
                verdicts[answer] = Verdict(0.0, Status.VERIFIER_ERROR, detail=detail)
        if waiting:
            request = GroupRequest(task, dict(config), entry, tuple(waiting), self._timeout_s, isolate)
            verdicts.update(zip(waiting, await self._grade(request), strict=True))
        return self._count(task, [verdicts[answer] for answer in answers])

    def metrics(self) -> dict[str, float]:
        """Groups, answers, answers per status, and what happened to workers, since the start."""
        return {f"grading/{name}": float(count) for name, count in self._counts.items()}

    async def close(self) -> None:
        """Kill every worker and wait for its end. Safe to call twice."""
        self._refusals.summarise()
        await self._pool.close()

    def _refuse_or_isolate(self, task: str, config: Mapping[str, Any]) -> bool:
        """Whether every answer needs a child of its own. Raises EnvironmentSetupError for a refused task."""
        unguarded = self._workers[0].unguarded
        parts = tasks_within(task, config) & set(unguarded)
        refused = sorted(parts - self._allow_unguarded)
        if refused:
            raise EnvironmentSetupError(
                f"{refused[0]} is not scored: {unguarded[refused[0]]}. Allow it by name if you trust what "
                "the sandbox alone can stop."
            )
        return bool(parts)

    async def _grade(self, request: GroupRequest) -> list[Verdict]:
        problem = ""
        for _ in range(ATTEMPTS):
            self._counts["regraded_groups"] += bool(problem)
            try:
                async with self._pool.worker() as worker:
                    records = await worker.grade(request)
            except PoolClosedError:
                problem = "the grader is closed"
                break
            except WorkerDiedError as error:
                problem = str(error)
                logger.warning("A scoring worker died on a %s problem: %s.", request.task, problem)
            else:
                return [record.verdict for record in records]
        count = len(request.answers)
        logger.error("%d answers to a %s problem could not be scored: %s.", count, request.task, problem)
        self._counts["unscored_groups"] += 1
        return [Verdict(0.0, Status.CRASHED, detail=f"not scored: {problem}")] * count

    def _count(self, task: str, verdicts: list[Verdict]) -> list[Verdict]:
        self._counts["groups"] += 1
        self._counts["answers"] += len(verdicts)
        self._counts.update(verdict.status.value for verdict in verdicts)
        self._counts["recovered_answers"] += sum(verdict.value >= 1.0 > verdict.native for verdict in verdicts)
        refused = [verdict for verdict in verdicts if verdict.native >= 1.0 > verdict.value]
        self._counts["refused_answers"] += len(refused)
        for verdict in refused:
            self._refusals.note(f"answers to {task} are refused by the stricter check", verdict.detail)
        return verdicts


def tasks_within(task: str, config: Mapping[str, Any]) -> set[str]:
    """`task` and, where its config lists datasets (reasoning-gym's `composite`), those too."""
    names = {task}
    for part in config.get("datasets") or ():
        name = part.get("name") if isinstance(part, Mapping) else getattr(part, "name", None)
        inner = part.get("config") if isinstance(part, Mapping) else getattr(part, "config", None)
        if isinstance(name, str):
            names |= tasks_within(name, inner or {})
    return names


class GradingWorker(WorkerProcess):
    """Grades one group at a time."""

    who = "A scoring worker"
    hint = "; `sandbox: off` shows whether the sandbox is the cause"

    def __init__(self, start: GradingStart) -> None:
        super().__init__("grading_worker", **_CHEAP_TO_FORK)
        self._start = start
        self.description = ""
        self.is_confined = False
        self.unguarded: dict[str, str] = {}

    async def prepare(self) -> None:
        async def read_start(reader: StreamReader) -> Record:
            while (record := await _read_record(reader)).kind is RecordKind.UNGUARDED:
                task, _, reason = record.verdict.detail.partition("\t")
                self.unguarded[task] = reason
            return record

        record = await self.ask(pack_frame(self._start), read_start, START_ALLOWANCE_S)
        if record.kind is not RecordKind.READY:
            raise WorkerDiedError(record.verdict.detail)
        self.description, self.is_confined = record.verdict.detail, bool(record.index)

    async def grade(self, request: GroupRequest) -> list[Record]:
        """One VERDICT record for each answer. Raises EnvironmentSetupError if the dataset cannot be built, what pickle
        raises if the request cannot be pickled, and WorkerDiedError.
        """
        frame = pack_frame(request)

        async def read_verdicts(reader: StreamReader) -> list[Record] | str:
            records: list[Record] = []
            while len(records) < len(request.answers):
                record = await _read_record(reader)
                if record.kind is RecordKind.FAILED:
                    return record.verdict.detail
                if record.kind is not RecordKind.VERDICT or record.index != len(records):
                    raise ProtocolError(f"expected a verdict on answer {len(records)}, got {record.kind.name}")
                records.append(record)
            return records

        answer_s = WALL_FACTOR * request.timeout_s + ANSWER_ALLOWANCE_S
        graded = await self.ask(frame, read_verdicts, GROUP_ALLOWANCE_S + answer_s * len(request.answers))
        if isinstance(graded, str):
            raise EnvironmentSetupError(f"The dataset of {graded}. Scoring needs a valid config.")
        return graded


async def _read_record(reader: StreamReader) -> Record:
    return unpack_record(await reader.readexactly(RECORD_SIZE))
