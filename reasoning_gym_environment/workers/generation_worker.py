"""A generation worker: a clean interpreter that imports reasoning-gym; children of it make one item after another.

    the worker imports, and forks ──> a child that makes items
                                      one more while none is idle: the last is at an item that takes long
             builds, too          <── which dataset a child had to build

So an item that takes long holds up no other, and a child that is given up is replaced at once: what an import takes was
done before, and so are the datasets that are slow to build, in memory that all children share. All children read the
same pipe, one at a time.

It sees no model output, so what it sends is trusted and may be pickled. What it does not trust is the
generators themselves: some print, some never end and some eat memory without bound. Printing leads nowhere,
time is limited, and memory beyond a limit is refused to the item that asks for it.
"""

from __future__ import annotations

import contextlib
import decimal
import gc
import math
import mmap
import os
import pickle
import random
import resource
import select
import shutil
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NoReturn

from ..errors import EnvironmentSetupError
from ..tasks import reasoning_gym_source as library
from ..verification.item_checks import DIFFERS_NEXT_TIME, RUNS_PROGRAMS
from . import confinement, sooner
from .kept_datasets import DatasetCache, is_reseeded
from .protocol import HEADER_SIZE, Channel, Imports, ItemJob, ItemReply, frame_length, pack_frame

MEMORY_BYTES = 2 << 30
"""How much a worker may map beyond what it needs to start."""
MAX_ITEM_BYTES = 16 << 20
"""The largest item, pickled: reading one stops the environment's event loop for that long."""

SLOW_S, SLOW_WALL_S = 0.5, 1.0
"""How long a child is at an item until there is another one for the next: of processor time, so that a busy machine
does not make more of them, which each build their datasets; and by the clock."""
SHORTAGE_S = 0.1
"""Until a fork that failed is tried again."""
MAX_SLOTS = 1 << 20
"""Used again once no child is left in a later one."""
_GONE, _IDLE, _BUSY = b"\0", b"\1", b"\2"


class _OutOfTime(BaseException):
    """Not an Exception, which a generator may catch and go on."""


def main(parent: int) -> None:
    """Serve until standard input ends. Started by pool.py."""
    confinement.die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = Channel()
    reply = _prepare(channel.receive())
    if reply.failure:
        channel.write(pack_frame(reply))
    else:
        _Children(channel).keep()


def _prepare(imports: Imports) -> ItemReply:
    confinement.volunteer_for_oom_kill()
    try:
        imports.perform()
        sooner.install()
    except EnvironmentSetupError as error:
        return ItemReply(failure=str(error))
    mapped = confinement.MemoryMeter().address_space_bytes()
    # Without /proc there is no number to add to, and macOS does not hold a process to this limit anyway.
    if mapped is not None:
        confinement.limit(resource.RLIMIT_AS, mapped + MEMORY_BYTES)
    return ItemReply()


class _Children:
    """The processes that make items, and what they share."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._reading, self._writing = _Turn(), _Turn()
        self._states = mmap.mmap(-1, MAX_SLOTS)
        """What each child is doing, the one forked first in front."""
        self._datasets = DatasetCache(confinement.MemoryMeter())
        """In the worker those that children had to build; a child goes on from there."""
        self._told, self._tell = os.pipe()

    def keep(self) -> None:
        """Fork a child whenever none is idle; say that this worker is ready when there is the first.

        Ends as a child does that ends badly, or has seen the parent hang up.
        """
        gc.collect()
        gc.freeze()
        worker, slots = os.getpid(), dict[int, int]()
        # A byte for each signal, from the kernel's handler: also while a child is deep in code that is not Python.
        signals, write_end = os.pipe()
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _note)
        self._add_child(worker, slots)
        self._channel.write(pack_frame(ItemReply()))
        while True:
            has_idle = self._has_idle(before=max(slots.values(), default=-1) + 1) or self._add_child(worker, slots)
            wait_s = None if has_idle else SHORTAGE_S
            readable = select.select([signals, self._told], [], [], wait_s)[0]
            if signals in readable:
                os.read(signals, 1)
            if self._told in readable:
                self._build_too()
            while slots and (child := (ended := os.waitpid(-1, os.WNOHANG))[0]):
                self._set(slots.pop(child), _GONE)
                if os.WIFSIGNALED(ended[1]):
                    os.kill(worker, os.WTERMSIG(ended[1]))
                if ended[1]:
                    os._exit(os.waitstatus_to_exitcode(ended[1]))

    def _build_too(self) -> None:
        """Build what a child has built, for all that are forked from now on."""
        size = os.read(self._told, HEADER_SIZE)
        task, config = pickle.loads(os.read(self._told, frame_length(size)))
        # It was built before, with the same code. Should that fail here, each child goes on to build its own.
        with contextlib.suppress(Exception):
            self._datasets.dataset(task, config)
        gc.freeze()

    def _add_child(self, worker: int, slots: dict[int, int]) -> bool:
        """Whether there is one more: a machine may be short of processes or memory for a moment, and those that there
        are go on. Raises OSError if there are none.
        """
        slot = max(slots.values(), default=-1) + 1
        self._set(slot, _IDLE)
        try:
            child = os.fork()
        except OSError:
            self._set(slot, _GONE)
            if not slots:
                raise
            return False
        if child == 0:
            self._be_child(worker, slot)
        slots[child] = slot
        return True

    def _be_child(self, worker: int, slot: int) -> NoReturn:
        code = 1
        try:
            confinement.die_with_parent(worker)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGALRM, _note)
            signal.signal(signal.SIGVTALRM, _note)
            with _Items(self._datasets) as items:
                self._make_items(items, slot)
            code = 0
        # The parent has hung up.
        except (EOFError, BrokenPipeError):
            pass
        finally:
            os._exit(code)

    def _make_items(self, items: _Items, slot: int) -> None:
        shared = built = self._datasets.built
        while not items.are_spoilt:
            # Of two the one stays that was forked first, unless it has datasets of its own: all others share theirs.
            if self._has_idle(before=slot) or (built > shared and self._has_idle(after=slot)):
                self._set(slot, _GONE)
                return
            with self._reading:
                job: ItemJob = self._channel.receive()
                self._set(slot, _BUSY)
            signal.setitimer(signal.ITIMER_VIRTUAL, SLOW_S)
            signal.setitimer(signal.ITIMER_REAL, SLOW_WALL_S)
            reply = replace(items.answer(job), number=job.number)
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            with self._writing:
                self._channel.write(pack_frame(reply))
            if self._datasets.built > built:
                built = self._datasets.built
                news = pack_frame((job.task, job.config))
                # What several children write at a time is not mixed up to this length.
                if len(news) <= select.PIPE_BUF:
                    os.write(self._tell, news)
            self._set(slot, _GONE if items.are_spoilt else _IDLE)

    def _has_idle(self, before: int = MAX_SLOTS, after: int = -1) -> bool:
        return self._states.find(_IDLE, after + 1, before) >= 0

    def _set(self, slot: int, state: bytes) -> None:
        self._states[slot : slot + 1] = state


class _Turn:
    """A lock between processes: whoever takes the one byte has it."""

    def __init__(self) -> None:
        self._taken, self._given = os.pipe()
        os.write(self._given, b".")

    def __enter__(self) -> None:
        os.read(self._taken, 1)

    def __exit__(self, *exc_info: object) -> None:
        os.write(self._given, b".")


def _note(*_: object) -> None:
    """A handler for a signal of which only the byte counts."""


class _Items:
    """Makes items; keeps the datasets that are slow to build."""

    def __init__(self, datasets: DatasetCache) -> None:
        self._datasets = datasets
        self._folder = _EmptyFolder()
        self.are_spoilt = False
        """Whether something was left behind that a later item may meet."""

    def __enter__(self) -> _Items:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._folder.remove()

    def answer(self, job: ItemJob) -> ItemReply:
        # Any of a hundred third-party generators runs here, each with its own exceptions; one may even exit.
        try:
            with self._folder, _processor_time(job.cpu_s):
                item = pickle.dumps(self._make(job), protocol=pickle.HIGHEST_PROTOCOL)
        except _OutOfTime:
            # It was interrupted anywhere, so what is kept for later items may be in pieces.
            self.are_spoilt = True
            return ItemReply(failure="out of time", is_late=True)
        except MemoryError:
            # What took the memory may hold on to it: the next item is to have all of it again.
            self.are_spoilt = True
            return ItemReply(failure=f"MemoryError: more than {MEMORY_BYTES >> 20} MiB")
        except (Exception, SystemExit) as error:  # noqa: BLE001
            return ItemReply(failure=library.explain(error))
        if len(item) > MAX_ITEM_BYTES:
            return ItemReply(failure=f"expected an item of at most {MAX_ITEM_BYTES} bytes, got {len(item)}")
        return ItemReply(item)

    def _make(self, job: ItemJob) -> Any:
        item = self._made(job, job.seed)
        if job.task == RUNS_PROGRAMS and repr(self._made(job, job.seed + 1)) != repr(item):
            item["metadata"][DIFFERS_NEXT_TIME] = True
        return item

    def _made(self, job: ItemJob, shared_seed: int) -> Any:
        _forget_earlier_items(shared_seed)
        config = {**job.config, "seed": job.seed, "size": 1}
        if is_reseeded(job.task):
            return self._datasets.dataset(job.task, config)[0]
        return library.create_dataset(job.task, **config)[0]


class _EmptyFolder:
    """Where an item is made: codeio's run programs that write files, and would read those of earlier items.

    One for all items, for most write nothing; what one has written goes with the whole folder.
    """

    def __init__(self) -> None:
        self._path = self._before = ""

    def __enter__(self) -> None:
        self._before = os.getcwd()  # noqa: PTH109 - a text, not a path
        try:
            os.chdir(self._path)
        except OSError:
            # None yet; or whatever cleans temporary folders has removed this one, and maybe that of the parent.
            os.makedirs(tempfile.gettempdir(), mode=0o700, exist_ok=True)  # noqa: PTH103 - a text, not a path
            self._path = tempfile.mkdtemp()
            os.chdir(self._path)

    def __exit__(self, *exc_info: object) -> None:
        os.chdir(self._before)
        try:
            is_empty = not os.listdir(self._path)  # noqa: PTH208 - after each item
        except OSError:
            is_empty = False
        if not is_empty:
            self.remove()

    def remove(self) -> None:
        shutil.rmtree(self._path, ignore_errors=True)
        self._path = ""


@contextlib.contextmanager
def _processor_time(seconds: float) -> Iterator[None]:
    """Raise _OutOfTime after so much processor time, and again soon if that is swallowed. Main thread only."""
    if math.isinf(seconds):
        yield
        return

    def stop(*_: object) -> None:
        raise _OutOfTime

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds, 0.05)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


def _forget_earlier_items(seed: int) -> None:
    """Make what a task draws from a generator that all share depend on `seed`, not on earlier items.

    Nor on the precision of decimal numbers: decimal_arithmetic sets that for the whole process, and the sums of
    decimal_chain_sum, answers included, would be rounded to it.
    """
    # reasoning-gym has loaded it; the parent, which imports this module too, need not.
    import numpy

    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    decimal.setcontext(decimal.DefaultContext.copy())
