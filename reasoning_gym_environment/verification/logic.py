"""Propositional logic with truth tables.

A truth table is a single integer. Its bit i is the value of the formula in row i. In row i, the k-th letter has the
value of bit k of i. A formula follows from a premise if its table has all the bits that the premise's table has.

A table of n letters has 2**n bits. The 11 letters from P to Z, which are all that an answerable item has, take
milliseconds. With many more letters, grading exceeds its deadline, and then the answer is not scored.
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

_SPELLINGS = {
    r"\\(?:land|wedge)\b|&&?": "∧",
    r"\\(?:lor|vee)\b|\|\|?": "∨",
    r"\\(?:lnot|neg)\b|[~!]": "¬",
    r"\\(?:(?:[Ll]ongl|[Ll])eftrightarrow|iff)\b|<[-=]{1,3}>|[⇔⟺⟷]": "↔",
    r"\\(?:(?:[Ll]ongr|[Rr])ightarrow|to|implies)\b|[-=]{1,3}>|[⇒⟹⟶]": "→",
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
    formula = _with_plain_signs(formula)
    columns = _columns(tuple(letters))
    every_row = _all_rows(len(letters))

    def table_of(node: Any) -> int:
        if node.operator is None:
            return columns[node.left]
        if node.operator == "¬":
            return every_row ^ table_of(node.left)
        connective = _CONNECTIVES[node.operator]
        return every_row & connective(table_of(node.left), table_of(node.right))

    # The parser of reasoning-gym does not evaluate text as code. It takes unknown text for a letter, which `columns`
    # does not have.
    tree = module_of("propositional_logic").Expression.from_string(formula)
    size = len(_SIGN.findall(formula))
    return table_of(tree), size


def _with_plain_signs(formula: str) -> str:
    """The formula with the signs of the question in place of other spellings. Raises ValueError if it is too long."""
    if len(formula) > MAX_FORMULA_CHARS:
        raise UnreadableTextError(f"expected a formula of at most {MAX_FORMULA_CHARS} characters, got {len(formula)}")
    for spelling, sign in _SPELLINGS.items():
        formula = re.sub(spelling, sign, formula)
    return formula


def _all_rows(num_letters: int) -> int:
    """The table of a formula that is always true."""
    return (1 << (1 << num_letters)) - 1


@functools.cache
def _columns(letters: tuple[str, ...]) -> dict[str, int]:
    """The truth table of each letter."""
    columns = {}
    for index, letter in enumerate(letters):
        columns[letter] = sum(1 << row for row in range(1 << len(letters)) if row >> index & 1)
    return columns


def joined_premises(entry: Entry) -> dict[int, int]:
    """The truth tables of all selections of premises, each with the size of the smallest selection that has this table.

    The size of a selection is the number of letters and connectives in its premises, joined by ∧. One of the tables is
    0 if the premises contradict each other.
    """
    letters = entry["metadata"]["variables"]
    # The loop adds 1 for a ∧ before each premise. The first premise of a selection has none, so the count begins at -1.
    sizes = {_all_rows(len(letters)): -1}
    for premise in entry["metadata"]["premises"]:
        table, size = truth_table(premise, letters)
        for other_table, other_size in list(sizes.items()):
            both = other_table & table
            size_of_both = other_size + 1 + size
            sizes[both] = min(sizes.get(both, size_of_both), size_of_both)
    return sizes


def is_conclusion(formula: str, letters: Sequence[str], joined: Mapping[int, int]) -> bool:
    """Whether the formula says all that the premises say about its letters, in fewer letters and connectives.

    `joined` is the result of `joined_premises`. The formula must be smaller than every selection of premises that
    implies it. Therefore a repeated or extended premise, several premises joined by ∧, and a formula that is always
    true are not conclusions. `P ∨ Q` is not a conclusion if the premises imply P, because it says less than they do.
    """
    # In other spellings, letters of a command such as \Rightarrow look like letters of the formula.
    formula = _with_plain_signs(formula)
    table, size = truth_table(formula, letters)
    known = functools.reduce(operator.and_, joined)
    columns = _columns(tuple(letters))
    for index, letter in enumerate(letters):
        if letter not in formula:
            # Forget what the premises say about this letter: from now on, if a row is possible, so is the row in which
            # only this letter differs.
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
