"""Items that have no right answer: their own is wrong, or what is asked for cannot be known.

Each check looks at the item alone: it holds, or no answer to this item is worth anything. Training makes another item
in the place of such a one, and evaluation asks none of them (`strict_checks.has_right_answer`).
"""

from __future__ import annotations

import functools
import operator
import re
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction

from .bounded_arithmetic import evaluate
from .check import SOME_CREDIT, Check, Entry, refuses
from .formulas import over_all


@refuses("the item's own answer is not how many she has", credit_from=SOME_CREDIT)
def aiw(entry: Entry, answer: str) -> bool:
    """Matilda is one of the women in both circles, so all others are her colleagues.

    The item says one more than she has in her own circle, which is wrong even if the other one does not count.
    """
    question = str(entry["question"])
    if "Matilda" not in question:
        return True
    _, women, _, women_of_the_other = map(int, re.findall(r"\d+", question))
    return int(entry["answer"]) == women + women_of_the_other - 1


@refuses("the item's own answer leaves out the rest of a division", credit_from=SOME_CREDIT)
def basic_arithmetic(entry: Entry, answer: str) -> bool:
    """Not all its divisions come out even, and those that do not are rounded down: `3 + 1 / -(5 - 9)` is 3."""
    return evaluate(entry["metadata"]["expression"])[0] == int(entry["answer"])


@refuses("the item's own answer cannot be deciphered", credit_from=SOME_CREDIT)
def caesar_cipher(entry: Entry, answer: str) -> bool:
    """Letters that the alphabet does not have become others of it for good: the Ë of `AËRIAL` is an I then."""
    return str(entry["answer"]).isascii()


RUNS_PROGRAMS = "codeio"
DIFFERS_NEXT_TIME = "differs_next_time"
"""In the metadata of an item that came out otherwise when it was made again, with other random numbers."""


@refuses("the item's program gives something else each time", credit_from=SOME_CREDIT)
def codeio(entry: Entry, answer: str) -> bool:
    """One in twenty draws random numbers without a seed, or shows a time: what it gave cannot be known."""
    return not entry["metadata"].get(DIFFERS_NEXT_TIME, False)


@refuses("the item's own answer is for a day that the question does not name", credit_from=SOME_CREDIT)
def calendar_arithmetic(entry: Entry, answer: str) -> bool:
    """Where business days are counted into the next year, the question names the last day with this one's number."""
    end = entry["metadata"].get("end_date")
    return end is None or end[:4] in entry["question"]


@refuses("the item's own answer holds numbers that are not in the list", credit_from=SOME_CREDIT)
def number_filtering(entry: Entry, answer: str) -> bool:
    """A number that is in the list twice, as `-23.00` and as `-23.0`, is answered with the first of both, twice."""
    metadata = entry["metadata"]
    return not Counter(metadata["result"]) - Counter(metadata["original_numbers"])


@refuses("the item's own answer leaves out solutions that are real", credit_from=SOME_CREDIT)
def polynomial_equations(entry: Entry, answer: str) -> bool:
    """The formula for three real roots of a cubic goes by way of complex numbers, and what it gives is left out."""
    metadata, powers = entry["metadata"], Counter[int]()
    for sign, factor, power in _TERM.findall(metadata["polynomial_expr"].replace(" ", "")):
        exponent = int(power.partition("**")[2] or "1") if power else 0
        powers[exponent] += int(sign + (factor or "1")) if factor or power else 0
    coefficients = [Fraction(powers[power]) for power in range(max(powers), -1, -1)]
    return _count_real_roots(coefficients) == len(metadata["real_solutions"])


_TERM = re.compile(r"([-+]?)(\d*)\*?([a-z](?:\*\*\d+)?)?")


def _count_real_roots(polynomial: list[Fraction]) -> int:
    """How many different ones there are, by Sturm's theorem. Coefficients are those of the highest power first."""
    degree = len(polynomial) - 1
    chain = [polynomial, [one * (degree - index) for index, one in enumerate(polynomial[:-1])]]
    while chain[-1]:
        rest, divisor = list(chain[-2]), chain[-1]
        while len(rest) >= len(divisor):
            taken = [rest[0] / divisor[0] * one for one in divisor] + [Fraction(0)] * (len(rest) - len(divisor))
            rest = [one - other for one, other in zip(rest, taken, strict=True)][1:]
        while rest and not rest[0]:
            del rest[0]
        chain.append([-one for one in rest])
    above = [one[0] > 0 for one in chain[:-1]]
    below = [(one[0] > 0) == (len(one) % 2 == 1) for one in chain[:-1]]
    return sum(map(operator.ne, below, below[1:])) - sum(map(operator.ne, above, above[1:]))


@refuses("the item's own answer breaks its rules", credit_from=SOME_CREDIT)
def mahjong_puzzle(entry: Entry, answer: str) -> bool:
    """Cards drawn to make Chi may make Peng, which goes first, and cards drawn at random, which are Pass, either."""
    last = entry["metadata"]["rounds"][-1]
    new, hand = last["add"], last["cards"][:-1] + last["remove"]
    beside = {ord(card) - ord(new) for card in hand}
    is_chi = any({first, second} <= beside for first, second in ((-2, -1), (-1, 1), (1, 2)))
    return str(entry["answer"]) == ("Peng" if hand.count(new) >= 2 else "Chi" if is_chi else "Pass")


@refuses("the item's own move captures nothing")
def tsumego(entry: Entry, answer: str) -> bool:
    """One item in six has a white stone put down last, beside those to be captured, that gives them a way out."""
    board, own = entry["metadata"]["board"], str(entry["answer"])
    stones = {(row, column): stone for row, line in enumerate(board) for column, stone in enumerate(line)}
    move = (len(board) - int(own[1:]), ord(own[0]) - ord("A"))
    stones[move] = "X"
    return any(_is_surrounded(stones, place) for place in _beside(move) if stones.get(place) == "O")


def _is_surrounded(stones: Mapping[tuple[int, int], str], place: tuple[int, int]) -> bool:
    """Whether the white stone there, and those it is joined with, have no free place beside them."""
    group = [place]
    for one in group:
        group += [other for other in _beside(one) if stones.get(other) == "O" and other not in group]
    return all(stones.get(other) != "." for one in group for other in _beside(one))


def _beside(place: tuple[int, int]) -> list[tuple[int, int]]:
    return [(place[0] + down, place[1] + right) for down, right in ((0, 1), (1, 0), (0, -1), (-1, 0))]


@refuses("the item's own answer is wrong, for the knights can change places", credit_from=SOME_CREDIT)
def knight_swap(entry: Entry, answer: str) -> bool:
    """What says `No` was made so by taking a move from the board, unknown to the question: a third can be solved."""
    pieces, first = entry["metadata"]["pieces"], entry["metadata"]["start_turn"]
    if entry["metadata"]["is_possible"]:
        return True
    mine = frozenset(square for square, piece in pieces.items() if piece == first)
    theirs = frozenset(square for square, piece in pieces.items() if piece not in (None, first))
    todo = [(mine, theirs, True)]
    seen = set(todo)
    for those, others, is_first in todo:
        if (those, others) == ((theirs, mine) if is_first else (mine, theirs)):
            return False
        for start in those:
            for end in pieces.keys() - those - others:
                state = (others, those - {start} | {end}, not is_first)
                if _is_a_knights(start, end) and state not in seen:
                    seen.add(state)
                    todo.append(state)
    return True


def _is_a_knights(start: str, end: str) -> bool:
    return sorted((abs(ord(start[0]) - ord(end[0])), abs(int(start[1:]) - int(end[1:])))) == [1, 2]


@refuses("the item's premises contradict each other, so that everything follows")
def propositional_logic(entry: Entry, answer: str) -> bool:
    """A quarter of the items at the first level and two in three at the last: nothing can be concluded from them."""
    metadata = entry["metadata"]
    tables = (over_all(premise, metadata["variables"]) for premise in metadata["premises"])
    return functools.reduce(operator.and_, tables) != 0


_NAMED_AS_THEIR_TASK = (
    *(aiw, basic_arithmetic, caesar_cipher, calendar_arithmetic, codeio, knight_swap, mahjong_puzzle),
    *(number_filtering, polynomial_equations, propositional_logic, tsumego),
)
ITEM_CHECKS: Mapping[str, Check] = {check.__name__: check for check in _NAMED_AS_THEIR_TASK}
"""By task, which may have a check of the answer in `strict_checks.CHECKS` beside it."""
