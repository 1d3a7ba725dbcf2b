"""Datasets that a worker keeps: for their verifiers, and to make items of tasks whose datasets are slow to build."""

from __future__ import annotations

import copy
import gc
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..tasks import reasoning_gym_source as library

MAX_DATASETS = 1024
"""More than the tasks have levels (about 480), so that a cheap dataset does not displace an expensive one."""
RESEEDED_IN = "0.1.25"
RESEEDED: Mapping[str, tuple[str, ...]] = {
    "arc_agi": ("use_train", "use_eval", "board_format_opts"),
    "caesar_cipher": ("delimiter", "min_words", "max_words"),
    "codeio": ("difficulty",),
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
"""Tasks whose constructors take 1 to 1,400 ms, and the fields of the config that these read, in this release.
Datasets that agree in these fields differ in their config and seed alone, so one can be turned into another."""


def is_reseeded(task: str) -> bool:
    """Whether a dataset of this task can be turned into one of another seed and config."""
    return task in RESEEDED and library.load().version == RESEEDED_IN


@dataclass(frozen=True)
class _Kept:
    dataset: Any
    class_state: Mapping[str, Any]
    """The lists that its class held when it was built. The constructor of codeio puts its programs there."""


class DatasetCache:
    """The MAX_DATASETS datasets that were used last, by task and by what they depend on."""

    def __init__(self) -> None:
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()

    def dataset(self, task: str, config: Mapping[str, Any]) -> Any:
        """What `create_dataset` gives for this config, `seed` and `size` included. Raises what building it raises."""
        if not is_reseeded(task):
            return self._keep(task, config, tuple(config)).dataset
        kept = self._keep(task, config, RESEEDED[task])
        for name, value in kept.class_state.items():
            setattr(type(kept.dataset), name, value)
        dataset = copy.copy(kept.dataset)
        dataset.config = type(dataset.config)(**config)
        dataset.config.validate()
        dataset.seed = dataset.config.seed
        dataset.size = dataset.config.size
        return dataset

    def _keep(self, task: str, config: Mapping[str, Any], fields: tuple[str, ...]) -> _Kept:
        key = pickle.dumps((task, [(name, config[name]) for name in sorted(fields) if name in config]))
        if key not in self._kept:
            dataset = library.create_dataset(task, **config)
            self._kept[key] = _Kept(dataset, _class_state(type(dataset)))
            if len(self._kept) > MAX_DATASETS:
                self._kept.popitem(last=False)
            # What is there before a fork need not be looked at, and copied, by a child's garbage collection.
            gc.freeze()
        self._kept.move_to_end(key)
        return self._kept[key]


def _class_state(kind: type) -> dict[str, Any]:
    return {name: value for name, value in vars(kind).items() if isinstance(value, list)}
