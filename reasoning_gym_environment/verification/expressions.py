r"""One grammar for numbers, fractions, complex numbers, polynomials and antiderivatives.

    answer ── plain_text ──> tokens ── Parser ──> sides of an equation ──> tree of the value

    1{,}234.50          Number                 4 * 3 = 12                 the value 12: both sides agree
    \frac{2}{3}         Quotient               12.5%                      Percentage
    3x^2 e^{-x}         Product                \frac{1}{3} \approx 0.33   the value 1/3: 0.33 is its rounding

The grammar reads ordinary handwriting, LaTeX and Python's notation. Factors need no sign of multiplication. It refuses
text that has two meanings: a mixed number, two numbers side by side, and a product without a sign after a division,
such as `1/2x`. Each reader at the end of this module accepts some of the trees, and refuses all others.

Answers are hostile text. Nothing here evaluates the text. Parsing takes about linear time, and the depth of a tree is
bounded.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from .bounded_eval import FUNCTIONS, MAX_BITS, UnreadableTextError
from .markup import plain_text, strip_markup, without_brackets

MAX_CHARS = 10_000
"""An expression with more characters is unreadable."""
MAX_DIGITS = 1_000
"""A number with more digits is unreadable."""
MAX_LETTERS = 4
"""Longer words are no products of variables."""
MAX_DEPTH = 40
"""Brackets that are nested more deeply are unreadable."""
MAX_EXPONENT = 999
"""The largest exponent of a number in scientific notation, and of a variable in a polynomial."""


@dataclass(frozen=True)
class Node:
    """A part of an expression.

    `kind` is `number`, `name`, `call` or the sign of an operation, where `-` negates a single part. `text` is the
    number as Python writes it, the name, or the function that is called.
    """

    kind: str
    text: str = ""
    parts: tuple[Node, ...] = ()


# --- tokens

THOUSANDS = r"\d{1,3}(?:(?:,\d{3})+|(?: \d{3})+|(?:'\d{3})+|(?:_\d{3})+)(?!\d)"
"""Commas, blanks, apostrophes or underscores separate thousands."""
_FUNCTIONS = {
    **{name: name for name in FUNCTIONS - {"Rational", "Integral"}},
    "arcsin": "asin",
    "arccos": "acos",
    "arctan": "atan",
}
"""The names of functions in an answer, and their names in sympy."""
_NAMES_OF_FUNCTIONS = "|".join(sorted(_FUNCTIONS, key=len, reverse=True))
_TOKEN = re.compile(
    rf"(?P<number>(?:(?:{THOUSANDS}|\d+)(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{{1,4}}(?![A-Za-z\d]))?)"
    r"|\\(?P<command>[A-Za-z]+)"
    rf"|(?P<function>{_NAMES_OF_FUNCTIONS})"
    r"|(?P<name>const(?:ant)?|pi|[A-Za-z](?:_\{?\d\}?)?)"
    r"|(?P<sign>\*\*|[-+*/^=≈∈(){}\[\]|√π×·⋅∙•∗÷%])"
    r"| +",
    re.ASCII,
)
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_KNOWN_IN_WORD = re.compile(rf"{_NAMES_OF_FUNCTIONS}|const(?:ant)?|pi")
_SAME_SIGN = {
    **dict.fromkeys(("times", "cdot", "ast", *"×·⋅∙•∗"), "*"),
    **dict.fromkeys(("div", "÷"), "/"),
    **dict.fromkeys(("approx", "simeq"), "≈"),
    **dict.fromkeys(("in", "∈"), "="),
    **dict.fromkeys(("frac", "dfrac", "tfrac", "cfrac", "sfrac", "nicefrac"), "frac"),
    "**": "^",
    "[": "(",
    "]": ")",
}
"""Signs, and commands of LaTeX that stand for a sign."""
_SAME_NAME = {"π": "pi", "√": "sqrt"}


@dataclass(frozen=True)
class Token:
    """`kind` is `number`, `function`, `name`, `frac`, or a sign."""

    kind: str
    text: str = ""


def _tokens(text: str) -> Iterator[Token]:
    for word in _WORD.findall(text):
        if len(word) > MAX_LETTERS and not _KNOWN_IN_WORD.search(word):
            raise UnreadableTextError(f"{word!r} is a word")
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise UnreadableTextError(f"{text[position]!r} is no part of an expression")
        position = found.end()
        if found.lastgroup is not None:
            yield _token(found.lastgroup, found[found.lastgroup])


def _token(kind: str, text: str) -> Token:
    text = _SAME_NAME.get(text, text)
    match kind:
        case "number":
            plain = re.sub("[, '_]", "", text)
            if len(plain) > MAX_DIGITS:
                raise UnreadableTextError(f"a number of more than {MAX_DIGITS} digits")
            return Token("number", plain)
        case "name":
            return Token("name", re.sub("[_{}]", "", text))
        case _ if text in _FUNCTIONS:
            return Token("function", _FUNCTIONS[text])
        case _ if text == "pi":
            return Token("name", text)
        case "command" if text not in _SAME_SIGN:
            raise UnreadableTextError(f"\\{text} is unknown")
    return Token(_SAME_SIGN.get(text, text))


# --- the parser


class Parser:
    """Parses the sides of an equation. A value without a sign of equality is an equation with one side."""

    def __init__(self, text: str) -> None:
        self._tokens = [*_tokens(text), Token("end")]
        self._position = 0
        self._depth = 0

    def sides(self) -> list[tuple[str, Node]]:
        """Each side with the sign before it: `=`, `≈`, or an empty text for the first side.

        A sign may stand before the only side, as in `= 5`.
        """
        if self._kind in ("=", "≈"):
            self._next()
        sides = [("", self._sum())]
        while self._kind in ("=", "≈"):
            sign = self._next().kind
            sides.append((sign, self._sum()))
        self._take("end")
        return sides

    @property
    def _kind(self) -> str:
        return self._tokens[self._position].kind

    def _next(self) -> Token:
        token = self._tokens[self._position]
        self._position += 1
        return token

    def _take(self, kind: str) -> None:
        if self._kind != kind:
            raise UnreadableTextError(f"expected {kind!r}, got {self._kind!r}")
        self._position += 1

    def _sum(self) -> Node:
        terms = [self._signed(self._term)]
        while self._kind in ("+", "-"):
            # A sign may follow a plus, as in `3 + -4i`.
            if self._kind == "+":
                self._next()
            terms.append(self._signed(self._term))
        return terms[0] if len(terms) == 1 else Node("+", parts=tuple(terms))

    def _signed(self, parse: Callable[[], Node]) -> Node:
        """A part with at most one sign before it."""
        sign = self._next().kind if self._kind in ("+", "-") else "+"
        part = parse()
        return Node("-", parts=(part,)) if sign == "-" else part

    def _term(self) -> Node:
        factors = [self._power()]
        has_division = False
        while True:
            if self._kind == "*":
                self._next()
                factors.append(self._power())
            elif self._kind == "/":
                self._next()
                factors = [Node("/", parts=(_product(factors), self._power()))]
                has_division = True
            elif not self._begins_factor(factors[-1]):
                return _product(factors)
            elif has_division:
                raise UnreadableTextError("a product without a sign after a division")
            else:
                factors.append(self._power())

    def _begins_factor(self, left: Node) -> bool:
        """Whether the next token is a factor without a sign of multiplication before it."""
        # `i4` is an imaginary number. In `x2`, the 2 could also be an index or an exponent.
        if self._kind == "number" and left.text not in ("i", "j"):
            raise UnreadableTextError("a number follows another factor without a sign")
        if self._kind == "frac" and left.kind == "number":
            raise UnreadableTextError("a mixed number")
        return self._kind in ("number", "name", "function", "(", "frac")

    def _power(self) -> Node:
        base = self._atom()
        if self._kind == "%":
            self._next()
            return Node("%", parts=(base,))
        return Node("^", parts=(base, self._exponent())) if self._kind == "^" else base

    def _exponent(self) -> Node:
        self._take("^")
        exponent = self._signed(self._atom)
        if self._kind == "^":
            raise UnreadableTextError("a power of a power without brackets")
        return exponent

    def _atom(self) -> Node:
        token = self._next()
        match token.kind:
            case "number" | "name":
                return Node(token.kind, token.text)
            case "(":
                return self._nested(")")
            case "{":
                return self._nested("}")
            case "|":
                return Node("call", "Abs", (self._nested("|"),))
            case "frac":
                return Node("/", parts=(self._argument_of_frac(), self._argument_of_frac()))
            case "function":
                return self._call(token.text)
        raise UnreadableTextError(f"{token.kind!r} begins no value")

    def _nested(self, closing: str) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise UnreadableTextError(f"brackets nested more than {MAX_DEPTH} deep")
        inner = self._sum()
        self._take(closing)
        self._depth -= 1
        return inner

    def _argument_of_frac(self) -> Node:
        """Braces, or a single digit, as in `\\frac12`."""
        token = self._next()
        if token.kind == "{":
            return self._nested("}")
        if not token.text.isdecimal():
            raise UnreadableTextError("\\frac needs braces or a digit")
        digit, others = token.text[0], token.text[1:]
        if others:
            self._position -= 1
            self._tokens[self._position] = Token("number", others)
        return Node("number", digit)

    def _call(self, function: str) -> Node:
        """A function, perhaps with an exponent before its argument: `sin x`, `sin(x)`, `sin^2 x`."""
        exponent = self._exponent() if self._kind == "^" else None
        if exponent is not None and exponent.kind != "number":
            raise UnreadableTextError("an inverse function and a reciprocal look the same")
        argument = self._argument()
        # The derivative of ln|x| is that of ln x.
        if function in ("ln", "log") and argument.text == "Abs":
            argument = argument.parts[0]
        call = Node("call", function, (argument,))
        return call if exponent is None else Node("^", parts=(call, exponent))

    def _argument(self) -> Node:
        """What a function applies to: brackets, or the factors up to the next function, bracket or sign."""
        if self._kind in ("(", "{", "|"):
            return self._atom()
        factors = [self._power()]
        while self._kind == "name":
            factors.append(self._power())
        return _product(factors)


def _product(factors: list[Node]) -> Node:
    return factors[0] if len(factors) == 1 else Node("*", parts=tuple(factors))


# --- from an answer to its value

_NAME_OF_A_FUNCTION = re.compile(r"\A[A-Za-z]\(([A-Za-z])\) ?(?==|≈|\\approx)", re.ASCII)
"""The name of a function or of a probability before its value: `f(x) =`, `P(A) =`."""
_INTEGRAL = re.compile(r"\A(?:∫|\\int(?![A-Za-z]))[^=]{1,500}=")
"""The integral that an antiderivative solves, before its value: `∫ 2x dx =`."""
_TIMES_TEN = re.compile(r"(?<=[\d)}]) ?[xX] ?(?=[({]?10[)}]? ?(?:\^|\*\*))", re.ASCII)
"""The letter x as a sign of multiplication, in `1.5 x 10^3`."""


def with_plain_digits(text: str) -> str:
    """The text with the digits 0 to 9 in place of the decimal digits of any other script."""
    if text.isascii():
        return text
    return "".join(str(unicodedata.decimal(sign, sign)) for sign in text)


def value_of(answer: str) -> Node:
    """The value that an answer gives: the last side of an equation, as in `4 * 3 = 12`."""
    return sides_of(answer)[-1]


def sides_of(answer: str) -> list[Node]:
    """The sides of an equation, all of which have the same value. An answer without `=` has a single side.

    After `≈`, a side must be the rounded value. It counts only if no side before it is a number or a fraction: the
    value of `1/8 ≈ 0.13` is 1/8, and that of `1.2^2 ≈ 1.4` is 1.4. Raises UnreadableTextError for any other text.
    """
    text = with_plain_digits(without_brackets(plain_text(answer)))
    text = _INTEGRAL.sub("", _NAME_OF_A_FUNCTION.sub("", text))
    text = without_brackets(strip_markup(_TIMES_TEN.sub("*", text))).removeprefix("$").strip()
    if len(text) > MAX_CHARS:
        raise UnreadableTextError(f"expected at most {MAX_CHARS} characters, got {len(text)}")
    (_, last), *others = Parser(text).sides()
    sides = [last]
    is_exact = True
    for sign, other in others:
        _, place = rational_and_place(other) if sign == "≈" else (0, Fraction(0))
        if abs(exact_value(other) - exact_value(last)) > place / 2:
            raise UnreadableTextError("the sides of an equation differ")
        is_exact = is_exact and sign == "="
        if is_exact or not any(map(_is_rational, sides)):
            sides.append(other)
        last = other
    return sides


def exact_value(node: Node) -> Fraction:
    """The value of arithmetic with numbers. Raises UnreadableTextError for anything else, and for large numbers."""
    if node.kind == "number":
        return number_and_place(node)[0]
    values = [exact_value(part) for part in node.parts]
    match node.kind, values:
        case "+", _:
            value = sum(values, start=Fraction(0))
        case "-", [inner]:
            value = -inner
        case "*", _:
            value = math.prod(values, start=Fraction(1))
        case "/", [top, bottom]:
            value = top / bottom
        case "%", [percents]:
            value = percents / 100
        case "^", [base, exponent] if abs(exponent) <= MAX_EXPONENT and exponent.denominator == 1:
            value = base ** int(exponent)
        case _:
            raise UnreadableTextError("not arithmetic")
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise UnreadableTextError("a number that is too large")
    return value


def _is_rational(node: Node) -> bool:
    try:
        rational_and_place(node)
    except UnreadableTextError:
        return False
    return True


# --- readers of values


def number_and_place(node: Node) -> tuple[Fraction, Fraction]:
    """A number with its sign, perhaps in scientific notation, and the value of a 1 in its last place."""
    match node:
        case Node("number", text):
            digits, _, exponent = text.lower().partition("e")
            _, _, decimals = digits.partition(".")
            power = _power_of_ten(int(exponent or "0"))
            return Fraction(digits.rstrip(".")) * power, power / 10 ** len(decimals)
        case Node("-", parts=(Node("number" | "*") as inner,)):
            value, place = number_and_place(inner)
            return -value, place
        case Node("*", parts=(mantissa, Node("^", parts=(Node("number", "10"), exponent)))):
            value, place = number_and_place(mantissa)
            power = _power_of_ten(whole_number(exponent))
            return value * power, place * power
    raise UnreadableTextError("not a number")


def _power_of_ten(exponent: int) -> Fraction:
    if abs(exponent) > MAX_EXPONENT:
        raise UnreadableTextError(f"an exponent of more than {MAX_EXPONENT}")
    return Fraction(10) ** exponent


def whole_number(node: Node) -> int:
    value, _ = number_and_place(node)
    if value.denominator != 1:
        raise UnreadableTextError("not a whole number")
    return int(value)


def numerator_and_denominator(node: Node) -> tuple[int, int]:
    """The parts of a fraction of whole numbers, not reduced. A whole number has the denominator 1."""
    match node:
        case Node("/", parts=(top, Node("number") as bottom)):
            return whole_number(top), whole_number(bottom)
        case Node("-", parts=(Node("/", parts=(Node("number") as top, Node("number") as bottom)),)):
            return -whole_number(top), whole_number(bottom)
    return whole_number(node), 1


def rational_and_place(node: Node) -> tuple[Fraction, Fraction]:
    """The value of a number, percentage or fraction, and of a 1 in its last place, which is 0 for a fraction."""
    if node.kind == "%":
        value, place = number_and_place(node.parts[0])
        return value / 100, place / 100
    if node.kind == "/" or (node.kind == "-" and node.parts[0].kind == "/"):
        return Fraction(*numerator_and_denominator(node)), Fraction(0)
    return number_and_place(node)


Monomial = tuple[tuple[str, int], ...]
"""The variables of a term with their powers, sorted: x*y**2 is (("x", 1), ("y", 2))."""


def terms_of(node: Node) -> dict[Monomial, Fraction]:
    """The coefficient of each monomial of an expanded sum.

    Raises UnreadableTextError if like terms are not collected.
    """
    coefficients: dict[Monomial, Fraction] = {}
    for term in node.parts if node.kind == "+" else (node,):
        sign = 1
        while term.kind == "-":
            sign = -sign
            term = term.parts[0]
        monomial, coefficient = _monomial(term)
        if monomial in coefficients:
            raise UnreadableTextError("like terms are not collected")
        coefficients[monomial] = sign * coefficient
    return coefficients


def _monomial(term: Node) -> tuple[Monomial, Fraction]:
    """The variables and the coefficient of a term, which has at most one number."""
    powers: Counter[str] = Counter()
    numbers: list[Fraction] = []
    is_scientific = term.kind == "*" and any(part.kind == "^" and part.parts[0].text == "10" for part in term.parts)
    for factor in term.parts if term.kind == "*" and not is_scientific else (term,):
        match factor:
            case Node("name", name):
                powers[name] += 1
            case Node("^", parts=(Node("name", name), exponent)):
                power = whole_number(exponent)
                if not 0 <= power <= MAX_EXPONENT:
                    raise UnreadableTextError(f"expected an exponent from 0 to {MAX_EXPONENT}")
                powers[name] += power
            case _:
                numbers.append(number_and_place(factor)[0])
    if len(numbers) > 1:
        raise UnreadableTextError("a term with two numbers")
    # The plus drops variables whose power is 0.
    return tuple(sorted((+powers).items())), numbers[0] if numbers else Fraction(1)


def in_python(node: Node) -> str:
    """The expression in Python's notation, which `evaluate_symbolic` reads. `e^x` is sympy's `E**x`."""
    parts = [f"({in_python(part)})" for part in node.parts]
    match node:
        case Node("number" | "name", text):
            return text
        case Node("call", function):
            return function + parts[0]
        case Node("-"):
            return "-" + parts[0]
        case Node("^", parts=(Node("name", "e"), _)):
            return f"E**{parts[1]}"
        case Node("%"):
            raise UnreadableTextError("a percentage")
    return node.kind.replace("^", "**").join(parts)
