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
import math
import os
import pkgutil
import signal
import sys
import sysconfig
from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from typing import Any

from ..records import Status, Verdict
from ..verification.grade import Verifier, check_for, grade
from . import confinement
from .child import EXIT_ALLOWANCE_S, ForkedChild
from .confinement import RESULT_FD, ChildConfinement
from .datasets import DatasetCache
from .protocol import (
    Channel,
    GradingStart,
    GroupRequest,
    ProtocolError,
    Record,
    RecordKind,
    RecordReader,
    pack_record,
)

WALL_FACTOR = 4.0
"""How many times its deadline, which is of processor time, an answer may take by the clock."""
_SETUP_FAILED = 3
_SYSTEM_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
_SYMPY_PACKAGES = (
    *("assumptions", "concrete", "discrete", "integrals", "logic", "matrices", "ntheory", "polys", "series"),
    *("sets", "simplify", "tensor.array"),
)
"""Parts of sympy that import their modules only when an expression needs them."""

GradeAnswer = Callable[[str], Verdict]


def main(parent: int) -> None:
    """Serve until standard input ends. Started by pool.py."""
    confinement.die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = Channel()
    try:
        start: GradingStart = channel.receive()
        candidates, unguarded = _prepare(start)
        child = _rehearsed(candidates)
    # Whatever keeps a worker from starting (a task module may raise anything) is the parent's to report.
    except Exception as error:  # noqa: BLE001
        channel.write(pack_record(Record.note(RecordKind.FAILED, f"{type(error).__name__}: {error}")))
        return
    notes = [Record.note(RecordKind.UNGUARDED, f"{task}\t{reason}") for task, reason in unguarded.items()]
    notes.append(Record.note(RecordKind.READY, child.layers.describe(), index=int(child.layers.seccomp)))
    channel.write(b"".join(map(pack_record, notes)))
    datasets = DatasetCache()
    # The environment is gone when it has hung up.
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            channel.write(b"".join(map(pack_record, _grade(channel.receive(), start, datasets, child))))


def _grade(
    request: GroupRequest, start: GradingStart, datasets: DatasetCache, child: ChildConfinement
) -> Iterable[Record]:
    try:
        # Neither a seed nor a size is used in scoring; a seed keeps the constructor from drawing one.
        dataset = datasets.dataset(request.task, {"seed": 0, "size": 1, **request.config})
    # Building a dataset runs any of a hundred third-party constructors.
    except Exception as error:  # noqa: BLE001
        return [Record.note(RecordKind.FAILED, f"{request.task}: {type(error).__name__}: {error}")]
    check = check_for(request.task, request.entry) if start.strict else None

    def grade_answer(answer: str) -> Verdict:
        return _contained(dataset.score_answer, lambda verifier: grade(verifier, request.entry, answer, check))

    return _verdicts(request, grade_answer, child)


# --- one group ---


def _verdicts(request: GroupRequest, grade_answer: GradeAnswer, confinement: ChildConfinement) -> Iterable[Record]:
    """One VERDICT record for each answer, in order."""
    due = 0
    while due < len(request.answers):
        stop = due + 1 if request.isolate else len(request.answers)
        due = yield from _from_one_child(request, grade_answer, confinement, due, stop)


def _from_one_child(
    request: GroupRequest, grade_answer: GradeAnswer, confinement: ChildConfinement, due: int, stop: int
) -> Generator[Record, None, int]:
    """The records of [due, stop): all of them, or up to where the child ended. Returns the answer that is due next."""
    with ForkedChild(lambda descriptor: _be_child(request, grade_answer, confinement, due, stop, descriptor)) as child:
        reader = RecordReader()
        child.allow(request.timeout_s, WALL_FACTOR)
        try:
            while due < stop:
                data = child.read()
                if not data:
                    raise EOFError
                for record in reader.feed(data):
                    if due == stop:
                        break
                    if record.kind is not RecordKind.VERDICT or record.index != due:
                        raise ProtocolError(f"expected a verdict on answer {due}, got {record.kind.name}")
                    yield record
                    due += 1
                    child.allow(request.timeout_s, WALL_FACTOR)
            return due
        except EOFError:
            end = _describe_end(child.reap(EXIT_ALLOWANCE_S))
        except TimeoutError:
            end = Verdict(0.0, Status.TIMEOUT, detail=f"no verdict within {request.timeout_s:g} s")
        except ProtocolError as error:
            end = Verdict(0.0, Status.CRASHED, detail=f"the child forged a record: {error}")
    yield Record(RecordKind.VERDICT, due, end)
    return due + 1


def _be_child(
    request: GroupRequest,
    grade_answer: GradeAnswer,
    confinement: ChildConfinement,
    start: int,
    stop: int,
    descriptor: int,
) -> int:
    try:
        confinement.enter(descriptor, cpu_seconds=math.ceil(request.timeout_s * (stop - start)) + 2)
    except OSError:
        return _SETUP_FAILED
    for index in range(start, stop):
        os.write(RESULT_FD, pack_record(Record(RecordKind.VERDICT, index, grade_answer(request.answers[index]))))
    return 0


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
        records = _verdicts(request, lambda answer: Verdict(_equivalent(answer, request.entry)), child)
        graded = [record.verdict for record in records]
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
