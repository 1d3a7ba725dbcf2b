"""Readers turn the text of an answer into a value.

    answer ── strip_markup ──> plain text ── reader ──> value

Two answers mean the same if a reader returns equal values for them. The reader decides, for all tasks alike, what
separators, quotes, brackets, signs and trailing zeros mean. It raises `UnreadableTextError` for text that could mean
more than one thing, such as two candidates, a hedge, or an answer followed by more text.

Answers are hostile text. Every reader takes about linear time, and no reader evaluates the text. Python's own limit on
digits bounds the whole numbers.
"""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from . import expressions
from .bounded_eval import UnreadableTextError, parse
from .markup import plain_text, strip_markup, without_brackets, without_list_marks

MAX_NUMBER_CHARS = 1_000
MAX_LITERAL_CHARS = 50_000
MAX_ITEMS = 20_000


# --- numbers ---


def number(text: str) -> Fraction:
    """Read `5`, `+5.0`, `1,234`, `1 234`, `x = 5`, `5e3` or `5 \\times 10^{3}`."""
    return number_and_place(text)[0]


def number_and_place(text: str) -> tuple[Fraction, Fraction]:
    """The number, and the value of a 1 in its last decimal place: `1.25` is (1.25, 0.01)."""
    plain = _PLAIN_NUMBER.fullmatch(text.strip())
    if plain:
        # The short way saves time, because most answers and nearly all cells of grids are plain numbers.
        return Fraction(plain[0]), Fraction(1, 10 ** len(plain["decimals"] or ""))
    if len(text) > MAX_NUMBER_CHARS:
        raise UnreadableTextError(f"a number of more than {MAX_NUMBER_CHARS} characters")
    return expressions.number_and_place(expressions.value_of(text))


_PLAIN_NUMBER = re.compile(r"-?\d{1,40}(?:\.(?P<decimals>\d{1,40}))?", re.ASCII)


def fraction(text: str) -> tuple[int, int]:
    """Read numerator and denominator, not reduced, of `3/4`, `-3/4`, `\\frac{3}{4}`, `³⁄₄` or a whole number.

    The same value may follow, as in `1/8 = 0.125`.
    """
    sides = expressions.sides_of(text)
    # A whole number or a decimal number may follow the fraction.
    fractions = [side for side in sides if isinstance(side, ast.BinOp) and isinstance(side.op, ast.Div)]
    return expressions.numerator_and_denominator((fractions or sides)[-1])


def is_rounded(text: str, exact: Fraction, *, finest: Fraction) -> bool:
    """Whether the number in `text` is `exact`, or `exact` rounded at a decimal place worth at most `finest`.

    Zeros at the end may be missing: if `finest` is 0.01, 4.6 stands for 4.60. Every digit must be right, also a zero at
    the end, and the last digit must be rounded and not cut off. Halves may be rounded up or down. `exact` may come from
    a float, so its 14th digit counts as noise.
    """
    given, place = number_and_place(text)
    noise = abs(exact) / 10**13
    return abs(given - exact) <= min(place, finest) / 2 + noise


def are_rounded(given: Sequence[str], right: Sequence[float], *, finest: Fraction) -> bool:
    """Whether both have the same length and `is_rounded` holds for every pair."""
    if len(given) != len(right):
        return False
    pairs = zip(given, right, strict=True)
    return all(is_rounded(text, Fraction(exact), finest=finest) for text, exact in pairs)


SMALL_NUMBERS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_BASE_NAMES = {
    2: "bin(?:ary)?",
    3: "ternary",
    8: "oct(?:al)?",
    10: "dec(?:imal)?",
    12: "duodecimal",
    16: "hex(?:adecimal)?",
}


def without_base(answer: str, base: int) -> str:
    """The number without its base: `1f_16`, `(1f)_{16}`, `1f (base 16)`, `1f in hexadecimal`, `base 16: 1f`."""
    number_or_name = "|".join([str(base), *SMALL_NUMBERS[base : base + 1]])
    # A word needs a blank or a bracket before it, because its letters can also be digits.
    words = rf"base[ -]?(?:{number_or_name})"
    if base in _BASE_NAMES:
        words += f"|{_BASE_NAMES[base]}"
    index = rf" ?_ ?[({{ ]*(?:{number_or_name}|{words})[)}} ]*\Z"
    in_words = rf" ?\((?:in )?(?:{words})\)\Z|,? (?:in )?(?:{words})\Z|\A(?:{words}): ?"
    return re.sub(f"{index}|{in_words}", "", plain_text(answer), count=1, flags=re.IGNORECASE)


def in_base(answer: str, base: int) -> int:
    """Read a whole number in this base. Python reads the prefixes `0b`, `0o` and `0x` in their own bases."""
    digits = expressions.plain_value(without_base(answer, base))
    # Blanks and commas may separate digits.
    return int(re.sub(r"[\s,()]", "", digits), base)


def hexadecimal(answer: str) -> int:
    """Read a hexadecimal number with `0x` or with its base. A single digit below ten needs neither."""
    plain = plain_text(answer)
    if not (re.search("0x", plain, re.IGNORECASE) or len(plain) == 1 or without_base(answer, 16) != plain):
        raise UnreadableTextError("not a hexadecimal number")
    return in_base(answer, 16)


def complex_number(answer: str) -> tuple[Fraction, Fraction]:
    """Read the real and the imaginary part of `3 - 4i`, `(3 - 4j)`, `-4i + 3`, `3` or `-4i`."""
    parts: dict[bool, Fraction] = {}
    for monomial, coefficient in expressions.terms_of(expressions.value_of(answer)).items():
        is_imaginary = monomial in _IMAGINARY_UNITS
        if (monomial and not is_imaginary) or is_imaginary in parts:
            raise UnreadableTextError("not a complex number")
        parts[is_imaginary] = coefficient
    return parts.get(False, Fraction(0)), parts.get(True, Fraction(0))


_IMAGINARY_UNITS = tuple(((name, 1),) for name in "ijIJ")


def polynomial(answer: str) -> dict[expressions.Monomial, Fraction]:
    """The coefficient of each monomial of an expanded polynomial with collected terms."""
    coefficients = expressions.terms_of(expressions.value_of(answer))
    return {monomial: coefficient for monomial, coefficient in coefficients.items() if coefficient}


# --- words and lists ---


def wording(answer: str) -> str:
    """The words as written, with one blank between them, without quotes and full stops at either end."""
    words = plain_text(answer).split()
    return " ".join(words).strip(" \"'`*_.")


def folded(answer: str) -> str:
    """The words in lower case."""
    return wording(answer).casefold()


def letters(answer: str) -> str:
    """The letters of one word in lower case. The word may be spelled out with blanks."""
    return folded(answer).replace(" ", "")


def number_or_word(answer: str) -> Fraction | str:
    try:
        return number(answer)
    except UnreadableTextError:
        return without_brackets(folded(answer))


_SEPARATORS = re.compile(r"[\s,;|&、→]+")
_SPACED_MINUS = re.compile(r"(?<![\w.)])- +(?=[\d.])")


def items(answer: str) -> tuple[str, ...]:
    """The words of a list, with any separator, with or without brackets and quotes, or on numbered lines.

    Raises UnreadableTextError for an empty text. The empty list is `[]`.
    """
    return _separated(_without_list_marks(answer))


def numbers(answer: str) -> tuple[Fraction, ...]:
    """The numbers of a list. In `[29, - 67]`, the second number is -67."""
    text = _without_list_marks(answer)
    return tuple(map(number, _separated(_SPACED_MINUS.sub("-", text))))


def labelled_numbers(answer: str, names: Sequence[str]) -> tuple[Fraction, ...]:
    """The numbers of a list, perhaps each with its name: `A: 0, B: 3`, `0 A, 3 B`, or JSON. Names keep their order."""
    plain = strip_markup(answer)
    name = "|".join(map(re.escape, names))
    if re.findall(name, plain) == list(names):
        plain = re.sub(rf"(?:(?:[Mm]achine|[Pp]art) )?\"?(?:{name})\"?(?: ?[:=])?", " ", plain)
    return numbers(plain)


def _without_list_marks(answer: str) -> str:
    """The text of a list without the brackets around it, and without numbers or bullets before its lines."""
    plain = plain_text(answer)
    if not plain:
        raise UnreadableTextError("an empty text")
    for _ in range(2):
        if plain[:1] + plain[-1:] in ("[]", "()", "{}"):
            plain = plain[1:-1].strip()
    return without_list_marks(plain)


def _separated(text: str) -> tuple[str, ...]:
    words = [word for word in _SEPARATORS.split(text) if word]
    if text and not words:
        raise UnreadableTextError("a list of separators only")
    if len(words) > MAX_ITEMS:
        raise UnreadableTextError(f"expected at most {MAX_ITEMS} items, got {len(words)}")
    return tuple(map(strip_markup, words))


# --- grids and JSON ---

_ROW_END = re.compile(r"[\])}] {0,4},? {0,4}[\[({]|\n|;")
_RULE = frozenset("-+|: =")
"""The characters of a horizontal rule between two rows."""
_BETWEEN_TEXTS = re.compile(r"""(?<=[^\s"']{2})["'] {0,4}, {0,4}["'](?=[^\s"']{2})""")
_CELL_END = re.compile(r"[\s,|&\"'`\[\](){}]+")
_LIST_OF_LISTS = re.compile(r"\[\s*\[")
_GROUP = re.compile(r"\[([^\[\]]*)\]")


Rows = tuple[tuple[str, ...], ...]


def grid(answer: str) -> Rows:
    """The cells of each row, from plain lines, JSON, a markdown table or a LaTeX matrix."""
    plain = plain_text(answer)
    if _LIST_OF_LISTS.match(plain):
        # JSON may write each cell of a row on its own line.
        plain = _GROUP.sub(lambda row: row[0].replace("\n", " "), plain)
    rows = []
    for line in _ROW_END.split(plain):
        is_rule = "--" in line and _RULE.issuperset(line)
        cells = tuple(filter(None, _CELL_END.split(line)))
        if cells and not is_rule:
            rows.append(cells)
    return tuple(rows)


def number_grid(answer: str) -> tuple[tuple[Fraction | int, ...], ...]:
    rows = grid(answer)
    if sum(map(len, rows)) > MAX_ITEMS:
        raise UnreadableTextError(f"expected at most {MAX_ITEMS} cells")
    return tuple(tuple(map(_cell, row)) for row in rows)


def _cell(text: str) -> Fraction | int:
    # A grid may have thousands of cells, and int is twenty times faster than Fraction.
    is_whole = text.isascii() and text.isdecimal() and len(text) <= MAX_NUMBER_CHARS
    return int(text) if is_whole else number(text)


def picture(answer: str) -> tuple[str, ...]:
    """The lines of a picture. Blanks between its signs do not matter, and the lines may be a list of texts."""
    lines = _BETWEEN_TEXTS.sub("\n", strip_markup(answer))
    return tuple(map("".join, grid(lines)))


def literal(answer: str, *, has_markup: bool = True) -> Any:
    """The value of JSON, or of a Python literal that JSON could express. Keys of JSON must be unique.

    Without `has_markup`, quotes around the text belong to a JSON string.
    """
    plain = strip_markup(answer) if has_markup else answer.strip()
    try:
        value = json.loads(plain, object_pairs_hook=_with_unique_keys)
    except (json.JSONDecodeError, RecursionError):
        if "#" in plain:
            raise UnreadableTextError("a comment") from None
        value = ast.literal_eval(parse(plain, MAX_LITERAL_CHARS))
    json.dumps(value, allow_nan=False)
    return value


def _with_unique_keys(pairs: list[Any]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise UnreadableTextError("a key occurs twice")
    return value


_LETTERS = re.compile(r"[^\W\d_]+")


def strings(answer: str) -> list[list[str]]:
    """A list of lists of words, with or without quotes, perhaps with one list on each line."""
    plain = plain_text(answer)
    lists = [_LETTERS.findall(body) for body in _GROUP.findall(plain)]
    is_list = set(_GROUP.sub("", plain)) <= set("[], \n") and set(_LETTERS.sub("", plain)) <= set("[], \n\"'`")
    if not lists or not is_list:
        raise UnreadableTextError("not a list of lists of words")
    return lists


def groups(answer: str) -> Counter[Any]:
    """Groups of words. Neither the order of the groups nor the order of the words in a group matters."""
    return Counter(tuple(sorted(group)) for group in strings(answer))


def partitions(answer: str) -> Counter[Any]:
    """Lists of parts. The order of the lists does not matter, the order of the parts does."""
    return Counter(map(tuple, strings(answer)))


# --- durations and roles ---

_CLOCK = r"(?P<hours>\d{1,4}):(?P<minutes>\d{1,2})(?::(?P<seconds>\d{1,2}(?:\.\d{1,9})?))?"
_DAYS = r"(?P<days>-?(?:\d{1,3}(?:,\d{3})+|\d{1,6})) ?(?:d|days?)(?: days?)?"
_UNITS = "".join(
    rf"(?:(?P<{unit}s>\d{{1,6}}(?:\.\d{{1,9}})?) ?(?:{unit[0]}|{short}|{unit}s?)(?:\Z|,? (?:and )?))?"
    for unit, short in (("hour", "hrs?"), ("minute", "min"), ("second", "sec"))
)
_DURATIONS = [
    re.compile(rf"(?!\Z)(?:{_DAYS}(?:\Z| ?,? ?(?:and )?))?{rest}", re.ASCII | re.IGNORECASE)
    for rest in (f"(?:{_CLOCK})?", _UNITS)
]


def duration(answer: str) -> Fraction:
    """The seconds of `03:30`, `3:30:57.961`, `5 days, 03:30`, `5 days` or `5 days, 3 hours and 30 minutes`.

    `-1 days, 16:01` is a day less and 16 hours more, as Python writes negative durations. Some items have such answers.
    """
    plain = wording(answer)
    if plain.isdecimal():
        # A number of days may omit the unit.
        plain += " days"
    found = next(filter(None, (pattern.fullmatch(plain) for pattern in _DURATIONS)), None)
    if found is None:
        raise UnreadableTextError("not a duration")
    parts = {name: Fraction((part or "0").replace(",", "")) for name, part in found.groupdict().items()}
    if max(parts["minutes"], parts["seconds"]) >= 60 or (found["days"] and parts["hours"] >= 24):
        raise UnreadableTextError("expected less than 60 minutes and seconds, and less than 24 hours beside days")
    return parts["seconds"] + 60 * (parts["minutes"] + 60 * (parts["hours"] + 24 * parts["days"]))


_LIST_MARK = re.compile(r"(?m)^ {0,8}(?:\d{1,2}[.)]|[-*•]) | [-–—] ")
_FILLERS = frozenset({"a", "an", "and", "is", "the", "therefore", "so", "thus", "hence"})
_ROLE_SIGNS = frozenset(" \t\n.,;:=*_`'\"()[]{}")


def roles(answer: str) -> dict[str, str]:
    """Read `Ava is a knight, and Bo is a knave` as {"ava": "knight", "bo": "knave"}."""
    plain = _LIST_MARK.sub(" ", plain_text(answer).lower())
    words = [word for word in re.findall(r"[^\W_]+", plain) if word not in _FILLERS]
    if not _ROLE_SIGNS.issuperset(sign for sign in plain if not sign.isalnum()):
        raise UnreadableTextError("it holds signs that could mean anything")
    # Names and roles alternate.
    role_by_name = dict(zip(words[::2], words[1::2], strict=False))
    if len(words) != 2 * len(role_by_name):
        raise UnreadableTextError("not one role for each name")
    return role_by_name
