"""Evaluate text with small grammars instead of `eval`.

Some verifiers of reasoning-gym execute the model's answer as code. These functions replace the evaluators:

    evaluate_python      a literal, or whole-number arithmetic with shifts            for `eval`
    evaluate_symbolic    arithmetic with symbols and functions, as sympy computes     for `parse_expr`
    bounded_fraction     a fraction whose digits and exponent are bounded             for `Fraction`

Text outside a grammar, or beyond its bounds, raises `UnreadableTextError`. That is a ValueError, so a verifier treats
the text like any malformed answer. Text that is nested too deeply may raise RecursionError instead. The grading
deadline stops a computation that takes too long within these bounds.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Collection, Mapping
from fractions import Fraction
from typing import Any

MAX_LITERAL_CHARS = 200_000
MAX_CHARS = 20_000
MAX_BITS = 1 << 17
"""Size limit of every intermediate number."""
MAX_EXPONENT = 1000
"""Products of polynomials reach degree 96."""
MAX_SHIFT = 64

_LONG_NUMBER = re.compile(r"[0-9_]{500}")
_WHOLE = (ast.Add, ast.Sub, ast.Mult)
ARITHMETIC = (*_WHOLE, ast.Div)
_OPERATORS: Mapping[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    # The grammar of answers writes `12%` as `12@100`.
    ast.MatMult: operator.truediv,
    ast.Pow: operator.pow,
    ast.LShift: lambda number, places: number * 2**places,
    ast.RShift: lambda number, places: Fraction(number // 2**places),
}


class UnreadableTextError(ValueError):
    """The text has no value in this grammar or form, has several possible values, or exceeds the bounds."""


def parse(text: object, max_chars: int = MAX_CHARS) -> ast.expr:
    """Parse one expression without evaluating it. Raises UnreadableTextError for any other text."""
    if not isinstance(text, str) or len(text) > max_chars or _LONG_NUMBER.search(text):
        raise UnreadableTextError(f"expected at most {max_chars} characters, with numbers of less than 500 digits")
    # `eval` ignores leading blanks, `ast.parse` does not.
    text = text.lstrip(" \t")
    try:
        return ast.parse(text, mode="eval").body
    except (MemoryError, RecursionError):
        raise UnreadableTextError("too many terms or brackets for Python's parser") from None
    except (SyntaxError, ValueError) as error:
        raise UnreadableTextError(f"not an expression: {type(error).__name__}") from None


def whole_number_of(node: ast.expr) -> Fraction:
    # `True` is an int too, but it is not arithmetic.
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return Fraction(node.value)
    raise UnreadableTextError(f"{type(node).__name__} is not arithmetic")


def value_of_tree(
    node: ast.expr,
    allowed: Collection[type[ast.operator]],
    leaf: Callable[[ast.expr], Any],
) -> Any:
    """Compute a tree of signs and of the `allowed` operators. `leaf` computes every other node.

    Raises UnreadableTextError if an intermediate number is irrational or larger than MAX_BITS.
    """
    match node:
        case ast.UnaryOp(op=ast.UAdd()):
            return value_of_tree(node.operand, allowed, leaf)
        case ast.UnaryOp(op=ast.USub()):
            return -value_of_tree(node.operand, allowed, leaf)
        case ast.BinOp(op=sign) if type(sign) in allowed:
            left = value_of_tree(node.left, allowed, leaf)
            right = value_of_tree(node.right, allowed, leaf)
            return _applied(sign, left, right)
    return leaf(node)


def _applied(sign: ast.operator, left: Any, right: Any) -> Any:
    if isinstance(sign, (*ARITHMETIC, ast.MatMult)) or _is_small_power(left, right, sign):
        value = _OPERATORS[type(sign)](left, right)
        # A root of a negative number is complex, and its rounding errors could hide the other numbers.
        if _bits(value) <= MAX_BITS and not isinstance(value, (float, complex)):
            return value
    raise UnreadableTextError("a number that is too large or irrational")


def _bits(value: Any) -> int:
    """The size of a rational number of Python or sympy, and 0 for any other value."""
    numerator = int(getattr(value, "numerator", 0))
    denominator = int(getattr(value, "denominator", 0))
    return max(numerator.bit_length(), denominator.bit_length())


def _is_small_power(base: Any, exponent: Any, sign: ast.operator) -> bool:
    if not isinstance(sign, ast.Pow):
        # A shift.
        return exponent.denominator == 1 and 0 <= exponent <= MAX_SHIFT
    if not isinstance(exponent, Fraction) and not exponent.is_number:
        # A symbol of sympy.
        return True
    size = abs(exponent)
    return size <= MAX_EXPONENT and _bits(base) * size <= MAX_BITS


def evaluate_python(text: object, *_scopes: object) -> Any:
    """The value that `eval` gives for a literal, or for whole-number arithmetic with shifts."""
    tree = parse(text, MAX_LITERAL_CHARS)
    try:
        return ast.literal_eval(tree)
    except (TypeError, ValueError, MemoryError, RecursionError):
        allowed = (*_WHOLE, ast.LShift, ast.RShift)
        return int(value_of_tree(tree, allowed, whole_number_of))


def bounded_fraction(number: Any, *denominator: Any) -> Fraction:
    """`Fraction`, except that it rejects long texts and large exponents, which would fill the memory."""
    # \d, because Fraction accepts the digits of every script.
    if isinstance(number, str) and (len(number) > 400 or re.search(r"e[-+]?[\d_]{4}", number, re.IGNORECASE)):
        raise UnreadableTextError("expected at most 400 characters, and an exponent of at most three digits")
    return Fraction(number, *denominator)


# --- expressions of sympy ---

CONSTANTS = frozenset(
    {
        "pi",
        "E",
        "I",
        "oo",
        "zoo",
        "nan",
        "EulerGamma",
        "GoldenRatio",
        "Catalan",
    }
)
FUNCTIONS = frozenset(
    {
        "Rational",
        "Abs",
        "abs",
        "sign",
        "sqrt",
        "cbrt",
        "root",
        "exp",
        "log",
        "ln",
        "sin",
        "cos",
        "tan",
        "cot",
        "sec",
        "csc",
        "asin",
        "acos",
        "atan",
        "acot",
        "asec",
        "acsc",
        "atan2",
        "sinh",
        "cosh",
        "tanh",
        "coth",
        "sech",
        "csch",
        "asinh",
        "acosh",
        "atanh",
        "acoth",
        "asech",
        "acsch",
        # Where sympy finds no antiderivative, reasoning-gym's own answer contains these functions, unevaluated.
        "erf",
        "erfc",
        "erfi",
        "Si",
        "Ci",
        "Ei",
        "li",
        "Integral",
    }
)


def evaluate_symbolic(
    text: object,
    local_dict: Mapping[str, Any] | None = None,
    *_: object,
    **__: object,
) -> Any:
    """The value that sympy's `parse_expr` gives, for expressions of CONSTANTS, FUNCTIONS, numbers and symbols.

    `text` may also be the tree of an answer, in which numbers are texts. The function walks the tree and executes no
    code. Simplifying the result may still take long.
    """
    # sympy takes half a second to import, and not every process needs it.
    import sympy

    names = {name: getattr(sympy, name) for name in CONSTANTS}
    names.update(local_dict or {})

    def compute(node: ast.expr) -> Any:
        return value_of_tree(node, (*ARITHMETIC, ast.Pow), leaf)

    def leaf(node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=int() | float() as number):
                return sympy.sympify(number)
            case ast.Constant(value=str() as digits) if isinstance(text, ast.expr):
                return sympy.Rational(bounded_fraction(digits))
            case ast.Name(id=name):
                return names.get(name, sympy.Symbol(name))
            case ast.Call(func=ast.Name(id=name), args=[_] | [_, _], keywords=[]) if name in FUNCTIONS:
                function = getattr(sympy, "Abs" if name == "abs" else name)
                return function(*map(compute, node.args))
        raise UnreadableTextError(f"{type(node).__name__} is not allowed")

    return compute(text if isinstance(text, ast.expr) else parse(text))
