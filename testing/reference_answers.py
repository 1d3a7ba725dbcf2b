"""A right answer to an item of every task for which this is possible, even if reasoning-gym has no answer."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from reasoning_gym_environment.verification.grade import CHECK_ERRORS, CHECKS
from reasoning_gym_environment.verification.logic import is_conclusion, joined_premises, short_formulas
from reasoning_gym_environment.verification.questions import is_sound

Item = Mapping[str, Any]
_Square = tuple[float, float]


def is_right(task: str, entry: Item, answer: str) -> bool:
    try:
        return CHECKS[task](entry, answer)
    except CHECK_ERRORS:
        return False


def reference_answer(task: str, entry: Item) -> str | None:
    """A right answer to `entry`: its own, or one made from its metadata, or None.

    An unsolved integral is not an answer, even if it is the key of the item, and neither is a wrong key. There is no
    answer for cubes of sizes other than 3. In propositional_logic, there is none if the premises contradict each other,
    or if no short formula follows from them, except a premise itself.
    """
    if task == "intermediate_integration" and "Integral" in entry["answer"]:
        return _antiderivative(entry)
    if entry["answer"] is not None:
        return str(entry["answer"]) if is_sound(task, entry) else None
    construct = _CONSTRUCTED.get(task)
    return None if construct is None else construct(entry)


def _antiderivative(entry: Item) -> str:
    """The antiderivative that sympy finds, for an item whose key is an unsolved integral."""
    import sympy

    variable = sympy.Symbol(entry["metadata"]["variable"])
    integrand = sympy.parse_expr(entry["metadata"]["integrand"], local_dict={variable.name: variable})
    return str(sympy.integrate(integrand, variable))


def _conclusion(entry: Item) -> str | None:
    """A formula of one or two letters, if premises that do not contradict each other say it in more signs."""
    letters, joined = entry["metadata"]["variables"], joined_premises(entry)
    right = (
        formula for formula in short_formulas(letters) if 0 not in joined and is_conclusion(formula, letters, joined)
    )
    return next(right, None)


def _box_plan(entry: Item) -> str:
    """Move the boxes in order: each along its column, then along its row, then onto its target."""
    squares = {_square(place): items for place, items in entry["metadata"]["initial_state"].items()}
    targets = [(square, item) for square, items in squares.items() for item in items if item.startswith("target_")]
    steps: list[dict[str, str]] = []
    for start, items in squares.items():
        for box in (item for item in items if item.startswith("box_")):
            goal, target = next(pair for pair in targets if pair[1] == box.replace("box_", "target_", 1))
            targets.remove((goal, target))
            here = start
            while here != goal:
                following = _one_step(here, goal)
                steps.append(_order(here, box, following))
                here = following
            steps.append(_order(here, box, target))
    return json.dumps(steps)


def _order(here: _Square, box: str, to: _Square | str) -> dict[str, str]:
    """To the agent of a square, to move a box to a square beside it or onto a target."""
    aim = to if isinstance(to, str) else f"square[{to[0]}, {to[1]}]"
    return {f"Agent[{here[0]}, {here[1]}]": f"move({box}, {aim})"}


def _square(place: str) -> _Square:
    row, column = place.split("_")
    return float(row), float(column)


def _one_step(square: _Square, goal: _Square) -> _Square:
    row, column = square
    if row != goal[0]:
        return row + (1.0 if goal[0] > row else -1.0), column
    return row, column + (1.0 if goal[1] > column else -1.0)


_BOARD_SIZE = 6


def _way_out(entry: Item) -> str | None:
    """The cars moved one square at a time, tried breadth first; None where that takes too long.

    A board is its 36 squares: a letter for each car, `o` for an empty square, and `x` for a wall.
    """
    first = entry["metadata"]["board_config"]
    cars = sorted(set(first) - {"o", "x"})
    waiting, seen = deque([(first, "")]), {first}
    while waiting and len(seen) < _MOST_BOARDS:
        board, moves = waiting.popleft()
        if (board.rindex("A") + 1) % _BOARD_SIZE == 0:
            return moves.strip()
        for index, car in enumerate(cars):
            # The question names the cars in this order, and some boards skip letters.
            name = chr(ord("A") + index)
            for sign in "+-":
                after = _moved(board, car, sign)
                if after not in seen:
                    seen.add(after)
                    waiting.append((after, f"{moves} {name}{sign}1"))
    return None


def _moved(board: str, car: str, sign: str) -> str:
    """The board after a car has moved a square to the right or down, or (`-`) left or up. The same if it is blocked."""
    start, end = board.index(car), board.rindex(car)
    is_horizontal = end - start < _BOARD_SIZE
    step = 1 if is_horizontal else _BOARD_SIZE
    target, left = (end + step, start) if sign == "+" else (start - step, end)
    is_on_board = 0 <= target < len(board)
    if is_horizontal:
        is_on_board = is_on_board and target // _BOARD_SIZE == start // _BOARD_SIZE
    if not is_on_board or board[target] != "o":
        return board
    squares = list(board)
    squares[target] = car
    squares[left] = "o"
    return "".join(squares)


_MOST_BOARDS = 200_000

_CONSTRUCTED: Mapping[str, Callable[[Item], str | None]] = {
    "boxnet": _box_plan,
    "graph_color": lambda entry: json.dumps(entry["metadata"]["possible_answer"]),
    "propositional_logic": _conclusion,
    "rubiks_cube": lambda entry: entry["metadata"]["example_correct_answer"] or None,
    "rush_hour": _way_out,
}
