"""Datasets that a worker keeps: for their verifiers, and to make items of tasks whose datasets are slow to build."""

from __future__ import annotations

import copy
import gc
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from ..tasks import reasoning_gym_source as library

MAX_DATASETS = 128
RESEEDED_IN = "0.1.25"
RESEEDED: Mapping[str, tuple[str, ...]] = {
    "arc_agi": ("use_train", "use_eval", "board_format_opts"),
    "figlet_font": ("min_word_len", "max_word_len"),
    "group_anagrams": (),
    "rush_hour": ("min_moves", "max_moves"),
    "spell_backward": ("data_file", "min_word_len", "max_word_len"),
    "word_ladder": ("min_word_length", "max_word_length"),
}
"""Tasks whose constructors take 8 to 400 ms, and the fields of the config that these read, in this release.
Datasets that agree in these fields differ in their config and seed alone, so one can be turned into another."""


def is_reseeded(task: str) -> bool:
    """Whether a dataset of this task can be turned into one of another seed and config."""
    return task in RESEEDED and library.load().version == RESEEDED_IN


class DatasetCache:
    """The MAX_DATASETS datasets that were used last, by task and by what they depend on."""

    def __init__(self) -> None:
        self._kept: OrderedDict[bytes, Any] = OrderedDict()

    def dataset(self, task: str, config: Mapping[str, Any]) -> Any:
        """What `create_dataset` gives for this config, `seed` and `size` included. Raises what building it raises."""
        if not is_reseeded(task):
            return self._keep(task, config, tuple(config))
        dataset = copy.copy(self._keep(task, config, RESEEDED[task]))
        dataset.config = type(dataset.config)(**config)
        dataset.config.validate()
        dataset.seed, dataset.size = dataset.config.seed, dataset.config.size
        return dataset

    def _keep(self, task: str, config: Mapping[str, Any], fields: tuple[str, ...]) -> Any:
        key = pickle.dumps((task, [(name, config[name]) for name in sorted(fields) if name in config]))
        if key not in self._kept:
            self._kept[key] = library.create_dataset(task, **config)
            if len(self._kept) > MAX_DATASETS:
                self._kept.popitem(last=False)
            # What is there before a fork need not be looked at, and copied, by a child's garbage collection.
            gc.freeze()
        self._kept.move_to_end(key)
        return self._kept[key]
