r"""One grammar for numbers, fractions, complex numbers, polynomials and antiderivatives.

    answer ── plain_text ──> sides of an equation ── tokens ──> Python's notation ── ast.parse ──> tree of the value

    1{,}234.50          '1234.50'                    4 * 3 = 12                 the value 12: both sides agree
    \frac{2}{3}         (('2')/('3'))                12.5%                      '12.5'@'100'
    3x^2 e^{-x}         '3'*x**'2'*E**(-x)           \frac{1}{3} \approx 0.33   the value 1/3: 0.33 is its rounding

The grammar reads ordinary handwriting, LaTeX and Python's notation. Factors need no sign of multiplication. It refuses
text that has two meanings: a mixed number, two numbers side by side, and a product without a sign after a division,
such as `1/2x`. Numbers are texts in the tree, so that they keep their digits. Each reader at the end of this module
accepts some of the trees, and refuses all others.

Answers are hostile text. No function of this module evaluates the text. Parsing takes about linear time.
"""

from __future__ import annotations

import ast
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction

from .bounded_eval import ARITHMETIC, FUNCTIONS, UnreadableTextError, parse, value_of_tree
from .markup import compiled, plain_text, strip_markup, without_brackets

MAX_CHARS = 10_000
"""An expression with more characters is unreadable."""
MAX_LETTERS = 4
"""Longer words are no products of variables."""
MAX_EXPONENT = 999
"""The largest exponent of a number in scientific notation, and of a variable in a polynomial."""


# --- from text to a tree

THOUSANDS = r"\d{1,3}(?:(?:,\d{3})+|(?: \d{3})+|(?:'\d{3})+|(?:_\d{3})+)(?!\d)"
"""Commas, blanks, apostrophes or underscores separate thousands."""
_FUNCTIONS = {
    **{name: name for name in FUNCTIONS - {"Rational", "Integral"}},
    "arcsin": "asin",
    "arccos": "acos",
    "arctan": "atan",
    "√": "sqrt",
}
"""The names of functions in an answer, and their names in sympy."""
_NAMES_OF_FUNCTIONS = "|".join(sorted(_FUNCTIONS, key=len, reverse=True))
_BARE_ARGUMENT = r"\d+(?![\d.])(?! ?[A-Za-z])|\d* ?[A-Za-z](?:\^\d+)?(?![A-Za-z(])"
_NOTATIONS = compiled(
    {
        # The letter x as a sign of multiplication, in `2 x 3` and `(1.5) x 10^3`.
        r"(?<=\d) ?[xX] ?(?=\d)|(?<=[\d)}]) ?[xX] ?(?=[({]?10[)}]? ?(?:\^|\*\*))": "*",
        r"\\(?:times|cdot|ast)(?![A-Za-z])|[×·⋅∙•∗]": "*",
        r"\\div(?![A-Za-z])|÷": "/",
        r"\\(?:approx|simeq)(?![A-Za-z])": "≈",
        r"∈": "=",
        r"\*\*": "^",
        r"\[": "(",
        r"\]": ")",
        r"\\pi(?![A-Za-z])|π": "pi",
        r"\\(?:[dtcs]|nice)?frac(?![A-Za-z])": r"\\frac",
        # A fraction of raised and lowered digits, as `plain_text` writes it.
        r"\^(\d+)/_(\d+)": r"\1/\2",
        # A digit needs no braces, as in `\frac12`.
        r"(\\frac) ?(\d)": r"\1{\2}",
        r"(\\frac ?\{[^{}]{1,99}\}) ?(\d)": r"\1{\2}",
        # ln|x| and ln x have the same derivative.
        r"(ln|log) ?\|([^|]{1,99})\|": r"\1(\2)",
        # A function applies to the number and the name after it: `sin 2x`.
        rf"(?<!cons)({_NAMES_OF_FUNCTIONS})((?:\^\d+)?) ?({_BARE_ARGUMENT})": r"\1\2(\3)",
    }
)
"""Other notations for the signs of the grammar."""
_TOKEN = re.compile(
    rf"(?P<number>(?:(?:{THOUSANDS}|\d+)(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{{1,4}}(?![A-Za-z\d]))?)"
    rf"|\\?(?P<function>(?:{_NAMES_OF_FUNCTIONS})(?:\^\{{?\d+\}}?)?)"
    r"|(?P<frac>\\frac)"
    r"|(?P<name>const(?:ant)?|pi|e(?= ?\^)|[A-Za-z](?:_\{?\d\}?)?)"
    r"|(?P<open>[({])|(?P<close>[)}])|(?P<percent>%)|(?P<sign>[-+*/^])"
    r"| +|(?P<unknown>.)",
    re.ASCII | re.DOTALL,
)
_EXPONENTIAL = re.compile(r"e ?\^")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_KNOWN_IN_WORD = re.compile(rf"{_NAMES_OF_FUNCTIONS}|const(?:ant)?|pi")
_BEGIN_A_FACTOR = frozenset({"number", "function", "frac", "name", "open"})
_END_A_FACTOR = frozenset({"number", "name", "close", "percent"})


def _tree(text: str) -> ast.expr:
    """The tree of one side of an equation. Raises UnreadableTextError."""
    for word in _WORD.findall(text):
        if len(word) > MAX_LETTERS and not _KNOWN_IN_WORD.search(word):
            raise UnreadableTextError(f"{word!r} is a word")
    return parse("".join(_in_python(text)), 10 * MAX_CHARS)


def _in_python(text: str) -> Iterator[str]:
    """The tokens of the text in Python's notation. Brackets may not match."""
    kind_before = token_before = ""
    # What the next bracket ends with, and what each open bracket ends with.
    closing = ")"
    closings: list[str] = []
    # Whether the current term divides, for each open bracket and outside of them.
    divides = [False]
    for found in _TOKEN.finditer(text):
        kind = found.lastgroup
        token = found[0]
        if kind is None:
            continue
        if kind_before in ("function", "frac") and kind != "open":
            raise UnreadableTextError("a function needs brackets")
        if kind in _BEGIN_A_FACTOR and kind_before in _END_A_FACTOR:
            # `i4` is an imaginary number. In `x2`, the 2 could also be an index or an exponent.
            if kind == "number" and token_before not in ("i", "j"):
                raise UnreadableTextError("a number follows another factor without a sign")
            if kind == "frac" and kind_before == "number":
                raise UnreadableTextError("a mixed number")
            if divides[-1]:
                raise UnreadableTextError("a product without a sign after a division")
            yield "*"
        match kind:
            case "number":
                digits = re.sub("[, '_]", "", token)
                yield f"'{digits}'"
            case "name":
                # `e^x` is sympy's `E**x`.
                yield "E" if _EXPONENTIAL.match(text, found.start()) else re.sub("[_{}]", "", token)
            case "function":
                name, _, exponent = token.removeprefix("\\").partition("^")
                yield _FUNCTIONS[name]
                closing = ")**'" + exponent.strip("{}") + "'" if exponent else ")"
            case "frac":
                yield "("
                closing = ")/"
            case "open":
                yield "("
                closings.append(closing)
                divides.append(False)
                closing = ")"
            case "close":
                if not closings:
                    raise UnreadableTextError("a bracket without its counterpart")
                divides.pop()
                yield closings[-1]
                if closings.pop() == ")/":
                    closing = "))"
                    kind = "frac"
            case "percent":
                yield "@'100'"
            case "sign":
                if token in "+-" and token_before == "-":
                    raise UnreadableTextError("two signs in a row")
                divides[-1] = token == "/" or (divides[-1] and token in "*^")
                yield token.replace("^", "**")
            case _:
                raise UnreadableTextError(f"{token!r} is no part of an expression")
        kind_before = kind
        token_before = token


# --- from an answer to its value

_NAME_OF_A_FUNCTION = re.compile(
    r"\A[A-Za-z]\([A-Za-z](?: ?(?:[<>=]=?|[≤≥]|\\[gl]eq?(?![A-Za-z])) ?\d{1,4})?\) ?(?==|≈|\\approx)", re.ASCII
)
"""The name of a function or of a probability before its value: `f(x) =`, `P(A) =`, `P(X >= 3) =`."""
_INTEGRAL = re.compile(r"\A(?:∫|\\int(?![A-Za-z]))[^=]{1,500}=")
"""The integral that an antiderivative solves, before its value: `∫ 2x dx =`."""


def with_plain_digits(text: str) -> str:
    """The text with the digits 0 to 9 in place of the decimal digits of any other script."""
    if text.isascii():
        return text
    return "".join(str(unicodedata.decimal(sign, sign)) for sign in text)


def plain_value(text: str) -> str:
    """Strip what may surround a value: markup, brackets, `=` or `≈`, a currency sign, and LaTeX layout."""
    text = with_plain_digits(without_brackets(plain_text(text)))
    text = _INTEGRAL.sub("", _NAME_OF_A_FUNCTION.sub("", text))
    text = re.sub(r"\A(?:[=≈]|\\approx(?![A-Za-z])) ?", "", text)
    text = without_brackets(strip_markup(text)).removeprefix("$").strip()
    if len(text) > MAX_CHARS:
        raise UnreadableTextError(f"expected at most {MAX_CHARS} characters, got {len(text)}")
    return text


def value_of(answer: str) -> ast.expr:
    """The value that an answer gives: the last side of an equation, as in `4 * 3 = 12`."""
    return sides_of(answer)[-1]


def sides_of(answer: str) -> list[ast.expr]:
    """The sides of an equation. All sides must have the same value. An answer without `=` has a single side.

    After `≈`, a side must be the rounded value. It counts only if no side before it is a number or a fraction: the
    value of `1/8 ≈ 0.13` is 1/8, and the value of `1.2^2 ≈ 1.4` is 1.4. Raises UnreadableTextError for any other text.
    """
    text = plain_value(answer)
    for notation, plain in _NOTATIONS.items():
        text = notation.sub(plain, text)
    first, *others = re.split("([=≈])", text)
    last = _tree(first)
    sides = [last]
    is_exact = True
    for sign, side in zip(others[::2], others[1::2], strict=True):
        other = _tree(side)
        _, place = rational_and_place(other) if sign == "≈" else (0, Fraction(0))
        if abs(exact_value(other) - exact_value(last)) > place / 2:
            raise UnreadableTextError("the sides of an equation differ")
        is_exact = is_exact and sign == "="
        if is_exact or not any(_can_read(rational_and_place, side) for side in sides):
            sides.append(other)
        last = other
    return sides


def exact_value(node: ast.expr) -> Fraction:
    """The value of arithmetic with numbers. Raises UnreadableTextError for anything else, and for large numbers."""
    return Fraction(value_of_tree(node, (*ARITHMETIC, ast.Pow, ast.MatMult), lambda leaf: number_and_place(leaf)[0]))


# --- readers of values


def number_and_place(node: ast.expr) -> tuple[Fraction, Fraction]:
    """A number with its sign, perhaps in scientific notation, and the value of a 1 in its last place."""
    match node:
        case ast.Constant(value=str() as text):
            digits, _, exponent = text.lower().partition("e")
            _, _, decimals = digits.partition(".")
            power = _power_of_ten(int(exponent or "0"))
            return Fraction(digits.rstrip(".")) * power, power / 10 ** len(decimals)
        case ast.UnaryOp(op=sign, operand=inner):
            value, place = number_and_place(inner)
            return -value if isinstance(sign, ast.USub) else value, place
        case ast.BinOp(mantissa, ast.Mult(), ast.BinOp(ast.Constant("10"), ast.Pow(), exponent)):
            value, place = number_and_place(mantissa)
            power = _power_of_ten(whole_number(exponent))
            return value * power, place * power
    raise UnreadableTextError("not a number")


def _power_of_ten(exponent: int) -> Fraction:
    if abs(exponent) > MAX_EXPONENT:
        raise UnreadableTextError(f"an exponent of more than {MAX_EXPONENT}")
    return Fraction(10) ** exponent


def whole_number(node: ast.expr) -> int:
    value, _ = number_and_place(node)
    if value.denominator != 1:
        raise UnreadableTextError("not a whole number")
    return int(value)


def numerator_and_denominator(node: ast.expr) -> tuple[int, int]:
    """The parts of a fraction of whole numbers, not reduced. A whole number has the denominator 1."""
    match node:
        case ast.BinOp(top, ast.Div(), ast.Constant() as bottom):
            return whole_number(top), whole_number(bottom)
        case ast.UnaryOp(op=ast.USub(), operand=ast.BinOp(ast.Constant(), ast.Div(), ast.Constant()) as fraction):
            numerator, denominator = numerator_and_denominator(fraction)
            return -numerator, denominator
    return whole_number(node), 1


def rational_and_place(node: ast.expr) -> tuple[Fraction, Fraction]:
    """The value of a number, percentage or fraction, and of a 1 in its last place, which is 0 for a fraction."""
    match node:
        case ast.BinOp(percents, ast.MatMult()):
            value, place = number_and_place(percents)
            return value / 100, place / 100
        case ast.BinOp(op=ast.Div()) | ast.UnaryOp(operand=ast.BinOp(op=ast.Div())):
            return Fraction(*numerator_and_denominator(node)), Fraction(0)
    return number_and_place(node)


Monomial = tuple[tuple[str, int], ...]
"""The variables of a term with their powers, sorted: x*y**2 is (("x", 1), ("y", 2))."""


def terms_of(node: ast.expr) -> Mapping[Monomial, Fraction]:
    """The coefficient of each monomial of an expanded sum.

    Raises UnreadableTextError if like terms are not collected.
    """
    coefficients: dict[Monomial, Fraction] = {}
    for sign, term in _terms(node):
        monomial, coefficient = _monomial(term)
        if monomial in coefficients:
            raise UnreadableTextError("like terms are not collected")
        coefficients[monomial] = sign * coefficient
    return coefficients


def _terms(node: ast.expr) -> Iterator[tuple[int, ast.expr]]:
    """The terms of a sum without brackets, from the last to the first, each with the sign before it."""
    while isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        is_negative = isinstance(node.op, ast.Sub)
        yield -1 if is_negative else 1, node.right
        node = node.left
    yield 1, node


def factors_of(node: ast.expr) -> list[ast.expr]:
    """The factors of a product without brackets."""
    factors = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        factors.append(node.right)
        node = node.left
    return [node, *reversed(factors)]


def _monomial(term: ast.expr) -> tuple[Monomial, Fraction]:
    """The variables and the coefficient of a term, which has at most one number."""
    powers: Counter[str] = Counter()
    numbers: list[Fraction] = []
    first, *others = factors_of(term)
    is_number = _can_read(number_and_place, term)
    sign = 1
    while isinstance(first, ast.UnaryOp) and not is_number:
        sign = -sign if isinstance(first.op, ast.USub) else sign
        first = first.operand
    for factor in [term] if is_number else [*factors_of(first), *others]:
        match factor:
            case ast.Name(name):
                powers[name] += 1
            case ast.BinOp(ast.Name(name), ast.Pow(), exponent):
                power = whole_number(exponent)
                if not 0 <= power <= MAX_EXPONENT:
                    raise UnreadableTextError(f"expected an exponent from 0 to {MAX_EXPONENT}")
                powers[name] += power
            case _:
                numbers.append(number_and_place(factor)[0])
    if len(numbers) > 1:
        raise UnreadableTextError("a term with two numbers")
    # The plus drops variables whose power is 0.
    return tuple(sorted((+powers).items())), sign * (numbers[0] if numbers else Fraction(1))


def _can_read(read: Callable[[ast.expr], object], node: ast.expr) -> bool:
    try:
        read(node)
    except UnreadableTextError:
        return False
    return True
