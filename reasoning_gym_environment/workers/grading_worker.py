"""A grading worker: a clean interpreter that imports reasoning-gym once and forks a child per group.

It is started with an empty environment and reads frames from its standard input; it never evaluates an
answer itself. In order: tie itself to the parent, move the protocol away from stdout, try out the kernel's
layers, import and guard the verifiers, warm up what they would import late, lock itself in, prove by a
rehearsal that a locked-in child can still score, and serve until the parent hangs up.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import importlib
import pickle
import pkgutil
import signal
import sys
import sysconfig
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ..tasks import reasoning_gym_source as library
from ..verification.grade import Verifier, standards_for
from . import confinement
from .grading_child import GroupRunner
from .protocol import Channel, GradingStart, GroupRequest, Record, RecordKind, pack_record

_SYSTEM_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
_SYMPY_PACKAGES = (
    *("assumptions", "concrete", "discrete", "integrals", "logic", "matrices", "ntheory", "polys", "series"),
    *("sets", "simplify", "tensor.array"),
)
"""Parts of sympy that import their modules only when an expression needs them."""
MAX_DATASETS = 2048
MAX_BYTES = 72 << 20
"""Enough for every task of reasoning-gym at its default config (67 MB)."""
LARGE_BYTES = 1 << 20


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
    """The state behind the serving loop: datasets built so far, and the runner."""

    def __init__(self, channel: _Channel, start: GradingStart) -> None:
        self._channel = channel
        self._start = start
        self._datasets = DatasetCache(confinement.MemoryMeter())
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
            self._runner = GroupRunner(candidate, self._channel.requests, self._channel.flush)
            failure = _rehearse(self._runner)
            if not failure:
                return candidate.layers
        raise RuntimeError(f"a confined child cannot score: {failure}")

    def serve(self) -> None:
        while True:
            try:
                request: GroupRequest = self._channel.receive()
            except EOFError:
                return
            self._grade(request)

    def _grade(self, request: GroupRequest) -> None:
        try:
            score_answer = self._datasets.verifier(request.task, request.config)
        # Building a dataset runs any of a hundred third-party constructors.
        except Exception as error:  # noqa: BLE001
            reason = f"{request.task}: {type(error).__name__}: {error}"
            self._channel.send(Record.note(RecordKind.FAILED, reason, request.group))
            return
        self._channel.send(Record.note(RecordKind.BUILT, group=request.group))
        start = self._start
        standards = standards_for(request.task, strict=start.strict, lossless=start.lossless)
        for record in self._runner.run(request, score_answer, standards):
            self._channel.hold(record)
            if record.index == len(request.answers) - 1:
                self._channel.flush()


RESEEDED_IN = "0.1.25"
RESEEDED: Mapping[str, tuple[str, ...]] = {
    "arc_agi": ("use_train", "use_eval", "board_format_opts"),
    "caesar_cipher": ("delimiter", "min_words", "max_words"),
    "codeio": ("difficulty",),
    "count_primes": ("max_n",),
    "emoji_mystery": ("min_words_in_sentence", "max_words_in_sentence"),
    "figlet_font": ("min_word_len", "max_word_len"),
    "group_anagrams": (),
    "letter_counting": (),
    "letter_jumble": ("min_word_len", "max_word_len"),
    "n_queens": ("n",),
    "rush_hour": ("min_moves", "max_moves"),
    "sentence_reordering": ("min_words_in_sentence", "max_words_in_sentence"),
    "spell_backward": ("data_file", "min_word_len", "max_word_len"),
    "word_ladder": ("min_word_length", "max_word_length"),
    "word_sequence_reversal": (),
    "word_sorting": ("min_word_length", "max_word_length"),
}
"""Tasks whose constructors read files or search for 2 to 1500 ms, and all that they read of their config, in this
release of reasoning-gym. With the seed and the rest of the config they do nothing but to keep them, and their items
change nothing of what they made: the dataset of another seed and config is theirs with these put in place."""
_ON_CLASS = {"codeio": "_jsonl_data"}
"""Where a constructor puts what it has read, if not on the dataset."""


def is_reseeded(task: str) -> bool:
    """Whether datasets of this task are known to differ in their config and in nothing else."""
    return task in RESEEDED and library.load().version == RESEEDED_IN


class DatasetCache:
    """Datasets that were built, by task and by what they depend on: building one takes up to 0.4 s.

    Most take next to no memory; a few hold word lists or puzzles (one of arc_agi takes 30 MB), and a curriculum asks
    for many configs. So the memory limit is held by giving up large ones, used longest ago first, which leaves the
    hundreds of small ones alone.
    """

    def __init__(self, meter: confinement.MemoryMeter) -> None:
        self._meter = meter
        self._kept: OrderedDict[bytes, tuple[Any, Any, int]] = OrderedDict()
        self._costs: dict[str, int] = {}

    def verifier(self, task: str, config: Mapping[str, Any]) -> Verifier:
        """`score_answer` of the dataset; raises what building it raises."""
        # Neither is used in scoring; a seed keeps the constructor from drawing one.
        config = {"seed": 0, "size": 1, **config}
        dataset = self.dataset(task, config) if is_reseeded(task) else self._keep(task, config, config)[0]
        score_answer: Verifier = dataset.score_answer
        return score_answer

    def dataset(self, task: str, config: Mapping[str, Any]) -> Any:
        """What `create_dataset` gives for this config, with its `seed` and `size`, of a task that can be reseeded.

        Raises what building it raises.
        """
        kept, of_class, _ = self._keep(task, config, RESEEDED[task])
        if task in _ON_CLASS:
            setattr(type(kept), _ON_CLASS[task], of_class)
        dataset = copy.copy(kept)
        dataset.config = type(kept.config)(**config)
        dataset.config.validate()
        dataset.seed, dataset.size = dataset.config.seed, dataset.config.size
        return dataset

    def _keep(self, task: str, config: Mapping[str, Any], fields: Iterable[str]) -> tuple[Any, Any, int]:
        """The dataset kept for these fields of the config, what its constructor put on its class, and its bytes."""
        key = pickle.dumps((task, [(name, config[name]) for name in sorted(fields) if name in config]))
        if key not in self._kept:
            before = self._meter.resident_bytes()
            dataset = library.create_dataset(task, **config)
            # A dataset that fits into memory freed before seems to take none: its like is the better guide.
            grown = self._meter.resident_bytes() - before
            self._costs[task] = max(grown, self._costs.get(task, 0))
            self._kept[key] = (dataset, getattr(dataset, _ON_CLASS.get(task, ""), None), self._costs[task])
            self._make_room(key)
        self._kept.move_to_end(key)
        return self._kept[key]

    def _make_room(self, newest: bytes) -> None:
        excess = sum(cost for *_, cost in self._kept.values()) - MAX_BYTES
        others = [(key, cost) for key, (*_, cost) in self._kept.items() if key != newest]
        given_up = [] if len(self._kept) <= MAX_DATASETS else [others[0]]
        for key, cost in others:
            if excess > 0 and cost >= LARGE_BYTES and (key, cost) not in given_up:
                given_up.append((key, cost))
                excess -= cost
        for key, _ in given_up:
            del self._kept[key]
        if any(cost >= LARGE_BYTES for _, cost in given_up):
            gc.collect()


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
    verdicts = [record.verdict for record in runner.run(request, _equivalent)]
    if [verdict.value for verdict in verdicts] == [1.0, 0.0]:
        return ""
    return "; ".join(verdict.detail or f"score {verdict.value}" for verdict in verdicts)


def _library_folders() -> Iterable[str]:
    paths = sysconfig.get_paths()
    return [
        path for path in (*sys.path, paths["stdlib"], paths["platstdlib"], *_SYSTEM_LIBRARIES) if path and path != "/"
    ]
