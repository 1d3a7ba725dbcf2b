"""Evaluators for answers that verifiers would hand to `eval`: they compute what small grammars allow.

    evaluate_literal      lists, tuples, dictionaries, numbers and strings            for `eval`
    evaluate_integers     integer arithmetic with shifts                              for `eval`
    evaluate              arithmetic in exact fractions, and the whole numbers used   for forms and solvers
    BoundedFraction       fractions whose digits and exponent are bounded             for `Fraction`
    ExpressionParser      what sympy reads in a text                                  for `parse_expr`

What is outside a grammar, or beyond its bounds, raises `RejectedAnswer` before anything is computed. It is a
ValueError, so verifiers treat it as they treat any malformed answer.
"""

from __future__ import annotations

import ast
import builtins
import functools
import operator
import re
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from fractions import Fraction
from tokenize import TokenError
from typing import Any, NamedTuple

MAX_LITERAL_CHARS = 200_000
MAX_CHARS = 20_000
MAX_DEPTH = 400
MAX_BITS = 1 << 17
"""Of any number on the way."""
MAX_EXPONENT = 64
MAX_FRACTION_CHARS = 400
MAX_FRACTION_EXPONENT = 999

_LONG_NUMBER = re.compile(r"[0-9_]{500}")
_Operators = Mapping[type[ast.AST], Callable[[Any, Any], Any]]
_COMMON: _Operators = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


class RejectedAnswer(ValueError):
    """The text is not in the grammar, or exceeds its bounds. Nothing of it was evaluated."""


def parse(text: object, max_chars: int) -> ast.expr:
    """The syntax tree of one expression, not evaluated. Raises RejectedAnswer for anything else."""
    if not isinstance(text, str) or len(text) > max_chars or _LONG_NUMBER.search(text):
        raise RejectedAnswer(f"expected text of at most {max_chars} characters, with numbers of less than 500 digits")
    try:
        # `eval` ignores leading blanks, `ast.parse` does not.
        return ast.parse(text.lstrip(" \t"), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise RejectedAnswer(f"not an expression: {type(error).__name__}") from None


def evaluate_literal(text: object, *_scopes: object) -> Any:
    """The value of a literal, as `eval` would give it. Raises RejectedAnswer."""
    try:
        return ast.literal_eval(parse(text, MAX_LITERAL_CHARS))
    except (TypeError, ValueError, MemoryError, RecursionError) as error:
        raise RejectedAnswer(f"not a literal: {type(error).__name__}") from None


def evaluate(text: str, *, powers: bool = False) -> tuple[Fraction, list[int]]:
    """The exact value of arithmetic, and the whole numbers in it from left to right.

    Raises RejectedAnswer, and ZeroDivisionError for a division by zero.
    """
    if "#" in text:
        raise RejectedAnswer("a comment")
    used: list[int] = []
    return _value(parse(" ".join(text.split()), MAX_CHARS), _POWERS if powers else _RATIONAL, used, MAX_DEPTH), used


def evaluate_integers(text: object, *_scopes: object) -> int:
    """The value of integer arithmetic with shifts, as `eval` would give it. Raises RejectedAnswer."""
    return int(_value(parse(text, MAX_CHARS), _INTEGER, [], MAX_DEPTH))


def _value(node: ast.expr, operators: _Operators, used: list[int], depth: int) -> Fraction:
    match node:
        case ast.Constant(value=int() as number) if depth and type(number) is int:
            used.append(number)
            return Fraction(number)
        case ast.UnaryOp(op=ast.UAdd() | ast.USub() as sign) if depth:
            value = _value(node.operand, operators, used, depth - 1)
            return -value if isinstance(sign, ast.USub) else value
        case ast.BinOp(op=sign) if depth and type(sign) in operators:
            left, right = (_value(side, operators, used, depth - 1) for side in (node.left, node.right))
            is_small = isinstance(sign, _SIMPLE) or (right.denominator == 1 and abs(right) <= MAX_EXPONENT)
            value = Fraction(operators[type(sign)](left, right)) if is_small else _TOO_LARGE
            if _bits(value) <= MAX_BITS:
                return value
    raise RejectedAnswer(f"{type(node).__name__} is not arithmetic, or nested too deep, or too large")


_SIMPLE = (ast.Add, ast.Sub, ast.Mult, ast.Div)
_TOO_LARGE = Fraction(1 << MAX_BITS)
_RATIONAL: _Operators = {**_COMMON, ast.Div: operator.truediv}
_POWERS: _Operators = {**_RATIONAL, ast.Pow: operator.pow}
_INTEGER: _Operators = {
    **_COMMON,
    ast.LShift: lambda number, places: int(number) << int(places),
    ast.RShift: lambda number, places: int(number) >> int(places),
}


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


class BoundedFraction(Fraction):
    """Fraction, but a text of absurd length or exponent is rejected instead of filling memory."""

    def __new__(cls, numerator: Any = 0, denominator: Any = None, **options: Any) -> BoundedFraction:
        if isinstance(numerator, str):
            # \d, because Fraction takes the digits of every script.
            exponent = re.search(r"e[-+]?([\d_]+)", numerator[: MAX_FRACTION_CHARS + 1], re.IGNORECASE)
            digits = exponent[1].replace("_", "") if exponent else ""
            if len(numerator) > MAX_FRACTION_CHARS or len(digits) > 6 or int(digits or "0") > MAX_FRACTION_EXPONENT:
                raise RejectedAnswer(f"expected an exponent of at most {MAX_FRACTION_EXPONENT}, and fewer characters")
        return super().__new__(cls, numerator, denominator, **options)


# --- expressions of sympy ---

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
"""Functions whose value explodes: their arguments must be small, or contain a symbol."""
_ROUNDING = frozenset({"floor", "ceiling", "Integer", "Integral"})
"""Functions that make a whole number, of any size, from an expression that is none: floor(exp(50))."""
_MAX_DEGREE = 1000
"""The largest exponent of an expression with symbols: products of polynomials reach degree 96."""
_MAX_FACTORIAL = 200
_FACTORIAL_BITS = 1600.0
_ANY_SIZE = 64.0
"""Bits that stand for a number of which only its existence is known: too large for an exponent or a factorial."""
_MAX_FLOAT_EXPONENT = 400
_FLOAT = re.compile(r"(?:[0-9_]+\.?[0-9_]*|\.[0-9_]+)(?:[eE]([-+]?[0-9]{1,4}))?")
_SYMBOL = re.compile(r"\w{1,64}")
_EXACT: _Operators = {**_RATIONAL, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod}


class ExpressionParser:
    """Stands in for sympy's `parse_expr`: the same result for what is on a short list. Building one takes some ms.

    sympy turns the text into Python code (`x**2` becomes `x**Integer(2)`) and calls `eval` on that code with every
    builtin in reach. Here the same code is made, its syntax tree is checked node by node, and only then evaluated,
    with nothing in reach but the names on the list. Since the code that is checked is the code that runs, no spelling
    can mean one thing to the check and another to Python. Simplifying the result may still take long; that is what
    the deadline is for.
    """

    def __init__(self) -> None:
        # sympy takes half a second to import, and not every process needs it.
        import sympy
        from sympy.parsing import sympy_parser

        functions = {name: one for name, one in vars(builtins).items() if isinstance(one, types.BuiltinFunctionType)}
        names = {name: getattr(sympy, name) for name in sympy.__all__} | functions
        names |= {"max": sympy.Max, "min": sympy.Min}
        self._allowed = {name: names[name] for name in (*CONSTANTS, *FUNCTIONS, *FACTORIALS, "Symbol")}
        self._code_of = functools.partial(
            sympy_parser.stringify_expr, global_dict=names, transformations=sympy_parser.standard_transformations
        )

    def __call__(self, text: object, local_dict: dict[str, Any] | None = None) -> Any:
        """The sympy expression in `text`. Raises RejectedAnswer, or what sympy raises while it computes."""
        local_names = dict(local_dict or {})
        if not isinstance(text, str) or len(text) > MAX_CHARS or _LONG_NUMBER.search(text):
            raise RejectedAnswer(f"expected text of at most {MAX_CHARS} characters")
        try:
            tree = ast.parse(self._code_of(text, local_names).strip(), mode="eval").body
        except (SyntaxError, TokenError, ValueError, IndexError, MemoryError, RecursionError) as error:
            raise RejectedAnswer(f"not an expression: {type(error).__name__}") from None
        _check(tree, local_names)
        code = compile(ast.Expression(tree), "<answer>", "eval")
        # The tree holds only the nodes and names that _check lets through; nothing else is in reach.
        return eval(code, {"__builtins__": {}, **self._allowed}, local_names)


class _Size(NamedTuple):
    """What is known of a subexpression: about how many bits its numbers take together, and its value if it has one."""

    bits: float
    value: Fraction | None = None


def _check(tree: ast.expr, local_names: Collection[str]) -> None:
    """Raises RejectedAnswer for the first node that is not allowed; without recursion, from the leaves to the root."""
    nodes = [tree]
    for node in nodes:
        nodes.extend(_operands(node))
    sizes: dict[ast.expr, _Size] = {}
    for node in reversed(nodes):
        sizes[node] = _size(node, [sizes[operand] for operand in _operands(node)], local_names)
        if sizes[node].bits > MAX_BITS:
            raise RejectedAnswer(f"numbers of more than {MAX_BITS} bits")


def _operands(node: ast.expr) -> Sequence[ast.expr]:
    match node:
        case ast.BinOp():
            return node.left, node.right
        case ast.UnaryOp():
            return (node.operand,)
        case ast.Call(args=[ast.Constant()]):
            return ()
        case ast.Call():
            return node.args
    return ()


def _size(node: ast.expr, operands: Sequence[_Size], local_names: Collection[str]) -> _Size:
    match node:
        case ast.Constant(value=bool() as truth):
            return _exactly(Fraction(truth))
        case ast.Name(id=name) if name in CONSTANTS or name in local_names:
            return _Size(0.0)
        case ast.Call(func=ast.Name(id=name), args=[ast.Constant(value=value)], keywords=[]):
            return _leaf(name, value)
        # A local name would be called in place of sympy's.
        case ast.Call(func=ast.Name(id=name), args=[_] | [_, _], keywords=[]) if name not in local_names:
            return _function(name, operands)
        case ast.UnaryOp(op=ast.UAdd() | ast.USub() as sign):
            [(bits, number)] = operands
            return _Size(bits, -number if number is not None and isinstance(sign, ast.USub) else number)
        case ast.BinOp(op=ast.Pow()):
            return _power(*operands)
        case ast.BinOp(op=ast.BitXor() | ast.BitAnd() | ast.BitOr()):
            return _Size(sum(size.bits for size in operands) + _ANY_SIZE)
        case ast.BinOp(op=sign) if type(sign) in _EXACT:
            return _arithmetic(type(sign), *operands)
    raise RejectedAnswer(f"{type(node).__name__} {getattr(node, 'id', '')[:40]} is not allowed")


def _exactly(value: Fraction) -> _Size:
    return _Size(_bits(value), value)


def _leaf(name: str, value: object) -> _Size:
    """A number or symbol as sympy writes it: `Integer(3)`, `Float('1.5')`, `Symbol('x')`."""
    if name == "Integer" and type(value) is int:
        return _exactly(Fraction(value))
    number = _FLOAT.fullmatch(value) if name == "Float" and isinstance(value, str) else None
    if number is not None and abs(int(number[1] or "0")) <= _MAX_FLOAT_EXPONENT:
        return _exactly(Fraction(number[0]))
    if name == "Symbol" and isinstance(value, str) and _SYMBOL.fullmatch(value):
        return _Size(0.0)
    raise RejectedAnswer(f"{name[:40]}({type(value).__name__}) is not allowed")


def _function(name: str, operands: Sequence[_Size]) -> _Size:
    bits = sum(size.bits for size in operands)
    if name in FACTORIALS:
        if any(size.bits > 8 if size.value is None else abs(size.value) > _MAX_FACTORIAL for size in operands):
            raise RejectedAnswer(f"expected numbers of at most {_MAX_FACTORIAL} in a factorial")
        return _Size(bits + _FACTORIAL_BITS)
    if name not in FUNCTIONS:
        raise RejectedAnswer(f"{name[:40]}() is not allowed")
    if name == "Rational" and len(operands) == 2:
        return _arithmetic(ast.Div, *operands)
    is_number = name == "Integer" and operands[0].value is not None
    return operands[0] if is_number else _Size(bits + (_ANY_SIZE if name in _ROUNDING else 0))


def _arithmetic(sign: type[ast.AST], left: _Size, right: _Size) -> _Size:
    combined = _Size(left.bits + right.bits)
    if left.value is not None and right.value is not None:
        is_by_zero = sign not in _COMMON and not right.value
        return combined if is_by_zero else _exactly(Fraction(_EXACT[sign](left.value, right.value)))
    if sign in (ast.FloorDiv, ast.Mod):
        # To round a quotient of logarithms, sympy simplifies it first, and that can take for ever.
        raise RejectedAnswer("// and % are for plain numbers")
    return combined


def _power(base: _Size, exponent: _Size) -> _Size:
    if exponent.value is None:
        # Its symbols may cancel, and leave a number: 7**(x - x + 4000).
        return _Size(max(base.bits, 1) * 2 ** min(exponent.bits, _ANY_SIZE))
    limit = _MAX_DEGREE if base.value is None else MAX_EXPONENT
    if abs(exponent.value) > limit or exponent.value.denominator > 10**6:
        raise RejectedAnswer(f"expected an exponent of at most {limit}")
    bits = base.bits * max(1.0, float(abs(exponent.value)))
    if base.value is None or exponent.value.denominator != 1 or (base.value == 0 and exponent.value < 0):
        return _Size(bits)
    if bits > MAX_BITS:
        raise RejectedAnswer(f"numbers of more than {MAX_BITS} bits")
    return _exactly(base.value ** int(exponent.value))
