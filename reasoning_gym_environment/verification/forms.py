"""Which value an answer means: parsers from text to a canonical value, and which task has which.

    answer ── undress ──> text without markdown, LaTeX, quotes ── parser ──> value == value of the right answer?

An answer to a task with one right answer is right if its value is the right answer's. What decoration, separators,
quotes, brackets, signs and trailing zeros mean is decided by the parser, once for all tasks. A parser raises
`Unreadable` for whatever could mean more than one thing: two candidates, a hedge, text that goes on.

Answers are hostile text. They are at most MAX_CHARS long, every parser is about linear in that, and nothing is
evaluated. Python's own limit on digits bounds the whole numbers.
"""

from __future__ import annotations

import ast
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

from .bounded_eval import Unreadable, evaluate, parse

Entry = Mapping[str, Any]
Check = Callable[[Entry, str], bool]
"""`check(entry, answer)`: whether the answer is right. It may raise ValueError for an answer that cannot be read."""

MAX_CHARS = 200_000
MAX_NUMBER_CHARS = 1_000
MAX_LITERAL_CHARS = 50_000
MAX_EXPONENT = 999
"""Of a number in scientific notation, and of a prime factor or a variable."""


# --- decoration ---

_WRAPPINGS = (
    *((f"\\{command}{{", "}") for command in ("boxed", "fbox", "text", "textbf", "texttt", "mathrm", "mathbf")),
    *(("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("**", "**"), ("__", "__"), ("*", "*")),
    *(("```", "```"), ("`", "`"), ('"', '"'), ("'", "'")),
)
_MAX_ROUNDS = 8
"""How deep decoration may be nested; `**Answer: $\\boxed{\\text{5}}$.**` needs six."""
_TYPOGRAPHY = {
    **dict.fromkeys(map(ord, "\u00a0\u2007\u2009\u202f"), " "),
    **dict.fromkeys(map(ord, "\u200b\u2060\ufeff")),
    **{ord("−"): "-", ord("“"): '"', ord("”"): '"', ord("‘"): "'", ord("’"): "'"},
}
_LANGUAGE = re.compile(r"\A(?:json|te?xt|plaintext|plain|python|latex|tex|math|markdown|md|bash|csv)[ \t]*\n", re.I)
"""What a code fence calls its content. Any other word there may be part of what is said: `False`, `not`, `minus`."""
_POWER = re.compile(r"(?<=[\w)])\*\*(?=[\w(])")
"""In bold text, `**` that is no mark: `**x**2 + 1**`."""
_LABEL_WORDS = (
    r"(?:(?:so|thus|therefore|hence)[, ] ?)?(?:the |my )?(?:final |correct )?(?:answer|result|output|solution)"
)
_LABEL = re.compile(
    rf"(?:{_LABEL_WORDS}(?: is\b ?:?| ?[:=])|(?P<mark>\*\*|__){_LABEL_WORDS}(?: is)? ?:? ?(?P=mark) ?:?)\s*(?=\S)", re.I
)


_BARE = re.compile(r"-?[A-Za-z0-9]{1,40}(?:\.[0-9]{1,40})?")
"""What wears nothing: nearly every cell of a list or grid."""


def undress(text: str) -> str:
    """`text` without what stands around an answer and says nothing: markdown, LaTeX, quotes, `Answer:`, a full stop.

    Only what spans the whole text is removed. Raises Unreadable if the text is longer than MAX_CHARS.
    """
    if _BARE.fullmatch(text):
        return text
    if len(text) > MAX_CHARS:
        raise Unreadable(f"expected at most {MAX_CHARS} characters, got {len(text)}")
    text = text.replace("\r\n", "\n").replace("\r", "\n").translate(_TYPOGRAPHY).strip()
    for _ in range(_MAX_ROUNDS):
        plain = _without_wrapping(_without_full_stop(_LABEL.sub("", text, count=1) if _LABEL.match(text) else text))
        if plain == text:
            break
        text = plain
    return text


def _without_full_stop(text: str) -> str:
    return text[:-1].rstrip() if text.endswith((".", ",")) and not text.endswith("..") else text


def _without_wrapping(text: str) -> str:
    for opening, closing in _WRAPPINGS:
        if len(text) > len(opening) + len(closing) and text.startswith(opening) and text.endswith(closing):
            inner = text[len(opening) : len(text) - len(closing)]
            if _belong_together(inner, opening, closing):
                return (_LANGUAGE.sub("", inner) if opening == "```" else inner).strip()
    return "" if text in ('""', "''") else text


def _belong_together(inner: str, opening: str, closing: str) -> bool:
    """Whether the first and the last mark do: `"a", "b"` is not wrapped in quotes, but `"["a", "b"]"` is."""
    if closing != "}":
        is_one_structure = f"{inner[0]}{inner[-1]}" in ("[]", "{}")
        plain = _POWER.sub("", inner) if opening == "**" else inner
        return is_one_structure or (opening not in plain and closing not in plain)
    depth = 0
    for character in inner:
        depth += (character == "{") - (character == "}")
        if depth < 0:
            return False
    return depth == 0


# --- numbers ---

_NUMBER = re.compile(
    r"(?P<sign>[-+]?) ?(?P<whole>\d{1,3}(?:,\d{3})+|\d*)(?:\.(?P<part>\d*))?"
    r"(?: ?(?:e(?P<e>[-+]?\d{1,4})"
    r"|(?:×|x|\*|·|\\times|\\cdot) ?10 ?(?:\^|\*\*) ?(?P<brace>\{)?(?P<power>[-+]?\d{1,4})(?(brace)\})))?",
    re.ASCII | re.IGNORECASE,
)
_FRACTION = re.compile(r"(?P<sign>-?) ?(?:(\d+) ?/ ?(\d+)|\\[dt]?frac ?\{ ?(-?\d+) ?\} ?\{ ?(\d+) ?\})", re.ASCII)
_NAME_OF_A_NUMBER = re.compile(r"(?:[A-Za-z](?:_?\{?\d\}?|[₁-₉])? ?)?[=≈] ?", re.ASCII)


def number(text: str) -> Fraction:
    """`5`, `+5.0`, `1,234`, `x = 5`, `5e3`, `5 \\times 10^{3}`."""
    return number_and_place(text)[0]


def number_and_place(text: str) -> tuple[Fraction, Fraction]:
    """The number, and what one is worth in its last decimal place: (1.25, 0.01)."""
    text = _plain_number(text)
    found = _NUMBER.fullmatch(text)
    if found is None or not (found["whole"] or found["part"]):
        raise Unreadable(f"not a number: {text[:40]!r}")
    exponent = int(found["e"] or found["power"] or 0)
    if abs(exponent) > MAX_EXPONENT:
        raise Unreadable(f"an exponent of more than {MAX_EXPONENT}")
    whole, part = found["whole"].replace(",", ""), found["part"] or ""
    place = Fraction(10) ** (exponent - len(part))
    value = int(whole + part) * place
    return (-value if found["sign"] == "-" else value), place


def _plain_number(text: str) -> str:
    text = undress(text)
    if len(text) > MAX_NUMBER_CHARS:
        raise Unreadable(f"a number of more than {MAX_NUMBER_CHARS} characters")
    text = _NAME_OF_A_NUMBER.sub("", text, count=1) if _NAME_OF_A_NUMBER.match(text) else text
    text = undress(text.replace("{,}", ",").replace("\\,", "").replace("\\!", ""))
    return " ".join(text.removeprefix("\\$").removeprefix("$").split())


def integer(text: str) -> int:
    value = number(text)
    if value.denominator != 1:
        raise Unreadable(f"not a whole number: {text[:40]!r}")
    return int(value)


def fraction(text: str) -> tuple[int, int]:
    """Numerator and denominator as written, of `3/4`, `-3/4`, `\\frac{3}{4}` or a whole number."""
    text = _plain_number(text)
    found = _FRACTION.fullmatch(text)
    if found is None:
        return integer(text), 1
    above, below = int(found[2] or found[4]), int(found[3] or found[5])
    return (-above if found["sign"] else above), below


def is_rounded(text: str, exact: Fraction, *, finest: Fraction, cut_off: bool = True) -> bool:
    """Whether the number in `text` is `exact`, or that rounded (or `cut_off`) at a place worth at most `finest`.

    Every digit must be right. The halves may be rounded either way; `exact` may be a float's value, of which the
    14th digit is noise.
    """
    given, place = number_and_place(text)
    noise = abs(exact) / 10**13
    if abs(given - exact) <= noise:
        return True
    is_cut = cut_off and given * exact >= 0 and 0 <= abs(exact) - abs(given) + noise < place
    return place <= finest and (is_cut or abs(given - exact) <= place / 2 + noise)


def are_rounded(given: Sequence[str], right: Sequence[float], *, finest: Fraction, cut_off: bool = True) -> bool:
    """Whether each is, and there are as many."""
    return len(given) == len(right) and all(
        is_rounded(text, Fraction(exact), finest=finest, cut_off=cut_off)
        for text, exact in zip(given, right, strict=True)
    )


_UNIT_SIGNS = frozenset(" .,:;*_()\\")
_TEXT_COMMAND = re.compile(r"\\(?:text|textbf|mathrm|mathbf) ?\{([^{}]{0,60})\}|\^ ?\{?\\circ\}?")
_AMOUNT = re.compile(r"[-+]?\.?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?", re.ASCII)


def amount(text: str, words: Collection[str]) -> Fraction:
    """The one number of `84 dollars`, `$84` or `84 \\text{ km}`, around which stand only `words` and signs of them."""
    plain = _TEXT_COMMAND.sub(lambda found: f" {found[1] or ''} ", _plain_number(text).replace("$", " "))
    found = _AMOUNT.findall(plain)
    around = _AMOUNT.sub(" ", plain, count=1).lower()
    said, signs = re.findall(r"[^\W\d_]+", around), {sign for sign in around if not sign.isalpha()}
    if len(found) != 1 or not signs <= _UNIT_SIGNS | {*words} or not {*said} <= {*words}:
        raise Unreadable(f"not one number with its unit: {plain[:60]!r}")
    return number(found[0])


_COUNTED = frozenset(
    [
        *("female", "male", "colleagues", "brothers", "sisters", "friends", "swap", "swaps", "bit", "bits", "prime"),
        *("primes", "numbers", "cell", "cells", "legs", "time", "times", "step", "steps", "rectangle", "rectangles"),
        *("minute", "minutes", "possible", "solution", "solutions", "°", "deg", "degree", "degrees"),
    ]
)
"""What a number may be followed by, for it is what is counted. No two of these can be taken for each other."""


def count(answer: str) -> Fraction:
    return amount(answer, _COUNTED)


# --- words, lists, grids, JSON ---


def wording(answer: str) -> str:
    """The words as they stand, one blank between them, without quotes and full stops at either end."""
    return " ".join(undress(answer).split()).strip(" \"'`*_.")


def folded(answer: str) -> str:
    """The words, whatever their case."""
    return wording(answer).casefold()


def letters(answer: str) -> str:
    """One word, whatever its case, also when it is spelled out with blanks."""
    return folded(answer).replace(" ", "")


MAX_ITEMS = 20_000
MAX_FACTORS = 500
_SEPARATORS = re.compile(r"(?:[\s,;|]|→|->|=>)+")
_BULLETS = frozenset("-*•")


def items(answer: str) -> tuple[str, ...]:
    """The words of a list, whatever separates them, with or without brackets and quotes.

    Raises Unreadable for an empty text; the empty list is `[]`.
    """
    plain = undress(answer)
    if not plain:
        raise Unreadable("an empty text")
    for _ in range(2):
        if f"{plain[:1]}{plain[-1:]}" in ("[]", "()", "{}"):
            plain = plain[1:-1].strip()
            if not plain:
                return ()
    found = [one for one in _SEPARATORS.split(plain) if one and one not in _BULLETS]
    if not 0 < len(found) <= MAX_ITEMS:
        raise Unreadable(f"expected 1 to {MAX_ITEMS} items, got {len(found)}")
    return tuple(map(undress, found))


def numbers(answer: str) -> tuple[Fraction, ...]:
    return tuple(map(_cell, items(answer)))


_PLAIN_NUMBER = re.compile(r"-?\d{1,40}(?:\.\d{1,40})?", re.ASCII)


def _cell(text: str) -> Fraction:
    return Fraction(text) if _PLAIN_NUMBER.fullmatch(text) else number(text)


_MATRIX = re.compile(r"\\(?:begin|end) ?\{[a-z]*(?:matrix|array)\}(?:\{[clr|]*\})?")
_ROW_END = re.compile(r"[\])}] {0,4},? {0,4}[\[({]|\n|;")
_RULE = frozenset("-+|: =")
"""A line of these and nothing else is drawn between rows."""
_BETWEEN_TEXTS = re.compile(r"""(?<=[^\s"']{2})["'] {0,4}, {0,4}["'](?=[^\s"']{2})""")
_CELLS = re.compile(r"[\s,|&\"'`\[\](){}]+")


def grid(answer: str) -> tuple[tuple[str, ...], ...]:
    """The cells of each row, whatever separates them: plain lines, JSON, a table of markdown or a matrix of LaTeX."""
    plain = undress(answer)
    if "\\begin" in plain:
        plain = _MATRIX.sub("", plain).replace("\\\\", "\n").replace("\\left", "").replace("\\right", "")
    try:
        # Numbers as they are written.
        rows = json.loads(plain, parse_int=str, parse_float=str) if plain.startswith("[") else ()
    except (ValueError, RecursionError):
        rows = ()
    if rows and _are_lists_of_texts(rows):
        return tuple(map(tuple, rows))
    lines = (line for line in _ROW_END.split(plain) if "--" not in line or not _RULE.issuperset(line))
    found = tuple(tuple(cell for cell in _CELLS.split(line) if cell) for line in lines)
    return tuple(row for row in found if row)


def number_grid(answer: str) -> tuple[tuple[Fraction, ...], ...]:
    return tuple(tuple(map(_cell, row)) for row in grid(answer))


def picture(answer: str) -> tuple[str, ...]:
    """The lines of a picture, with or without blanks between its signs, or as a list of texts."""
    return tuple("".join(row) for row in grid(_BETWEEN_TEXTS.sub("\n", undress(answer))))


def literal(answer: str) -> Any:
    """The value of JSON, or of a Python literal as `json` could write it. No key of JSON may stand twice."""
    plain = undress(answer)
    try:
        value = json.loads(plain, object_pairs_hook=_without_repetition)
    except (json.JSONDecodeError, RecursionError):
        if "#" in plain:
            raise Unreadable("a comment") from None
        value = ast.literal_eval(parse(plain, MAX_LITERAL_CHARS))
    json.dumps(value, allow_nan=False)
    return value


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise Unreadable("a key stands twice")
    return dict(pairs)


def strings(answer: str) -> list[list[str]]:
    """A list of lists of texts, in JSON or as Python writes it."""
    value = literal(answer)
    if not _are_lists_of_texts(value):
        raise Unreadable("not a list of lists of texts")
    return list(value)


def _are_lists_of_texts(value: Any) -> bool:
    return all(isinstance(one, (list, tuple)) and all(isinstance(part, str) for part in one) for one in value)


TIMES = re.compile(r"[×·⋅]|\\times|\\cdot")
"""Signs for which `*` is written, too."""

# --- durations, roles, polynomials, complex numbers ---

_CLOCK = r"(\d{1,4}):(\d{1,2})(?::(\d{1,2}(?:\.\d{1,9})?))?"
_DURATION = re.compile(rf"(?:(\d{{1,6}}) ?(?:d|days?)(?: days?)?(?:\Z| ?,? ?(?:and )?))?(?:{_CLOCK})?", re.ASCII | re.I)


def duration(answer: str) -> Fraction:
    """Seconds: of `03:30`, `3:30:57.961`, `5 days, 03:30`, and of days alone."""
    plain = wording(answer)
    # The days alone may stand without their name.
    found = _DURATION.fullmatch(f"{plain} days" if plain.isdecimal() else plain)
    if found is None or not plain:
        raise Unreadable(f"not a duration: {plain[:40]!r}")
    whole_days, hours, minutes, seconds = (Fraction(part or 0) for part in found.groups())
    if max(minutes, seconds) >= 60 or (found[1] and hours >= 24):
        raise Unreadable("more minutes, seconds or hours than there are")
    return ((whole_days * 24 + hours) * 60 + minutes) * 60 + seconds


_LIST_MARK = re.compile(r"(?m)^ {0,8}(?:\d{1,2}[.)]|[-*•]) | [-–—] ")
_FILLERS = frozenset({"a", "an", "and", "is", "the", "therefore", "so", "thus", "hence"})
_ROLE_SIGNS = frozenset(" \t\n.,;:=*_`'\"()[]{}")


def roles(answer: str) -> dict[str, str]:
    """`Ava is a knight, and Bo is a knave` as {"ava": "knight", "bo": "knave"}: names and roles by turns."""
    plain = _LIST_MARK.sub(" ", undress(answer).lower())
    words = [word for word in re.findall(r"[^\W_]+", plain) if word not in _FILLERS]
    if not {sign for sign in plain if not sign.isalnum()} <= _ROLE_SIGNS:
        raise Unreadable("it holds signs that could mean anything")
    found = dict(zip(words[::2], words[1::2], strict=False))
    if len(words) != 2 * len(found):
        raise Unreadable("not one role for each name")
    return found


_TERM = re.compile(r"([-+]?)(\d{0,400})((?:\*?[A-Za-z](?:\^\d{1,3})?){0,8})", re.ASCII)
_FACTOR = re.compile(r"([A-Za-z])(?:\^(\d{1,3}))?")
_SUPERSCRIPTS = re.compile(r"[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_PLAIN_DIGITS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")
Monomial = tuple[tuple[str, int], ...]


def polynomial(answer: str) -> dict[Monomial, int]:
    """The coefficient of each monomial of an expanded polynomial, with like terms collected."""
    plain = TIMES.sub("*", undress(answer).replace("**", "^"))
    plain = _SUPERSCRIPTS.sub(lambda found: "^" + found[0].translate(_PLAIN_DIGITS), plain)
    plain = re.sub(r"\^ ?\{ ?(\d{1,3}) ?\}", r"^\1", plain, flags=re.ASCII)
    if re.search(r"[A-Za-z\d] +[A-Za-z\d]", plain):
        raise Unreadable("two terms with no sign between them")
    found: dict[Monomial, int] = {}
    for term in filter(None, re.split(r"(?=[-+])", "".join(plain.split()))):
        parts = _TERM.fullmatch(term)
        if parts is None or not (parts[2] or parts[3]) or (parts[3].startswith("*") and not parts[2]):
            raise Unreadable(f"not a term: {term[:40]!r}")
        powers: Counter[str] = Counter()
        for name, exponent in _FACTOR.findall(parts[3]):
            powers[name] += int(exponent or 1)
        monomial = tuple(sorted((name, power) for name, power in powers.items() if power))
        if monomial in found:
            raise Unreadable("like terms are not collected")
        found[monomial] = int(parts[1] + (parts[2] or "1"))
    return {monomial: coefficient for monomial, coefficient in found.items() if coefficient}


_HEXADECIMAL = re.compile(r"([-+]?) ?(?:0x([0-9a-f]+)|([0-9]))", re.IGNORECASE)


def hexadecimal(answer: str) -> int:
    """A number in hexadecimal; one digit below ten is the same with and without its `0x`."""
    found = _HEXADECIMAL.fullmatch(_plain_number(answer))
    if found is None:
        raise Unreadable("not a hexadecimal number")
    return int(f"{found[1]}{found[2] or found[3]}", 16)


_REAL = r"\d+(?:\.\d+)?(?:e[-+]?\d{1,3})?"
_COMPLEX = re.compile(rf"([-+]? ?{_REAL}(?! ?[\d.i]))? ?((?(1)[-+]|[-+]?) ?(?:{_REAL} ?\*? ?)?i)?", re.ASCII)


def complex_number(answer: str) -> tuple[Fraction, Fraction]:
    plain = re.sub(r"\A\((.*)\)\Z", r"\1", _plain_number(answer)).lower().replace("j", "i").strip()
    found = _COMPLEX.fullmatch(plain)
    if found is None or not plain:
        raise Unreadable(f"not a complex number: {plain[:40]!r}")
    real, imaginary = (re.sub("[ *i]", "", part or "0") for part in found.groups())
    return Fraction(real), Fraction(imaginary if imaginary not in ("", "+", "-") else f"{imaginary}1")


# --- tasks whose right answer is not told by its value alone ---

_HEDGES = frozenset(
    [
        *("not", "no", "non", "nor", "never", "neither", "either", "or", "if", "unless", "except", "but", "other"),
        *("than", "less", "more", "fewer", "least", "most", "under", "over", "below", "above", "wrong", "false"),
        *("times", "half", "twice", "double", "triple", "dozen", "hundred", "thousand", "million", "percent"),
        *("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "minus", "negative"),
    ]
)
"""Words of a question that say more than what is counted."""
_SENTENCE_END = re.compile(r"(?<!Mr)(?<!Mrs)(?<!Ms)(?<!Dr)[.?!:]\s+")


def gsm_symbolic(entry: Entry, answer: str) -> bool:
    """A number, and words of the sentence that asks: `8 hours` is wrong where hours are given and minutes asked for."""
    question = str(entry.get("question", "")).partition("Give the result")[0].rstrip()
    asked = _SENTENCE_END.split(question)[-1].lower()
    words = {*re.findall(r"[^\W\d_]+", asked)} - _HEDGES | {"in", "total"} | set("€£¥₹") & set(question)
    if "%" in asked or "percent" in asked:
        words.add("%")
    return amount(answer, words) == number(str(entry["answer"]))


def base_conversion(entry: Entry, answer: str) -> bool:
    base = entry["metadata"]["target_base"]
    plain = re.sub(rf"_ ?(?:{base}|\{{ ?{base} ?\}}|\( ?{base} ?\))\Z", "", letters(_plain_number(answer)))
    # Nobody writes a sign; leading zeros say nothing.
    return plain.lstrip("0") == letters(str(entry["answer"])).lstrip("0")


def number_format(entry: Entry, answer: str) -> bool:
    """Candidates are sums of numbers with three decimals, so that some have the noise of floats."""
    return is_rounded(_INDIAN.sub(r"\1", answer), Fraction(entry["metadata"]["solution"]), finest=Fraction(1, 10**6))


_INDIAN = re.compile(r"(?<=\d),(\d\d)(?=,)", re.ASCII)
"""`12,34,567`, as thousands are set off in India."""


_DEGREES = re.compile(r" ?(?:°|deg(?:rees?)?|\^ ?\{? ?\\circ ?\}?|\\degree|\\text ?\{ ?degrees? ?\})\Z", re.IGNORECASE)


def advanced_geometry(entry: Entry, answer: str) -> bool:
    """Three decimals are asked for. Angles are also right with two, as the item's own answer has them."""
    metadata, plain = entry["metadata"], _plain_number(answer)
    if metadata["task_type"] == "angle_measure":
        angles = [metadata["angle_ABC_degrees"]]
        return are_rounded([_DEGREES.sub("", plain)], angles, finest=Fraction(1, 100), cut_off=False)
    right = metadata["ortho"] if metadata["task_type"] == "orthocenter" else [metadata["incircle_radius_approx"]]
    return are_rounded(items(plain), right, finest=Fraction(1, 1000), cut_off=False)


def coin_flip(entry: Entry, answer: str) -> bool:
    """A fraction, or a number or percentage all of whose digits are right, and whose error is small against it.

    Small against the probability of the contrary, too: what is certain is 0 or 1, and nothing else.
    """
    ratio = entry["metadata"]["rational"]
    right = Fraction(ratio["numerator"], ratio["denominator"])
    if "/" in answer or "frac" in answer:
        return Fraction(*fraction(answer)) == right
    plain = _plain_number(answer)
    share, percent = (plain.rstrip("%\\ "), 100) if plain.endswith("%") else (plain, 1)
    error = abs(number(share) / percent - right)
    noise = right / 10**9
    is_near = error <= max(min(Fraction(1, 10**4), right / 50, (1 - right) / 50), noise)
    return is_near and is_rounded(share, right * percent, finest=Fraction(percent))


def decimal_arithmetic(entry: Entry, answer: str) -> bool:
    """Twelve digits are asked for at most: every digit must be right, to the decimal places of the question at least.

    The item's own answer is rounded after each step, so that its last digits need not be those of the exact value.
    """
    question = str(entry["question"])
    places = max(map(len, re.findall(r"\.(\d+)", question)), default=0)
    values = {Fraction(str(entry["answer"])), _exactly(question)}
    return any(is_rounded(answer, value, finest=Fraction(1, 10**places)) for value in values)


def _exactly(question: str) -> Fraction:
    """The value of the expression before the last `=` of the question."""
    expression = question.rpartition("=")[0].rpartition("\n")[2]
    quotient = lambda found: f"({int(found[1] + found[2])}/{10 ** len(found[2])})"  # noqa: E731
    return evaluate(re.sub(r"(\d+)\.(\d+)", quotient, expression))[0]


def power_function(entry: Entry, answer: str) -> bool:
    """Three significant figures are asked for; more are right if each is."""
    right = Decimal(str(entry["answer"]))
    return is_rounded(answer, Fraction(right), finest=Fraction(10) ** (right.adjusted() - 2), cut_off=False)


def pool_matrix(entry: Entry, answer: str) -> bool:
    """Two decimals are asked for."""
    given, right = grid(answer), entry["metadata"]["solution"]
    return [len(row) for row in given] == [len(row) for row in right] and are_rounded(
        [*itertools.chain(*given)], [*itertools.chain(*right)], finest=Fraction(1, 100)
    )


def polynomial_equations(entry: Entry, answer: str) -> bool:
    """All real roots, to four decimals, rounded or cut off: `rounding down when the 5th decimal is 5 or greater`."""
    # reasoning-gym, which made the item, has imported it.
    import sympy

    metadata, plain = entry["metadata"], undress(answer)
    right = sorted({Fraction(str(root)) for root in metadata["real_solutions"]})
    if not right or not plain:
        return not right and plain.casefold() in _NO_ROOTS
    given = [one for one in re.split(r",|;|\n|\bor\b|\band\b", plain.strip("[](){}")) if one.strip()]
    exact = sorted({Fraction(str(root.n(20))) for root in sympy.Poly(metadata["polynomial_expr"]).real_roots()})
    return len(given) == len(right) == len(exact) and all(
        is_rounded(text, root, finest=Fraction(1, 10**4)) or is_rounded(text, own, finest=Fraction(1, 10**4))
        for text, root, own in zip(sorted(given, key=number), exact, right, strict=True)
    )


_NO_ROOTS = frozenset({"", "[]", "none", "no real solution", "no real solutions", "no real roots", "empty string"})


def codeio(entry: Entry, answer: str) -> bool:
    right = str(entry["answer"])
    try:
        expected = literal(right)
    except (ValueError, TypeError, RecursionError):
        return wording(answer) == wording(right)
    return _is_same_data(literal(answer), expected)


def _is_same_data(given: Any, right: Any) -> bool:
    """Of the same types all the way down, but that 57.0 is 57. The last digits of a float are its rounding."""
    if isinstance(right, dict) and isinstance(given, dict) and given.keys() == right.keys():
        return all(_is_same_data(given[key], value) for key, value in right.items())
    if isinstance(right, list) and isinstance(given, (list, tuple)) and len(given) == len(right):
        return all(map(_is_same_data, given, right))
    if type(right) is float and type(given) is float:
        exact = Fraction(str(right))
        return is_rounded(str(given), exact, finest=abs(exact) / 10**6)
    return given == right and (type(given) is type(right) or {type(given), type(right)} == {int, float})


def prime_factorization(entry: Entry, answer: str) -> bool:
    plain = TIMES.sub("*", undress(answer).replace("**", "^"))
    factors: Counter[int] = Counter()
    for one in re.split("[*x,]", plain, maxsplit=MAX_FACTORS):
        base, _, exponent = one.replace("{", "").replace("}", "").partition("^")
        factors[integer(base)] += integer(exponent or "1")
    return factors == Counter(entry["metadata"]["factors"])


def time_intervals(entry: Entry, answer: str) -> bool:
    """To the millisecond, of which one in two items' own answers is one short."""
    start, end = (datetime.fromisoformat(entry["metadata"][name]) for name in ("start_time", "end_time"))
    unit = _MILLISECONDS.get(entry["metadata"]["expected_format"], 1000)
    return duration(answer) * 1000 == (end - start) // timedelta(milliseconds=1) // unit * unit


_MILLISECONDS = {"D days": 86_400_000, "HH:MM": 60_000, "D days, HH:MM": 60_000, "HH:MM:SS.mmm": 1}
"""Of the unit that is asked for; it is a second in the other formats."""


def futoshiki(entry: Entry, answer: str) -> bool:
    """The numbers; the signs between them are those of the question, and may be left out."""
    return grid(_INEQUALITIES.sub(" ", answer)) == grid(_INEQUALITIES.sub(" ", str(entry["answer"])))


_INEQUALITIES = re.compile("[<>∧∨^vV]")


# --- which task has which ---


def by_name(*checks: Callable[..., bool]) -> dict[str, Callable[..., bool]]:
    return {check.__name__: check for check in checks}


def same(read: Callable[[str], Any]) -> Check:
    """The answer is right if `read` finds the same value in it as in the item's own."""

    def check(entry: Entry, answer: str) -> bool:
        return bool(read(answer) == read(str(entry["answer"])))

    return check


def number_or_word(answer: str) -> Any:
    try:
        return number(answer)
    except Unreadable:
        return folded(answer)


def _groups(answer: str) -> Counter[Any]:
    return Counter(tuple(sorted(one)) for one in strings(answer))


def _partitions(answer: str) -> Counter[Any]:
    return Counter(map(tuple, strings(answer)))


_BY_FORM: Mapping[Callable[[str], Any], tuple[str, ...]] = {
    fraction: ("dice", "fraction_simplification"),
    count: (
        *("aiw", "binary_alternation", "count_bits", "count_primes", "largest_island", "leg_counting"),
        *("letter_counting", "maze", "rectangle_count", "rotten_oranges", "self_reference", "simple_geometry"),
    ),
    # In hexadecimal, as it is asked for.
    hexadecimal: ("bitwise_arithmetic",),
    complex_number: ("complex_arithmetic",),
    number_or_word: (
        *("acre", "basic_arithmetic", "caesar_cipher", "calendar_arithmetic", "chain_sum", "circuit_logic"),
        *("color_cube_rotation", "course_schedule", "decimal_chain_sum", "family_relationships"),
        *("game_of_life_halting", "gcd", "isomorphic_strings", "lcm", "letter_jumble", "mahjong_puzzle"),
        *("number_sequence", "products", "ransom_note", "sentence_reordering", "simple_equations"),
        *("spell_backward", "syllogism", "zebra_puzzles"),
    ),
    wording: ("bf", "emoji_mystery", "string_insertion", "string_manipulation"),
    letters: ("figlet_font", "needle_haystack"),
    items: ("ab", "path_star", "word_sequence_reversal", "word_sorting"),
    numbers: (
        *("list_functions", "number_filtering", "number_sorting", "spiral_matrix", "string_splitting"),
        *("string_synthesis", "arc_1d"),
    ),
    number_grid: (
        *("arc_agi", "binary_matrix", "game_of_life", "manipulate_matrix", "mini_sudoku", "rearc", "rotate_matrix"),
        *("sudoku",),
    ),
    picture: ("modulo_grid",),
    roles: ("knights_knaves",),
    polynomial: ("polynomial_multiplication",),
    _groups: ("group_anagrams",),
    _partitions: ("palindrome_partitioning",),
}
FORMS: Mapping[str, Check] = {
    **{task: same(read) for read, tasks in _BY_FORM.items() for task in tasks},
    **by_name(advanced_geometry, base_conversion, codeio, coin_flip, decimal_arithmetic, futoshiki, gsm_symbolic),
    **by_name(number_format, polynomial_equations, pool_matrix, power_function, prime_factorization, time_intervals),
}
"""By task, for those with one right answer. Tasks with many are in solvers.py."""
