"""Grades answers in worker processes that a hostile answer cannot leave, slow down or deceive.

    SandboxGrader ── a pool of ──> WorkerProcess ── pipes ──> zygote ── fork per group ──> child

A group goes to an idle worker. If that worker dies, the answers without a verdict are graded once more by
another; if that one dies too they are CRASHED, which means not scored, and the group is reported. Equal
answers of a group are graded once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from ..errors import EnvironmentSetupError
from ..utils.outage_log import RepeatedEvents
from ..verification import eval_guards as guard
from ..verification.grade import Status, Verdict
from .child_process import WorkerDiedError
from .grader_process import WorkerProcess
from .grading_worker import Request, Start
from .imports import Imports
from .protocol import Record
from .revival import Revival

logger = logging.getLogger(__name__)

Sandbox = Literal["auto", "require", "off"]
MAX_ANSWER_CHARS = 1_000_000
ATTEMPTS = 2


class SandboxGrader:
    """An `AnswerGrader` over `num_workers` processes; `timeout_s` is the deadline of each answer.

    `sandbox`: "auto" uses what the machine offers, "require" refuses to start without system calls being
    filtered, "off" leaves only guard and deadline. `library_path` is the folder reasoning-gym is to be
    imported from (a checkout's root or the installed package); `task_modules` are imported as well.
    Tasks whose verifier evaluates text unguarded are refused, except those in `allow_unguarded`, of which
    every answer gets a process of its own. `strict` applies verifiers.py to what the verifiers pay, `lossless`
    lets an answer without its harmless decoration count (normalization.py).
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
        start = Start(sandbox != "off", Imports.as_here(library_path, task_modules), strict, lossless)
        self._workers = [WorkerProcess(start) for _ in range(num_workers)]
        self._idle: asyncio.LifoQueue[WorkerProcess] = asyncio.LifoQueue()
        self._revival = Revival(logger, "A scoring worker")
        self._revivals: set[asyncio.Task[None]] = set()
        self._counts: Counter[str] = Counter()
        self._refusals = RepeatedEvents(logger)
        self._is_closed = False

    async def start(self) -> None:
        """Start every worker, in parallel. Raises EnvironmentSetupError if one cannot, or `require` fails."""
        results = await asyncio.gather(*(worker.start() for worker in self._workers), return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            await self.close()
            raise failures[0]
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
        for worker in self._workers:
            self._idle.put_nowait(worker)

    def describe(self) -> str:
        """One line on what protects this machine, for the setup log."""
        worker = self._workers[0]
        layers = worker.description or "not started"
        refused = sorted(set(worker.unguarded) - self._allow_unguarded)
        unguarded = f"; refused as unguarded: {', '.join(refused)}" if refused else ""
        count = len(self._workers)
        return (
            f"{count} scoring worker{'s' * (count != 1)}, sandbox {self._sandbox}: {layers} + "
            f"{len(guard.GUARDS)} guarded verifiers + {self._timeout_s:g} s deadline per answer{unguarded}"
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
        waiting = [answer for answer in dict.fromkeys(answers) if answer not in verdicts]
        problem = "no worker was tried"
        for attempt in range(ATTEMPTS):
            if not waiting:
                break
            self._counts["regraded_groups"] += attempt > 0
            problem = await self._attempt(task, config, entry, waiting, isolate, verdicts)
            waiting = [answer for answer in waiting if answer not in verdicts]
        for answer in waiting:
            verdicts[answer] = Verdict(0.0, Status.CRASHED, detail=f"not scored: {problem}")
        if waiting:
            logger.error("%d answers to a %s problem could not be scored: %s", len(waiting), task, problem)
            self._counts["unscored_groups"] += 1
        return self._count(task, [verdicts[answer] for answer in answers])

    def metrics(self) -> dict[str, float]:
        """Groups, answers, answers per status, and what happened to workers, since the start."""
        return {f"grading/{name}": float(count) for name, count in self._counts.items()}

    async def close(self) -> None:
        """Kill every worker and wait for its end. Safe to call twice."""
        self._is_closed = True
        self._refusals.summarise()
        for revival in self._revivals:
            revival.cancel()
        await asyncio.gather(*self._revivals, return_exceptions=True)
        await asyncio.gather(*(worker.kill() for worker in self._workers))

    def _refuse_or_isolate(self, task: str, config: Mapping[str, Any]) -> bool:
        """Whether every answer needs a child of its own. Raises EnvironmentSetupError for a refused task."""
        unguarded = self._workers[0].unguarded
        parts = guard.components(task, config) & set(unguarded)
        refused = sorted(parts - self._allow_unguarded)
        if refused:
            raise EnvironmentSetupError(
                f"{refused[0]} is not scored: {unguarded[refused[0]]}. Allow it by name if you trust what "
                "the sandbox alone can stop."
            )
        return bool(parts)

    async def _attempt(
        self,
        task: str,
        config: Mapping[str, Any],
        entry: dict[str, Any],
        answers: list[str],
        isolate: bool,
        verdicts: dict[str, Verdict],
    ) -> str:
        """Grade `answers` on one worker, into `verdicts`. Returns what ended it, if they are not complete."""

        def make(group: int) -> Request:
            return Request(group, task, dict(config), entry, tuple(answers), self._timeout_s, isolate)

        def keep(record: Record) -> None:
            verdicts[answers[record.index]] = record.verdict
            self._counts["late_imports"] += record.late_import

        worker = await self._idle.get()
        try:
            if self._is_closed:
                return "the grader is closed"
            if not worker.is_running:
                await worker.start()
            await worker.grade(make, keep)
        except WorkerDiedError as error:
            logger.warning("A scoring worker died on a %s problem: %s", task, error)
            return str(error)
        except EnvironmentSetupError as error:
            if worker.is_running:
                raise
            return str(error)
        finally:
            self._give_back(worker)
        return ""

    def _give_back(self, worker: WorkerProcess) -> None:
        if worker.is_running or self._is_closed:
            self._idle.put_nowait(worker)
            return
        self._counts["worker_restarts"] += 1
        revival = asyncio.get_running_loop().create_task(self._revive(worker))
        self._revivals.add(revival)
        revival.add_done_callback(self._revivals.discard)

    async def _revive(self, worker: WorkerProcess) -> None:
        try:
            await self._revival.revive(worker.start)
        finally:
            self._idle.put_nowait(worker)

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
