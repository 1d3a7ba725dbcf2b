"""A grading worker: a clean interpreter that imports reasoning-gym once and forks a child for each group.

The worker never reads an answer. It imports and guards the verifiers, imports the modules that they would import late,
and confines itself (worker.py). A rehearsal then proves that a confined child can still score.

The child confines itself, then grades the answers in order and reports each with one record. The worker accepts a
record only for the current answer. It kills a child that hangs, dies or writes anything else. The current answer gets
that verdict, and a new child grades the next answer.

Each answer has a child of its own if the verifier may run it as code: if no guard covers the verifier, or if the
verifier is the user's, because the scan for such code does not see everything.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pkgutil
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..records import Outcome, Verdict
from ..tasks import reasoning_gym_source as library
from ..tasks.catalog import is_of_library
from ..verification.entries import task_of
from ..verification.forms import FORMS
from ..verification.grade import UnreadableItemError, check_for, grade
from .confinement import RESULT_FD, ChildConfinement, Layers, MemoryMeter
from .datasets import DatasetCache
from .protocol import RECORD_SIZE, ProtocolError, pack_record, unpack_record
from .worker import Start, Work, run

WALL_FACTOR = 4.0
"""The limit of elapsed time for an answer, as a multiple of its limit of processor time."""
LEAST_WALL_S = 2.0
"""The least limit of elapsed time: on a busy machine, a child may wait for a processor."""
TURN_S = 0.5
"""The length of a turn. A turn with a single answer may take longer."""
LOOK_AGAIN_S = 0.001
"""The shortest wait for a child between two checks of its deadline."""
UNDISTURBED_S = 0.02
"""The worker does not run for this time after a fork, unless the child ends: its writes would copy shared pages."""
EXIT_ALLOWANCE_S = 0.2
"""A child that has closed its pipe may run for this time. If it ends by then, its exit status explains why."""
_SETUP_FAILED = 3
_SYMPY_PACKAGES = (
    "assumptions",
    "concrete",
    "discrete",
    "integrals",
    "logic",
    "matrices",
    "ntheory",
    "polys",
    "series",
    "sets",
    "simplify",
    "tensor.array",
)
"""Packages of sympy that import their modules only when an expression needs them."""
_COMMON_NOTATIONS = (
    "12",
    "-0.5",
    "**a b c**",
    "[[1, 2], [3, 4]]",
    "1 2\n3 4",
    "x**2 + 3*x",
    r"$\frac{1}{2}$",
    "A is a knight, and B is a knave.",
)

GradeAnswer = Callable[[str], Verdict]


@dataclass(frozen=True)
class GradingStart(Start):
    """The first message. With `strict`, the forms and validators decide whether an answer is right.

    A task whose verifier evaluates text without a guard is refused, unless `allow_unguarded` names it.
    """

    allow_unguarded: frozenset[str] = frozenset()
    strict: bool = False
    needs_native: bool = True
    """With `strict`, whether reasoning-gym's own verifier runs too."""


@dataclass(frozen=True)
class GroupRequest:
    """One group to grade.

    `timeout_s` is the deadline of each answer. The worker grades no further answer once it has worked for TURN_S, so
    the reply may have fewer verdicts than answers.
    """

    task: str
    config: Mapping[str, Any]
    entry: dict[str, Any]
    answers: tuple[str, ...]
    timeout_s: float


def main(parent: int) -> None:
    """Serve until standard input ends. Started by pool.py."""
    run(parent, GradingWork)


class GradingWork(Work):
    """Grades the answers of each request."""

    def __init__(self, start: GradingStart) -> None:
        # The guards replace functions of modules that are imported only now.
        from ..verification import eval_guards

        self._start = start
        self._unguarded = eval_guards.install()
        self._own = {task for task in library.registry() if not is_of_library(task)}
        _import_all_of_sympy()
        _warm_up()
        self._datasets = DatasetCache()

    def confined(self, layers: Layers, memory: MemoryMeter) -> None:
        self._child = ChildConfinement(layers, memory)
        _rehearse(self._child)

    def reply(self, request: GroupRequest) -> bytes:
        tasks = tasks_within(request.task, request.config)
        refused = sorted(tasks & self._unguarded.keys() - self._start.allow_unguarded)
        if refused:
            name = refused[0]
            failure = f"{name} is not scored: {self._unguarded[name]}. Allow it by name if you trust the sandbox alone."
            return json.dumps({"failure": failure}).encode()
        source = task_of(request.task, request.entry)
        if source not in tasks:
            raise ValueError(f"expected an item of {', '.join(sorted(tasks))}, got an item of {source:.100}")
        is_isolated = not tasks.isdisjoint(self._own | self._unguarded.keys())
        verdicts = _verdicts(request, self._grade_answer(request), self._child, is_isolated=is_isolated)
        reply = {"verdicts": [asdict(verdict) for verdict in verdicts], "is_isolated": is_isolated}
        return json.dumps(reply).encode()

    def unanswered(self, reason: str) -> bytes:
        return json.dumps({"unscored": reason}).encode()

    def _grade_answer(self, request: GroupRequest) -> GradeAnswer:
        """The function that grades an answer of the group."""
        # Scoring uses neither seed nor size. The seed keeps the constructor from drawing a random seed.
        dataset = self._datasets.dataset(request.task, {"seed": 0, "size": 1, **request.config})
        check = check_for(request.task, request.entry) if self._start.strict else None

        def grade_answer(answer: str) -> Verdict:
            try:
                return grade(dataset.score_answer, request.entry, answer, check, needs_native=self._start.needs_native)
            except UnreadableItemError as error:
                return Verdict(0.0, Outcome.CRASHED, detail=str(error))
            except MemoryError:
                return Verdict(0.0, Outcome.MEMORY, detail="the verifier ran out of memory")

        return grade_answer


def tasks_within(task: str, config: Mapping[str, Any]) -> set[str]:
    """`task` and, where its config lists datasets (reasoning-gym's `composite`), the tasks of these datasets."""
    names = {task}
    parts = config.get("datasets")
    # A user's own config may have a field of this name with any value.
    for part in parts if isinstance(parts, Sequence) else ():
        fields = part if isinstance(part, Mapping) else getattr(part, "__dict__", {})
        name = str(fields.get("name"))
        names |= tasks_within(name, fields.get("config") or {})
    return names


# --- one group ---


def _verdicts(
    request: GroupRequest, grade_answer: GradeAnswer, confinement: ChildConfinement, *, is_isolated: bool = False
) -> list[Verdict]:
    """A verdict for each answer, in order, until the turn is over."""
    verdicts: list[Verdict] = []
    turn_end_s = time.monotonic() + TURN_S
    while len(verdicts) < len(request.answers):
        left = request.answers[len(verdicts) :]
        with Child(left[:1] if is_isolated else left, grade_answer, confinement, request.timeout_s) as child:
            for verdict in child.verdicts():
                verdicts.append(verdict)
                if time.monotonic() > turn_end_s:
                    return verdicts
    return verdicts


class Child:
    """A forked child that grades answers of a group. The end of the block kills and reaps the child.

    The child shares the modules that its parent has loaded, and its changes to memory do not reach the parent.
    """

    def __init__(
        self, answers: Sequence[str], grade_answer: GradeAnswer, confinement: ChildConfinement, timeout_s: float
    ) -> None:
        self._timeout_s = timeout_s
        self._count = len(answers)
        self._results, writing = os.pipe()
        try:
            self._pid = os.fork()
        except OSError:
            # The machine is out of processes or memory, which is no fault of the group. The pool tries again.
            os._exit(1)
        if self._pid == 0:
            code = _SETUP_FAILED
            try:
                confinement.enter(writing)
                code = 1
                for answer in answers:
                    os.write(RESULT_FD, pack_record(grade_answer(answer)))
                code = 0
            finally:
                os._exit(code)
        os.close(writing)
        self._status: int | None = None
        # Without events, poll waits only for the end of the pipe.
        self._poll = select.poll()
        self._poll.register(self._results, 0)
        self._poll.poll(UNDISTURBED_S * 1000.0)
        self._poll.modify(self._results, select.POLLIN)

    def verdicts(self) -> Iterator[Verdict]:
        """The verdicts in order. If the child ends early, its last verdict says why, and later answers have none."""
        pending = b""
        try:
            for _ in range(self._count):
                self._allow_time()
                while len(pending) < RECORD_SIZE:
                    pending += self._read()
                yield unpack_record(pending[:RECORD_SIZE])
                pending = pending[RECORD_SIZE:]
        except EOFError:
            yield _describe_end(self._reap(EXIT_ALLOWANCE_S))
        except TimeoutError:
            yield Verdict(0.0, Outcome.TIMEOUT, detail=f"no verdict within {self._timeout_s:g} s")
        except ProtocolError as error:
            yield Verdict(0.0, Outcome.CRASHED, detail=f"the child forged a record: {error}")

    def _allow_time(self) -> None:
        """Give the child `timeout_s` of processor time from now, and WALL_FACTOR times as much elapsed time.

        Processor time does not grow with the machine's load, so a busy machine causes no timeouts.
        """
        self._processor_end_s = self._processor_s() + self._timeout_s
        self._wall_end_s = time.monotonic() + max(self._timeout_s * WALL_FACTOR, LEAST_WALL_S)

    def _read(self) -> bytes:
        """The bytes that the child has written. Raises EOFError if the pipe is closed, TimeoutError at the deadline."""
        while True:
            left_s = min(self._processor_end_s - self._processor_s(), self._wall_end_s - time.monotonic())
            if self._poll.poll(max(left_s, LOOK_AGAIN_S) * 1000.0):
                data = os.read(self._results, 1 << 16)
                if not data:
                    raise EOFError
                return data
            if left_s <= 0:
                raise TimeoutError

    def _processor_s(self) -> float:
        """The processor time that the child has used, or the clock's time where this is unknown, as on macOS."""
        try:
            # On Linux, clock_getcpuclockid(3) computes the number of a process's clock like this.
            return time.clock_gettime(~self._pid << 3 | 2)
        except OSError:
            return time.monotonic()

    def _reap(self, patience_s: float = 0.0) -> int:
        """The wait status of the child. Kills the child after `patience_s`. Later calls return the same status."""
        if self._status is None:
            os.close(self._results)
            deadline = time.monotonic() + patience_s
            while self._status is None:
                pid, status = os.waitpid(self._pid, os.WNOHANG)
                if pid:
                    self._status = status
                elif time.monotonic() >= deadline:
                    os.kill(self._pid, signal.SIGKILL)
                    self._status = os.waitpid(self._pid, 0)[1]
                else:
                    time.sleep(LOOK_AGAIN_S)
        return self._status

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._reap()


def _describe_end(status: int) -> Verdict:
    """The verdict on the answer during which a child ended with this wait status."""
    if not os.WIFSIGNALED(status):
        code = os.waitstatus_to_exitcode(status)
        reason = "it could not be confined" if code == _SETUP_FAILED else f"it exited with {code}"
        return Verdict(0.0, Outcome.CRASHED, detail=f"the verifier's process ended early: {reason}")
    number = os.WTERMSIG(status)
    detail = f"the verifier's process died of signal {number} ({signal.strsignal(number)})"
    if number == signal.SIGSYS:
        detail = "the verifier made a forbidden system call"
    return Verdict(0.0, Outcome.CRASHED, detail=detail)


# --- start ---


def _rehearse(confinement: ChildConfinement) -> None:
    """Raise RuntimeError unless a confined child scores a right and a wrong answer."""

    def grade_answer(answer: str) -> Verdict:
        return Verdict(_equivalent(answer, {"answer": "x*(x+1)"}))

    with Child(("x**2+x", "x**2"), grade_answer, confinement, timeout_s=30.0) as child:
        graded = list(child.verdicts())
    if [verdict.value for verdict in graded] != [1.0, 0.0]:
        failures = "; ".join(verdict.detail or f"score {verdict.value}" for verdict in graded)
        raise RuntimeError(f"a confined child cannot score: {failures}")


def _import_all_of_sympy() -> None:
    """Import all that simplification may need. A child cannot import modules, so a right integral would score 0."""
    for name in _SYMPY_PACKAGES:
        package = importlib.import_module(f"sympy.{name}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            # The modules of documentation compute for a second when they are imported.
            is_documentation = module.name.endswith("_doc")
            if not is_documentation and not {"tests", "benchmarks"} & set(module.name.split(".")):
                # Some modules need a package that is not installed. sympy works without these modules.
                with contextlib.suppress(ImportError):
                    importlib.import_module(module.name)
    # This call also loads sympy's units, and fills the caches that every child inherits.
    _equivalent("sin(x)**2+cos(x)**2+exp(x)+x**3/5", {"answer": "Abs(x)"})


def _warm_up() -> None:
    """Grade texts of this module with each form, so that the children inherit Python's optimised code and caches.

    Otherwise each child would optimise the code again, and copy the pages with the code.
    """
    for check in FORMS.values():
        for text in _COMMON_NOTATIONS:
            entry = {"question": "", "answer": text, "metadata": {}}
            # Some forms need more of an item than this.
            with contextlib.suppress(UnreadableItemError):
                grade(lambda answer, entry: 0.0, entry, text, check)


def _equivalent(answer: str, entry: dict[str, Any]) -> float:
    """A verifier for the rehearsal. It takes a derivative and simplifies, like the most expensive verifiers."""
    import sympy

    x = sympy.Symbol("x")
    left = sympy.diff(sympy.parse_expr(answer), x)
    right = sympy.diff(sympy.parse_expr(entry["answer"]), x)
    return float(sympy.simplify(left - right) == 0)
