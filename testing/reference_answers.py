"""A right answer to an item of every task for which this is possible, even if reasoning-gym has no answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from benchmarks.questions.solution import Solver
from benchmarks.questions.solvers import puzzles
from reasoning_gym_environment.verification.grade import CHECK_ERRORS, CHECKS
from reasoning_gym_environment.verification.questions import is_sound

Item = Mapping[str, Any]


def is_right(task: str, entry: Item, answer: str) -> bool:
    try:
        return CHECKS[task](entry, answer)
    except CHECK_ERRORS:
        return False


def reference_answer(task: str, entry: Item) -> str | None:
    """A right answer to `entry`: its own, or one that a solver finds, or None.

    An unsolved integral is not an answer, even if it is the key of the item, and neither is a wrong key. There is no
    answer for cubes of sizes other than 3, nor for premises from which no short formula follows.
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


_BOARD_SIZE = 6


def _way_out(entry: Item) -> str | None:
    """The cars moved one square at a time; None where the search takes too long.

    A board is its 36 squares: a letter for each car, `o` for an empty square, and `x` for a wall.
    """
    first = entry["metadata"]["board_config"]
    cars = sorted(set(first) - {"o", "x"})

    def steps(board: str) -> Iterator[tuple[str, str]]:
        for index, car in enumerate(cars):
            # The question names the cars in this order, and some boards skip letters.
            name = chr(ord("A") + index)
            for sign in "+-":
                yield f"{name}{sign}1", _moved(board, car, sign)

    def is_out(board: str) -> bool:
        return (board.rindex("A") + 1) % _BOARD_SIZE == 0

    moves = puzzles.shortest_walk(first, steps, is_out, _MOST_BOARDS)
    return None if moves is None else " ".join(moves)


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


def _solved(solver: Solver) -> Callable[[Item], str | None]:
    """The first answer of a solver that reads the question."""
    return lambda entry: next(iter(solver(entry["question"]).answers), None)


_CONSTRUCTED: Mapping[str, Callable[[Item], str | None]] = {
    "boxnet": _solved(puzzles.boxnet),
    "graph_color": _solved(puzzles.graph_color),
    "propositional_logic": _solved(puzzles.propositional_logic),
    "rubiks_cube": lambda entry: entry["metadata"]["example_correct_answer"] or None,
    "rush_hour": _way_out,
}
