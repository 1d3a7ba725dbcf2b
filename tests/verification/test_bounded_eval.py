"""What small grammars let through has the value that `eval` or sympy gives it; anything else is refused unevaluated."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import sympy
from sympy.parsing.sympy_parser import parse_expr

from reasoning_gym_environment.verification.bounded_eval import (
    FUNCTIONS,
    UnreadableTextError,
    bounded_fraction,
    evaluate_python,
    evaluate_symbolic,
)
from reasoning_gym_environment.verification.expressions import exact_value, value_of

TEXTS = json.loads(Path(__file__).with_name("expressions.json").read_text(encoding="utf-8"))
"""Texts of Python and sympy, texts that no grammar of this package accepts, and hostile texts."""
LONG = [
    *("[" * 500 + "]" * 500, "-" * 100_000 + "1", "[" * 5_000, "not " * 50_000 + "1", "a" + "()" * 50_000),
    *("(" * 5_000, "9" * 10_000, "1" + "+1" * 15_000, "x" * 30_000, "!" * 100),
]


def test_literals_and_integer_arithmetic_have_the_value_eval_gives_them_and_nothing_else_has_one() -> None:
    for text in TEXTS["python"]:
        assert evaluate_python(text) == eval(text)
    # Only text is evaluated.
    for text in [*TEXTS["no python"], *LONG, None, 3, ["[]"], b"[]"]:
        with pytest.raises(UnreadableTextError):
            raise AssertionError(f"{str(text)[:60]} is {evaluate_python(text)}")


def test_ordinary_fractions_are_read_as_fraction_reads_them() -> None:
    for text in ("0.375", "3/8", " 1e-5 ", "1E400", "-2"):
        assert bounded_fraction(text) == Fraction(text)
    for text in ("1e1000000000", "1E+999999999", "1e-1000000", "1e٩٩٩٩٩٩٩", "1" * 500):
        with pytest.raises(UnreadableTextError):
            bounded_fraction(text)


# --- arithmetic of answers ---

EXACT = {
    "8/(3 - 8/3)": Fraction(24),
    " -(1 - 25) ": Fraction(24),
    "1/3 + 1/3 + 1/3": Fraction(1),
    "+7": Fraction(7),
    "2^3 + 2**(-1)": Fraction(17, 2),
    r"\frac{\frac12}{3} \times 12": Fraction(2),
    "2(3 + 1)": Fraction(8),
    "12.5% = 1/8": Fraction(1, 8),
}


def test_arithmetic_has_its_exact_value_and_anything_else_is_refused() -> None:
    assert {text: exact_value(value_of(text)) for text in EXACT} == EXACT
    for text in [*TEXTS["no arithmetic"], "*".join(["9" * 400] * 20), *LONG]:
        with pytest.raises((ValueError, RecursionError)):
            raise AssertionError(f"{text[:60]} is {exact_value(value_of(text))}")
    with pytest.raises(ZeroDivisionError):
        exact_value(value_of("1/(2 - 2)"))


# --- expressions of sympy ---

X = sympy.Symbol("x")


def outcome(parse: Any, text: str) -> str:
    try:
        return repr(parse(text, local_dict={"x": X, "C": sympy.Symbol("C")}))
    except (SyntaxError, TypeError, ValueError) as error:
        return type(error).__name__


def test_honest_text_and_every_allowed_function_give_what_sympy_gives() -> None:
    functions = FUNCTIONS - {"Rational", "root", "atan2", "Integral"}
    for text in (*TEXTS["sympy"], *(f"{function}(2*x + 1)/3" for function in functions)):
        assert outcome(evaluate_symbolic, text) == outcome(parse_expr, text), text


@pytest.mark.parametrize("texts", [TEXTS["code"], TEXTS["huge"] + LONG], ids=["code", "huge"])
def test_code_and_what_would_grow_without_bound_are_rejected(texts: list[str]) -> None:
    for text in texts:
        with pytest.raises((UnreadableTextError, RecursionError)):
            raise AssertionError(f"{text[:60]} is {evaluate_symbolic(text, {'x': X})}")


def test_the_callers_names_are_left_as_they_were_and_a_polynomial_of_thousands_of_digits_is_accepted() -> None:
    names = {"x": X}
    text = " + ".join(f"{7**80 + power}*z**{power % 64}" for power in range(120))
    assert evaluate_symbolic(f"{text} + x", names) == parse_expr(f"{text} + x")
    assert names == {"x": X}
