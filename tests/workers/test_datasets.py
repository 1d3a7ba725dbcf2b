"""The datasets that a worker keeps, and the functions it replaces in them, give the items of the library alone."""

from __future__ import annotations

import pickle
import random
from typing import Any

import pytest
from reasoning_gym.algorithmic import jugs
from reasoning_gym.games.knight_swap import KnightSwapLogic

from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.tasks.difficulty_ladder import build_ladder
from reasoning_gym_environment.workers import fast_generators
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


def test_jugs_take_as_many_moves() -> None:
    rng = random.Random(3)
    found = set()
    for _ in range(60):
        capacities = [rng.randint(3, 9) for _ in range(rng.randint(3, 4))]
        target = rng.randint(1, max(capacities) + 1)
        moves = jugs.min_moves_n(capacities, target)
        assert fast_generators.min_jug_moves(capacities, target, of_library=pytest.fail) == moves
        found.add(moves)
    assert None in found and len(found) > 4


def test_knights_change_places_by_the_same_moves() -> None:
    rng = random.Random(3)
    lengths = set()
    for _ in range(60):
        board = KnightSwapLogic.generate_board(rng.randint(6, 9), rng)
        at = rng.sample(sorted(board), 4)
        pieces = {square: "wwBB"[at.index(square)] if square in at else None for square in board}
        turn = rng.choice("wB")
        moves = KnightSwapLogic.solve_swap(board, pieces, turn)
        assert fast_generators.swap_knights(board, pieces, turn) == moves
        lengths.add(moves and len(moves))
    assert None in lengths and len(lengths) > 3
