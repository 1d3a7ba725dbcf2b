"""What several solvers share: grids, steps on a grid, and expressions of numbers."""

from __future__ import annotations

import ast
import operator
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction

Cell = tuple[int, int]
"""A row and a column of a grid."""

NEIGHBOURS = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}

# --- grids


def as_text(rows: Iterable[Iterable[object]]) -> str:
    """A grid as the tasks write it: blanks between the columns, line ends between the rows."""
    return "\n".join(" ".join(map(str, row)) for row in rows)


def neighbours_of(cell: Cell) -> Iterator[Cell]:
    """The four cells beside a cell."""
    for down, right in NEIGHBOURS.values():
        yield cell[0] + down, cell[1] + right


def distances(sources: Iterable[Cell], is_open: Callable[[Cell], bool]) -> dict[Cell, int]:
    """The number of steps from the nearest source to each open cell that can be reached."""
    found = dict.fromkeys(sources, 0)
    queue = deque(found)
    while queue:
        cell = queue.popleft()
        for neighbour in neighbours_of(cell):
            if neighbour not in found and is_open(neighbour):
                found[neighbour] = found[cell] + 1
                queue.append(neighbour)
    return found


# --- expressions


OPERATIONS: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    # A shift to the right rounds down.
    ast.LShift: lambda left, right: left * 2**right,
    ast.RShift: lambda left, right: left // 2**right,
    ast.Pow: lambda left, right: Fraction(left ** int(right)),
}


def evaluate(expression: str, variables: Mapping[str, Fraction] | None = None) -> Fraction:
    """The exact value of an expression of numbers and variables.

    Raises ValueError for anything but numbers, the variables, parentheses, signs and `+ - * / // **`.
    """
    # As a float, a decimal with many digits would lose some of its digits. So the parser gets names instead.
    values = dict(variables or {})

    def named(found: re.Match[str]) -> str:
        name = f"decimal_{len(values)}"
        values[name] = Fraction(found.group())
        return name

    text = re.sub(r"\d+\.\d+", named, expression.strip())
    return _value_of(ast.parse(text, mode="eval").body, values)


def _value_of(node: ast.expr, variables: Mapping[str, Fraction]) -> Fraction:
    if isinstance(node, ast.Constant):
        return Fraction(str(node.value))
    if isinstance(node, ast.Name):
        return variables[node.id]
    if isinstance(node, ast.UnaryOp):
        operand = _value_of(node.operand, variables)
        return -operand if isinstance(node.op, ast.USub) else operand
    if isinstance(node, ast.BinOp):
        left = _value_of(node.left, variables)
        right = _value_of(node.right, variables)
        return Fraction(OPERATIONS[type(node.op)](left, right))
    raise ValueError(f"expected an expression of numbers, found {ast.dump(node)}")
