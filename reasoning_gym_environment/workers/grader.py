"""Grades answers in worker processes that a hostile answer cannot leave, slow down or deceive.

    SandboxGrader ── a pool of ──> WorkerProcess ── socket ──> grading_worker.py ── fork per group ──> child

A child for each group costs more than grading an answer. Calls with the same problem that wait for a worker therefore
become one group, and the grader remembers the verdicts on recent answers. Equal answers of a group are graded once.

Groups take turns, so that a group with slow answers delays no other group for long. In a turn, a worker grades answers
for half a second. An answer that needs more than QUICK_S has a turn of its own, with the whole deadline, after the
other answers of its group. Such turns leave one of several workers free.

If a worker dies, another worker repeats the turn. If that worker dies too, each answer of the turn has a turn of its
own. An answer of which two workers die alone is CRASHED, which means that it is not scored, and the log
names the task.

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
from typing import Any

from ..errors import EnvironmentSetupError
from ..records import Outcome, Verdict
from ..utils.resilience import RepeatedEvents
from ..verification import eval_guards
from .grading_worker import WALL_FACTOR, GradingStart, GroupRequest
from .pool import Request, WorkerDiedError, WorkerPool, WorkerProcess
from .protocol import Imports
from .worker import Sandbox

logger = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 2.0
"""The limit of processor time to grade an answer, in seconds. In training, an answer that takes longer is unscored."""
QUICK_S = 0.1
"""The limit of processor time for an answer whose turn it shares with other answers."""
MAX_ANSWER_CHARS = 1_000_000
"""A longer answer does not reach a verifier. It counts as wrong."""
GROUP_ALLOWANCE_S = 60.0
ANSWER_ALLOWANCE_S = 5.0
"""The time that a worker may need in addition to the deadlines of its answers: for the group, and for each answer. A
worker that sends no reply within this time is killed."""
MAX_SHARED_ANSWERS = 16
"""Calls do not become one group if it would have more answers, because a call waits for the turns of its group."""
MAX_REMEMBERED = 10_000
"""The number of verdicts that the grader remembers."""
NOT_SCORED = "not scored: "
"""How the detail of a verdict on a whole group begins."""
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
    whose verifier evaluates text without a guard, unless `allow_unguarded` names it. The answers to such a task, and to
    a task of the user's own, are graded in separate processes, and their verdicts are not remembered. With `strict`,
    the forms and validators decide whether an answer is right, and reasoning-gym's own verifier runs only with
    `needs_native`, or for a task that has neither.
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
        needs_native: bool = True,
    ) -> None:
        self._timeout_s = timeout_s
        self._sandbox = sandbox
        imports = Imports.as_here(task_modules)
        start = GradingStart(sandbox, imports, frozenset(allow_unguarded), strict, needs_native)
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
        """Verdicts by the digest of problem and answer, the oldest first."""
        self._slow_turns = asyncio.Semaphore(max(1, num_workers - 1))
        self._faults = RepeatedEvents(logger)
        """Verifiers that raised an error, and answers that could not be scored, by task."""

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

        All verdicts are CRASHED, which means that the answers are not scored, if reasoning-gym cannot build
        a dataset from the config or cannot read the entry. Raises EnvironmentSetupError if the task is refused,
        PoolClosedError once the workers are closed, and an exception of pickle if `config` or `entry` cannot be
        pickled.
        """
        # Equal bytes are equal problems with equal types, which decide some verdicts.
        problem = hashlib.blake2b(pickle.dumps((task, dict(config), entry))).digest()
        verdicts: dict[str, Verdict] = {}
        for answer in answers:
            remembered = self._remembered.get(_key(problem, answer))
            if remembered:
                verdicts[answer] = remembered
            elif len(answer) > MAX_ANSWER_CHARS:
                detail = f"expected at most {MAX_ANSWER_CHARS} characters, got {len(answer)}"
                verdicts[answer] = Verdict(0.0, detail=detail)
        waiting = dict.fromkeys(answer for answer in answers if answer not in verdicts)
        if waiting:
            request = GroupRequest(task, dict(config), entry, tuple(waiting), self._timeout_s)
            verdicts |= await self._grade_shared(problem, request)
        return self._count(task, [verdicts[answer] for answer in answers])

    def metrics(self) -> dict[str, float]:
        """Numbers of groups, answers, answers by status, and worker restarts since the start."""
        return {f"grading/{name}": float(count) for name, count in self._counts.items()}

    async def close(self) -> None:
        """Kill all workers, and wait until they have ended. Safe to call twice."""
        self._faults.summarise()
        await self._pool.close()

    async def _grade_shared(self, problem: bytes, request: GroupRequest) -> dict[str, Verdict]:
        """The verdicts on the answers of `request`, which are graded together with those of other calls.

        Raises EnvironmentSetupError.
        """
        group = self._waiting.get(problem)
        if group is None or len(group.verdicts) + len(request.answers) > MAX_SHARED_ANSWERS:
            group = self._waiting[problem] = _Group(problem, request)
            group.grading = asyncio.create_task(self._grade(group))
        wanted = {answer: group.verdict_on(answer) for answer in request.answers}
        group.calls += 1
        try:
            # Unlike an await of the verdicts, this does not cancel them for the other calls.
            await asyncio.wait(wanted.values())
        finally:
            group.calls -= 1
            if not group.calls:
                self._end_joining(group)
                group.grading.cancel()
        return {answer: verdict.result() for answer, verdict in wanted.items()}

    async def _grade(self, group: _Group) -> None:
        """Take turns until each answer of the group has a verdict. Calls can join until the first turn begins."""
        # Calls that are ready to run can join.
        await asyncio.sleep(0)
        try:
            while group.quick():
                await self._take_turn(group, min(QUICK_S, self._timeout_s))
            for answer in group.slow:
                async with self._slow_turns:
                    await self._take_turn(group, self._timeout_s, answer)
        # Each call raises it.
        except Exception as error:  # noqa: BLE001
            self._end_joining(group)
            group.fail(error)

    async def _take_turn(self, group: _Group, timeout_s: float, slow: str | None = None) -> None:
        """Have a worker grade the answer `slow`, or the quick answers that the group has once a worker is idle.

        Raises EnvironmentSetupError.
        """
        task = group.request.task
        turn: list[str] = []

        def prepare() -> Request:
            self._end_joining(group)
            turn[:] = group.quick() if slow is None else [slow]
            request = replace(group.request, answers=tuple(turn), timeout_s=timeout_s)
            answer_limit_s = WALL_FACTOR * timeout_s + ANSWER_ALLOWANCE_S
            return Request(pickle.dumps(request), GROUP_ALLOWANCE_S + answer_limit_s * len(turn))

        try:
            reply = json.loads(await self._pool.ask(prepare, f"a {task} problem"))
        except (WorkerDiedError, TimeoutError) as error:
            if len(turn) > 1:
                group.slow += turn
                return
            reply = {"unscored": str(error)}
        if "failure" in reply:
            raise EnvironmentSetupError(reply["failure"])
        if "unscored" in reply:
            verdict = self._unscored(reply["unscored"])
            group.settle(dict.fromkeys(turn, verdict))
            return
        # There may be fewer verdicts than answers.
        for answer, fields in zip(turn, reply["verdicts"], strict=False):
            verdict = Verdict(**{**fields, "failure": fields["failure"] and Outcome(fields["failure"])})
            if verdict.failure is Outcome.TIMEOUT and timeout_s < self._timeout_s:
                group.slow.append(answer)
                continue
            group.settle({answer: verdict})
            # Any other verdict may depend on the state of the machine, or on code of an answer.
            if verdict.failure is None and not reply["is_isolated"]:
                self._remembered[_key(group.problem, answer)] = verdict
        while len(self._remembered) > MAX_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]

    def _end_joining(self, group: _Group) -> None:
        if self._waiting.get(group.problem) is group:
            del self._waiting[group.problem]

    def _unscored(self, reason: str) -> Verdict:
        self._counts["unscored_groups"] += 1
        return Verdict(0.0, Outcome.CRASHED, detail=f"{NOT_SCORED}{reason}")

    def _count(self, task: str, verdicts: list[Verdict]) -> list[Verdict]:
        self._counts["groups"] += 1
        self._counts["answers"] += len(verdicts)
        self._counts.update(verdict.failure or "scored" for verdict in verdicts)
        compared = [(verdict.value, verdict.native) for verdict in verdicts if verdict.native is not None]
        self._counts["recovered_answers"] += sum(value >= 1.0 > native for value, native in compared)
        self._counts["refused_answers"] += sum(native >= 1.0 > value for value, native in compared)
        for verdict in verdicts:
            if verdict.failure is Outcome.VERIFIER_ERROR:
                what = f"the verifier of {task} raised an error, so the answer scores 0"
                self._faults.note(f"verifier error {task}", what, verdict.detail)
        unscored = [verdict for verdict in verdicts if verdict.failure and not verdict.failure.is_scored]
        if unscored:
            what = f"{len(unscored)} answers to a {task} problem could not be scored"
            self._faults.note(f"unscored {task}", what, unscored[0].detail.removeprefix(NOT_SCORED))
        return verdicts


@dataclass
class _Group:
    """The answers of one or more calls to the same problem."""

    problem: bytes
    request: GroupRequest
    """The request of the first call."""
    verdicts: dict[str, asyncio.Future[Verdict]] = field(default_factory=dict)
    """By the answers of all calls, in order."""
    slow: list[str] = field(default_factory=list)
    """The answers that each have a turn of their own."""
    calls: int = 0
    """The calls that wait for a verdict."""
    grading: asyncio.Task[None] = field(init=False)

    def verdict_on(self, answer: str) -> asyncio.Future[Verdict]:
        """The verdict on an answer, which becomes part of the group."""
        if answer not in self.verdicts:
            self.verdicts[answer] = asyncio.get_running_loop().create_future()
        return self.verdicts[answer]

    def quick(self) -> list[str]:
        """The ungraded answers that can share a turn."""
        return [answer for answer, verdict in self.verdicts.items() if not verdict.done() and answer not in self.slow]

    def settle(self, verdicts: Mapping[str, Verdict]) -> None:
        for answer, verdict in verdicts.items():
            self.verdicts[answer].set_result(verdict)

    def fail(self, error: Exception) -> None:
        """Have all calls that wait for a verdict raise an error."""
        for verdict in self.verdicts.values():
            if not verdict.done():
                verdict.set_exception(error)
                # Python logs an exception that nobody reads, which happens after the cancellation of a call.
                verdict.exception()


def _key(problem: bytes, answer: str) -> bytes:
    """Distinct problems and answers have distinct keys, because the digest of a problem has a fixed length."""
    return hashlib.blake2b(problem + answer.encode("utf-8", "surrogatepass")).digest()
