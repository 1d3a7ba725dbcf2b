"""Find the items that have no right answer.

Some items of reasoning-gym come with a wrong answer, or with a question that does not say enough to answer it.
Training replaces such an item by another, and evaluations skip it.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from string import ascii_uppercase
from typing import Any

from . import validators
from .bounded_eval import evaluate
from .entries import Entry, module_of, task_of
from .logic import is_conclusion, joined_premises, short_formulas

RUNS_PROGRAMS = "codeio"
"""The task whose answers are the outputs of programs."""
DIFFERS_NEXT_TIME = "differs_next_time"
"""Metadata key of an item that comes out differently if it is made again with other random numbers."""


def has_right_answer(task: str, entry: Entry) -> bool:
    """False for an item without a right answer."""
    check = ITEM_CHECKS.get(task_of(task, entry))
    return check is None or check(entry)


# --- one check for each task. Its docstring says why some items have no right answer. ---


def aiw(entry: Entry) -> bool:
    """Matilda is one of the women in both circles, and all other women there are her colleagues.

    Some answers count her too.
    """
    if "Matilda" not in entry["question"]:
        return True
    _, women, _, women_of_other_circle = map(int, re.findall(r"\d+", entry["question"]))
    return int(entry["answer"]) == women + women_of_other_circle - 1


def basic_arithmetic(entry: Entry) -> bool:
    """Some divisions do not come out even, and the item rounds them down: it says that `3 + 1 / -(5 - 9)` is 3."""
    return evaluate(entry["metadata"]["expression"])[0] == int(entry["answer"])


def caesar_cipher(entry: Entry) -> bool:
    """A letter outside the alphabet cannot be deciphered: the Ë of `AËRIAL` turns into an I."""
    return str(entry["answer"]).isascii()


def calendar_arithmetic(entry: Entry) -> bool:
    """If the business days extend into the next year, the question gives the last day with the wrong year."""
    end = entry["metadata"].get("end_date")
    return end is None or end[:4] in entry["question"]


def codeio(entry: Entry) -> bool:
    """One in twenty programs draws random numbers without a seed, or shows a time."""
    return not entry["metadata"].get(DIFFERS_NEXT_TIME, False)


def complex_arithmetic(entry: Entry) -> bool:
    """Floats beyond 2**53 skip whole numbers, so some products of the last level are wrong."""
    metadata = entry["metadata"]
    if metadata["operation"] != "*":
        return True
    a, b = map(int, metadata["num1"])
    c, d = map(int, metadata["num2"])
    product = [a * c - b * d, a * d + b * c]
    return list(map(int, metadata["result"])) == product


def family_relationships(entry: Entry) -> bool:
    """The answers for relatives by marriage and for some nieces and nephews are wrong.

    For relatives by marriage, the item answers `What is Lily to William?` with what William is to Lily. It calls a
    child niece or nephew depending on whether the aunt or uncle is a woman, although that depends on the child.
    """
    answer = str(entry["answer"])
    if answer.endswith("-in-law"):
        return False
    config = module_of("family_relationships").FamilyRelationshipsConfig()
    wrong_names = {"niece": config.male_names, "nephew": config.female_names}
    return entry["metadata"]["person1"] not in wrong_names.get(answer, ())


def knight_swap(entry: Entry) -> bool:
    """The generator makes unsolvable items by removing a move that the question does not mention.

    A third of these items can still be solved.
    """
    metadata = entry["metadata"]
    if metadata["is_possible"]:
        return True
    logic = module_of("knight_swap").KnightSwapLogic
    pieces = metadata["pieces"]
    board = {}
    for square in pieces:
        board[square] = [target for target in pieces if logic.is_knight_move(square, target)]
    return logic.solve_swap(board, pieces, metadata["start_turn"]) is None


def mahjong_puzzle(entry: Entry) -> bool:
    """Some items overlook what the last card completes.

    A card drawn to complete a Chi can also complete a Peng, which takes precedence. A random card, which should be
    a Pass, can complete either.
    """
    last_round = entry["metadata"]["rounds"][-1]
    hand = last_round["cards"][:-1] + last_round["remove"]
    return str(entry["answer"]) == _mahjong_result(last_round["add"], hand)


_CHI = ({-2, -1}, {-1, 1}, {1, 2})
"""The distances from a new card to the two cards with which it makes three in a row."""


def _mahjong_result(new_card: str, hand: str) -> str:
    if hand.count(new_card) >= 2:
        return "Peng"
    distances = {ord(card) - ord(new_card) for card in hand}
    return "Chi" if any(map(distances.issuperset, _CHI)) else "Pass"


def number_filtering(entry: Entry) -> bool:
    """If the list holds a number twice, as `-23.00` and as `-23.0`, the item's answer repeats the first of the two."""
    metadata = entry["metadata"]
    surplus = Counter(metadata["result"]) - Counter(metadata["original_numbers"])
    return not surplus


def polynomial_equations(entry: Entry) -> bool:
    """The formula for three real roots of a cubic uses complex numbers, and the item omits such roots."""
    # reasoning-gym, which made the item, has imported it.
    import sympy

    metadata = entry["metadata"]
    num_roots = sympy.Poly(metadata["polynomial_expr"]).count_roots()
    return int(num_roots) == len(metadata["real_solutions"])


def propositional_logic(entry: Entry) -> bool:
    """A formula of one or two letters is right. Everything follows from premises that contradict each other.

    Items name their variables from P onwards. With more than 11 variables, the names after Z are signs such as `[`,
    which no formula can contain.
    """
    letters = entry["metadata"]["variables"]
    if not set(ascii_uppercase).issuperset(letters):
        return False
    joined = joined_premises(entry)
    if 0 in joined:
        return False
    return any(is_conclusion(formula, letters, joined) for formula in short_formulas(letters))


def syllogism(entry: Entry) -> bool:
    """Some items accept a wrong conclusion, such as `some A are not C` from `all A are B` and `some B are not C`."""
    if str(entry["answer"]) == "No":
        return True
    metadata = entry["metadata"]
    premises = [metadata["premise1"], metadata["premise2"]]
    return follows(premises, metadata["conclusion"])


def follows(premises: Sequence[str], conclusion: str) -> bool:
    """Whether the conclusion holds in every world in which the premises hold and every kind of thing exists.

    A statement is `All A are B`, `No A are B`, `Some A are B` or `Some A are not B`. The items take for granted that
    every kind exists.
    """
    words = " ".join([*premises, conclusion]).split()
    kinds = set(words) - {"All", "No", "Some", "are", "not"}
    # A sort of thing is the set of the kinds that it belongs to. A world is the set of the sorts that exist.
    sorts = list(_subsets(sorted(kinds)))
    for world in _subsets(sorts):
        has_every_kind = kinds == set(itertools.chain(*world))
        if has_every_kind and all(_holds(premise, world) for premise in premises) and not _holds(conclusion, world):
            return False
    return True


def _subsets(elements: Collection[Any]) -> Iterator[tuple[Any, ...]]:
    for size in range(len(elements) + 1):
        yield from itertools.combinations(elements, size)


def _holds(statement: str, world: Collection[Collection[str]]) -> bool:
    words = statement.split()
    subjects = [sort for sort in world if words[1] in sort]
    matches = [sort for sort in subjects if words[-1] in sort]
    if words[0] == "All":
        return matches == subjects
    if words[0] == "No":
        return not matches
    if "not" in words:
        return matches != subjects
    return bool(matches)


def time_intervals(entry: Entry) -> bool:
    """A weekday in brackets makes reasoning-gym overlook the time zone behind it."""
    time_format = entry["metadata"]["format"]
    return "(%A)" not in time_format or not time_format.endswith("%z")


def tsumego(entry: Entry) -> bool:
    return validators.tsumego(entry, entry["answer"])


ITEM_CHECKS = {
    "aiw": aiw,
    "basic_arithmetic": basic_arithmetic,
    "caesar_cipher": caesar_cipher,
    "calendar_arithmetic": calendar_arithmetic,
    "codeio": codeio,
    "complex_arithmetic": complex_arithmetic,
    "family_relationships": family_relationships,
    "knight_swap": knight_swap,
    "mahjong_puzzle": mahjong_puzzle,
    "number_filtering": number_filtering,
    "polynomial_equations": polynomial_equations,
    "propositional_logic": propositional_logic,
    "syllogism": syllogism,
    "time_intervals": time_intervals,
    "tsumego": tsumego,
}
"""Whether an item has a right answer, for each task with items that have none."""
