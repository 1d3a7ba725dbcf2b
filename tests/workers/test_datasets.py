"""The datasets that a worker keeps give the items of the library alone."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.tasks.difficulty_ladder import build_ladder
from reasoning_gym_environment.workers.datasets import RESEEDED, DatasetCache
from reasoning_gym_environment.workers.generation_worker import _forget_earlier_items


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("task", sorted(RESEEDED))
def test_a_reseeded_dataset_gives_the_items_of_a_fresh_one(task: str) -> None:
    configs: list[dict[str, Any]] = [{}, *(dict(one.config) for one in build_ladder(task).levels)]
    if task == "arc_agi":
        configs.append({"use_eval": False, "rotations": [], "rotations_weights": [1.0]})
    cache = DatasetCache()
    # Datasets take turns, so that what one leaves behind would meet the other.
    for seed in (3, 2**31, 3):
        for config in configs:
            whole = {**config, "seed": seed, "size": 1}
            _forget_earlier_items(seed)
            made = cache.dataset(task, whole)[0]
            _forget_earlier_items(seed)
            fresh = library.create_dataset(task, **whole)
            before = pickle.dumps(vars(fresh))
            assert made == fresh[0]
            assert pickle.dumps(vars(fresh)) == before, "making an item has changed the dataset"
