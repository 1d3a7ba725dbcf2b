"""Check answers to the tasks with one right answer.

    answer ── reader of the task ──> value == value of the item's own answer?

`READERS` has the reader of most of these tasks. The reader turns the given answer and the item's own answer into
values, and the answer is right if both values are equal. For the other tasks this comparison is too strict or too
lenient, so a function of this module checks each of them. Tasks with many right answers are in validators.py.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

from .bounded_eval import UnreadableTextError
from .entries import Check, Entry, module_of
from .expressions import exact_value, factors_of, rational_and_place, sides_of, value_of, whole_number
from .markup import exact_text, plain_text, strip_markup, without_brackets, without_degrees, without_list_marks
from .readers import (
    are_rounded,
    complex_number,
    duration,
    folded,
    fraction,
    grid,
    groups,
    hexadecimal,
    in_base,
    is_rounded,
    items,
    labelled_numbers,
    letters,
    literal,
    number,
    number_and_place,
    number_grid,
    number_or_word,
    numbers,
    partitions,
    picture,
    polynomial,
    roles,
    wording,
)
from .sentences import TRUTH, says, says_truth

Reader = Callable[[str], Any]


def letter_jumble(entry: Entry, answer: str) -> bool:
    """The words in their order. Another word of the story with the same letters counts too: `tired` for `tried`."""
    given = folded(answer).split()
    right = folded(str(entry["answer"])).split()
    if len(given) != len(right):
        return False
    for given_word, right_word in zip(given, right, strict=True):
        has_same_letters = sorted(given_word) == sorted(right_word)
        if given_word != right_word and not (has_same_letters and given_word in words_of_story()):
            return False
    return True


@functools.cache
def words_of_story() -> frozenset[str]:
    """The words of the text from which letter_jumble takes its own, in lower case."""
    story = module_of("letter_jumble").read_data_file("in_the_year_2889.txt")
    return frozenset(word.casefold() for word in re.findall(r"\w+", story))


def base_conversion(entry: Entry, answer: str) -> bool:
    """The digits in the target base. The base may be an index, a prefix or words: `101_2`, `0b101`, `101 (base 2)`."""
    base = entry["metadata"]["target_base"]
    return in_base(answer, base) == in_base(str(entry["answer"]), base)


_INDIAN_THOUSANDS = re.compile(r"(?<=\d),(\d\d)(?=,)", re.ASCII)
"""Indian notation separates thousands like this: `12,34,567`."""


def number_format(entry: Entry, answer: str) -> bool:
    """The chosen candidate, exactly or with at least six decimals.

    A candidate is a sum of two floats with three decimals, so its last digits may be rounding errors.
    """
    right = Fraction(entry["metadata"]["solution"])
    plain = _INDIAN_THOUSANDS.sub(r"\1", answer)
    return is_rounded(plain, right, finest=Fraction(1, 10**6))


def advanced_geometry(entry: Entry, answer: str) -> bool:
    """Numbers with at least three decimals. Two are enough for an angle, because the item's own answer has two."""
    metadata = entry["metadata"]
    task_type = metadata["task_type"]
    if task_type == "angle_measure":
        plain = without_degrees(plain_text(answer))
        angle = Fraction(metadata["angle_ABC_degrees"])
        return is_rounded(plain, angle, finest=Fraction(1, 100)) or number(plain) == _rounded(angle, 2)
    if task_type == "orthocenter":
        coordinates = items(_COORDINATE_NAMES.sub(r"\1", plain_text(answer)))
        return are_rounded(coordinates, metadata["ortho"], finest=Fraction(1, 1000))
    radius = Fraction(metadata["incircle_radius_approx"])
    return is_rounded(answer, radius, finest=Fraction(1, 1000)) or number(answer) == _rounded(radius, 3)


def _rounded(value: Fraction, decimals: int) -> Fraction:
    """The value that the question asks for, to which an answer may add zeros: `71.290` for 71.29."""
    return Fraction(f"{float(value):.{decimals}f}")


_COORDINATE_NAMES = re.compile(r"\AH ?(?=\()|\Ax ?= ?([^,;xy]{1,40}[,;] ?)y ?= ?", re.IGNORECASE)
"""The names of both coordinates, in `x = 1, y = 2`, or the name of the orthocenter, in `H(1, 2)`."""


def coin_flip(entry: Entry, answer: str) -> bool:
    """The exact probability, as a fraction, a number or a percentage."""
    ratio = entry["metadata"]["rational"]
    value, _ = rational_and_place(value_of(answer))
    return value == Fraction(ratio["numerator"], ratio["denominator"])


def decimal_arithmetic(entry: Entry, answer: str) -> bool:
    """The exact value, rounded to at least as many decimals as the question has. Zeros at the end may be missing."""
    question = str(entry["question"])
    lengths = map(len, re.findall(r"\.(\d+)", question))
    finest = Fraction(1, 10 ** max(lengths, default=0))
    exact = decimal_value(question)
    # The item's own answer may have fewer digits than that.
    return is_rounded(answer, exact, finest=finest) or number(answer) == Fraction(str(entry["answer"]))


@functools.lru_cache(maxsize=1)
def decimal_value(question: str) -> Fraction:
    """The exact value of the expression of a question of decimal_arithmetic. All answers of a group need the same."""
    # The expression is on the line of the last `=`, before the `=`.
    before_equals, _, _ = question.rpartition("=")
    _, _, expression = before_equals.rpartition("\n")
    return exact_value(value_of(expression))


def power_function(entry: Entry, answer: str) -> bool:
    """A number with at least three significant figures. Every figure must be right."""
    right = Decimal(str(entry["answer"]))
    third_figure = Fraction(10) ** (right.adjusted() - 2)
    return is_rounded(answer, Fraction(right), finest=third_figure)


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
    name = rf"(?<![A-Za-z]){re.escape(metadata['variable'])}(?:_?\{{?\d\}}?)? ?(?:[=≈∈]|\\approx(?![A-Za-z])) ?"
    plain = re.sub(name, "", plain_text(answer))
    parts = re.split(r",|;|\n|\bor\b|\band\b", without_list_marks(without_brackets(plain)))
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
    if is_rounded(text, exact, finest=_FOURTH_DECIMAL) or number(text) == own:
        return True
    given, place = number_and_place(text)
    place = min(place, _FOURTH_DECIMAL)
    return given * exact >= 0 and 0 <= abs(exact) - abs(given) < place


def codeio(entry: Entry, answer: str) -> bool:
    """The same data as in the item's own answer. A text must be the same, blank by blank, with or without quotes."""
    own = str(entry["answer"])
    try:
        expected = literal(own, has_markup=False)
    except (ValueError, TypeError, RecursionError):
        return exact_text(answer) == exact_text(own)
    if isinstance(expected, str):
        return answer.strip() == own.strip() or exact_text(answer) == expected
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
    """The prime factors in any order. Equal factors may be written as a power.

    The number itself may stand before or after them: 12 = 2 × 2 × 3.
    """
    right = Counter(entry["metadata"]["factors"])
    try:
        sides = sides_of(answer)
    except UnreadableTextError:
        return Counter(numbers(answer)) == right
    return any(_factors(side) == right for side in sides if len(sides) == 1 or not isinstance(side, ast.Constant))


def _factors(node: ast.expr) -> Counter[int]:
    """How often each whole number is a factor of a product of powers."""
    counts: Counter[int] = Counter()
    for factor in factors_of(node):
        match factor:
            case ast.BinOp(base, ast.Pow(), exponent) if whole_number(exponent) > 0:
                counts[whole_number(base)] += whole_number(exponent)
            case _:
                counts[whole_number(factor)] += 1
    return counts


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
    unit_ms = _UNIT_MS.get(metadata["expected_format"], 1000)
    whole_units = elapsed_ms(entry) // unit_ms
    return duration(answer) * 1000 == whole_units * unit_ms


def elapsed_ms(entry: Entry) -> int:
    """The milliseconds from the start to the end of an item of time_intervals."""
    metadata = entry["metadata"]
    start = datetime.fromisoformat(metadata["start_time"])
    end = datetime.fromisoformat(metadata["end_time"])
    return (end - start) // timedelta(milliseconds=1)


_INEQUALITIES = re.compile("[<>∧∨^vV]")
_SAME_INEQUALITY = str.maketrans("^vV", "∧∨∨")


def futoshiki(entry: Entry, answer: str) -> bool:
    """The numbers of the grid. A line may omit its inequality signs, but must not have other signs than the puzzle."""
    # The markup goes first, because `<b>` is no inequality.
    given = strip_markup(answer)
    own = str(entry["answer"])
    if grid(_INEQUALITIES.sub(" ", given)) != grid(_INEQUALITIES.sub(" ", own)):
        return False
    lines_with_signs = [line for line in _sign_lines(given) if line]
    remaining = iter(_sign_lines(own))
    return all(line in remaining for line in lines_with_signs)


def _sign_lines(board: str) -> list[str]:
    """Each line with its signs: whole lines with numbers, and the signs alone of the lines between them.

    A line without a sign is an empty text.
    """
    lines = []
    for line in board.translate(_SAME_INEQUALITY).split("\n"):
        has_signs = _INEQUALITIES.search(line) is not None
        lines.append("".join(line.split()) if has_signs else "")
    return lines


# --- the check of each task ---


_ONE_NUMBER_OR_WORD = """
    acre aiw basic_arithmetic binary_alternation calendar_arithmetic chain_sum circuit_logic color_cube_rotation
    count_bits count_primes course_schedule decimal_chain_sum family_relationships game_of_life_halting gcd
    gsm_symbolic isomorphic_strings largest_island lcm leg_counting letter_counting mahjong_puzzle maze
    number_sequence products ransom_note rectangle_count rotten_oranges self_reference simple_equations
    simple_geometry spell_backward syllogism zebra_puzzles
"""
READERS: Mapping[str, Reader] = {
    **dict.fromkeys(_ONE_NUMBER_OR_WORD.split(), number_or_word),
    "ab": items,
    "arc_1d": numbers,
    "arc_agi": number_grid,
    "bf": exact_text,
    "binary_matrix": number_grid,
    # The question asks for a hexadecimal number.
    "bitwise_arithmetic": hexadecimal,
    "caesar_cipher": folded,
    "complex_arithmetic": complex_number,
    "dice": fraction,
    "emoji_mystery": exact_text,
    "figlet_font": letters,
    "fraction_simplification": fraction,
    "game_of_life": number_grid,
    "group_anagrams": groups,
    "knights_knaves": roles,
    "list_functions": numbers,
    "manipulate_matrix": number_grid,
    "mini_sudoku": number_grid,
    "modulo_grid": picture,
    "needle_haystack": letters,
    "number_filtering": numbers,
    "number_sorting": numbers,
    "palindrome_partitioning": partitions,
    "path_star": items,
    "polynomial_multiplication": polynomial,
    "rearc": number_grid,
    "rotate_matrix": number_grid,
    "sentence_reordering": folded,
    "spiral_matrix": numbers,
    "string_insertion": wording,
    "string_manipulation": wording,
    "string_splitting": functools.partial(labelled_numbers, names=tuple("ABCXYZ")),
    "string_synthesis": functools.partial(
        labelled_numbers,
        names=tuple(f"{opening}{letter}{closing}" for opening, closing in ("[]", "{}", "()") for letter in "ABC"),
    ),
    "sudoku": number_grid,
    "word_sequence_reversal": items,
    "word_sorting": items,
}
"""Task -> reader. Every right answer to such a task has the same value as the item's own answer."""


SHORT_READERS = frozenset({number_or_word, letters})
"""The readers of a single number, word or name."""
EXACT_TASKS = frozenset({"bf", "codeio", "emoji_mystery"})
"""Tasks whose questions ask for an exact text. Only markup that encloses all of it may surround such an answer."""


def _has_same_value(read: Reader, entry: Entry, answer: str) -> bool:
    own = str(entry["answer"])
    if not own:
        # The rules of `ab` and of `string_manipulation` can delete the whole text. Then the right answer is empty.
        return not strip_markup(answer)
    value = _own_value(read, own)
    question = str(entry.get("question", ""))
    if isinstance(value, str) and value in TRUTH:
        return says_truth(answer, question, value)
    if read(answer) == value:
        return True
    return read in SHORT_READERS and says(answer, question, value)


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
    "letter_jumble": letter_jumble,
    "number_format": number_format,
    "polynomial_equations": polynomial_equations,
    "pool_matrix": pool_matrix,
    "power_function": power_function,
    "prime_factorization": prime_factorization,
    "time_intervals": time_intervals,
}
"""The check of each task with one right answer."""
