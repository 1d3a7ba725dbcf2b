"""The datasets that a worker has used. Grading uses their verifiers, and generation those that are slow to build."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Mapping
from typing import Any

from ..tasks import reasoning_gym_source as library

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
"""Tasks whose constructors take 1 to 1,400 ms, and the fields of the config that these constructors read in this
release. Datasets with equal fields differ only in their config and seed, so a copy with another config and seed
suffices."""


def is_reseeded(task: str) -> bool:
    """Whether a dataset of this task can be derived from a dataset with another seed and config."""
    return task in RESEEDED and library.load().version == RESEEDED_IN


PROGRAMS = "_jsonl_data"
"""The constructor of codeio stores its programs in this attribute of the class, and not in the dataset."""


class DatasetCache:
    """The datasets that were used, by task and by the fields that they depend on.

    Nothing is ever forgotten. The datasets of all levels of reasoning-gym take 120 MB, and a worker that keeps too much
    ends (worker.py).
    """

    def __init__(self) -> None:
        self._kept: dict[bytes, tuple[Any, Any]] = {}
        """Datasets, each with its programs if its class has any."""

    def dataset(self, task: str, config: Mapping[str, Any]) -> Any:
        """The dataset for this config, which has `seed` and `size`. Raises the exceptions of `create_dataset`."""
        fields = RESEEDED[task] if is_reseeded(task) else tuple(config)
        key = pickle.dumps((task, [(name, config[name]) for name in sorted(fields) if name in config]))
        if key not in self._kept:
            self._make(key, task, config)
        dataset, programs = self._kept[key]
        if not is_reseeded(task):
            return dataset
        if programs is not None:
            setattr(type(dataset), PROGRAMS, programs)
        reseeded = copy.copy(dataset)
        reseeded.config = type(dataset.config)(**config)
        reseeded.config.validate()
        reseeded.seed = reseeded.config.seed
        reseeded.size = reseeded.config.size
        return reseeded

    def _make(self, key: bytes, task: str, config: Mapping[str, Any]) -> None:
        dataset = library.create_dataset(task, **config)
        self._kept[key] = (dataset, getattr(dataset, PROGRAMS, None))
        # The garbage collection of a forked child then skips these objects and does not copy their pages.
        gc.freeze()
