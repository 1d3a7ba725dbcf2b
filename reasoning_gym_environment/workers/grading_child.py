"""One group of answers: a forked child grades them, the worker watches the clock.

The child locks itself in, then grades answer after answer and reports each with one record. The worker
accepts a record only for the answer that is due. A child that hangs, dies or writes anything else is
killed; the answer it was on gets that verdict, and a fresh child goes on with the next one.
"""

from __future__ import annotations

import math
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from ..verification.grade import NATIVE, Standards, Status, Verdict, Verifier, grade
from .confinement import RESULT_FD, ChildConfinement
from .protocol import RECORD_SIZE, GroupRequest, ProtocolError, Record, RecordKind, RecordReader, pack_record

READY_ALLOWANCE_S = 10.0
"""How long a child may take to lock itself in (0.3 ms when the machine is not overloaded)."""
EXIT_ALLOWANCE_S = 0.2
"""How long a child that has closed its pipe may take to end by itself, so that we learn what ended it."""
QUICK_S = 0.005
UNDISTURBED_S = 0.02
"""How long the worker does nothing at all while a child grades: each page that it writes to while both have it must be
copied, and a huge page that it is part of falls into small ones, which make every further fork dear."""
_ITS_END = {signal.SIGCHLD}
_SETUP_FAILED = 3


class GroupRunner:
    """Grades one group after the other.

    `lifeline` is a descriptor that hangs up when the parent is gone. `on_wait` is called when an answer takes
    longer than QUICK_S, before the wait for it goes on.
    """

    def __init__(self, confinement: ChildConfinement, lifeline: int, on_wait: Callable[[], None]) -> None:
        self._confinement = confinement
        self._lifeline = lifeline
        self._on_wait = on_wait

    def run(self, request: GroupRequest, score_answer: Verifier, standards: Standards = NATIVE) -> Iterator[Record]:
        """One VERDICT record per answer, in order, each as soon as it is known."""

        def grade_answer(index: int) -> Verdict:
            return _grade_contained(score_answer, request.entry, request.answers[index], standards)

        start = 0
        while start < len(request.answers):
            stop = start + 1 if request.isolate else len(request.answers)
            for record in self._run_child(request, grade_answer, start, stop):
                start = record.index + 1
                yield record

    def _run_child(
        self, request: GroupRequest, grade_answer: Callable[[int], Verdict], start: int, stop: int
    ) -> Iterator[Record]:
        """Records from one child: at least one, and all of [start, stop) unless the last one is its end."""
        child = self._fork(request, grade_answer, start, stop)
        due = start
        try:
            for record in child.records(request.timeout_s):
                if record.kind is not RecordKind.VERDICT or (record.group, record.index) != (request.group, due):
                    raise ProtocolError(f"expected a verdict on answer {due}, got {record.kind.name}")
                due += 1
                yield record
                if due == stop:
                    return
            end = _describe_end(child.reap(grace_s=EXIT_ALLOWANCE_S))
        except TimeoutError:
            end = Verdict(0.0, Status.TIMEOUT, detail=f"no verdict within {request.timeout_s:g} s")
        except ProtocolError as error:
            end = Verdict(0.0, Status.CRASHED, detail=f"the child forged a record: {error}")
        finally:
            child.reap()
        yield Record(RecordKind.VERDICT, request.group, due, end)

    def _fork(self, request: GroupRequest, grade_answer: Callable[[int], Verdict], start: int, stop: int) -> _Child:
        reading, writing = os.pipe()
        mask = _hold_back_its_end()
        pid = os.fork()
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
        return _Child(pid, reading, self._lifeline, self._on_wait)

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

    def __init__(self, pid: int, results: int, lifeline: int, on_wait: Callable[[], None]) -> None:
        self._pid = pid
        self._results = results
        self._lifeline = lifeline
        self._on_wait = on_wait
        self._status: int | None = None

    def records(self, timeout_s: float) -> Iterator[Record]:
        """What it reports after READY. Raises TimeoutError when `timeout_s` pass without a whole record."""
        poll = select.poll()
        poll.register(self._results, select.POLLIN)
        poll.register(self._lifeline, 0)
        reader = RecordReader()
        is_ready = False
        deadline = time.monotonic() + READY_ALLOWANCE_S
        while data := self._read(poll, deadline):
            for record in reader.feed(data):
                deadline = time.monotonic() + timeout_s
                if is_ready:
                    yield record
                elif record.kind is not RecordKind.READY:
                    raise ProtocolError(f"expected READY, got {record.kind.name}")
                is_ready = True

    def _read(self, poll: select.poll, deadline: float) -> bytes:
        events = dict(poll.poll(QUICK_S * 1000.0))
        if not events:
            self._on_wait()
            remaining = deadline - time.monotonic()
            events = dict(poll.poll(max(remaining, 0.0) * 1000.0))
        if self._lifeline in events:
            # The environment is gone: nobody waits for this group any more.
            self.reap()
            os._exit(0)
        if not events:
            raise TimeoutError
        return os.read(self._results, RECORD_SIZE * 64)

    def reap(self, grace_s: float = 0.0) -> int:
        """Kill it if it still runs after `grace_s`, and collect it. Always returns the same wait status."""
        if self._status is None:
            deadline = time.monotonic() + grace_s
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            while pid == 0 and time.monotonic() < deadline:
                time.sleep(0.0005)
                pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid == 0:
                os.kill(self._pid, signal.SIGKILL)
                status = os.waitpid(self._pid, 0)[1]
            self._status = status
            os.close(self._results)
        return self._status


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
