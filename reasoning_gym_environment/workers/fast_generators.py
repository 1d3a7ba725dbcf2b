"""Faster functions for reasoning-gym's slowest generators; they return the same values, so items stay the same.

At the last level of jugs, one item in five was not made in five seconds: each try walks through up to a million states.
An item of knight_swap takes a fifth of the time.
The functions replace the library's in processes that make items, in the release that they were compared with only.
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
"""Beyond which a byte for each is too much memory."""

Knights = frozenset[str]
Position = tuple[Knights, Knights, str]
Move = tuple[str, str, str]


def install() -> None:
    """Replace them, in this process; the library must be imported."""
    if library.load().version == COMPARED_WITH:
        # A checkout of it may have them elsewhere.
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
    """How many moves (fill, empty, pour) it takes from empty jugs to one that holds `target`; None if none get there.

    Breadth first, all states at one distance at a time. A state is a number, whose digits are what the jugs hold.
    """
    import numpy as np

    if (count := math.prod(capacity + 1 for capacity in capacities)) > MAX_JUG_STATES:
        return of_library(capacities, target)
    holds = np.asarray(capacities)
    worth = np.concatenate(([1], np.cumprod(holds[:-1] + 1)))
    giving, taking = np.array(list(itertools.permutations(range(len(capacities)), 2))).T
    is_seen = np.zeros(count, dtype=bool)
    is_seen[0] = True
    states = np.zeros(1, dtype=np.int64)
    for moves in itertools.count():
        held = states[:, None] // worth % (holds + 1)
        if (held == target).any():
            return moves
        poured = np.minimum(held[:, giving], (holds - held)[:, taking])
        changes = ((holds - held) * worth, -held * worth, poured * (worth[taking] - worth[giving]))
        reached = states[:, None] + np.concatenate(changes, axis=1)
        states = np.unique(reached[~is_seen[reached]])
        if not len(states):
            break
        is_seen[states] = True
    return None


def swap_knights(
    board: Mapping[str, Sequence[str]], pieces: Mapping[str, str], start_turn: str = "w"
) -> list[Move] | None:
    """The shortest moves (colour, from, to), by turns, after which white and black have changed places, or None.

    Breadth first, in the library's order, so that of several it is the same one. The library makes a class for the
    positions each time, which takes two milliseconds.
    """
    white, black = (frozenset(at for at, piece in pieces.items() if piece == colour) for colour in "wB")
    start: Position = (white, black, start_turn)
    came_from: dict[Position, tuple[Position, Move] | None] = {start: None}
    for position in (queue := [start]):
        whites, blacks, turn = position
        if whites == black and blacks == white:
            break
        for at in whites if turn == "w" else blacks:
            for to in board[at]:
                if to in whites or to in blacks:
                    continue
                moved = frozenset(to if one == at else one for one in (whites if turn == "w" else blacks))
                reached: Position = (moved, blacks, "B") if turn == "w" else (whites, moved, "w")
                if reached not in came_from:
                    came_from[reached] = (position, (turn, at, to))
                    queue.append(reached)
    else:
        return None
    moves = []
    while (step := came_from[position]) is not None:
        position, move = step
        moves.append(move)
    return moves[::-1]
