"""Expressions have the value sympy gives them; code, and what would grow without bound, is refused."""

from __future__ import annotations

from typing import Any

import pytest
import sympy
from sympy.parsing.sympy_parser import parse_expr

from reasoning_gym_environment.verification.bounded_arithmetic import RejectedAnswer
from reasoning_gym_environment.verification.bounded_sympy import FUNCTIONS, ExpressionParser

X = sympy.Symbol("x")
PARSER = ExpressionParser()
HONEST = [
    *("6*4", "281*(-111 - 275 + 184 + 257*(146 - 248)/257 - 219) + 257", "3*x**4/2 + 10*x**2/9 + C"),
    *("-2*x**3*cos(x) + 6*x**2*sin(x) + K", "x**(1/2) + sqrt(x)/3", "exp(2*x)*sin(3*x)/13 + log(x, 10)"),
    *("Rational(1, 2)*x + 0.5*x + 1e-3", "E**x + e**x + pi", "0.2[1]", "4! + 5!!", "5^2", "7//2 + 7 % 4", "1/0"),
    *("-5**2", "0x10 + 1_000", "2**-1", "2*Integral(x**2*cos(2*x), x) + C"),
    *("-4292331664053647502629909556645519251186823499576396710700618921158471567360*z**96 + 5*z**65",),
    *("asin(x)**2 + atan2(x, 2)", "1j*2", "True", "(3*x + 1)**2**3", "Integer(5)", "constant_1 + naïve", "  3 "),
]
CODE = [
    *("__import__('os').system('id')", "().__class__.__base__.__subclasses__()", "x.__class__", "x.diff(x)"),
    *("x.func", "eval('1')", "exec('1')", "open('/etc/passwd')", "getattr(x, 'func')", "print(1)", "lambda: 1"),
    *("lambda x: x", "[1]", "(1, 2)", "'a'", "Symbol('a', real=True)", "Symbol('__import__(1)')"),
    *("Float('1', 10**9)", "Float('1e999999999')", "Integer('9'*9)", "sympify('1')", "S('1')", "lambdify(x, x)"),
    *("Integral(2*x, (x, 0, 1))", "Derivative(x**2, x)", "f(x)", "x(1)", "(sin)(x)(x)", "x if x else x", "x < 1"),
    *("x[0]", "sin(*x)", "sin(x, evaluate=False)", "y := 1", "f'{x}'", "Function('f')(x)", "beta", "N"),
]
HUGE = [
    *("9**9**9**9", "9**9**9", "(9**64)**64**2", "((9**60)**60)**60", "2**(x - x + 10**9)"),
    *("2**(10*10*10*10*10*10*x)", "2**(1/(1/10**9))", "2**(x/(x/10**9))", "x**1e9", "factorial(10**9)", "99999999!"),
    *("9!!!!", "gamma(10**6)", "binomial(10**9, 10**8)", "factorial(factorial(20))", "2**factorial(20)"),
    *("2**floor(exp(50))", "2**(exp(50)//1)", "2**Integer(exp(50))", "factorial(ceiling(exp(50)))"),
    *("2**((x*0 + 10)**9)", "log(7)//log(3)", "log(10**400) % log(3)", "1e999999", "9" * 1000, "-" * 100_000 + "1"),
    *("(" * 5_000, "1" + "+1" * 15_000, "x" * 30_000, "!" * 100),
]


def outcome(parse: Any, text: str) -> str:
    try:
        return repr(parse(text, local_dict={"x": X, "C": sympy.Symbol("C")}))
    except (SyntaxError, TypeError, ValueError) as error:
        return type(error).__name__


def test_honest_text_and_every_allowed_function_give_what_sympy_gives() -> None:
    functions = FUNCTIONS - {"Rational", "Integer", "Float", "root", "atan2", "Integral"}
    for text in (*HONEST, *(f"{function}(2*x + 1)/3" for function in functions)):
        assert outcome(PARSER, text) == outcome(parse_expr, text), text


@pytest.mark.parametrize("texts", [CODE, HUGE], ids=["code", "huge"])
def test_code_and_what_would_grow_without_bound_are_rejected(texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(RejectedAnswer):
            raise AssertionError(f"{text[:60]} is {PARSER(text, {'x': X})}")


def test_a_local_name_cannot_stand_in_for_a_function() -> None:
    with pytest.raises(RejectedAnswer):
        PARSER("sin(1)", {"sin": print})


def test_the_callers_names_are_left_as_they_were_and_a_polynomial_of_thousands_of_digits_is_accepted() -> None:
    names = {"x": X}
    text = " + ".join(f"{7**80 + power}*z**{power % 64}" for power in range(120))
    assert PARSER(f"{text} + x", names) == parse_expr(f"{text} + x")
    assert names == {"x": X}
