"""What small grammars let through has the value that `eval` or sympy gives it; anything else is refused unevaluated."""

from __future__ import annotations

import ast
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import sympy
from sympy.parsing.sympy_parser import parse_expr

from reasoning_gym_environment.verification.bounded_eval import (
    FUNCTIONS,
    Unreadable,
    bounded_fraction,
    evaluate,
    evaluate_python,
    evaluate_symbolic,
)

LITERALS = [
    *("[[0, 1], [1, 0]]", "  [1, 2]", "['A', 'B']", "'AB'", "('_', 'Q')", "[-1, +2, - 3.5]", "{'a': [1]}"),
    *("[True, None]", "[]", "()", "[1,\n 2]", "'a' 'b'", "[[[[1]]]]"),
]
CODE = [
    *("__import__('os').system('id')", "().__class__", "[x for x in (1,)]", "(lambda: 1)()", "oracle_answer", "self"),
    *("f'{1}'", "1 if 1 else 2", "(y := 1)", "[*(1,)]", "{**{}}", "9**9**9", "'a' * 10**9", "-'a'", "'a' if 1 else 2"),
    *("{[]: 1}",),
]
MALFORMED = ["", "1 2", "[", "\x00", "[1\n2]", "import os"]
DEEP = [
    *("[" * 500 + "]" * 500, "-" * 100_000 + "1", "[" * 5_000, "not " * 50_000 + "1", "a" + "()" * 50_000),
    *("9" * 10_000,),
]
ARITHMETIC = ["(0x424c + 0x1f2f)", "((0x1 - 0x5) << 0x2) >> 1", "-3 * +4", "1 << 60"]


def refuses(evaluate: Callable[[Any], Any], text: object) -> bool:
    with pytest.raises(Unreadable):
        raise AssertionError(f"{str(text)[:60]} is {evaluate(text)}")
    return True


def test_literals_have_the_value_eval_gives_them_and_nothing_else_has_one() -> None:
    for text in LITERALS:
        assert evaluate_python(text) == eval(text)
    # Only text is evaluated.
    assert all(refuses(evaluate_python, text) for text in [*CODE, *MALFORMED, *DEEP, None, 3, ["[]"], b"[]"])


def test_integer_arithmetic_has_the_value_eval_gives_it_and_nothing_else_has_one() -> None:
    for text in ARITHMETIC:
        assert evaluate_python(text) == eval(text)
    for text in ("1 << 10**9", "1 << (1 << 40)", "2 ** 3", "1 / 2", "1.5 + 1", "x"):
        assert refuses(evaluate_python, text)


def test_ordinary_fractions_are_read_as_fraction_reads_them() -> None:
    for text in ("0.375", "3/8", " 1e-5 ", "1E400", "-2", "1_000"):
        try:
            expected: object = Fraction(text)
        except ValueError:
            with pytest.raises(ValueError):
                bounded_fraction(text)
        else:
            assert bounded_fraction(text) == expected
    for text in ("1e1000000000", "1E+999999999", "1e-1000000", "1e٩٩٩٩٩٩٩", "1" * 500):
        assert refuses(bounded_fraction, text)


# --- exact, counted ---

COUNTED = {
    "8/(3 - 8/3)": (Fraction(24), [8, 3, 8, 3]),
    " -(1 - 25) ": (Fraction(24), [1, 25]),
    "1/3 + 1/3\n+ 1/3": (Fraction(1), [1, 3, 1, 3, 1, 3]),
    "+7": (Fraction(7), [7]),
}
NO_ARITHMETIC = [
    *("", "x", "1e3", "1.5", "0x1F and 1", "True", "5!", "2(3)", "[1]", "1 if 1 else 2", "7//2", "7 % 2", "1 2"),
    *("2**1001", "2**(1/2)", "9**64**64", "*".join(["9" * 400] * 20), "-" * 5000 + "1", "1" + "+1" * 4000),
    *("(" * 5000, "9" * 5000, "__import__('os')", "(lambda: 1)()", "1<2"),
]


def test_arithmetic_has_its_exact_value_and_its_numbers_and_anything_else_is_refused() -> None:
    assert {text: evaluate(text) for text in COUNTED} == COUNTED
    # Powers only where they are asked for.
    assert evaluate("2**3 + 2**(-1)", ast.Pow) == (Fraction(17, 2), [2, 3, 2, 1])
    for text in NO_ARITHMETIC:
        with pytest.raises((ValueError, RecursionError)):
            raise AssertionError(f"{text[:60]} is {evaluate(text, ast.Pow)}")
    for text, error in (("2**3", ValueError), ("1/(2 - 2)", ZeroDivisionError)):
        with pytest.raises(error):
            evaluate(text)


# --- expressions of sympy ---

X = sympy.Symbol("x")
HONEST = [
    *("6*4", "281*(-111 - 275 + 184 + 257*(146 - 248)/257 - 219) + 257", "3*x**4/2 + 10*x**2/9 + C"),
    *("-2*x**3*cos(x) + 6*x**2*sin(x) + K", "x**(1/2) + sqrt(x)/3", "exp(2*x)*sin(3*x)/13 + log(x, 10)"),
    *("Rational(1, 2)*x + 0.5*x + 1e-3", "E**x + e**x + pi", "1/0"),
    *("-5**2", "0x10 + 1_000", "2**-1", "2*Integral(x**2*cos(2*x), x) + C"),
    *("-4292331664053647502629909556645519251186823499576396710700618921158471567360*z**96 + 5*z**65",),
    *("asin(x)**2 + atan2(x, 2)", "True", "(3*x + 1)**2**3", "constant_1 + naïve", "  3 "),
]
SYMPY_CODE = [
    *("__import__('os').system('id')", "().__class__.__base__.__subclasses__()", "x.__class__", "x.diff(x)"),
    *("x.func", "eval('1')", "exec('1')", "open('/etc/passwd')", "getattr(x, 'func')", "print(1)", "lambda: 1"),
    *("lambda x: x", "[1]", "(1, 2)", "'a'", "Symbol('a', real=True)", "Symbol('__import__(1)')"),
    *("Float('1', 10**9)", "Float('1e999999999')", "Integer('9'*9)", "sympify('1')", "S('1')", "lambdify(x, x)"),
    *("Integral(2*x, (x, 0, 1))", "Derivative(x**2, x)", "f(x)", "x(1)", "(sin)(x)(x)", "x if x else x", "x < 1"),
    *("x[0]", "sin(*x)", "sin(x, evaluate=False)", "y := 1", "f'{x}'", "Function('f')(x)"),
]
HUGE = [
    *("9**9**9**9", "9**9**9", "(9**64)**64**2", "((9**60)**60)**60", "2**(x - x + 10**9)"),
    *("2**(1/(1/10**9))", "2**(x/(x/10**9))", "x**1e9", "factorial(10**9)", "99999999!"),
    *("9!!!!", "gamma(10**6)", "binomial(10**9, 10**8)", "factorial(factorial(20))", "2**factorial(20)"),
    *("2**floor(exp(50))", "2**(exp(50)//1)", "2**Integer(exp(50))", "factorial(ceiling(exp(50)))"),
    *("2**((x*0 + 10)**9)", "log(7)//log(3)", "log(10**400) % log(3)", "9" * 1000, "-" * 100_000 + "1"),
    *("(" * 5_000, "1" + "+1" * 15_000, "x" * 30_000, "!" * 100),
]


def outcome(parse: Any, text: str) -> str:
    try:
        return repr(parse(text, local_dict={"x": X, "C": sympy.Symbol("C")}))
    except (SyntaxError, TypeError, ValueError) as error:
        return type(error).__name__


def test_honest_text_and_every_allowed_function_give_what_sympy_gives() -> None:
    functions = FUNCTIONS - {"Rational", "root", "atan2", "Integral"}
    for text in (*HONEST, *(f"{function}(2*x + 1)/3" for function in functions)):
        assert outcome(evaluate_symbolic, text) == outcome(parse_expr, text), text


@pytest.mark.parametrize("texts", [SYMPY_CODE, HUGE], ids=["code", "huge"])
def test_code_and_what_would_grow_without_bound_are_rejected(texts: list[str]) -> None:
    for text in texts:
        with pytest.raises((Unreadable, RecursionError)):
            raise AssertionError(f"{text[:60]} is {evaluate_symbolic(text, {'x': X})}")


def test_the_callers_names_are_left_as_they_were_and_a_polynomial_of_thousands_of_digits_is_accepted() -> None:
    names = {"x": X}
    text = " + ".join(f"{7**80 + power}*z**{power % 64}" for power in range(120))
    assert evaluate_symbolic(f"{text} + x", names) == parse_expr(f"{text} + x")
    assert names == {"x": X}
