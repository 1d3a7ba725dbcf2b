"""Propositional logic with truth tables.

A truth table is one whole number. Bit i is the value of a formula in row i, where the k-th letter has the value of bit
k of i. A formula follows from a premise if its table contains all bits of the premise's table.
"""

from __future__ import annotations

import functools
import itertools
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .bounded_eval import UnreadableTextError
from .entries import Entry, module_of

MAX_FORMULA_CHARS = 2_000
MAX_LETTERS = 12

_SPELLINGS = {
    r"\\(?:land|wedge)\b|&&?": "∧",
    r"\\(?:lor|vee)\b|\|\|?": "∨",
    r"\\(?:lnot|neg)\b|[~!]": "¬",
    r"\\(?:leftrightarrow|iff)\b|<[-=]{1,3}>|⇔": "↔",
    r"\\(?:rightarrow|to|implies)\b|[-=]{1,3}>|⇒": "→",
}
_CONNECTIVES: Mapping[str, Callable[..., int]] = {
    "∧": operator.and_,
    "∨": operator.or_,
    "→": lambda left, right: ~left | right,
    "↔": lambda left, right: ~(left ^ right),
}
_SIGN = re.compile("[A-Z∧∨¬→↔]")


def truth_table(formula: str, letters: Sequence[str]) -> tuple[int, int]:
    """The truth table of a formula, and its size: the number of its letters and connectives.

    Raises ValueError, LookupError or RecursionError if the text is not a formula in these letters.
    """
    if len(formula) > MAX_FORMULA_CHARS:
        raise UnreadableTextError(f"a formula of more than {MAX_FORMULA_CHARS} characters")
    for spelling, sign in _SPELLINGS.items():
        formula = re.sub(spelling, sign, formula)
    columns = _columns(tuple(letters))
    every_row = _all_rows(len(letters))

    def table_of(node: Any) -> int:
        if node.operator is None:
            return columns[node.left]
        if node.operator == "¬":
            return every_row ^ table_of(node.left)
        connective = _CONNECTIVES[node.operator]
        return every_row & connective(table_of(node.left), table_of(node.right))

    # The parser of reasoning-gym evaluates nothing. It treats unknown text as a letter.
    tree = module_of("propositional_logic").Expression.from_string(formula)
    size = len(_SIGN.findall(formula))
    return table_of(tree), size


def _all_rows(num_letters: int) -> int:
    """The table of a formula that is always true."""
    num_rows = 1 << min(num_letters, MAX_LETTERS)
    return (1 << num_rows) - 1


@functools.cache
def _columns(letters: tuple[str, ...]) -> dict[str, int]:
    """The truth table of each letter."""
    num_rows = 1 << min(len(letters), MAX_LETTERS)
    columns = {}
    for index, letter in enumerate(letters):
        columns[letter] = sum(1 << row for row in range(num_rows) if row >> index & 1)
    return columns


def joined_premises(entry: Entry) -> dict[int, int]:
    """The truth table of every selection of the premises, with the size of the smallest such selection.

    The size counts the signs of the premises and the ∧ between them. The table 0 is among them if the premises
    contradict each other.
    """
    letters = entry["metadata"]["variables"]
    # The empty selection has no ∧ in front, so its size is one less than 0.
    sizes = {_all_rows(len(letters)): -1}
    for premise in entry["metadata"]["premises"]:
        table, size = truth_table(premise, letters)
        for other_table, other_size in list(sizes.items()):
            both = other_table & table
            size_of_both = other_size + 1 + size
            sizes[both] = min(sizes.get(both, size_of_both), size_of_both)
    return sizes


def is_conclusion(formula: str, letters: Sequence[str], joined: Mapping[int, int]) -> bool:
    """Whether the formula says all that the premises say about its letters, and says it in fewer signs.

    `joined` is the result of `joined_premises`. The formula must be smaller than every selection of premises that
    implies it. A repeated or extended premise, several premises as they stand, and a formula that is always true are
    no conclusions. `P ∨ Q` is none if the premises imply P, because it says less than they do.
    """
    table, size = truth_table(formula, letters)
    known = functools.reduce(operator.and_, joined)
    columns = _columns(tuple(letters))
    for index, letter in enumerate(letters):
        if letter not in formula:
            # The formula says nothing about this letter, so a possible row stays possible with the letter inverted.
            distance = 1 << index
            with_letter = known & columns[letter]
            without_letter = known ^ with_letter
            known |= with_letter >> distance
            known |= without_letter << distance
    if table != known:
        return False
    sizes_of_sources = [source_size for source, source_size in joined.items() if source & ~table == 0]
    return size < min(sizes_of_sources, default=0)


def short_formulas(letters: Sequence[str]) -> Iterator[str]:
    """The formulas with one or two letters that a conclusion can have."""
    yield from letters
    yield from map("¬{}".format, letters)
    for left, right in itertools.permutations(letters, 2):
        for sign in "∨→↔":
            yield f"{left} {sign} {right}"
