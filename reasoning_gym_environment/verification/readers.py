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

from .bounded_eval import UnreadableTextError, parse
from .markup import plain_math, plain_text, strip_markup, without_brackets, without_numbering

MAX_NUMBER_CHARS = 1_000
MAX_LITERAL_CHARS = 50_000
MAX_ITEMS = 20_000
MAX_EXPONENT = 999
"""The largest exponent of a number in scientific notation."""


# --- numbers ---

_THOUSANDS = r"\d{1,3}(?:(?:,\d{3})+|(?: \d{3})+)(?!\d)"
"""Commas or blanks separate thousands. French and typographic notation use blanks."""
_NUMBER = re.compile(
    rf"(?P<sign>[-+]?) ?(?=\.?\d)(?P<whole>{_THOUSANDS}|\d*)(?:\.(?P<part>\d*))?"
    r"(?: ?(?:e(?P<e>[-+]?\d{1,4})|[x*] ?10 ?\^ ?(?P<power>[-+]?\d{1,4})))?",
    re.ASCII | re.IGNORECASE,
)
_WHOLE = r"\d{1,3}(?:,\d{3})+(?!\d)|\d+"
_FRACTION = re.compile(
    rf"(?P<sign>-?) ?(?P<bracket>\((?P<minus>-?))?(?:(?P<top>{_WHOLE}) ?/ ?(?P<bottom>{_WHOLE})"
    r"|\^(?P<raised>\d+)/_(?P<lowered>\d+))(?(bracket)\))",
    re.ASCII,
)
_NAME = r"\A(?:([A-Za-z])(?:_?\{?\d\}?|\([A-Za-z]\))? ?)?[=≈∈] ?"
NAME_OF_A_NUMBER = re.compile(_NAME, re.ASCII)
NAME_OF_AN_EXPRESSION = re.compile(rf"{_NAME}(?!.*\1)", re.ASCII | re.DOTALL)
"""A name before a value: `x =`, `x_1 =`, `f(x) =`, `≈`. An expression in `x` cannot have the name `x`."""


def number(text: str) -> Fraction:
    """Read `5`, `+5.0`, `1,234`, `1 234`, `x = 5`, `5e3` or `5 \\times 10^{3}`."""
    return number_and_place(text)[0]


def number_and_place(text: str) -> tuple[Fraction, Fraction]:
    """The number, and the value of a 1 in its last decimal place: `1.25` is (1.25, 0.01)."""
    text = plain_number(text)
    found = _NUMBER.fullmatch(text)
    if found is None:
        raise UnreadableTextError("not a number")
    exponent = int(found["e"] or found["power"] or 0)
    if abs(exponent) > MAX_EXPONENT:
        raise UnreadableTextError(f"an exponent of more than {MAX_EXPONENT}")
    whole = re.sub("[, ]", "", found["whole"])
    decimals = found["part"] or ""
    place = Fraction(10) ** (exponent - len(decimals))
    return int(found["sign"] + whole + decimals) * place, place


def plain_number(text: str) -> str:
    """Strip what may surround a number: markup, brackets, a name such as `x =`, a currency sign, and LaTeX layout."""
    text = strip_markup(text)
    if len(text) > MAX_NUMBER_CHARS:
        raise UnreadableTextError(f"a number of more than {MAX_NUMBER_CHARS} characters")
    text = NAME_OF_A_NUMBER.sub("", without_brackets(plain_math(text)))
    return without_brackets(strip_markup(text)).removeprefix("$").strip()


def integer(text: str) -> int:
    value = number(text)
    if value.denominator != 1:
        raise UnreadableTextError("not a whole number")
    return int(value)


def fraction(text: str) -> tuple[int, int]:
    """Read numerator and denominator, not reduced, of `3/4`, `-3/4`, `\\frac{3}{4}`, `³⁄₄` or a whole number."""
    text = plain_number(text)
    found = _FRACTION.fullmatch(text)
    if found is None:
        return integer(text), 1
    numerator = int((found["top"] or found["raised"]).replace(",", ""))
    denominator = int((found["bottom"] or found["lowered"]).replace(",", ""))
    is_negative = bool(found["sign"]) != bool(found["minus"])
    return -numerator if is_negative else numerator, denominator


def is_rounded(
    text: str,
    exact: Fraction,
    *,
    finest: Fraction,
    cut_off: bool = True,
) -> bool:
    """Whether the number in `text` is `exact`, or `exact` rounded at a decimal place worth at most `finest`.

    Zeros at the end may be missing: if `finest` is 0.01, 4.6 stands for 4.60. With `cut_off`, digits may also be cut
    off instead of rounded. Every digit must be right. Halves may be rounded up or down. `exact` may come from a float,
    so its 14th digit counts as noise.
    """
    given, place = number_and_place(text)
    noise = abs(exact) / 10**13
    error = abs(given - exact)
    if error <= noise:
        return True
    place = min(place, finest)
    if error <= place / 2 + noise:
        return True
    has_same_sign = given * exact >= 0
    shortfall = abs(exact) - abs(given) + noise
    return cut_off and has_same_sign and 0 <= shortfall < place


def are_rounded(
    given: Sequence[str],
    right: Sequence[float],
    *,
    finest: Fraction,
    cut_off: bool = True,
) -> bool:
    """Whether both have the same length and `is_rounded` holds for every pair."""
    if len(given) != len(right):
        return False
    pairs = zip(given, right, strict=True)
    return all(is_rounded(text, Fraction(exact), finest=finest, cut_off=cut_off) for text, exact in pairs)


_UNIT_SIGNS = frozenset(" \n.,:;*_()\\")
_DEGREE_COMMAND = re.compile(r"\^ ?\{?\\circ\}?")
_AMOUNT = re.compile(rf"[-+]?\.?(?:{_THOUSANDS}|\d+)(?:\.\d+)?", re.ASCII)
WORD = re.compile(r"[^\W\d_]+")


def amount(text: str, words: frozenset[str]) -> Fraction:
    """Read the number of `84 dollars`, `$84` or `84 \\text{ km}`.

    Only `words` may surround the number. A single character in `words` may also be a sign, such as `%`.
    """
    plain = plain_number(text).replace("$", " ")
    plain = _DEGREE_COMMAND.sub(" ", plain)
    amounts = _AMOUNT.findall(plain)
    around = _AMOUNT.sub(" ", plain, count=1).lower()
    signs = {sign for sign in around if not sign.isalpha()}
    is_explained = words.issuperset(WORD.findall(around)) and signs <= words | _UNIT_SIGNS
    if len(amounts) != 1 or not is_explained:
        raise UnreadableTextError("not one number with its unit")
    return number(amounts[0])


_COUNTED = frozenset(
    {
        "female",
        "male",
        "colleagues",
        "brothers",
        "sisters",
        "friends",
        "swap",
        "swaps",
        "bit",
        "bits",
        "prime",
        "primes",
        "numbers",
        "cell",
        "cells",
        "legs",
        "time",
        "times",
        "step",
        "steps",
        "rectangle",
        "rectangles",
        "minute",
        "minutes",
        "possible",
        "solution",
        "solutions",
        "°",
        "deg",
        "degree",
        "degrees",
    }
)
"""Names of counted things that may follow a number. No task counts two of them, so they cannot be confused."""


def count(answer: str) -> Fraction:
    """Read the number of `8` or `8 legs`."""
    return amount(answer, _COUNTED)


_NUMBER_WORDS = (
    *("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen"),
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
    number_or_name = "|".join([str(base), *_NUMBER_WORDS[base - 2 : base - 1]])
    # A word needs a blank or a bracket before it, because its letters can also be digits.
    words = rf"base[ -]?(?:{number_or_name})"
    if base in _BASE_NAMES:
        words += f"|{_BASE_NAMES[base]}"
    index = rf" ?_ ?[({{ ]*(?:{number_or_name}|{words})[)}} ]*\Z"
    in_words = rf" ?\((?:in )?(?:{words})\)\Z|,? (?:in )?(?:{words})\Z|\A(?:{words}): ?"
    return re.sub(f"{index}|{in_words}", "", plain_text(answer), count=1, flags=re.IGNORECASE)


_HEXADECIMAL = re.compile(r"([-+]?) ?(\()?(0x)?([0-9a-f]+)(?(2)\))", re.IGNORECASE)


def hexadecimal(answer: str) -> int:
    """Read a hexadecimal number with `0x` or with its base. A single digit below ten needs neither."""
    plain = without_base(answer, 16)
    has_base = plain != plain_text(answer)
    found = _HEXADECIMAL.fullmatch(plain_number(plain))
    if found is None or not (has_base or found[3] or re.fullmatch("[0-9]", found[4])):
        raise UnreadableTextError("not a hexadecimal number")
    return int(found[1] + found[4], 16)


_TERM_IN_BRACKETS = re.compile(r"(\A|[-+])\(([-+]?)([^-+()]+)\)(?=[-+*A-Za-z]|\Z)")
"""Brackets around one term, which change nothing but its sign. In `2(3)` and `(3)2` they are a product."""
_GROUPED_DIGITS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])", re.ASCII)


def sum_of_terms(text: str) -> str:
    """A sum without blanks and brackets, with one sign between two terms: `3 + (-4*i)` is `3-4*i`.

    Raises UnreadableTextError if the sum has terms without a sign between them.
    """
    text = without_brackets(text)
    if re.search(r"[A-Za-z\d.] +[\d.]", text):
        raise UnreadableTextError("two terms with no sign between them")
    compact = "".join(text.split())
    compact = _GROUPED_DIGITS.sub(lambda digits: digits[0].replace(",", ""), compact)
    compact = _TERM_IN_BRACKETS.sub(_without_its_brackets, compact)
    return compact.replace("+-", "-")


def _without_its_brackets(found: re.Match[str]) -> str:
    sign, inner_sign, term = found.groups()
    is_negative = (sign == "-") != (inner_sign == "-")
    if is_negative:
        return f"-{term}"
    return f"+{term}" if sign or inner_sign else term


_SIZE = r"\d+(?:\.\d+)?(?:e[-+]?\d{1,3})?"
_REAL = rf"[-+]?{_SIZE}"
_IMAGINARY = rf"[-+]?(?:(?:{_SIZE}\*?)?i|i\*?{_SIZE})"
_COMPLEX = re.compile(
    rf"(?!\Z)(?P<real>{_REAL})?(?P<imaginary>(?(real)(?=[-+]))(?:{_IMAGINARY}))?",
    re.ASCII,
)
_IMAGINARY_FIRST = re.compile(rf"(?P<imaginary>{_IMAGINARY})(?P<real>(?=[-+]){_REAL})", re.ASCII)


def complex_number(answer: str) -> tuple[Fraction, Fraction]:
    """Read the real and the imaginary part of `3 - 4i`, `(3 - 4j)`, `-4i + 3`, `3` or `-4i`."""
    plain = sum_of_terms(plain_number(answer)).lower().replace("j", "i")
    found = _COMPLEX.fullmatch(plain) or _IMAGINARY_FIRST.fullmatch(plain)
    if found is None:
        raise UnreadableTextError("not a complex number")
    imaginary = re.sub("[*i]", "", found["imaginary"] or "0")
    if imaginary in ("", "+", "-"):
        imaginary += "1"
    return Fraction(found["real"] or 0), Fraction(imaginary)


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


_SEPARATORS = re.compile(r"(?:[\s,;|&、]|→|->|=>)+")
_BULLETS = frozenset("-*•·◦▪")


def items(answer: str) -> tuple[str, ...]:
    """The words of a list, with any separator, with or without brackets and quotes, or on numbered lines.

    Raises UnreadableTextError for an empty text. The empty list is `[]`.
    """
    plain = plain_text(answer)
    if not plain:
        raise UnreadableTextError("an empty text")
    for _ in range(2):
        if plain[:1] + plain[-1:] in ("[]", "()", "{}"):
            plain = plain[1:-1].strip()
            if not plain:
                return ()
    plain = without_numbering(plain)
    words = [word for word in _SEPARATORS.split(plain) if word and word not in _BULLETS]
    if not 0 < len(words) <= MAX_ITEMS:
        raise UnreadableTextError(f"expected 1 to {MAX_ITEMS} items, got {len(words)}")
    return tuple(map(strip_markup, words))


def numbers(answer: str) -> tuple[Fraction, ...]:
    return tuple(map(_cell, items(answer)))


_PLAIN_NUMBER = re.compile(r"-?\d{1,40}(?:\.\d{1,40})?", re.ASCII)


def _cell(text: str) -> Fraction:
    # The short way saves time, because grids have many cells.
    return Fraction(text) if _PLAIN_NUMBER.fullmatch(text) else number(text)


# --- grids and JSON ---

_ROW_END = re.compile(r"[\])}] {0,4},? {0,4}[\[({]|\n|;")
_RULE = frozenset("-+|: =")
"""The characters of a horizontal rule between two rows."""
_BETWEEN_TEXTS = re.compile(r"""(?<=[^\s"']{2})["'] {0,4}, {0,4}["'](?=[^\s"']{2})""")
_CELL_END = re.compile(r"[\s,|&\"'`\[\](){}]+")


Rows = tuple[tuple[str, ...], ...]


def grid(answer: str) -> Rows:
    """The cells of each row, from plain lines, JSON, a markdown table or a LaTeX matrix."""
    plain = plain_text(answer)
    return _rows_of_json(plain) or _rows_of_lines(plain)


def _rows_of_json(plain: str) -> Rows:
    """The rows of a JSON list of lists. No rows for any other text."""
    if not plain.startswith("["):
        return ()
    try:
        # Numbers stay as they are written.
        rows = json.loads(plain, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return ()
    return tuple(map(tuple, rows)) if _are_lists_of_texts(rows) else ()


def _rows_of_lines(plain: str) -> Rows:
    rows = []
    for line in _ROW_END.split(plain):
        is_rule = "--" in line and _RULE.issuperset(line)
        cells = tuple(filter(None, _CELL_END.split(line)))
        if cells and not is_rule:
            rows.append(cells)
    return tuple(rows)


def number_grid(answer: str) -> tuple[tuple[Fraction, ...], ...]:
    return tuple(tuple(map(_cell, row)) for row in grid(answer))


def picture(answer: str) -> tuple[str, ...]:
    """The lines of a picture. Blanks between its signs do not matter, and the lines may be a list of texts."""
    lines = _BETWEEN_TEXTS.sub("\n", strip_markup(answer))
    return tuple(map("".join, grid(lines)))


def literal(answer: str) -> Any:
    """The value of JSON, or of a Python literal that JSON could express. Keys of JSON must be unique."""
    plain = strip_markup(answer)
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


def strings(answer: str) -> list[list[str]]:
    """A list of lists of texts, in JSON or in Python's notation."""
    value = literal(answer)
    if not _are_lists_of_texts(value):
        raise UnreadableTextError("not a list of lists of texts")
    return list(value)


def _are_lists_of_texts(values: Any) -> bool:
    return all(map(_is_list_of_texts, values))


def _is_list_of_texts(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(part, str) for part in value)


def groups(answer: str) -> Counter[Any]:
    """Groups of words. Neither the order of the groups nor the order of the words in a group matters."""
    return Counter(tuple(sorted(group)) for group in strings(answer))


def partitions(answer: str) -> Counter[Any]:
    """Lists of parts. The order of the lists does not matter, the order of the parts does."""
    return Counter(map(tuple, strings(answer)))


# --- durations, roles, polynomials ---

_CLOCK = r"(\d{1,4}):(\d{1,2})(?::(\d{1,2}(?:\.\d{1,9})?))?"
_DURATION = re.compile(
    rf"(?!\Z)(?:(-?\d{{1,6}}) ?(?:d|days?)(?: days?)?(?:\Z| ?,? ?(?:and )?))?(?:{_CLOCK})?",
    re.ASCII | re.I,
)


def duration(answer: str) -> Fraction:
    """The seconds of `03:30`, `3:30:57.961`, `5 days, 03:30` or `5 days`.

    `-1 days, 16:01` is a day less and 16 hours more, as Python writes negative durations. Some items have such answers.
    """
    plain = wording(answer)
    if plain.isdecimal():
        # A number of days may omit the unit.
        plain += " days"
    found = _DURATION.fullmatch(plain)
    if found is None:
        raise UnreadableTextError("not a duration")
    days, hours, minutes, seconds = (Fraction(part or 0) for part in found.groups())
    if max(minutes, seconds) >= 60 or (found[1] and hours >= 24):
        raise UnreadableTextError("expected less than 60 minutes and seconds, and less than 24 hours beside days")
    return seconds + 60 * (minutes + 60 * (hours + 24 * days))


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


_TERM = re.compile(r"([-+]?)(?=[A-Za-z\d])(\d{0,400})((?:\*?[A-Za-z](?:\^\d{1,3})?){0,8})", re.ASCII)
_FACTOR = re.compile(r"([A-Za-z])(?:\^(\d{1,3}))?")
Monomial = tuple[tuple[str, int], ...]
"""The variables of a term with their powers, sorted: x*y**2 is (("x", 1), ("y", 2))."""


def polynomial(answer: str) -> dict[Monomial, int]:
    """The coefficient of each monomial of an expanded polynomial with collected terms."""
    coefficients: dict[Monomial, int] = {}
    compact = sum_of_terms(NAME_OF_AN_EXPRESSION.sub("", without_brackets(plain_math(answer))))
    for term in filter(None, re.split(r"(?=[-+])", compact)):
        monomial, coefficient = _term(term)
        if monomial in coefficients:
            raise UnreadableTextError("like terms are not collected")
        coefficients[monomial] = coefficient
    return {monomial: coefficient for monomial, coefficient in coefficients.items() if coefficient}


def _term(text: str) -> tuple[Monomial, int]:
    found = _TERM.fullmatch(text)
    if found is None:
        raise UnreadableTextError("not a term of a polynomial")
    sign, digits, variables = found.groups()
    powers: Counter[str] = Counter()
    for name, exponent in _FACTOR.findall(variables):
        powers[name] += int(exponent or 1)
    # The plus drops variables whose power is 0.
    monomial = tuple(sorted((+powers).items()))
    return monomial, int(sign + (digits or "1"))
