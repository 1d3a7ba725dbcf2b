"""Check answers to the tasks with one right answer.

    answer ── reader of the task ──> value == value of the item's own answer?

`READERS` has the reader of most of these tasks. The reader turns the given answer and the item's own answer into
values, and the answer is right if both values are equal. For the other tasks this comparison is too strict or too
lenient, so a function of this module checks each of them. Tasks with many right answers are in validators.py.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

from .bounded_eval import evaluate
from .entries import Check, Entry
from .markup import plain_math, plain_text, strip_markup, without_brackets, without_numbering
from .readers import (
    NAME_OF_AN_EXPRESSION,
    WORD,
    amount,
    are_rounded,
    complex_number,
    count,
    duration,
    fraction,
    grid,
    groups,
    hexadecimal,
    integer,
    is_rounded,
    items,
    letters,
    literal,
    number,
    number_grid,
    number_or_word,
    numbers,
    partitions,
    picture,
    plain_number,
    polynomial,
    roles,
    without_base,
    wording,
)

Reader = Callable[[str], Any]

MAX_FACTORS = 500
"""An answer to prime_factorization with more factors than this is wrong."""

_HEDGES = frozenset(
    {
        "not",
        "no",
        "non",
        "nor",
        "never",
        "neither",
        "either",
        "or",
        "if",
        "unless",
        "except",
        "but",
        "other",
        "than",
        "less",
        "more",
        "fewer",
        "least",
        "most",
        "under",
        "over",
        "below",
        "above",
        "wrong",
        "false",
        "times",
        "half",
        "twice",
        "double",
        "triple",
        "dozen",
        "hundred",
        "thousand",
        "million",
        "percent",
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "nine",
        "ten",
        "minus",
        "negative",
    }
)
"""Words that change the meaning of a number. An answer must not contain them, even if the question does."""
_SENTENCE_END = re.compile(r"(?<!Mr)(?<!Mrs)(?<!Ms)(?<!Dr)[.?!:]\s+")


def gsm_symbolic(entry: Entry, answer: str) -> bool:
    """The right number. Words of the question's last sentence may surround it.

    If the question gives hours and asks for minutes, `8 hours` is wrong.
    """
    question, _, _ = str(entry.get("question", "")).partition("Give the result")
    last_sentence = _SENTENCE_END.split(question.rstrip())[-1].lower()
    words = {"in", "total"}
    words.update(WORD.findall(last_sentence))
    words -= _HEDGES
    words.update(sign for sign in "€£¥₹" if sign in question)
    if "%" in last_sentence or "percent" in last_sentence:
        words.add("%")
    return amount(answer, frozenset(words)) == number(str(entry["answer"]))


_BASE_PREFIXES = {2: "0b", 8: "0o", 16: "0x"}
"""In these bases, the letter of the prefix is not a digit, so removing the prefix does not change the number."""


def base_conversion(entry: Entry, answer: str) -> bool:
    """The digits in the target base. The base may be an index, a prefix or words: `101_2`, `0b101`, `101 (base 2)`.

    Leading zeros, blanks and commas between digits do not matter.
    """
    base = entry["metadata"]["target_base"]
    digits = letters(without_brackets(plain_number(without_base(answer, base))))
    digits = digits.removeprefix(_BASE_PREFIXES.get(base, "")).replace(",", "")
    right = letters(str(entry["answer"]))
    # An answer without a digit is not 0.
    return digits != "" and digits.lstrip("0") == right.lstrip("0")


_INDIAN_THOUSANDS = re.compile(r"(?<=\d),(\d\d)(?=,)", re.ASCII)
"""Indian notation separates thousands like this: `12,34,567`."""


def number_format(entry: Entry, answer: str) -> bool:
    """The chosen candidate, exactly or with at least six decimals.

    A candidate is a sum of two floats with three decimals, so its last digits may be rounding errors.
    """
    right = Fraction(entry["metadata"]["solution"])
    plain = _INDIAN_THOUSANDS.sub(r"\1", answer)
    return is_rounded(plain, right, finest=Fraction(1, 10**6))


_DEGREES = re.compile(
    r" ?(?:°|deg(?:rees?)?|\^ ?\{? ?\\circ ?\}?|\\degree|\\text ?\{ ?degrees? ?\})\Z",
    re.IGNORECASE,
)


def advanced_geometry(entry: Entry, answer: str) -> bool:
    """Numbers with at least three decimals. Two are enough for an angle, because the item's own answer has two."""
    metadata = entry["metadata"]
    task_type = metadata["task_type"]
    plain = plain_number(answer)
    if task_type == "angle_measure":
        angle = Fraction(metadata["angle_ABC_degrees"])
        return is_rounded(
            _DEGREES.sub("", plain),
            angle,
            finest=Fraction(1, 100),
            cut_off=False,
        )
    right = metadata["ortho"] if task_type == "orthocenter" else [metadata["incircle_radius_approx"]]
    return are_rounded(
        items(plain),
        right,
        finest=Fraction(1, 1000),
        cut_off=False,
    )


def coin_flip(entry: Entry, answer: str) -> bool:
    """The exact fraction, or a rounded number or percentage.

    Every digit of a rounded number must be right. Its error must be small compared with the probability, and compared
    with the probability of the opposite outcome. Otherwise 0 or 1 would be right for an outcome that is nearly certain.
    """
    ratio = entry["metadata"]["rational"]
    right = Fraction(ratio["numerator"], ratio["denominator"])
    share = plain_number(answer)
    if "/" in share:
        return Fraction(*fraction(share)) == right
    whole = 1
    if share.endswith("%"):
        share = share.rstrip("%\\ ")
        whole = 100
    error = abs(number(share) / whole - right)
    rounding_error = right / 10**9
    tolerance = min(Fraction(1, 10**4), right / 50, (1 - right) / 50)
    if error > max(tolerance, rounding_error):
        return False
    return is_rounded(share, right * whole, finest=Fraction(whole))


_DECIMAL = re.compile(r"(\d+)\.(\d+)")


def decimal_arithmetic(entry: Entry, answer: str) -> bool:
    """Every digit must be right, to at least as many decimals as the question has. Zeros at the end may be missing.

    reasoning-gym rounds its own answer after each step, so the last digits can differ from the exact value. Both values
    are accepted.
    """
    question = str(entry["question"])
    lengths = map(len, re.findall(r"\.(\d+)", question))
    finest = Fraction(1, 10 ** max(lengths, default=0))
    # The expression is on the line of the last `=`, before the `=`.
    before_equals, _, _ = question.rpartition("=")
    _, _, expression = before_equals.rpartition("\n")
    exact, _ = evaluate(_DECIMAL.sub(_as_quotient, expression))
    own = Fraction(str(entry["answer"]))
    return is_rounded(answer, own, finest=finest) or is_rounded(answer, exact, finest=finest)


def _as_quotient(decimal: re.Match[str]) -> str:
    """Write `0.25` as `(25/100)`."""
    whole, decimals = decimal.groups()
    return f"({int(whole + decimals)}/{10 ** len(decimals)})"


def power_function(entry: Entry, answer: str) -> bool:
    """A number with at least three significant figures. Every figure must be right."""
    right = Decimal(str(entry["answer"]))
    third_figure = Fraction(10) ** (right.adjusted() - 2)
    return is_rounded(
        answer,
        Fraction(right),
        finest=third_figure,
        cut_off=False,
    )


def pool_matrix(entry: Entry, answer: str) -> bool:
    """A matrix of numbers with at least two decimals."""
    given = grid(answer)
    right = entry["metadata"]["solution"]
    if len(given) != len(right):
        return False
    row_is_right = functools.partial(are_rounded, finest=Fraction(1, 100))
    return all(map(row_is_right, given, right))


_NO_ROOTS = frozenset(
    {
        "",
        "[]",
        "none",
        "no real solution",
        "no real solutions",
        "no real roots",
        "empty string",
    }
)
_FOURTH_DECIMAL = Fraction(1, 10**4)


def polynomial_equations(entry: Entry, answer: str) -> bool:
    """All real roots with at least four decimals, in any order.

    The last digit may be rounded or cut off, because the question says `rounding down when the 5th decimal is 5 or
    greater`.
    """
    metadata = entry["metadata"]
    plain = strip_markup(answer)
    own = sorted({Fraction(str(root)) for root in metadata["real_solutions"]})
    if not own or not plain:
        return not own and plain.casefold() in _NO_ROOTS
    plain = NAME_OF_AN_EXPRESSION.sub("", without_brackets(plain_text(answer)))
    plain = without_numbering(without_brackets(plain))
    parts = re.split(r",|;|\n|\bor\b|\band\b", plain)
    given = list(filter(str.strip, parts))
    exact = _real_roots(str(metadata["polynomial_expr"]))
    if not len(given) == len(own) == len(exact):
        return False
    given.sort(key=number)
    return all(map(_is_root, given, exact, own))


@functools.lru_cache(maxsize=1)
def _real_roots(polynomial: str) -> list[Fraction]:
    """The different real roots in ascending order. All answers of a group need the same roots."""
    # reasoning-gym has already imported sympy. The parent process also imports this module, and does not need sympy.
    import sympy

    roots = sympy.Poly(polynomial).real_roots()
    return sorted({Fraction(str(root.n(20))) for root in roots})


def _is_root(text: str, exact: Fraction, own: Fraction) -> bool:
    return is_rounded(text, exact, finest=_FOURTH_DECIMAL) or is_rounded(text, own, finest=_FOURTH_DECIMAL)


def codeio(entry: Entry, answer: str) -> bool:
    """The same data as in the item's own answer. If that answer is not JSON, the same words."""
    own = str(entry["answer"])
    try:
        expected = literal(own)
    except (ValueError, TypeError, RecursionError):
        return wording(answer) == wording(own)
    return _is_same_data(literal(answer), expected)


def _is_same_data(given: Any, right: Any) -> bool:
    """Whether both have the same types and values at every level.

    57.0 is the same as 57, and a given tuple is the same as a list. The last digits of a float may be rounded.
    """
    if isinstance(right, dict) and isinstance(given, dict):
        if given.keys() != right.keys():
            return False
        return all(_is_same_data(given[key], right[key]) for key in right)
    if isinstance(right, list) and isinstance(given, (list, tuple)):
        if len(given) != len(right):
            return False
        return all(map(_is_same_data, given, right))
    types = {type(given), type(right)}
    if types == {float}:
        exact = Fraction(str(right))
        return is_rounded(str(given), exact, finest=abs(exact) / 10**6)
    return given == right and (len(types) == 1 or types == {int, float})


def prime_factorization(entry: Entry, answer: str) -> bool:
    """The prime factors in any order. Equal factors may be written as a power with a positive exponent.

    The number itself may stand before or after them: 12 = 2 × 2 × 3.
    """
    right = Counter(entry["metadata"]["factors"])
    number = str(math.prod(right.elements()))
    sides = without_brackets(plain_math(answer)).split("=")
    names = [re.sub("[, ]", "", side) for side in sides]
    if len(sides) > 1 and number in names:
        sides.pop(names.index(number))
    if len(sides) > 1:
        return False
    factors: Counter[int] = Counter()
    for power in re.split("[*xX,]", sides[0], maxsplit=MAX_FACTORS):
        base, _, exponent = without_brackets(power.strip()).partition("^")
        times = integer(exponent or "1")
        if times < 1:
            return False
        factors[integer(base)] += times
    return factors == right


_UNIT_MS = {
    "D days": 86_400_000,
    "HH:MM": 60_000,
    "D days, HH:MM": 60_000,
    "HH:MM:SS.mmm": 1,
}
"""Milliseconds in the smallest unit of an answer format. The smallest unit of other formats is a second."""


def time_intervals(entry: Entry, answer: str) -> bool:
    """The exact duration in whole units of the answer format.

    The item's own answer cannot decide: with milliseconds in the format, it is a millisecond too short in half of the
    items.
    """
    metadata = entry["metadata"]
    start = datetime.fromisoformat(metadata["start_time"])
    end = datetime.fromisoformat(metadata["end_time"])
    elapsed_ms = (end - start) // timedelta(milliseconds=1)
    unit_ms = _UNIT_MS.get(metadata["expected_format"], 1000)
    whole_units = elapsed_ms // unit_ms
    return duration(answer) * 1000 == whole_units * unit_ms


_INEQUALITIES = re.compile("[<>∧∨^vV]")


def futoshiki(entry: Entry, answer: str) -> bool:
    """The numbers of the grid. The answer may omit the inequality signs, because the question gives them."""
    # The markup goes first, because `<b>` is no inequality.
    given = _INEQUALITIES.sub(" ", strip_markup(answer))
    own = _INEQUALITIES.sub(" ", str(entry["answer"]))
    return grid(given) == grid(own)


# --- the check of each task ---

READERS: Mapping[str, Reader] = {
    "ab": items,
    "acre": number_or_word,
    "aiw": count,
    "arc_1d": numbers,
    "arc_agi": number_grid,
    "basic_arithmetic": number_or_word,
    "bf": wording,
    "binary_alternation": count,
    "binary_matrix": number_grid,
    # The question asks for a hexadecimal number.
    "bitwise_arithmetic": hexadecimal,
    "caesar_cipher": number_or_word,
    "calendar_arithmetic": number_or_word,
    "chain_sum": number_or_word,
    "circuit_logic": number_or_word,
    "color_cube_rotation": number_or_word,
    "complex_arithmetic": complex_number,
    "count_bits": count,
    "count_primes": count,
    "course_schedule": number_or_word,
    "decimal_chain_sum": number_or_word,
    "dice": fraction,
    "emoji_mystery": wording,
    "family_relationships": number_or_word,
    "figlet_font": letters,
    "fraction_simplification": fraction,
    "game_of_life": number_grid,
    "game_of_life_halting": number_or_word,
    "gcd": number_or_word,
    "group_anagrams": groups,
    "isomorphic_strings": number_or_word,
    "knights_knaves": roles,
    "largest_island": count,
    "lcm": number_or_word,
    "leg_counting": count,
    "letter_counting": count,
    "letter_jumble": number_or_word,
    "list_functions": numbers,
    "mahjong_puzzle": number_or_word,
    "manipulate_matrix": number_grid,
    "maze": count,
    "mini_sudoku": number_grid,
    "modulo_grid": picture,
    "needle_haystack": letters,
    "number_filtering": numbers,
    "number_sequence": number_or_word,
    "number_sorting": numbers,
    "palindrome_partitioning": partitions,
    "path_star": items,
    "polynomial_multiplication": polynomial,
    "products": number_or_word,
    "ransom_note": number_or_word,
    "rearc": number_grid,
    "rectangle_count": count,
    "rotate_matrix": number_grid,
    "rotten_oranges": count,
    "self_reference": count,
    "sentence_reordering": number_or_word,
    "simple_equations": number_or_word,
    "simple_geometry": count,
    "spell_backward": number_or_word,
    "spiral_matrix": numbers,
    "string_insertion": wording,
    "string_manipulation": wording,
    "string_splitting": numbers,
    "string_synthesis": numbers,
    "sudoku": number_grid,
    "syllogism": number_or_word,
    "word_sequence_reversal": items,
    "word_sorting": items,
    "zebra_puzzles": number_or_word,
}
"""Task -> reader. Every right answer to such a task has the same value as the item's own answer."""


def _has_same_value(read: Reader, entry: Entry, answer: str) -> bool:
    own = str(entry["answer"])
    if not own:
        # The rules of `ab` and of `string_manipulation` can delete the whole text. Then the right answer is empty.
        return not strip_markup(answer)
    return read(answer) == _own_value(read, own)


@functools.lru_cache(maxsize=1)
def _own_value(read: Reader, own: str) -> Any:
    """The value of the item's own answer. All answers of a group are compared with it."""
    return read(own)


FORMS: Mapping[str, Check] = {
    **{task: functools.partial(_has_same_value, reader) for task, reader in READERS.items()},
    "advanced_geometry": advanced_geometry,
    "base_conversion": base_conversion,
    "codeio": codeio,
    "coin_flip": coin_flip,
    "decimal_arithmetic": decimal_arithmetic,
    "futoshiki": futoshiki,
    "gsm_symbolic": gsm_symbolic,
    "number_format": number_format,
    "polynomial_equations": polynomial_equations,
    "pool_matrix": pool_matrix,
    "power_function": power_function,
    "prime_factorization": prime_factorization,
    "time_intervals": time_intervals,
}
"""The check of each task with one right answer."""
