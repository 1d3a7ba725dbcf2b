"""A grading worker: a clean interpreter that imports reasoning-gym once and forks a child for each group.

It is started with an empty environment, reads requests from its standard input and never looks into an answer. In
order: tie itself to the parent, move the protocol away from stdout, try out the kernel's layers, import and guard the
verifiers, warm up what they would import late, lock itself in, prove by a rehearsal that a locked-in child can still
score, and serve until the parent hangs up.

The child locks itself in, then grades answer after answer and reports each with one record. The worker accepts a record
only for the answer that is due. A child that hangs, dies or writes anything else is killed: the answer it was grading
gets that verdict, and a fresh child grades the next one.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import math
import os
import pkgutil
import select
import signal
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..records import Status, Verdict
from ..verification.grade import Verifier, check_for, grade
from . import confinement
from .confinement import RESULT_FD, ChildConfinement
from .datasets import DatasetCache
from .protocol import RECORD_SIZE, Channel, Imports, ProtocolError, pack_record, unpack_record

WALL_FACTOR = 4.0
"""How many times its deadline, which is of processor time, an answer may take by the clock."""
TURN_S, LOOK_AGAIN_S = 1.0, 0.001
"""The longest and the shortest wait for a child, between two looks at its clock."""
UNDISTURBED_S = 0.02
"""How long a new child is left alone, unless it ends sooner: a page that its parent writes to must be copied."""
EXIT_ALLOWANCE_S = 0.2
"""How long a child that has closed its pipe may take to end by itself, so that we learn how it ended."""
_SETUP_FAILED = 3
_SYSTEM_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
_SYMPY_PACKAGES = (
    *("assumptions", "concrete", "discrete", "integrals", "logic", "matrices", "ntheory", "polys", "series"),
    *("sets", "simplify", "tensor.array"),
)
"""Runtime of sympy that import their modules only when an expression needs them."""

GradeAnswer = Callable[[str], Verdict]


@dataclass(frozen=True)
class GradingStart:
    """The first message; `strict`: answers are right or wrong by the forms and solvers.

    Tasks whose verifier evaluates text unguarded are refused, except those in `allow_unguarded`.
    """

    confined: bool
    imports: Imports
    allow_unguarded: frozenset[str] = frozenset()
    strict: bool = False


@dataclass(frozen=True)
class GroupRequest:
    """One group to grade; `timeout_s` is the deadline of each answer."""

    task: str
    config: Mapping[str, Any]
    entry: dict[str, Any]
    answers: tuple[str, ...]
    timeout_s: float


class RefusedError(Exception):
    """A group that cannot be graded, whatever its answers are."""


def main(parent: int) -> None:
    """Serve until standard input ends. Started by pool.py."""
    confinement.die_with_parent(parent)
    # A terminal's Ctrl-C and SLURM's SIGTERM reach every process. The parent decides when its workers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    channel = Channel()
    try:
        start: GradingStart = channel.receive()
        candidates, unguarded = _prepare(start)
        child = _rehearsed(candidates)
    # Whatever keeps a worker from starting (a task module may raise anything) is the parent's to report.
    except Exception as error:  # noqa: BLE001
        channel.send(json.dumps({"failure": f"{type(error).__name__}: {error}"}).encode())
        return
    ready = {"layers": child.layers.describe(), "is_confined": child.layers.seccomp}
    channel.send(json.dumps(ready).encode())
    datasets = DatasetCache()
    # The environment is gone when it has hung up.
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            request: GroupRequest = channel.receive()
            reply: dict[str, Any]
            try:
                is_isolated = _is_unguarded(request, unguarded, start.allow_unguarded)
                grade_answer = _grade_answer(request, datasets, is_strict=start.strict)
                verdicts = _verdicts(request, grade_answer, child, is_isolated=is_isolated)
                reply = {"verdicts": [asdict(verdict) for verdict in verdicts]}
            except RefusedError as error:
                reply = {"failure": str(error)}
            channel.send(json.dumps(reply).encode())


def _is_unguarded(request: GroupRequest, unguarded: Mapping[str, str], allowed: frozenset[str]) -> bool:
    """Whether the verifier may run an answer as code, so that each needs a child of its own. Raises RefusedError."""
    found = tasks_within(request.task, request.config) & unguarded.keys()
    if refused := sorted(found - allowed):
        raise RefusedError(
            f"{refused[0]} is not scored: {unguarded[refused[0]]}. Allow it by name if you trust what the sandbox "
            "alone can stop."
        )
    return bool(found)


def tasks_within(task: str, config: Mapping[str, Any]) -> set[str]:
    """`task` and, where its config lists datasets (reasoning-gym's `composite`), those too."""
    names = {task}
    for part in config.get("datasets") or ():
        fields = part if isinstance(part, Mapping) else getattr(part, "__dict__", {})
        names |= tasks_within(str(fields.get("name")), fields.get("config") or {})
    return names


def _grade_answer(request: GroupRequest, datasets: DatasetCache, *, is_strict: bool) -> GradeAnswer:
    """What grades one answer of the group. Raises RefusedError if the dataset cannot be built."""
    try:
        # Neither a seed nor a size is used in scoring; a seed keeps the constructor from drawing one.
        dataset = datasets.dataset(request.task, {"seed": 0, "size": 1, **request.config})
    # Building a dataset runs any of a hundred third-party constructors.
    except Exception as error:
        reason = f"{request.task}: {type(error).__name__}: {error}"
        raise RefusedError(f"The dataset of {reason}. Scoring needs a valid config.") from error
    check = check_for(request.task, request.entry) if is_strict else None

    def grade_answer(answer: str) -> Verdict:
        return _contained(dataset.score_answer, lambda verifier: grade(verifier, request.entry, answer, check))

    return grade_answer


# --- one group ---


def _verdicts(
    request: GroupRequest, grade_answer: GradeAnswer, confinement: ChildConfinement, *, is_isolated: bool = False
) -> list[Verdict]:
    """One verdict for each answer, in order."""
    verdicts: list[Verdict] = []
    while (due := len(verdicts)) < len(request.answers):
        stop = due + 1 if is_isolated else len(request.answers)
        with Child(request, grade_answer, confinement, due, stop) as child:
            verdicts += child.verdicts()
    return verdicts


class Child:
    """A forked child that grades the answers [start, stop) of a group; it is killed and collected with the block.

    Whatever it does to its own memory ends with it, and what its parent has loaded need not be loaded again.
    """

    def __init__(
        self,
        request: GroupRequest,
        grade_answer: GradeAnswer,
        confinement: ChildConfinement,
        start: int,
        stop: int,
    ) -> None:
        self._timeout_s = request.timeout_s
        self._due, self._stop = start, stop
        self._results, writing = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            code = _SETUP_FAILED
            try:
                confinement.enter(writing, cpu_seconds=math.ceil(request.timeout_s * (stop - start)) + 2)
                code = 1
                for index in range(start, stop):
                    os.write(RESULT_FD, pack_record(index, grade_answer(request.answers[index])))
                code = 0
            finally:
                os._exit(code)
        os.close(writing)
        self._status: int | None = None
        # Without events, only the end of its pipe is waited for.
        self._poll = select.poll()
        self._poll.register(self._results, 0)
        self._poll.poll(UNDISTURBED_S * 1000.0)
        self._poll.modify(self._results, select.POLLIN)

    def verdicts(self) -> Iterator[Verdict]:
        """Those of all its answers, or up to where it ended: the last one says how, and further ones have none."""
        pending = b""
        try:
            self._allow_time()
            while self._due < self._stop:
                pending += self._read()
                while len(pending) >= RECORD_SIZE and self._due < self._stop:
                    index, verdict = unpack_record(pending[:RECORD_SIZE])
                    if index != self._due:
                        raise ProtocolError(f"expected a verdict on answer {self._due}, got {index}")
                    pending = pending[RECORD_SIZE:]
                    self._due += 1
                    yield verdict
                    self._allow_time()
        except EOFError:
            yield _describe_end(self._reap(EXIT_ALLOWANCE_S))
        except TimeoutError:
            yield Verdict(0.0, Status.TIMEOUT, detail=f"no verdict within {self._timeout_s:g} s")
        except ProtocolError as error:
            yield Verdict(0.0, Status.CRASHED, detail=f"the child forged a record: {error}")

    def _allow_time(self) -> None:
        """From now on it has so many seconds of processor time, and WALL_FACTOR times as many by the clock.

        Processor time does not grow with the machine's load, so a busy machine makes no answer late.
        """
        self._processor_end_s = self._processor_s() + self._timeout_s
        self._wall_s = self._timeout_s * WALL_FACTOR

    def _read(self) -> bytes:
        """What it has written. Raises EOFError once it has closed its pipe, TimeoutError when its time is over.

        No more than TURN_S counts for one look at the clock: all processes may have been stopped meanwhile.
        """
        while True:
            left_s = min(self._processor_end_s - self._processor_s(), self._wall_s)
            turn_s, began = min(max(left_s, LOOK_AGAIN_S), TURN_S), time.monotonic()
            has_data = self._poll.poll(turn_s * 1000.0)
            self._wall_s -= min(time.monotonic() - began, turn_s)
            if has_data:
                data = os.read(self._results, 1 << 16)
                if not data:
                    raise EOFError
                return data
            if left_s <= 0:
                raise TimeoutError

    def _processor_s(self) -> float:
        """The processor time that it has used; the clock's where that cannot be known, as on macOS."""
        try:
            # The number of its clock, as clock_getcpuclockid(3) gives it on Linux.
            return time.clock_gettime(~self._pid << 3 | 2)
        except OSError:
            return time.monotonic()

    def _reap(self, patience_s: float = 0.0) -> int:
        """How it ended; it is killed if it still runs after `patience_s`. Always returns the same status."""
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


def _contained(score_answer: Verifier, grade_with: Callable[[Verifier], Verdict]) -> Verdict:
    """What `grade_with` says, unless the verifier ran out of memory before it found the answer right."""
    out_of_memory = False

    def contained(answer: str, entry: dict[str, Any]) -> float:
        nonlocal out_of_memory
        try:
            return score_answer(answer=answer, entry=entry)
        except MemoryError:
            out_of_memory = True
            raise

    verdict = grade_with(contained)
    if out_of_memory and verdict.value < 1.0:
        return Verdict(0.0, Status.MEMORY, detail="the verifier ran out of memory")
    return verdict


def _describe_end(status: int) -> Verdict:
    """The verdict on the answer during which a child ended with this wait status."""
    if not os.WIFSIGNALED(status):
        code = os.waitstatus_to_exitcode(status)
        reason = "it could not be confined" if code == _SETUP_FAILED else f"it exited with {code}"
        return Verdict(0.0, Status.CRASHED, detail=f"the verifier's process ended early: {reason}")
    number = os.WTERMSIG(status)
    if number == signal.SIGXCPU:
        return Verdict(0.0, Status.TIMEOUT, detail="the verifier used up its processor time")
    if number == signal.SIGSYS:
        return Verdict(0.0, Status.CRASHED, detail="the verifier made a forbidden system call")
    return Verdict(0.0, Status.CRASHED, detail=f"the verifier's process died of {signal.Signals(number).name}")


# --- start ---


def _prepare(start: GradingStart) -> tuple[list[ChildConfinement], dict[str, str]]:
    """Import and guard the verifiers, then lock this process in.

    Returns what may confine its children, the strongest first, and the unguarded tasks with the reason.
    """
    confinement.volunteer_for_oom_kill()
    layers = confinement.detect() if start.confined else confinement.Layers()
    start.imports.perform()
    from ..verification import eval_guards

    unguarded = eval_guards.install()
    _import_all_of_sympy()
    gc.collect()
    gc.freeze()
    # An unknown C library may need a system call that the filter does not know. Both are made now, for they read /proc.
    candidates = [ChildConfinement(layers)]
    if layers.seccomp:
        candidates.append(ChildConfinement(replace(layers, seccomp=False)))
    paths = sysconfig.get_paths()
    folders = (*sys.path, paths["stdlib"], paths["platstdlib"], *_SYSTEM_LIBRARIES)
    confinement.confine_worker(layers, [path for path in folders if path and path != "/"])
    return candidates, unguarded


def _rehearsed(candidates: Iterable[ChildConfinement]) -> ChildConfinement:
    """The first under which a child can score one right and one wrong answer. Raises RuntimeError if there is none."""
    request = GroupRequest("", {}, {"answer": "x*(x+1)"}, ("x**2+x", "x**2"), timeout_s=30.0)
    for child in candidates:
        graded = _verdicts(request, lambda answer: Verdict(_equivalent(answer, request.entry)), child)
        if [verdict.value for verdict in graded] == [1.0, 0.0]:
            return child
    failure = "; ".join(verdict.detail or f"score {verdict.value}" for verdict in graded)
    raise RuntimeError(f"a confined child cannot score: {failure}")


def _import_all_of_sympy() -> None:
    """Import what simplifying may ask for. In a child it would fail, and a right integral would score 0."""
    for name in _SYMPY_PACKAGES:
        package = importlib.import_module(f"sympy.{name}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not {"tests", "benchmarks"} & set(module.name.split(".")):
                # Some need a package that is not installed; sympy itself does without them then.
                with contextlib.suppress(ImportError):
                    importlib.import_module(module.name)
    # This one loads sympy's units as well, and fills the caches every child starts with.
    _equivalent("sin(x)**2+cos(x)**2+exp(x)+x**3/5", {"answer": "Abs(x)"})


def _equivalent(answer: str, entry: dict[str, Any]) -> float:
    """A verifier of our own: the heaviest kind, a derivative and a simplification."""
    import sympy

    left, right = (sympy.parse_expr(text) for text in (answer, entry["answer"]))
    difference = sympy.diff(left, sympy.Symbol("x")) - sympy.diff(right, sympy.Symbol("x"))
    return float(sympy.simplify(difference) == 0)
