"""A generation worker: a clean interpreter that imports reasoning-gym and makes one item after another.

It sees no model output, so what it sends is trusted and may be pickled. What it does not trust is the
generators themselves: some print, some never end and some eat memory without bound. Printing leads nowhere,
time is the parent's to watch, and memory beyond a limit is refused to the item that asks for it.
"""

from __future__ import annotations

import contextlib
import decimal
import math
import os
import pickle
import random
import resource
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ..errors import EnvironmentSetupError
from ..tasks import reasoning_gym_source as library
from . import confinement
from .kept_datasets import DatasetCache, is_reseeded
from .protocol import Channel, Imports, ItemJob, ItemReply, pack_frame

MEMORY_BYTES = 2 << 30
"""How much a worker may map beyond what it needs to start."""
MAX_ITEM_BYTES = 16 << 20
"""The largest item, pickled: reading one stops the environment's event loop for that long."""


class _OutOfTime(BaseException):
    """Not an Exception, which a generator may catch and go on."""


def main(parent: int) -> None:
    """Serve until standard input ends. Started by pool.py."""
    confinement.die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = Channel()
    reply = _prepare(channel.receive())
    channel.write(pack_frame(reply))
    if reply.retires:
        return
    items = _Items()
    with contextlib.suppress(EOFError, BrokenPipeError):
        while not reply.retires:
            job = channel.receive()
            began = time.process_time()
            reply = items.answer(job)
            channel.write(pack_frame(replace(reply, cpu_s=time.process_time() - began)))


def _prepare(imports: Imports) -> ItemReply:
    confinement.volunteer_for_oom_kill()
    try:
        imports.perform()
    except EnvironmentSetupError as error:
        return ItemReply(failure=str(error), retires=True)
    mapped = confinement.MemoryMeter().address_space_bytes()
    # Without /proc there is no number to add to, and macOS does not hold a process to this limit anyway.
    if mapped is not None:
        confinement.limit(resource.RLIMIT_AS, mapped + MEMORY_BYTES)
    return ItemReply()


class _Items:
    """Makes items; keeps the datasets that are slow to build."""

    def __init__(self) -> None:
        self._datasets = DatasetCache(confinement.MemoryMeter())
        self._folder = _EmptyFolder()

    def answer(self, job: ItemJob) -> ItemReply:
        # Any of a hundred third-party generators runs here, each with its own exceptions; one may even exit.
        try:
            with self._folder, _processor_time(job.cpu_s):
                item = pickle.dumps(self._make(job), protocol=pickle.HIGHEST_PROTOCOL)
        except _OutOfTime:
            # It was interrupted anywhere, so what is kept for later items may be in pieces.
            return ItemReply(failure="out of time", is_late=True, retires=True)
        except MemoryError:
            # What took the memory may hold on to it: the next item is to have all of it again.
            return ItemReply(failure=f"MemoryError: more than {MEMORY_BYTES >> 20} MiB", retires=True)
        except (Exception, SystemExit) as error:  # noqa: BLE001
            return ItemReply(failure=library.explain(error))
        if len(item) > MAX_ITEM_BYTES:
            return ItemReply(failure=f"expected an item of at most {MAX_ITEM_BYTES} bytes, got {len(item)}")
        return ItemReply(item)

    def _make(self, job: ItemJob) -> Any:
        _forget_earlier_items(job.seed)
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
    """Make what a task draws from a generator that all share depend on its own seed, not on earlier items.

    Nor on the precision of decimal numbers: decimal_arithmetic sets that for the whole process, and the sums of
    decimal_chain_sum, answers included, would be rounded to it.
    """
    # reasoning-gym has loaded it; the parent, which imports this module too, need not.
    import numpy

    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    decimal.setcontext(decimal.DefaultContext.copy())
