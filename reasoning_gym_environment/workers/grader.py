"""Grades answers in worker processes that a hostile answer cannot leave, slow down or deceive.

    SandboxGrader ── a pool of ──> GradingWorker ── pipes ──> grading_worker.py ── fork per group ──> grading_child.py

A group goes to an idle worker, or to one whose groups all take long. If that worker dies, the answers without a
verdict are graded once more by another, which has no other group meanwhile; if that one dies too they are CRASHED,
which means not scored, and the group is reported. Equal answers of a group are graded once.

The worker holds every answer to its deadline by itself. The limits here are for a worker that does not answer at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ..errors import EnvironmentSetupError
from ..records import Status, Verdict
from ..tasks.reasoning_gym_source import Library
from ..utils.outage_log import RepeatedEvents
from ..verification import eval_guards
from . import GradingSettings, Sandbox
from .grading_child import WALL_FACTOR
from .pool import (
    START_ALLOWANCE_S,
    PoolClosedError,
    WorkerDiedError,
    WorkerEndedError,
    WorkerPool,
    WorkerProcess,
    wait_a_turn,
)
from .protocol import (
    GradingStart,
    GroupRequest,
    Imports,
    ProtocolError,
    Record,
    RecordKind,
    RecordReader,
    Withdrawal,
    pack_frame,
)

logger = logging.getLogger(__name__)

MAX_ANSWER_CHARS = 1_000_000
ATTEMPTS = 2
BUILD_ALLOWANCE_S = 60.0
SILENCE_ALLOWANCE_S = 5.0
"""How long beyond an answer's deadline a worker may stay silent before it counts as dead."""


_CHEAP_TO_FORK = {"PYTHONMALLOC": "malloc", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""All memory from glibc, on huge pages where the kernel has them: a fork copies the table of pages, and a child takes a
fault for each that it touches, which cost more than grading most groups. Elsewhere these say nothing, or little."""


class SandboxGrader:
    """An `AnswerGrader` over `num_workers` processes; `timeout_s` is the deadline of each answer.

    `sandbox`: "auto" uses what the machine offers, "require" refuses to start without system calls being
    filtered, "off" leaves only guard and deadline. `library_path` is the folder reasoning-gym is to be
    imported from (a checkout's root or the installed package); `task_modules` are imported as well.
    Tasks whose verifier evaluates text unguarded are refused, except those in `allow_unguarded`, of which
    every answer gets a process of its own. `strict` applies strict_checks.py to what the verifiers pay,
    `lossless` lets an answer without its harmless decoration count (`grade.normalize`).
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
        lossless: bool = False,
    ) -> None:
        if num_workers < 1:
            raise EnvironmentSetupError(f"num_workers must be at least 1, got {num_workers}")
        if not timeout_s > 0:
            raise EnvironmentSetupError(f"timeout_s must be positive, got {timeout_s}")
        self._timeout_s = timeout_s
        self._sandbox = sandbox
        self._allow_unguarded = frozenset(allow_unguarded)
        start = GradingStart(sandbox != "off", Imports.as_here(library_path, task_modules), strict, lossless)
        self._workers = [GradingWorker(start) for _ in range(num_workers)]
        self._counts: Counter[str] = Counter()
        self._pool = WorkerPool(self._workers, self._counts, logger)
        self._refusals = RepeatedEvents(logger)

    @classmethod
    def of(cls, settings: GradingSettings, found: Library) -> SandboxGrader:
        """As the settings say, with the reasoning-gym that was found."""
        return cls(
            num_workers=settings.num_workers,
            timeout_s=settings.scoring_timeout_s,
            sandbox=settings.sandbox,
            library_path=str(found.location),
            task_modules=settings.task_modules,
            allow_unguarded=settings.allow_unguarded_tasks,
            strict=settings.verification == "strict",
            lossless=settings.answer_normalization == "lossless",
        )

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
        for answer in answers:
            if len(answer) > MAX_ANSWER_CHARS:
                detail = f"expected at most {MAX_ANSWER_CHARS} characters, got {len(answer)}"
                verdicts[answer] = Verdict(0.0, Status.VERIFIER_ERROR, detail=detail)
        problem, deaths = "", 0
        while deaths < ATTEMPTS:
            waiting = tuple(answer for answer in dict.fromkeys(answers) if answer not in verdicts)
            if not waiting:
                break
            self._counts["regraded_groups"] += bool(problem)
            request = GroupRequest(task, dict(config), entry, waiting, self._timeout_s, isolate)
            try:
                await self._attempt(request, verdicts, alone=deaths > 0)
            except PoolClosedError:
                problem = "the grader is closed"
                break
            except WorkerEndedError as error:
                problem = str(error)
            except WorkerDiedError as error:
                problem, deaths = str(error), deaths + 1
                logger.warning("A scoring worker died on a %s problem: %s", task, problem)
        unscored = [answer for answer in dict.fromkeys(answers) if answer not in verdicts]
        for answer in unscored:
            verdicts[answer] = Verdict(0.0, Status.CRASHED, detail=f"not scored: {problem}")
        if unscored:
            logger.error("%d answers to a %s problem could not be scored: %s", len(unscored), task, problem)
            self._counts["unscored_groups"] += 1
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

    async def _attempt(self, request: GroupRequest, verdicts: dict[str, Verdict], *, alone: bool) -> None:
        """Grade on one worker, into `verdicts`. Raises PoolClosedError and WorkerDiedError."""

        def keep(record: Record) -> None:
            verdicts[request.answers[record.index]] = record.verdict
            self._counts["late_imports"] += record.late_import

        async with self._pool.worker(alone=alone) as worker:
            await worker.grade(request, keep)

    def _count(self, task: str, verdicts: list[Verdict]) -> list[Verdict]:
        self._counts["groups"] += 1
        self._counts["answers"] += len(verdicts)
        self._counts.update(verdict.status.value for verdict in verdicts)
        self._counts["recovered_answers"] += sum(verdict.value > verdict.native for verdict in verdicts)
        refused = [verdict for verdict in verdicts if verdict.value < verdict.native]
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


class _Group:
    """A group that a worker has. `finished` is the error that ended it, or None: it has all its verdicts."""

    def __init__(self, request: GroupRequest, on_verdict: Callable[[Record], None]) -> None:
        self._request = request
        self._on_verdict = on_verdict
        self._due = 0
        self.silent_s = 0.0
        self.is_built = False
        self.finished: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    @property
    def allowance_s(self) -> float:
        """How long its worker may say nothing of it now."""
        return WALL_FACTOR * self._request.timeout_s + SILENCE_ALLOWANCE_S if self.is_built else BUILD_ALLOWANCE_S

    def take(self, record: Record) -> None:
        """Raises ProtocolError for a verdict that is not due."""
        self.silent_s = 0.0
        self.is_built = True
        if record.kind is RecordKind.FAILED:
            self.end(EnvironmentSetupError(f"The dataset of {record.detail}. Scoring needs a valid config."))
        if record.kind is RecordKind.VERDICT:
            if record.index != self._due:
                raise ProtocolError(f"expected a verdict on answer {self._due}, got one on {record.index}")
            self._on_verdict(record)
            self._due += 1
            if self._due == len(self._request.answers):
                self.end(None)

    def end(self, error: Exception | None) -> None:
        if not self.finished.done():
            self.finished.set_result(error)


class GradingWorker(WorkerProcess):
    """Grades groups. Those that it has at a time are told apart by their numbers, which it never uses twice."""

    who = "A scoring worker"
    hint = "; `sandbox: off` shows whether the sandbox is the cause"
    at_once = 4

    def __init__(self, start: GradingStart) -> None:
        super().__init__("grading_worker", **_CHEAP_TO_FORK)
        self._start = start
        self._last = 0
        self._groups: dict[int, _Group] = {}
        self._ready: asyncio.Future[Exception | None]
        self._reading: asyncio.Task[None] | None = None
        self.description = ""
        self.is_confined = False
        self.unguarded: dict[str, str] = {}

    async def prepare(self) -> None:
        self._ready = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read())
        self.write(pack_frame(self._start))
        await asyncio.wait([self._ready], timeout=START_ALLOWANCE_S)
        if not self._ready.done():
            raise WorkerDiedError(f"it was silent for {START_ALLOWANCE_S:g} s")
        if (error := self._ready.result()) is not None:
            raise error

    async def grade(self, request: GroupRequest, on_verdict: Callable[[Record], None]) -> None:
        """Have one group graded. `on_verdict` gets each verdict's record, in order.

        Raises EnvironmentSetupError if the dataset cannot be built, what pickle raises if the request cannot be
        pickled, and WorkerDiedError, after which the verdicts seen so far hold and the process is ended. When this is
        cancelled, the worker goes on with its other groups.
        """
        number = self._last = self._last + 1
        request = dataclasses.replace(request, group=number)
        frame = pack_frame(request)
        group = self._groups[number] = _Group(request, on_verdict)
        try:
            self.write(frame)
            await self._finish(group)
        except asyncio.CancelledError:
            with contextlib.suppress(WorkerDiedError):
                self.write(pack_frame(Withdrawal(number)))
            raise
        except WorkerDiedError:
            self.end()
            raise
        finally:
            del self._groups[number]

    async def _finish(self, group: _Group) -> None:
        while not group.finished.done():
            # While the dataset of one is built, the others have to wait.
            holding_up = [other for other in self._groups.values() if other is group or not other.is_built]
            remaining = max(other.allowance_s - other.silent_s for other in holding_up)
            if remaining <= 0:
                raise WorkerDiedError(f"it was silent for {group.allowance_s:g} s")
            turn_s = await wait_a_turn(group.finished, remaining)
            if holding_up == [group] or not group.is_built:
                group.silent_s += turn_s
        if (error := group.finished.result()) is not None:
            raise error

    async def _read(self) -> None:
        """Hand each record to whom it concerns, and the end of the process to all."""
        reader = RecordReader()
        try:
            while True:
                for record in reader.feed(await self.read_some()):
                    self._take(record)
        except WorkerDiedError as error:
            end = error
        except ProtocolError as error:
            self.end()
            end = WorkerDiedError(str(error))
        if not self._ready.done():
            self._ready.set_result(end)
        for group in self._groups.values():
            group.end(end)

    def _take(self, record: Record) -> None:
        if not self._ready.done():
            self._take_start(record)
        elif record.group in self._groups:
            self._groups[record.group].take(record)
        elif not 0 < record.group <= self._last:
            raise ProtocolError(f"expected records of groups up to {self._last}, got {record.group}")

    def _take_start(self, record: Record) -> None:
        if record.kind is RecordKind.UNGUARDED:
            task, _, reason = record.detail.partition("\t")
            self.unguarded[task] = reason
        elif record.kind is RecordKind.READY:
            self.description, self.is_confined = record.detail, bool(record.group)
            self._ready.set_result(None)
        else:
            self._ready.set_result(WorkerDiedError(record.detail))
