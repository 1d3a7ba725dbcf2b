"""Propositional formulas, from text to truth tables, as reasoning-gym writes them: P, ¬, ∧, ∨, →, ↔ and brackets."""

from __future__ import annotations

from collections.abc import Callable, Iterable

MAX_VARIABLES = 16
_STRENGTH = {"↔": 1, "→": 2, "∨": 3, "∧": 4, "¬": 5}
"""The weakest first: what is stronger is applied earlier."""
_CONNECT: dict[str, Callable[[int, int, int], int]] = {
    "↔": lambda a, b, all_true: ~(a ^ b) & all_true,
    "→": lambda a, b, all_true: (~a & all_true) | b,
    "∨": lambda a, b, _: a | b,
    "∧": lambda a, b, _: a & b,
}


def truth_table(text: str, variables: Iterable[str]) -> tuple[int, int]:
    """The formula's table over those of `variables` (single letters) that occur, and its number of rows.

    A table is one whole number: bit i is the formula's value in row i, and in row i the k-th variable has the value
    of bit k of i. Connectives are then the bitwise operations. Those that take two formulas group to the left.
    Raises ValueError if the text is no formula in these variables, or has more than MAX_VARIABLES.
    """
    names = sorted(set(text) & set(variables))
    if len(names) > MAX_VARIABLES:
        raise ValueError(f"more than {MAX_VARIABLES} variables")
    rows = 1 << len(names)
    columns = {name: _column(index, rows) for index, name in enumerate(names)}
    return _Reader(columns, (1 << rows) - 1).read(text), rows


def over_all(text: str, variables: Iterable[str]) -> int:
    """The formula's table over all `variables`, in the order of their names; "" is true of everything.

    Raises ValueError like `truth_table`.
    """
    names = sorted(set(variables))
    if len(names) > MAX_VARIABLES:
        raise ValueError(f"more than {MAX_VARIABLES} variables")
    rows = 1 << len(names)
    columns = {name: _column(index, rows) for index, name in enumerate(names)}
    all_true = (1 << rows) - 1
    return _Reader(columns, all_true).read(text) if text else all_true


def connectives(formula: str) -> int:
    """How many connectives stand in the text."""
    return sum(character in _STRENGTH for character in formula)


def _column(index: int, rows: int) -> int:
    period = 1 << index
    block = ((1 << period) - 1) << period
    return sum(block << start for start in range(0, rows, 2 * period))


class _Reader:
    """Two stacks, no recursion: tables of what is read, and connectives that wait for their right side."""

    def __init__(self, columns: dict[str, int], all_true: int) -> None:
        self._columns = columns
        self._all_true = all_true
        self._tables: list[int] = []
        self._waiting: list[str] = []

    def read(self, text: str) -> int:
        is_operand_due = True
        for char in text:
            if char.isspace():
                continue
            # A formula begins where one is due, and is followed by a connective or a closing bracket.
            if (char in self._columns or char in "¬(") is not is_operand_due:
                raise ValueError(f"no formula: {char!r} is out of place")
            is_operand_due = self._take(char)
        if is_operand_due:
            raise ValueError("the formula is not finished")
        self._apply_down_to(0)
        if self._waiting:
            raise ValueError("a bracket is not closed")
        return self._tables[0]

    def _take(self, char: str) -> bool:
        """Returns whether an operand is due next."""
        if char in self._columns:
            self._tables.append(self._columns[char])
            return False
        if char in "¬(":
            self._waiting.append(char)
            return True
        if char == ")":
            self._apply_down_to(0)
            if not self._waiting:
                raise ValueError("a bracket was never opened")
            self._waiting.pop()
            return False
        if char not in _CONNECT:
            raise ValueError(f"{char!r} is no connective")
        self._apply_down_to(_STRENGTH[char])
        self._waiting.append(char)
        return True

    def _apply_down_to(self, strength: int) -> None:
        while self._waiting and self._waiting[-1] != "(" and _STRENGTH[self._waiting[-1]] >= strength:
            connective = self._waiting.pop()
            right = self._tables.pop()
            if connective == "¬":
                self._tables.append(~right & self._all_true)
            else:
                self._tables.append(_CONNECT[connective](self._tables.pop(), right, self._all_true))
