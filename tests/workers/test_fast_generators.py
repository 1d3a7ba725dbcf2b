"""Replaced functions of reasoning-gym's generators give what the library's own give."""

from __future__ import annotations

import random

import pytest
from reasoning_gym.algorithmic import jugs
from reasoning_gym.games.knight_swap import KnightSwapLogic

from reasoning_gym_environment.workers import fast_generators


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
