"""One group of answers: a forked child grades them, the worker watches the clock.

The child locks itself in, then grades answer after answer and reports each with one record. The worker
accepts a record only for the answer that is due. A child that hangs, dies or writes anything else is
killed; the answer it was on gets that verdict, and a fresh child goes on with the next one.

What is told here as the way of one group is a generator: it stops where there is nothing to do but wait, so that the
worker can go on with another group. Children of several groups know nothing of each other: none holds a descriptor of
another's, and what keeps them from signalling the worker keeps them from signalling each other.
"""

from __future__ import annotations

import math
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from ..records import Status, Verdict
from ..verification.grade import NATIVE, Standards, Verifier, grade
from .confinement import RESULT_FD, ChildConfinement
from .protocol import RECORD_SIZE, GroupRequest, ProtocolError, Record, RecordKind, RecordReader, pack_record

READY_ALLOWANCE_S = 10.0
"""How long a child may take to lock itself in (0.3 ms when the machine is not overloaded)."""
EXIT_ALLOWANCE_S = 0.2
"""How long a child that has closed its pipe may take to end by itself, so that we learn what ended it."""
WALL_FACTOR = 4.0
"""How many times its deadline, which is of processor time, an answer may take by the clock. On a busy machine a right
answer would be given up otherwise."""
TURN_S = 1.0
SHORTAGE_S = 0.1
"""Until a fork that failed is tried again."""
LOOK_AGAIN_S = 0.001
QUICK_S = 0.005
UNDISTURBED_S = 0.02
"""How long the worker does nothing at all while a child grades: each page that it writes to while both have it must be
copied, and a huge page that it is part of falls into small ones, which make every further fork dear."""
_ITS_END = {signal.SIGCHLD}
_SETUP_FAILED = 3


@dataclass(frozen=True)
class Wait:
    """A group goes on when there is something to read on `descriptor`, if it names one, or at `deadline` (monotonic).

    Going on with it sooner does no harm: it waits again.
    """

    descriptor: int | None
    deadline: float


Steps = Generator[Wait, None, None]


class GroupRunner:
    """Grades groups, each in children of its own."""

    def __init__(self, confinement: ChildConfinement) -> None:
        self._confinement = confinement

    def run(
        self,
        request: GroupRequest,
        score_answer: Verifier,
        report: Callable[[Record], None],
        standards: Standards = NATIVE,
    ) -> Steps:
        """`report` one VERDICT record per answer, in order, each as soon as it is known. Closing this kills the child.

        Yields when an answer takes longer than QUICK_S.
        """

        def grade_answer(index: int) -> Verdict:
            return _grade_contained(score_answer, request.entry, request.answers[index], standards)

        due = 0
        while due < len(request.answers):
            stop = due + 1 if request.isolate else len(request.answers)
            due = yield from self._run_child(request, grade_answer, due, stop, report)

    def _run_child(
        self,
        request: GroupRequest,
        grade_answer: Callable[[int], Verdict],
        due: int,
        stop: int,
        report: Callable[[Record], None],
    ) -> Generator[Wait, None, int]:
        """Report on [due, stop) from one child: on all of it, or up to its end. Returns the answer due next."""
        while (child := self._fork(request, grade_answer, due, stop)) is None:
            yield Wait(None, time.monotonic() + SHORTAGE_S)
        try:
            record = yield from child.next_record(READY_ALLOWANCE_S)
            if record.kind is not RecordKind.READY:
                raise ProtocolError(f"expected READY, got {record.kind.name}")
            while due < stop:
                record = yield from child.next_record(request.timeout_s)
                if record.kind is not RecordKind.VERDICT or (record.group, record.index) != (request.group, due):
                    raise ProtocolError(f"expected a verdict on answer {due}, got {record.kind.name}")
                due += 1
                report(record)
            return due
        except EOFError:
            end = _describe_end((yield from child.end()))
        except TimeoutError:
            end = Verdict(0.0, Status.TIMEOUT, detail=f"no verdict within {request.timeout_s:g} s")
        except ProtocolError as error:
            end = Verdict(0.0, Status.CRASHED, detail=f"the child forged a record: {error}")
        finally:
            child.reap()
        report(Record(RecordKind.VERDICT, request.group, due, end))
        return due + 1

    def _fork(
        self, request: GroupRequest, grade_answer: Callable[[int], Verdict], start: int, stop: int
    ) -> _Child | None:
        """None if the machine is short of processes or memory; how long that may last is our parent's business."""
        reading, writing = os.pipe()
        mask = _hold_back_its_end()
        try:
            pid = os.fork()
        except OSError:
            for descriptor in (reading, writing):
                os.close(descriptor)
            if mask is not None:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            return None
        if pid == 0:
            code = 1
            try:
                code = self._be_child(request, grade_answer, start, stop, writing)
            finally:
                os._exit(code)
        if mask is not None:
            signal.sigtimedwait(_ITS_END, UNDISTURBED_S)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(writing)
        return _Child(pid, reading)

    def _be_child(
        self, request: GroupRequest, grade_answer: Callable[[int], Verdict], start: int, stop: int, writing: int
    ) -> int:
        budget = math.ceil(request.timeout_s * (stop - start)) + 2
        try:
            self._confinement.enter(writing, budget)
        except OSError:
            return _SETUP_FAILED
        late_imports = _LateImports()
        sys.meta_path.insert(0, late_imports)
        os.write(RESULT_FD, pack_record(Record.note(RecordKind.READY, group=request.group)))
        for index in range(start, stop):
            late_imports.any = False
            verdict = grade_answer(index)
            record = Record(RecordKind.VERDICT, request.group, index, verdict, late_imports.any)
            os.write(RESULT_FD, pack_record(record))
        return 0


def _hold_back_its_end() -> set[int] | None:
    """Let the signal that a child has ended wait to be asked for; returns what was held back before. None: no way."""
    if not hasattr(signal, "sigtimedwait"):
        return None
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _ITS_END)
    # That of an earlier child.
    signal.sigtimedwait(_ITS_END, 0)
    return mask


class _Child:
    """A running child and the pipe on which it reports."""

    def __init__(self, pid: int, results: int) -> None:
        self._pid = pid
        self._results = results
        self._status: int | None = None
        self._poll = select.poll()
        self._poll.register(results, select.POLLIN)
        self._reader = RecordReader()
        self._unread = self._reader.feed(b"")

    def next_record(self, timeout_s: float) -> Generator[Wait, None, Record]:
        """What it reports next. Raises TimeoutError if that takes more processor time, or WALL_FACTOR times as long by
        the clock, and EOFError if it has closed its pipe.

        The clock is looked at every TURN_S, and more than that is not counted: this process may have been stopped, and
        the child with it.
        """
        record = next(self._unread, None)
        if record is not None:
            return record
        used, wall_s = self._processor_s(), WALL_FACTOR * timeout_s
        looked = time.monotonic()
        deadline = looked + min(timeout_s, TURN_S)
        can_read = self._poll.poll(QUICK_S * 1000.0)
        while record is None:
            while not can_read:
                if (now := time.monotonic()) >= deadline:
                    wall_s -= min(now - looked, TURN_S)
                    left = min(timeout_s + used - self._processor_s(), wall_s)
                    if left <= 0:
                        raise TimeoutError
                    looked, deadline = now, now + min(max(left, LOOK_AGAIN_S), TURN_S)
                yield Wait(self._results, deadline)
                can_read = self._poll.poll(0)
            data = os.read(self._results, RECORD_SIZE * 64)
            if not data:
                raise EOFError
            self._unread = self._reader.feed(data)
            record = next(self._unread, None)
            # One that writes byte after byte holds up nobody else, and not its own end.
            can_read = []
        return record

    def _processor_s(self) -> float:
        """The processor time that it has used; the clock's where that cannot be known, as on macOS."""
        try:
            # The number of its clock, as clock_getcpuclockid(3) gives it on Linux.
            return time.clock_gettime(~self._pid << 3 | 2)
        except OSError:
            return time.monotonic()

    def end(self) -> Generator[Wait, None, int]:
        """`reap`, once it has ended by itself, or has had EXIT_ALLOWANCE_S to do so."""
        deadline = time.monotonic() + EXIT_ALLOWANCE_S
        while not self._has_ended() and (now := time.monotonic()) < deadline:
            yield Wait(None, now + LOOK_AGAIN_S)
        return self.reap()

    def reap(self) -> int:
        """Kill it if it still runs, and collect it. Always returns the same wait status."""
        if self._status is None and not self._has_ended():
            os.kill(self._pid, signal.SIGKILL)
            self._collected(os.waitpid(self._pid, 0)[1])
        assert self._status is not None
        return self._status

    def _has_ended(self) -> bool:
        if self._status is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._collected(status)
        return self._status is not None

    def _collected(self, status: int) -> None:
        self._status = status
        os.close(self._results)


def _grade_contained(score_answer: Verifier, entry: dict[str, Any], answer: str, standards: Standards) -> Verdict:
    """`grade`, for a verifier that may raise anything at all, SystemExit and MemoryError included."""
    out_of_memory = False

    def contained(answer: str, entry: dict[str, Any]) -> float:
        nonlocal out_of_memory
        try:
            return score_answer(answer=answer, entry=entry)
        except MemoryError:
            out_of_memory = True
            raise
        except Exception:
            raise
        except BaseException as error:
            raise RuntimeError(f"the verifier raised {type(error).__name__}") from error

    verdict = grade(contained, entry, answer, standards)
    if out_of_memory and verdict.value < 1.0:
        return Verdict(0.0, Status.MEMORY, detail="the verifier ran out of memory")
    return verdict


class _LateImports:
    """Notes that a verifier tried to import something: in a child that fails, and could change a score."""

    def __init__(self) -> None:
        self.any = False

    def find_spec(self, *_: object) -> None:
        self.any = True


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
