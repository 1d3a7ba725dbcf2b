"""Datasets that a worker has built, and keeps: for their verifiers, and to make items without building one for each."""

from __future__ import annotations

import copy
import gc
import pickle
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

from ..tasks import reasoning_gym_source as library
from ..verification.grade import Verifier
from . import confinement

MAX_DATASETS = 2048
MAX_BYTES = 72 << 20
"""Enough for every task of reasoning-gym at its default config (67 MB)."""
LARGE_BYTES = 1 << 20

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
        self.built = 0
        """How many were, those given up since included."""

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
            self.built += 1
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
