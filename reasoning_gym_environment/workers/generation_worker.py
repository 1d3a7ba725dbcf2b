"""A generation worker: a clean interpreter that imports reasoning-gym and makes one item after another.

It sees no model output, so what it sends is trusted and may be pickled. What it does not trust is the generators
themselves: some print, some never end, some write files, some change settings of the whole process, and some eat memory
without bound. Printing leads nowhere, files go with their item, settings are reset, memory beyond a limit is refused,
and processor time beyond a limit ends the worker. The parent kills a worker whose item is late by the clock.

`pebble.ProcessPool` was tried in its place and does not do: one idle worker that is killed breaks the pool for good,
one that is making an item outlives the death of its parent, deadlines are by the clock alone, and workers inherit the
environment's variables and have a hash seed each.
"""

from __future__ import annotations

import contextlib
import decimal
import gc
import json
import os
import pickle
import random
import resource
import shutil
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import EnvironmentSetupError
from ..tasks import reasoning_gym_source as library
from ..verification.item_checks import DIFFERS_NEXT_TIME, RUNS_PROGRAMS, has_right_answer
from . import confinement, fast_generators
from .datasets import DatasetCache, is_reseeded
from .protocol import Channel, Imports

MEMORY_BYTES = 2 << 30
"""How much a worker may map beyond what it needs to start."""
MAX_ITEM_BYTES = 16 << 20
"""The largest item, pickled: reading one stops the environment's event loop for that long."""


@dataclass(frozen=True)
class ItemJob:
    """One item to make, in `timeout_s` of processor time. `answerable`: only if some answer to it is right."""

    task: str
    seed: int
    config: Mapping[str, Any]
    timeout_s: float
    answerable: bool


class Failure(str):
    """Why there is no item."""


def main(parent: int) -> None:
    """Serve until standard input ends, or an item has taken all memory or its time. Started by pool.py."""
    confinement.die_with_parent(parent)
    # A terminal's Ctrl-C and SLURM's SIGTERM reach every process. The parent decides when its workers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    channel = Channel()
    imports: Imports = channel.receive()
    try:
        imports.perform()
    except EnvironmentSetupError as error:
        channel.send(json.dumps({"failure": str(error)}).encode())
        return
    fast_generators.install()
    confinement.volunteer_for_oom_kill()
    # Without /proc there is no number to add to, and macOS does not hold a process to this limit anyway.
    if (mapped := confinement.AddressSpaceMeter().bytes()) is not None:
        confinement.limit(resource.RLIMIT_AS, mapped + MEMORY_BYTES)
    gc.collect()
    gc.freeze()
    datasets = DatasetCache()
    # The environment is gone when it has hung up.
    with contextlib.suppress(EOFError, BrokenPipeError):
        channel.send(b"{}")
        while True:
            job: ItemJob = channel.receive()
            # Processor time does not grow with the machine's load, so a busy machine makes no item late.
            signal.setitimer(signal.ITIMER_PROF, job.timeout_s)
            try:
                with _empty_folder():
                    reply = _reply(job, datasets)
            except MemoryError:
                # What took the memory may keep it: the next item is to have all of it.
                reply = pickle.dumps(Failure(f"MemoryError: more than {MEMORY_BYTES >> 20} MiB"))
                channel.send(reply, is_last=True)
                return
            signal.setitimer(signal.ITIMER_PROF, 0)
            channel.send(reply)


def _reply(job: ItemJob, datasets: DatasetCache) -> bytes:
    # Any of a hundred third-party generators runs here, each with its own exceptions; one may even exit.
    try:
        made = _make(job, datasets)
        item = pickle.dumps(None if job.answerable and not has_right_answer(job.task, made) else made)
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001
        return pickle.dumps(Failure(library.explain(error)))
    if len(item) > MAX_ITEM_BYTES:
        return pickle.dumps(Failure(f"expected an item of at most {MAX_ITEM_BYTES} bytes, got {len(item)}"))
    return item


def _make(job: ItemJob, datasets: DatasetCache) -> Any:
    _forget_earlier_items(job.seed)
    config = {**job.config, "seed": job.seed, "size": 1}
    if is_reseeded(job.task):
        dataset = datasets.dataset(job.task, config)
    else:
        dataset = library.create_dataset(job.task, **config)
    item = dataset[0]
    if job.task == RUNS_PROGRAMS:
        # Building this dataset takes a hundred times as long as making its item.
        _forget_earlier_items(job.seed + 1)
        if repr(dataset[0]) != repr(item):
            item["metadata"][DIFFERS_NEXT_TIME] = True
    return item


def _forget_earlier_items(seed: int) -> None:
    """Make what a task draws from generators that all share depend on `seed`, not on earlier items.

    Nor on the precision of decimal numbers: decimal_arithmetic sets that for the whole process, and the sums of
    decimal_chain_sum, answers included, would be rounded to it.
    """
    # reasoning-gym has loaded it; the parent, which imports this module too, need not.
    import numpy

    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    decimal.setcontext(decimal.DefaultContext.copy())


@contextlib.contextmanager
def _empty_folder() -> Iterator[None]:
    """Where an item is made: codeio's run programs that write files, and would read those of earlier items."""
    folder = Path(os.environ["TMPDIR"], str(os.getpid()))
    # Made again after an item that has written something, and if somebody has cleaned temporary folders.
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir("/")
        if any(folder.iterdir()):
            shutil.rmtree(folder, ignore_errors=True)
