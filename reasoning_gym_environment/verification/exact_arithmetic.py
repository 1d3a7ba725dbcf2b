"""Arithmetic in exact fractions, from text: what it comes to and which whole numbers it was made of.

Only + - * / and brackets, and where asked for small powers. No names, no decimals, no other way to write a
number, so that the numbers counted are the numbers used.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from fractions import Fraction

from .grammar import parse

MAX_CHARS = 10_000
MAX_DEPTH = 400
MAX_BITS = 1 << 14
MAX_EXPONENT = 64

_OPERATORS: dict[type[ast.AST], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def evaluate(text: str, *, powers: bool = False) -> tuple[Fraction, list[int]]:
    """The value of `text` and the numbers in it, in order.

    Raises ValueError for what is not such an expression or too large, ZeroDivisionError as fractions do.
    """
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
        if type(node.op) in _OPERATORS:
            return _bounded(_OPERATORS[type(node.op)](left, right))
        if powers and isinstance(node.op, ast.Pow) and right.denominator == 1 and abs(right) <= MAX_EXPONENT:
            return _bounded(Fraction(left ** int(right)))
    raise ValueError(f"{type(node).__name__} is not arithmetic")


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise ValueError(f"numbers of more than {MAX_BITS} bits")
    return value
