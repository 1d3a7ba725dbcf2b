"""Grades answers in worker processes that a hostile answer cannot leave, slow down or deceive.

    SandboxGrader ── a pool of ──> WorkerProcess ── socket ──> grading_worker.py ── fork per group ──> child

A worker grades one group at a time. If the worker dies, another worker grades the group again. If that worker dies too,
the answers get the status CRASHED, which means that they are not scored, and the log names the task.

A child for each group costs more than grading an answer. Calls with the same problem that wait for a worker therefore
become one group, and the grader remembers the verdicts on recent answers. Equal answers of a group are graded once.

The worker enforces the deadline of every answer. This module has a longer limit for a worker that sends no reply.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import pickle
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ..errors import EnvironmentSetupError
from ..records import Verdict, VerdictStatus
from ..utils.resilience import RepeatedEvents
from ..verification import eval_guards
from .grading_worker import WALL_FACTOR, GradingStart, GroupRequest, Sandbox
from .pool import Request, WorkerDiedError, WorkerPool, WorkerProcess
from .protocol import Imports

logger = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 2.0
"""The limit of processor time to grade an answer, in seconds. In training, an answer that takes longer is unscored."""
MAX_ANSWER_CHARS = 1_000_000
"""A longer answer does not reach a verifier. It counts as wrong."""
GROUP_ALLOWANCE_S = 60.0
ANSWER_ALLOWANCE_S = 5.0
"""The time that a worker may need in addition to the deadlines of its answers: for the group, and for each answer. A
worker that sends no reply within this time is killed."""
MAX_SHARED_ANSWERS = 16
"""Calls do not become one group if it would have more answers. An answer that takes long delays those after it."""
MAX_REMEMBERED = 10_000
"""The number of verdicts that the grader remembers."""
_HINT = "; `sandbox: off` shows whether the sandbox is the cause"
_CHEAP_TO_FORK = {"PYTHONMALLOC": "malloc", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""Environment variables that make a fork cheap. With them, glibc allocates all memory, on huge pages if the kernel has
them. A fork copies the page table, and each page that the child touches causes a page fault. With small pages, both
together take longer than grading most groups. With another C library, these variables have little or no effect."""


class SandboxGrader:
    """Grades a group's answers on one of `num_workers` processes; `timeout_s` is the deadline of each answer.

    With `has_spare`, one more process starts once all have been busy for a second.
    `sandbox`: "auto" uses the layers that the machine offers, "require" refuses to start without a filter of system
    calls, "off" uses only the guards and the deadline. The workers import `task_modules`. The grader refuses a task
    whose verifier evaluates text without a guard. If `allow_unguarded` names the task, the grader accepts it, and
    grades every answer in a separate process. With `strict`, the forms and validators decide whether an answer is
    right.
    """

    def __init__(
        self,
        *,
        num_workers: int,
        has_spare: bool = False,
        timeout_s: float = ANSWER_TIMEOUT_S,
        sandbox: Sandbox = "auto",
        task_modules: Sequence[str] = (),
        allow_unguarded: Collection[str] = (),
        strict: bool = False,
    ) -> None:
        self._timeout_s = timeout_s
        self._sandbox = sandbox
        imports = Imports.as_here(task_modules)
        start = GradingStart(sandbox, imports, frozenset(allow_unguarded), strict)
        self._num_workers = num_workers
        self._counts: Counter[str] = Counter()
        self._pool = WorkerPool(
            lambda: WorkerProcess("grading_worker", "A scoring worker", start, _HINT, **_CHEAP_TO_FORK),
            num_workers,
            self._counts,
            logger,
            has_spare=has_spare,
        )
        self._waiting: dict[bytes, _Group] = {}
        """The group of each problem that calls can still join."""
        self._remembered: dict[bytes, Verdict] = {}
        """Verdicts by problem and answer, the oldest first."""
        self._verifier_errors = RepeatedEvents(logger)

    async def start(self) -> None:
        """Start all workers in parallel. Raises EnvironmentSetupError if a worker cannot start."""
        await self._pool.start()
        if self._sandbox == "off":
            logger.warning("The scoring sandbox is OFF: a verifier runs with this user's rights.")
        logger.info("Scoring sandbox: %s", self.describe())

    def describe(self) -> str:
        """The protections in use, as one line for the log."""
        count = self._num_workers
        workers = "scoring worker" if count == 1 else "scoring workers"
        layers = self._pool.workers[0].ready["layers"]
        return (
            f"{count} {workers}, sandbox {self._sandbox}: {len(eval_guards.GUARDS)} guarded verifiers, "
            f"{self._timeout_s:g} s deadline per answer, {layers}"
        )

    async def grade(
        self, task: str, config: Mapping[str, Any], entry: dict[str, Any], answers: Sequence[str]
    ) -> list[Verdict]:
        """One verdict per answer, in order. No answer can make this fail.

        All verdicts have the status CRASHED, which means that the answers are not scored, if reasoning-gym cannot build
        a dataset from the config, or if the group kills its workers. Raises EnvironmentSetupError if the task is
        refused, PoolClosedError once the workers are closed, and an exception of pickle if `config` or `entry` cannot
        be pickled.
        """
        # Equal bytes are equal problems with equal types, which decide some verdicts.
        problem = hashlib.blake2b(pickle.dumps((task, dict(config), entry))).digest()
        verdicts: dict[str, Verdict] = {}
        waiting = []
        for answer in dict.fromkeys(answers):
            remembered = self._remembered.get(_key(problem, answer))
            if remembered:
                verdicts[answer] = remembered
            elif len(answer) <= MAX_ANSWER_CHARS:
                waiting.append(answer)
            else:
                detail = f"expected at most {MAX_ANSWER_CHARS} characters, got {len(answer)}"
                verdicts[answer] = Verdict(0.0, detail=detail)
        if waiting:
            request = GroupRequest(task, dict(config), entry, tuple(waiting), self._timeout_s)
            try:
                graded = await self._grade_shared(problem, request)
            except (WorkerDiedError, TimeoutError) as error:
                graded = self._unscored(task, waiting, str(error))
            for answer in waiting:
                verdicts[answer] = graded[answer]
                self._remember(_key(problem, answer), graded[answer])
        return self._count(task, [verdicts[answer] for answer in answers])

    def metrics(self) -> dict[str, float]:
        """Numbers of groups, answers, answers by status, and worker restarts since the start."""
        return {f"grading/{name}": float(count) for name, count in self._counts.items()}

    async def close(self) -> None:
        """Kill all workers, and wait until they have ended. Safe to call twice."""
        self._verifier_errors.summarise()
        await self._pool.close()

    async def _grade_shared(self, problem: bytes, request: GroupRequest) -> dict[str, Verdict]:
        """The verdicts on the answers of `request`, and perhaps of other calls. Raises the exceptions of `_grade`.

        If the workers die of a group of several calls, each call becomes a group of its own.
        """
        group = self._waiting.get(problem)
        if group is None or len(group.answers) + len(request.answers) > MAX_SHARED_ANSWERS:
            group = self._waiting[problem] = _Group(request)
            group.grading = asyncio.create_task(self._grade(problem, group))
        group.answers.update(dict.fromkeys(request.answers))
        group.calls += 1
        try:
            # Unlike an await of the task, this does not cancel the task for the other calls.
            await asyncio.wait([group.grading])
        except asyncio.CancelledError:
            group.cancelled_calls += 1
            if group.cancelled_calls == group.calls:
                self._end_joining(problem, group)
                group.grading.cancel()
            raise
        try:
            return group.grading.result()
        except (WorkerDiedError, TimeoutError):
            if group.calls == 1:
                raise
        return await self._grade(problem, _Group(request))

    async def _grade(self, problem: bytes, group: _Group) -> dict[str, Verdict]:
        """The verdict on each answer of a group, which calls can join until a worker is idle.

        Raises the exceptions of `WorkerPool.ask`, and EnvironmentSetupError.
        """
        task = group.request.task
        # Calls that are ready to run can join.
        await asyncio.sleep(0)
        reply = json.loads(await self._pool.ask(partial(self._prepare, problem, group), f"a {task} problem"))
        if "failure" in reply:
            raise EnvironmentSetupError(reply["failure"])
        if reason := reply.get("unscored"):
            return self._unscored(task, group.answers, reason)
        verdicts = {}
        for answer, fields in zip(group.answers, reply["verdicts"], strict=True):
            fields["status"] = VerdictStatus(fields["status"])
            verdicts[answer] = Verdict(**fields)
        return verdicts

    def _end_joining(self, problem: bytes, group: _Group) -> None:
        if self._waiting.get(problem) is group:
            del self._waiting[problem]

    def _prepare(self, problem: bytes, group: _Group) -> Request:
        """The request for a group, which no call can join any more."""
        self._end_joining(problem, group)
        request = replace(group.request, answers=tuple(group.answers))
        answer_limit_s = WALL_FACTOR * request.timeout_s + ANSWER_ALLOWANCE_S
        return Request(pickle.dumps(request), GROUP_ALLOWANCE_S + answer_limit_s * len(request.answers))

    def _unscored(self, task: str, answers: Collection[str], reason: str) -> dict[str, Verdict]:
        logger.error("%d answers to a %s problem could not be scored: %s.", len(answers), task, reason)
        self._counts["unscored_groups"] += 1
        return dict.fromkeys(answers, Verdict(0.0, VerdictStatus.CRASHED, detail=f"not scored: {reason}"))

    def _remember(self, key: bytes, verdict: Verdict) -> None:
        """Remember a score. Any other verdict may depend on the state of the machine."""
        if verdict.status is VerdictStatus.SCORED:
            self._remembered[key] = verdict
            if len(self._remembered) > MAX_REMEMBERED:
                del self._remembered[next(iter(self._remembered))]

    def _count(self, task: str, verdicts: list[Verdict]) -> list[Verdict]:
        self._counts["groups"] += 1
        self._counts["answers"] += len(verdicts)
        self._counts.update(verdict.status.value for verdict in verdicts)
        self._counts["recovered_answers"] += sum(verdict.value >= 1.0 > verdict.native for verdict in verdicts)
        self._counts["refused_answers"] += sum(verdict.native >= 1.0 > verdict.value for verdict in verdicts)
        for verdict in verdicts:
            if verdict.status is VerdictStatus.VERIFIER_ERROR:
                what = f"the verifier of {task} raised an error, so the answer scores 0"
                self._verifier_errors.note(task, what, verdict.detail)
        return verdicts


@dataclass
class _Group:
    """The answers of one or more calls to the same problem."""

    request: GroupRequest
    """The request of the first call."""
    answers: dict[str, None] = field(init=False)
    """The answers of all calls in order, without duplicates."""
    calls: int = 0
    cancelled_calls: int = 0
    grading: asyncio.Task[dict[str, Verdict]] = field(init=False)

    def __post_init__(self) -> None:
        self.answers = dict.fromkeys(self.request.answers)


def _key(problem: bytes, answer: str) -> bytes:
    """Distinct problems and answers have distinct keys, because the digest of a problem has a fixed length."""
    return hashlib.blake2b(problem + answer.encode("utf-8", "surrogatepass")).digest()
