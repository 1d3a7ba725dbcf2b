"""Faster functions for reasoning-gym's slowest generators. They return the same values, so items stay the same.

At the hardest level of jugs, the library fails to make one item in five within five seconds, because each try searches
up to a million states. An item of knight_swap takes a fifth of the library's time. The functions replace the library's
functions in generation workers, and only in the release that they were compared with.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence

from ..tasks import reasoning_gym_source as library

COMPARED_WITH = "0.1.25"
MAX_JUG_STATES = 1 << 24
"""The search keeps a byte for each state. More states than this would need too much memory."""

Knights = frozenset[str]
Position = tuple[Knights, Knights, str]
Move = tuple[str, str, str]


def install() -> None:
    """Replace the library's functions in this process. The library must be imported."""
    if library.load().version == COMPARED_WITH:
        # A checkout of the library may define these functions elsewhere.
        with contextlib.suppress(ImportError, AttributeError):
            _replace()


def _replace() -> None:
    from reasoning_gym.algorithmic import jugs
    from reasoning_gym.games.knight_swap import KnightSwapLogic

    jugs.min_moves_n = functools.partial(min_jug_moves, of_library=jugs.min_moves_n)
    KnightSwapLogic.solve_swap = staticmethod(swap_knights)


def min_jug_moves(
    capacities: Sequence[int], target: int, of_library: Callable[[Sequence[int], int], int | None]
) -> int | None:
    """The least number of moves (fill, empty, pour) until some jug holds `target`, from empty jugs. None if impossible.

    Searches breadth first, and handles all states at the same distance together. A state is a number whose digits are
    the contents of the jugs.
    """
    import numpy as np

    count = math.prod(capacity + 1 for capacity in capacities)
    if count > MAX_JUG_STATES:
        return of_library(capacities, target)
    limits = np.asarray(capacities)
    bases = limits + 1
    weights = np.concatenate(([1], np.cumprod(bases[:-1])))
    giving, taking = np.array(list(itertools.permutations(range(len(capacities)), 2))).T
    is_seen = np.zeros(count, dtype=bool)
    is_seen[0] = True
    states = np.zeros(1, dtype=np.int64)
    for moves in itertools.count():
        states = states[:, None]
        held = states // weights % bases
        if (held == target).any():
            return moves
        free = limits - held
        poured = np.minimum(held[:, giving], free[:, taking])
        changes = (
            free * weights,
            -held * weights,
            poured * (weights[taking] - weights[giving]),
        )
        reached = states + np.concatenate(changes, axis=1)
        states = np.unique(reached[~is_seen[reached]])
        if not len(states):
            break
        is_seen[states] = True
    return None


def swap_knights(
    board: Mapping[str, Sequence[str]], pieces: Mapping[str, str], start_turn: str = "w"
) -> list[Move] | None:
    """The shortest list of moves (colour, from, to), in turns, that swaps the white and the black knights, or None.

    Searches breadth first in the library's order, so that it finds the same one of several shortest lists. The library
    creates a class for the positions in each call, which takes two milliseconds.
    """
    white = frozenset(square for square, piece in pieces.items() if piece == "w")
    black = frozenset(square for square, piece in pieces.items() if piece == "B")
    start: Position = (white, black, start_turn)
    came_from: dict[Position, tuple[Position, Move] | None] = {start: None}
    queue = [start]
    for position in queue:
        whites, blacks, turn = position
        if whites == black and blacks == white:
            break
        knights = whites if turn == "w" else blacks
        for origin in knights:
            for target in board[origin]:
                if target in whites or target in blacks:
                    continue
                # The insertion order can decide the order of the set, and so the order of the search.
                moved = frozenset(target if square == origin else square for square in knights)
                reached: Position = (moved, blacks, "B") if turn == "w" else (whites, moved, "w")
                if reached not in came_from:
                    came_from[reached] = (position, (turn, origin, target))
                    queue.append(reached)
    else:
        return None
    moves = []
    while (step := came_from[position]) is not None:
        position, move = step
        moves.append(move)
    return moves[::-1]
