"""A grading worker: a clean interpreter that imports reasoning-gym once and forks a child per group.

It is started with an empty environment and reads frames from its standard input. It reads no answer itself, but for
those that are only compared with the right one: nothing that is in them can matter there, and a fork costs more than
all the rest. In order: tie itself to the parent, move the protocol away from stdout, try out the kernel's
layers, import and guard the verifiers, warm up what they would import late, lock itself in, prove by a
rehearsal that a locked-in child can still score, and serve until the parent hangs up.

While the child of one group is at work, the worker begins the next. How many groups it has at a time is its parent's
business.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import pkgutil
import select
import signal
import sys
import sysconfig
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ..tasks import reasoning_gym_source as library
from ..verification.grade import grade, standards_for
from . import confinement
from .grading_child import LOOK_AGAIN_S, GroupRunner, Steps, Wait
from .kept_datasets import DatasetCache
from .protocol import Channel, GradingStart, GroupRequest, Record, RecordKind, Withdrawal, pack_record

_SYSTEM_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
_SYMPY_PACKAGES = (
    *("assumptions", "concrete", "discrete", "integrals", "logic", "matrices", "ntheory", "polys", "series"),
    *("sets", "simplify", "tensor.array"),
)
"""Parts of sympy that import their modules only when an expression needs them."""

COMPARED_CHARS = 2000
"""The longest answer that the worker compares itself."""


def main(parent: int) -> None:
    """Serve until standard input ends. Started by pool.py."""
    confinement.die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = _Channel()
    try:
        start: GradingStart = channel.receive()
        worker = _Worker(channel, start)
    # Whatever keeps a worker from starting (a task module may raise anything) is the parent's to report.
    except Exception as error:  # noqa: BLE001
        channel.send(Record.note(RecordKind.FAILED, f"{type(error).__name__}: {error}"))
        return
    worker.serve()


class _Channel(Channel):
    """Frames in, records out."""

    _held = b""

    def send(self, record: Record) -> None:
        self.hold(record)
        self.flush()

    def hold(self, record: Record) -> None:
        """Send with the next flush: each message wakes the environment, so quick verdicts travel together."""
        self._held += pack_record(record)

    def flush(self) -> None:
        data, self._held = self._held, b""
        self.write(data)


class _Worker:
    """The state behind the serving loop: datasets built so far, the runner, and the groups whose child is at work."""

    def __init__(self, channel: _Channel, start: GradingStart) -> None:
        self._channel = channel
        self._start = start
        self._datasets = DatasetCache(confinement.MemoryMeter())
        self._under_way: dict[int, tuple[Steps, Wait]] = {}
        confinement.volunteer_for_oom_kill()
        layers = confinement.detect() if start.confined else confinement.Layers()
        unguarded = _import_verifiers(start)
        gc.collect()
        gc.freeze()
        layers = self._confine(layers)
        for task, reason in unguarded.items():
            channel.send(Record.note(RecordKind.UNGUARDED, f"{task}\t{reason}"))
        channel.send(Record.note(RecordKind.READY, layers.describe(), group=int(layers.seccomp)))

    def _confine(self, layers: confinement.Layers) -> confinement.Layers:
        """Lock this process in, and keep the layers under which a child can score."""
        candidates = [confinement.ChildConfinement(layers)]
        if layers.seccomp:
            # An unknown C library may need a system call that the filter does not know.
            candidates.append(confinement.ChildConfinement(replace(layers, seccomp=False)))
        confinement.confine_worker(layers, _library_folders())
        for candidate in candidates:
            self._runner = GroupRunner(candidate)
            failure = _rehearse(self._runner)
            if not failure:
                return candidate.layers
        raise RuntimeError(f"a confined child cannot score: {failure}")

    def serve(self) -> None:
        try:
            while True:
                if not self._under_way or self._go_on():
                    self._obey(self._channel.receive())
        except (EOFError, BrokenPipeError):
            # The environment is gone: nobody waits for these groups any more.
            for group in list(self._under_way):
                self._drop(group)

    def _go_on(self) -> bool:
        """Wait for a child, or for the parent; go on with each group that can. Whether the parent said something.

        Raises EOFError if it has hung up.
        """
        waits = [wait for _, wait in self._under_way.values()]
        poll = select.poll()
        for descriptor in (self._channel.requests, *(wait.descriptor for wait in waits)):
            if descriptor is not None:
                poll.register(descriptor, select.POLLIN)
        remaining = min(wait.deadline for wait in waits) - time.monotonic()
        events = dict(poll.poll(max(remaining, 0.0) * 1000.0))
        parent = events.get(self._channel.requests, 0)
        if parent & ~select.POLLIN:
            raise EOFError
        now = time.monotonic()
        for group, (steps, wait) in list(self._under_way.items()):
            if wait.descriptor in events or now >= wait.deadline:
                self._advance(group, steps)
        return bool(parent)

    def _obey(self, message: GroupRequest | Withdrawal) -> None:
        if isinstance(message, Withdrawal):
            self._drop(message.group)
        else:
            self._begin(message)

    def _begin(self, request: GroupRequest) -> None:
        try:
            score_answer = self._datasets.verifier(request.task, request.config)
        # Building a dataset runs any of a hundred third-party constructors.
        except Exception as error:  # noqa: BLE001
            reason = f"{request.task}: {type(error).__name__}: {error}"
            self._channel.send(Record.note(RecordKind.FAILED, reason, request.group))
            return
        self._channel.send(Record.note(RecordKind.BUILT, group=request.group))

        def report(record: Record) -> None:
            self._channel.hold(record)
            if record.index == len(request.answers) - 1:
                self._channel.flush()

        start = self._start
        standards = standards_for(request.task, strict=start.strict, lossless=start.lossless)
        if _is_compared(request):
            for index, answer in enumerate(request.answers):
                verdict = grade(score_answer, request.entry, answer, standards)
                report(Record(RecordKind.VERDICT, request.group, index, verdict))
        else:
            self._advance(request.group, self._runner.run(request, score_answer, report, standards))

    def _advance(self, group: int, steps: Steps) -> None:
        """Go on with this group until it is finished, or waits."""
        wait = next(steps, None)
        if wait is None:
            self._under_way.pop(group, None)
        else:
            self._under_way[group] = steps, wait
            self._channel.flush()

    def _drop(self, group: int) -> None:
        """Kill the group's child, if it has one."""
        steps, _ = self._under_way.pop(group, (None, None))
        if steps is not None:
            steps.close()


def _is_compared(request: GroupRequest) -> bool:
    """Whether the verifier only asks if the right answer is, or is in, a text, and no text is long.

    Beside it there is what is our own: decoration is stripped, and strict checks look for words and numbers.
    """
    return (
        not request.isolate
        and library.only_compares(request.task)
        and max(map(len, request.answers), default=0) <= COMPARED_CHARS
    )


def _import_verifiers(start: GradingStart) -> dict[str, str]:
    """Import reasoning-gym and the user's modules, and guard them. Returns the unguarded tasks."""
    start.imports.perform()
    from ..verification import eval_guards

    unguarded = eval_guards.install()
    _import_all_of_sympy()
    return unguarded


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


def _rehearse(runner: GroupRunner) -> str:
    """Score one right and one wrong answer in a child; what went wrong, or nothing."""
    request = GroupRequest("", {}, {"answer": "x*(x+1)"}, ("x**2+x", "x**2"), timeout_s=30.0)
    records: list[Record] = []
    for _ in runner.run(request, _equivalent, records.append):
        time.sleep(LOOK_AGAIN_S)
    verdicts = [record.verdict for record in records]
    if [verdict.value for verdict in verdicts] == [1.0, 0.0]:
        return ""
    return "; ".join(verdict.detail or f"score {verdict.value}" for verdict in verdicts)


def _library_folders() -> Iterable[str]:
    paths = sysconfig.get_paths()
    return [
        path for path in (*sys.path, paths["stdlib"], paths["platstdlib"], *_SYSTEM_LIBRARIES) if path and path != "/"
    ]
