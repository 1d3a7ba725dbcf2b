"""Evaluators for text that verifiers would hand to `eval`: they compute what small grammars allow.

    evaluate             arithmetic in exact fractions, and the whole numbers used    for forms and solvers
    evaluate_python      a literal, or whole-number arithmetic with shifts            for `eval`
    evaluate_symbolic    arithmetic with symbols and functions, as sympy computes     for `parse_expr`
    bounded_fraction     a fraction whose digits and exponent are bounded             for `Fraction`

What is outside a grammar, or beyond its bounds, raises `Unreadable`, which is a ValueError, so verifiers treat it
as they treat any malformed answer. Text that is nested too deep may raise RecursionError instead. What takes long all
the same is stopped by the deadline of the answer.
"""

from __future__ import annotations

import ast
import functools
import operator
import re
from collections.abc import Callable, Collection, Mapping
from fractions import Fraction
from typing import Any

MAX_LITERAL_CHARS = 200_000
MAX_CHARS = 20_000
MAX_BITS = 1 << 17
"""Of any number on the way."""
MAX_EXPONENT = 1000
"""Products of polynomials reach degree 96."""
MAX_SHIFT = 64

_LONG_NUMBER = re.compile(r"[0-9_]{500}")
_WHOLE = (ast.Add, ast.Sub, ast.Mult)
_BASIC = (*_WHOLE, ast.Div)
_OPERATORS: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.LShift: lambda number, places: number * 2**places,
    ast.RShift: lambda number, places: Fraction(number // 2**places),
}


class Unreadable(ValueError):
    """The text has no value in this grammar or form, could have several, or exceeds the bounds."""


def parse(text: object, max_chars: int = MAX_CHARS) -> ast.expr:
    """The syntax tree of one expression, not evaluated. Raises Unreadable for anything else."""
    if not isinstance(text, str) or len(text) > max_chars or _LONG_NUMBER.search(text):
        raise Unreadable(f"expected text of at most {max_chars} characters, with numbers of less than 500 digits")
    try:
        # `eval` ignores leading blanks, `ast.parse` does not.
        return ast.parse(text.lstrip(" \t"), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise Unreadable(f"not an expression: {type(error).__name__}") from None


def evaluate(text: str, *also: type[ast.operator]) -> tuple[Fraction, list[int]]:
    """The exact value of arithmetic, and the whole numbers in it from left to right.

    `also` names operators that are allowed besides the four basic ones. Raises Unreadable, and ZeroDivisionError
    for a division by zero.
    """
    if "#" in text:
        raise Unreadable("a comment")
    used: list[int] = []
    return _computed(parse(" ".join(text.split())), (*_BASIC, *also), _exact(used)), used


def _exact(used: list[int]) -> Callable[[ast.expr], Fraction]:
    """Leaves that are whole numbers, which are noted in `used`."""

    def leaf(node: ast.expr) -> Fraction:
        match node:
            case ast.Constant(value=int() as number) if type(number) is int:
                used.append(number)
                return Fraction(number)
        raise Unreadable(f"{type(node).__name__} is not arithmetic")

    return leaf


def _computed(node: ast.expr, allowed: Collection[type[ast.operator]], leaf: Callable[[ast.expr], Any]) -> Any:
    """The value of a tree of operators; `leaf` gives that of whatever else stands in it. Numbers stay small."""
    match node:
        case ast.UnaryOp(op=ast.UAdd() | ast.USub() as sign):
            value = _computed(node.operand, allowed, leaf)
            return -value if isinstance(sign, ast.USub) else value
        case ast.BinOp(op=sign) if type(sign) in allowed:
            left, right = (_computed(side, allowed, leaf) for side in (node.left, node.right))
            if isinstance(sign, _BASIC) or _is_small_power(left, right, sign):
                value = _OPERATORS[type(sign)](left, right)
                if _bits(value) <= MAX_BITS and not isinstance(value, float):
                    return value
            raise Unreadable("too large a number, or an irrational one")
    return leaf(node)


def _bits(value: Any) -> int:
    """Of a rational number, also sympy's; 0 for what is none."""
    return max(int(getattr(value, part, 0)).bit_length() for part in ("numerator", "denominator"))


def _is_small_power(base: Any, exponent: Any, sign: ast.operator) -> bool:
    if not isinstance(sign, ast.Pow):
        return exponent.denominator == 1 and 0 <= exponent <= MAX_SHIFT
    is_number = isinstance(exponent, Fraction) or exponent.is_number
    return not is_number or (abs(exponent) <= MAX_EXPONENT and max(_bits(base), 1) * abs(exponent) <= MAX_BITS)


def evaluate_python(text: object, *_scopes: object) -> Any:
    """The value of a literal, or of whole-number arithmetic with shifts, as `eval` would give it."""
    tree = parse(text, MAX_LITERAL_CHARS)
    try:
        return ast.literal_eval(tree)
    except (TypeError, ValueError, MemoryError, RecursionError):
        return int(_computed(tree, (*_WHOLE, ast.LShift, ast.RShift), _exact([])))


def bounded_fraction(number: Any, *denominator: Any) -> Fraction:
    """Fraction, but a text of absurd length or exponent is rejected instead of filling memory."""
    # \d, because Fraction takes the digits of every script.
    if isinstance(number, str) and (len(number) > 400 or re.search(r"e[-+]?[\d_]{4}", number, re.IGNORECASE)):
        raise Unreadable("expected at most 400 characters, and an exponent of at most three digits")
    return Fraction(number, *denominator)


# --- expressions of sympy ---

CONSTANTS = frozenset({"pi", "E", "I", "oo", "zoo", "nan", "EulerGamma", "GoldenRatio", "Catalan"})
FUNCTIONS = frozenset(
    [
        *("Rational", "Abs", "abs", "sign", "sqrt", "cbrt", "root", "exp", "log", "ln"),
        *("sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "acot", "asec", "acsc", "atan2"),
        *("sinh", "cosh", "tanh", "coth", "sech", "csch", "asinh", "acosh", "atanh", "acoth", "asech", "acsch"),
        # Where sympy finds no antiderivative, reasoning-gym's own answer has one of these, unevaluated.
        *("erf", "erfc", "erfi", "Si", "Ci", "Ei", "li", "Integral"),
    ]
)


def evaluate_symbolic(text: object, local_dict: Mapping[str, Any] | None = None, *_: object, **__: object) -> Any:
    """What sympy's `parse_expr` gives for an expression that holds nothing but what is on these lists and symbols.

    Nothing is evaluated as code: the syntax tree is walked. Simplifying the result may still take long.
    """
    # sympy takes half a second to import, and not every process needs it.
    import sympy

    names = {**{name: getattr(sympy, name) for name in CONSTANTS}, **(local_dict or {})}

    def leaf(node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=int() | float() as number):
                return sympy.sympify(number)
            case ast.Name(id=name):
                return names[name] if name in names else sympy.Symbol(name)
            case ast.Call(func=ast.Name(id=name), args=[_] | [_, _], keywords=[]) if name in FUNCTIONS:
                function = getattr(sympy, "Abs" if name == "abs" else name)
                return function(*map(compute, node.args))
        raise Unreadable(f"{type(node).__name__} {getattr(node, 'id', '')[:40]} is not allowed")

    compute = functools.partial(_computed, allowed=(*_BASIC, ast.Pow), leaf=leaf)
    return compute(parse(text))
