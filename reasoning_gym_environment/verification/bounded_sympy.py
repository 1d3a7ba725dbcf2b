"""sympy's `parse_expr` for text nobody trusts: the same result, from a bounded grammar.

sympy turns the text into Python code (`x**2` becomes `x**Integer(2)`) and calls `eval` on that code with
every builtin in reach. Here the same code is made, its syntax tree is checked node by node against a short
list, and only then evaluated, with nothing in reach but the names on the list. Since the code that is checked
is the code that runs, no spelling can mean one thing to the check and another to Python.

Bounds keep the evaluation itself short: digits, exponents, and the bits a number can grow to. Simplifying the
result may still take long; that is what the deadline is for.
"""

from __future__ import annotations

import ast
import builtins
import math
import re
import types
from collections.abc import Callable, Mapping
from fractions import Fraction
from tokenize import TokenError
from typing import Any

import sympy
from sympy.parsing import sympy_parser

from .bounded_arithmetic import COMMON, RejectedAnswer

MAX_CHARS = 20_000
MAX_DIGITS = 400
MAX_EXPONENT = 64
MAX_DEGREE = 1000
"""The largest exponent of an expression with symbols: products of polynomials reach degree 96."""
MAX_FLOAT_EXPONENT = 400
MAX_BITS = 1 << 17
MAX_FACTORIAL = 200
MAX_LOOSE_EXPONENT = 4096
"""How large the numbers inside an exponent may be together when it also contains symbols or functions."""

CONSTANTS = frozenset({"pi", "E", "I", "oo", "zoo", "nan", "EulerGamma", "GoldenRatio", "Catalan"})
FUNCTIONS = frozenset(
    [
        *("Integer", "Rational", "Float", "Abs", "abs", "sign", "sqrt", "cbrt", "root", "exp", "log", "ln"),
        *("sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "acot", "asec", "acsc", "atan2"),
        *("sinh", "cosh", "tanh", "coth", "sech", "csch"),
        *("asinh", "acosh", "atanh", "acoth", "asech", "acsch"),
        *("erf", "erfc", "erfi", "Si", "Ci", "Ei", "li", "floor", "ceiling", "Max", "Min", "max", "min"),
        # Where sympy finds no antiderivative, reasoning-gym's own answer has one of these, unevaluated.
        "Integral",
    ]
)
FACTORIALS = frozenset({"factorial", "factorial2", "binomial", "gamma"})
"""Functions whose value explodes: their arguments must be small whole numbers, or contain a symbol."""
ROUNDING = frozenset({"floor", "ceiling", "Integer", "Integral"})
"""Functions that make a whole number, of any size, from an expression that is none: floor(exp(50))."""
_MAX_ARGUMENTS = 2
_UNKNOWN = 2.0**60
"""Stands for a number of which only its existence is known: too large for an exponent or a factorial."""
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.BitXor, ast.BitAnd, ast.BitOr)
_FLOAT = re.compile(r"(?:[0-9_]+\.?[0-9_]*|\.[0-9_]+)(?:[eE]([-+]?[0-9]{1,4}))?")
_SYMBOL = re.compile(r"\w{1,64}")


class ExpressionParser:
    """Stands in for `parse_expr`. Building one takes a few milliseconds; it keeps no state of its texts."""

    def __init__(self) -> None:
        self._sympy_names = _sympy_names()
        allowed = CONSTANTS | FUNCTIONS | FACTORIALS | {"Symbol"}
        self._allowed = {name: self._sympy_names[name] for name in allowed}

    def __call__(self, text: object, local_dict: dict[str, Any] | None = None) -> Any:
        """The sympy expression in `text`. Raises RejectedAnswer, or what sympy raises while it computes."""
        local_names = dict(local_dict or {})
        tree = self._parse(text, local_names)
        _Check(local_names).run(tree)
        code = compile(ast.Expression(tree), "<answer>", "eval")
        # The tree holds only the nodes and names that _Check lets through; nothing else is in reach.
        return eval(code, {"__builtins__": {}, **self._allowed}, local_names)

    def _parse(self, text: object, local_names: dict[str, Any]) -> ast.expr:
        if not isinstance(text, str):
            raise RejectedAnswer(f"expected text, got {type(text).__name__}")
        if len(text) > MAX_CHARS:
            raise RejectedAnswer(f"expected at most {MAX_CHARS} characters, got {len(text)}")
        if re.search(rf"[0-9_]{{{MAX_DIGITS + 1}}}", text):
            raise RejectedAnswer(f"expected at most {MAX_DIGITS} digits in a number")
        steps = sympy_parser.standard_transformations
        try:
            code = sympy_parser.stringify_expr(text, local_names, self._sympy_names, steps)
            return ast.parse(code.strip(), mode="eval").body
        except (SyntaxError, TokenError, ValueError, IndexError, MemoryError, RecursionError) as error:
            raise RejectedAnswer(f"not an expression: {type(error).__name__}") from None


def _sympy_names() -> dict[str, Any]:
    """The names `parse_expr` finds in a text that are not symbols, as sympy's own default collects them."""
    names = {name: getattr(sympy, name) for name in sympy.__all__}
    for name, value in vars(builtins).items():
        if isinstance(value, types.BuiltinFunctionType):
            names[name] = value
    return {**names, "max": sympy.Max, "min": sympy.Min}


class _Size:
    """What is known of a subexpression: its exact value if it is plain arithmetic, else bounds."""

    __slots__ = ("bits", "loose", "value")

    def __init__(self, bits: float, value: Fraction | None = None, loose: float = 1.0) -> None:
        if bits > MAX_BITS:
            raise RejectedAnswer(f"numbers of more than {MAX_BITS} bits")
        self.bits = bits
        self.value = value
        self.loose = min(loose, _UNKNOWN)

    @classmethod
    def of_number(cls, value: Fraction) -> _Size:
        bits = max(abs(value.numerator).bit_length(), value.denominator.bit_length())
        largest = max(abs(value), 1 / abs(value)) if value else Fraction(0)
        return cls(bits, value, loose=float(min(largest + 1, Fraction(_UNKNOWN))))


class _Check:
    """Goes through a syntax tree from its leaves to its root, without recursion, and measures each node."""

    def __init__(self, local_names: Mapping[str, Any]) -> None:
        self._local_names = local_names
        self._sizes: dict[ast.AST, _Size] = {}
        self._rules: dict[type[ast.AST], Callable[[Any], _Size]] = {
            ast.Call: self._call,
            ast.BinOp: self._binary,
            ast.UnaryOp: self._unary,
            ast.Name: self._name,
            ast.Constant: self._constant,
        }

    def run(self, tree: ast.expr) -> None:
        """Raises RejectedAnswer for the first node that is not allowed."""
        nodes = [tree]
        for node in nodes:
            nodes.extend(self._operands(node))
        for node in reversed(nodes):
            self._sizes[node] = self._rules[type(node)](node)

    def _operands(self, node: ast.expr) -> list[ast.expr]:
        if type(node) not in self._rules:
            raise RejectedAnswer(f"{type(node).__name__} is not allowed")
        if isinstance(node, ast.BinOp):
            return [node.left, node.right]
        if isinstance(node, ast.UnaryOp):
            return [node.operand]
        if isinstance(node, ast.Call) and not _is_leaf(node):
            return node.args
        return []

    def _call(self, node: ast.Call) -> _Size:
        if not isinstance(node.func, ast.Name) or node.keywords:
            raise RejectedAnswer("only plain calls of known functions are allowed")
        name = node.func.id
        if _is_leaf(node):
            return _leaf(name, node.args[0])
        # A local name would be called in place of sympy's.
        if name in self._local_names or not 1 <= len(node.args) <= _MAX_ARGUMENTS:
            raise RejectedAnswer(f"{name}() with {len(node.args)} arguments is not allowed")
        sizes = [self._sizes[argument] for argument in node.args]
        bits = sum(size.bits for size in sizes)
        loose = math.prod(size.loose for size in sizes)
        if name in FACTORIALS:
            return _Size(bits + _factorial_bits(sizes), loose=_UNKNOWN)
        if name not in FUNCTIONS:
            raise RejectedAnswer(f"{name}() is not allowed")
        is_exact = all(size.value is not None for size in sizes)
        if name == "Integer" and is_exact:
            return sizes[0]
        if name == "Rational" and is_exact and len(sizes) == 2:
            return _divide(*sizes)
        return _Size(bits + 64, loose=_UNKNOWN if name in ROUNDING else loose)

    def _binary(self, node: ast.BinOp) -> _Size:
        left, right = self._sizes[node.left], self._sizes[node.right]
        if isinstance(node.op, ast.Pow):
            return _power(left, right)
        if not isinstance(node.op, _OPERATORS):
            raise RejectedAnswer(f"the operator {type(node.op).__name__} is not allowed")
        if isinstance(node.op, (ast.FloorDiv, ast.Mod)) and (left.value is None or right.value is None):
            # To round a quotient of logarithms, sympy simplifies it first, and that can take for ever.
            raise RejectedAnswer("// and % are for plain numbers")
        is_rounding = not isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.Div))
        loose = _UNKNOWN if is_rounding else left.loose * right.loose
        combined = _Size(left.bits + right.bits + 1, loose=loose)
        if left.value is None or right.value is None:
            return combined
        if isinstance(node.op, ast.Div):
            return _divide(left, right)
        exact = COMMON.get(type(node.op))
        return _Size.of_number(exact(left.value, right.value)) if exact else combined

    def _unary(self, node: ast.UnaryOp) -> _Size:
        if not isinstance(node.op, (ast.UAdd, ast.USub)):
            raise RejectedAnswer(f"the operator {type(node.op).__name__} is not allowed")
        size = self._sizes[node.operand]
        if size.value is None or isinstance(node.op, ast.UAdd):
            return size
        return _Size.of_number(-size.value)

    def _name(self, node: ast.Name) -> _Size:
        if node.id not in CONSTANTS and node.id not in self._local_names:
            raise RejectedAnswer(f"the name {node.id[:40]} is not allowed")
        return _Size(bits=2)

    def _constant(self, node: ast.Constant) -> _Size:
        if not isinstance(node.value, bool):
            raise RejectedAnswer(f"{type(node.value).__name__} is not allowed here")
        return _Size.of_number(Fraction(int(node.value)))


def _is_leaf(node: ast.Call) -> bool:
    """Whether this is a number or symbol as sympy writes it: `Integer(3)`, `Float('1.5')`, `Symbol('x')`."""
    return len(node.args) == 1 and isinstance(node.args[0], ast.Constant) and not node.keywords


def _leaf(name: str, argument: ast.expr) -> _Size:
    assert isinstance(argument, ast.Constant)
    value = argument.value
    if name == "Integer" and type(value) is int:
        return _Size.of_number(Fraction(value))
    if name == "Float" and isinstance(value, str) and (number := _FLOAT.fullmatch(value)):
        if abs(int(number[1] or "0")) > MAX_FLOAT_EXPONENT:
            raise RejectedAnswer(f"expected an exponent of at most {MAX_FLOAT_EXPONENT}")
        return _Size.of_number(Fraction(value))
    if name == "Symbol" and isinstance(value, str) and _SYMBOL.fullmatch(value):
        return _Size(bits=2)
    raise RejectedAnswer(f"{name}({type(value).__name__}) is not allowed")


def _factorial_bits(arguments: list[_Size]) -> float:
    for argument in arguments:
        if argument.value is None and argument.loose > MAX_FACTORIAL:
            raise RejectedAnswer(f"expected numbers of at most {MAX_FACTORIAL} in a factorial")
        if argument.value is not None and abs(argument.value) > MAX_FACTORIAL:
            raise RejectedAnswer(f"expected a factorial of at most {MAX_FACTORIAL}")
    return MAX_FACTORIAL * math.log2(MAX_FACTORIAL)


def _divide(numerator: _Size, denominator: _Size) -> _Size:
    if numerator.value is None or not denominator.value:
        return _Size(numerator.bits + denominator.bits + 1, loose=_UNKNOWN)
    return _Size.of_number(numerator.value / denominator.value)


def _power(base: _Size, exponent: _Size) -> _Size:
    if exponent.value is None:
        if exponent.loose > MAX_LOOSE_EXPONENT:
            raise RejectedAnswer(f"expected numbers of at most {MAX_LOOSE_EXPONENT} in an exponent")
        return _Size(base.bits + exponent.bits + 1, loose=base.loose * exponent.loose)
    limit = MAX_DEGREE if base.value is None else MAX_EXPONENT
    if abs(exponent.value) > limit or exponent.value.denominator > 10**6:
        raise RejectedAnswer(f"expected an exponent of at most {limit}, got {exponent.value}")
    bits = base.bits * max(1.0, float(abs(exponent.value)))
    whole = exponent.value.denominator == 1
    bounded = _Size(bits, loose=_UNKNOWN)
    if base.value is None or not whole or (base.value == 0 and exponent.value < 0):
        return bounded
    return _Size.of_number(base.value ** int(exponent.value))
