"""A generation worker: a clean interpreter that imports reasoning-gym and makes one item after another.

The worker sees no model output, so its replies are trusted and may be pickled. It does not trust the generators: some
print, some never end, some write files, some change settings of the whole process, and some use memory without bound.
The worker discards printed text, deletes the files of an item after the item, and resets the settings. worker.py limits
its memory and its files. Processor time beyond a limit ends the worker. The parent kills a worker whose item takes too
long by the clock.

`pebble.ProcessPool` cannot replace this module. Killing an idle worker breaks the pool permanently, a worker that makes
an item outlives its parent, deadlines count elapsed time only, and workers inherit the environment variables and have
different hash seeds.
"""

from __future__ import annotations

import contextlib
import decimal
import os
import pickle
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..tasks import reasoning_gym_source as library
from ..verification.questions import NOT_REPRODUCED, RUNS_PROGRAMS, asks_for_input, is_sound, mended, program_of
from .datasets import DatasetCache, is_reseeded
from .worker import Start, Work, run

MAX_ITEM_BYTES = 16 << 20
"""Larger pickled items are rejected, because reading an item blocks the event loop of the environment."""


@dataclass(frozen=True)
class ItemJob:
    """One item to make, in at most `timeout_s` seconds of processor time.

    With `mends`, a sound item gets its right answer and a question of one meaning. With `refuses`, the worker replies
    None instead of an item that is not sound (verification/questions.py).
    """

    task: str
    seed: int
    config: Mapping[str, Any]
    timeout_s: float
    mends: bool
    refuses: bool


class Failure(str):
    """The reply when the item could not be made: the reason."""


def main(parent: int) -> None:
    """Make items until the parent closes the socket, or until an item exceeds its memory or its time.

    pool.py starts this function in a new process.
    """
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    run(parent, GenerationWork)


class GenerationWork(Work):
    """Makes the item of each request."""

    def __init__(self, start: Start) -> None:
        folder = os.environ["TMPDIR"]
        # A user, or a program that cleans temporary folders, may have deleted it.
        Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        self.writable = (folder,)
        self._datasets = DatasetCache()

    def reply(self, request: ItemJob) -> bytes:
        # Processor time does not grow with the machine's load, so a busy machine causes no timeouts.
        signal.setitimer(signal.ITIMER_PROF, request.timeout_s)
        try:
            with _empty_folder():
                made = _make(request, self._datasets)
                if request.mends or request.refuses:
                    made = _sound(request, made)
                item = pickle.dumps(made)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        if len(item) > MAX_ITEM_BYTES:
            return self.unanswered(f"expected an item of at most {MAX_ITEM_BYTES} bytes, got {len(item)}")
        return item

    def unanswered(self, reason: str) -> bytes:
        return pickle.dumps(Failure(reason))


def _sound(job: ItemJob, made: Any) -> Any:
    if is_sound(job.task, made):
        return mended(job.task, made) if job.mends else made
    return None if job.refuses else made


def _make(job: ItemJob, datasets: DatasetCache) -> Any:
    _forget_earlier_items(job.seed)
    config = {**job.config, "seed": job.seed, "size": 1}
    if is_reseeded(job.task):
        dataset = datasets.dataset(job.task, config)
    else:
        dataset = library.create_dataset(job.task, **config)
    item = dataset[0]
    if job.task == RUNS_PROGRAMS and not _is_reproduced(item):
        item["metadata"][NOT_REPRODUCED] = True
    return item


RERUN_S = 10
"""A program of codeio that takes more seconds of processor time when it runs again is not reproduced."""
RERUN_WALL_S = 40.0
"""The same in elapsed time, for a program that waits. It is longer, so that a busy machine makes the same items."""
HASH_SEEDS = range(1, 7)
"""A program that has sets or draws random numbers runs again with each of these seeds for the hashes of texts, because
small sets often have the same order under two seeds, and a random result may come twice. Other programs run again with
the first seed only."""
_MAY_VARY = re.compile(r"\bset\(|\bfrozenset\b|\bhash\(|\bnetworkx\b|\{[^{}:]* for |\brandom\b|\bRandom\(")

_RERUN = """
import io, json, os, pickle, resource, sys
from random import Random
results = os.fdopen(os.dup(1), "w")
sys.stdout = sys.stderr = io.StringIO()
program, inputs, seconds, failed = pickle.load(sys.stdin.buffer)
resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
names = {"Random": Random}
try:
    exec(program, names, names)
    results.write(json.dumps(names["main_solution"](**inputs)))
    results.flush()
except BaseException:
    os._exit(failed)
"""

PROGRAM_FAILED = 3
"""The exit code of _RERUN if the program raises an exception."""


def _is_reproduced(item: Mapping[str, Any]) -> bool:
    """Whether the program gives the key again on the input that the question shows: in other processes, in other
    folders, and with other seeds for the hashes of texts, which decide the order of a set.
    """
    inputs = item["metadata"]["input_data"]
    # A generator of inputs that has failed leaves none. Items that ask for an input are refused anyway.
    if not inputs or asks_for_input(item["question"]):
        return False
    program = program_of(item["question"])
    try:
        job = pickle.dumps((program, inputs, RERUN_S, PROGRAM_FAILED))
    except (pickle.PicklingError, TypeError, AttributeError):
        return False
    seeds = HASH_SEEDS if _MAY_VARY.search(program) else HASH_SEEDS[:1]
    return all(_output_of(job, seed) == item["answer"] for seed in seeds)


def _output_of(job: bytes, hash_seed: int) -> str | None:
    """What the program of _RERUN prints, or None if it fails or takes too long.

    Raises OSError if this worker cannot start Python, which says nothing about the program.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            run = subprocess.run(
                [sys.executable, "-c", _RERUN],
                input=job,
                capture_output=True,
                cwd=folder,
                env={**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": os.pathsep.join(sys.path)},
                timeout=RERUN_WALL_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None
    if run.returncode == 0:
        return run.stdout.decode("utf-8", "replace")
    # A signal ends a program that takes too much time or memory.
    if run.returncode == PROGRAM_FAILED or run.returncode < 0:
        return None
    reason = run.stderr.decode("utf-8", "replace").strip()
    raise OSError(f"Python cannot be started in this worker (exit code {run.returncode}): {reason[-300:]}")


def _forget_earlier_items(seed: int) -> None:
    """Reset the shared random generators to `seed`, and the decimal context to its default.

    Some tasks draw from the shared generators. decimal_arithmetic sets the decimal precision for the whole process,
    and decimal_chain_sum would round its sums and answers to that precision.
    """
    # reasoning-gym has already loaded numpy. The parent also imports this module, and does not need numpy.
    import numpy

    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    decimal.setcontext(decimal.DefaultContext.copy())


@contextlib.contextmanager
def _empty_folder() -> Iterator[None]:
    """Make an empty folder the current folder, and empty it afterwards.

    The programs of codeio write files, and would otherwise read the files of earlier items.
    """
    folder = Path(os.environ["TMPDIR"], str(os.getpid()))
    # The folder is missing for the first item, and after an item that wrote files.
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except PermissionError:
        # The folder of all workers was deleted. A confined process cannot make it again, but the next worker can.
        os._exit(1)
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir("/")
        # The item, or a program that cleans temporary folders, may have removed the folder.
        with contextlib.suppress(FileNotFoundError):
            if any(folder.iterdir()):
                shutil.rmtree(folder, ignore_errors=True)
