"""Evaluators for answers that verifiers would hand to `eval`: they compute what small grammars allow.

    evaluate_literal      lists, tuples and dictionaries of numbers and strings       for `eval`
    evaluate_integers     integer arithmetic with shifts                              for `eval`
    evaluate              arithmetic in exact fractions, and the whole numbers used   for the stricter checks
    BoundedFraction       fractions whose digits and exponent are bounded             for `Fraction`

What is outside a grammar, or beyond its bounds, raises `RejectedAnswer` before anything is computed. It is a
ValueError, so verifiers treat it as they treat any malformed answer. Expressions are in bounded_sympy.py.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

MAX_LITERAL_CHARS = 200_000
MAX_LITERAL_DEPTH = 16
MAX_INTEGER_CHARS = 20_000
MAX_INTEGER_BITS = 1 << 16
MAX_CHARS = 10_000
MAX_DEPTH = 400
MAX_BITS = 1 << 14
MAX_EXPONENT = 64
"""Of `evaluate`."""
MAX_FRACTION_CHARS = 400
MAX_FRACTION_EXPONENT = 999

_LONG_NUMBER = re.compile(r"[0-9_]{500}")
_Operators = dict[type[ast.AST], Callable[[Any, Any], Any]]
COMMON: _Operators = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
_INTEGER: _Operators = {**COMMON, ast.LShift: operator.lshift, ast.RShift: operator.rshift}
_RATIONAL: _Operators = {**COMMON, ast.Div: operator.truediv}
_SIGNS: dict[type[ast.AST], Callable[[Any], Any]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}


class RejectedAnswer(ValueError):
    """The text is not in the grammar, or exceeds its bounds. Nothing of it was evaluated."""


def parse(text: object, max_chars: int) -> ast.expr:
    """The syntax tree of one expression, not evaluated. Raises RejectedAnswer for anything else."""
    if not isinstance(text, str):
        raise RejectedAnswer(f"expected text, got {type(text).__name__}")
    if len(text) > max_chars:
        raise RejectedAnswer(f"expected at most {max_chars} characters, got {len(text)}")
    if _LONG_NUMBER.search(text):
        raise RejectedAnswer("a number has too many digits")
    try:
        # `eval` ignores leading blanks, `ast.parse` does not.
        return ast.parse(text.lstrip(" \t"), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise RejectedAnswer(f"not an expression: {type(error).__name__}") from None


def evaluate_literal(text: object, *_scopes: object) -> Any:
    """The value of a literal, as `eval` would give it. Raises RejectedAnswer."""
    return _literal(parse(text, MAX_LITERAL_CHARS), MAX_LITERAL_DEPTH)


def _literal(node: ast.expr, depth: int) -> Any:
    if depth == 0:
        raise RejectedAnswer(f"nested deeper than {MAX_LITERAL_DEPTH}")
    if isinstance(node, ast.Constant) and isinstance(node.value, (str, int, float, type(None))):
        return node.value
    if isinstance(node, ast.List):
        return [_literal(item, depth - 1) for item in node.elts]
    if isinstance(node, ast.Tuple):
        return tuple(_literal(item, depth - 1) for item in node.elts)
    if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
        keys = [_literal(key, depth - 1) for key in node.keys if key is not None]
        return dict(zip(keys, (_literal(value, depth - 1) for value in node.values), strict=True))
    if isinstance(node, ast.UnaryOp) and type(node.op) in _SIGNS:
        value = _literal(node.operand, depth - 1)
        if isinstance(value, (int, float)):
            return _SIGNS[type(node.op)](value)
    raise RejectedAnswer(f"{type(node).__name__} is not a literal")


def evaluate_integers(text: object, *_scopes: object) -> int:
    """The value of integer arithmetic, as `eval` would give it. Raises RejectedAnswer."""
    return _integer(parse(text, MAX_INTEGER_CHARS))


def _integer(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and type(node.op) in _SIGNS:
        return int(_SIGNS[type(node.op)](_integer(node.operand)))
    if isinstance(node, ast.BinOp) and type(node.op) in _INTEGER:
        left, right = _integer(node.left), _integer(node.right)
        if left.bit_length() + right.bit_length() > MAX_INTEGER_BITS:
            raise RejectedAnswer(f"numbers of more than {MAX_INTEGER_BITS} bits")
        if isinstance(node.op, ast.LShift) and not 0 <= right <= MAX_INTEGER_BITS:
            raise RejectedAnswer(f"expected a shift of 0 to {MAX_INTEGER_BITS}, got {right}")
        return int(_INTEGER[type(node.op)](left, right))
    raise RejectedAnswer(f"{type(node).__name__} is not integer arithmetic")


def evaluate(text: str, *, powers: bool = False) -> tuple[Fraction, list[int]]:
    """The value of `text` and the numbers in it, in order. Allowed are + - * / and brackets, and small `powers`.

    No names, no decimals, no comments, no other way to write a number, so that the numbers counted are the numbers
    used. Raises ValueError for what is not such an expression or too large, ZeroDivisionError as fractions do.
    """
    if "#" in text:
        raise ValueError("a comment is not arithmetic")
    used: list[int] = []
    return _value(parse(" ".join(text.split()), MAX_CHARS), used, powers, MAX_DEPTH), used


def _value(node: ast.expr, used: list[int], powers: bool, depth: int) -> Fraction:
    if depth == 0:
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    if isinstance(node, ast.Constant) and type(node.value) is int:
        used.append(node.value)
        return Fraction(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.UAdd, ast.USub)):
        value = _value(node.operand, used, powers, depth - 1)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        left = _value(node.left, used, powers, depth - 1)
        right = _value(node.right, used, powers, depth - 1)
        if type(node.op) in _RATIONAL:
            return _bounded(_RATIONAL[type(node.op)](left, right))
        if powers and isinstance(node.op, ast.Pow) and right.denominator == 1 and abs(right) <= MAX_EXPONENT:
            return _bounded(Fraction(left ** int(right)))
    raise ValueError(f"{type(node).__name__} is not arithmetic")


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise ValueError(f"numbers of more than {MAX_BITS} bits")
    return value


class BoundedFraction(Fraction):
    """Fraction, but a text of absurd length or exponent is rejected instead of filling memory."""

    def __new__(cls, numerator: Any = 0, denominator: Any = None, **options: Any) -> BoundedFraction:
        if isinstance(numerator, str):
            check_number(numerator)
        return super().__new__(cls, numerator, denominator, **options)


def check_number(text: str) -> None:
    """Raises RejectedAnswer if reading `text` as a number could take long."""
    if len(text) > MAX_FRACTION_CHARS:
        raise RejectedAnswer(f"expected at most {MAX_FRACTION_CHARS} characters, got {len(text)}")
    # \d, because Fraction takes the digits of every script.
    exponent = re.search(r"e[-+]?([\d_]+)", text, re.IGNORECASE)
    digits = exponent[1].replace("_", "") if exponent else "0"
    if len(digits) > 6 or int(digits or "0") > MAX_FRACTION_EXPONENT:
        raise RejectedAnswer(f"expected an exponent of at most {MAX_FRACTION_EXPONENT}")
