"""Arithmetic from text: exact, counted, bounded."""

from __future__ import annotations

from fractions import Fraction

import pytest

from reasoning_gym_environment.verification.bounded_arithmetic import evaluate


@pytest.mark.parametrize(
    ("text", "value", "numbers"),
    [
        ("8/(3 - 8/3)", Fraction(24), [8, 3, 8, 3]),
        (" -(1 - 25) ", Fraction(24), [1, 25]),
        ("1/3 + 1/3\n+ 1/3", Fraction(1), [1, 3, 1, 3, 1, 3]),
        ("+7", Fraction(7), [7]),
    ],
)
def test_value_and_numbers(text: str, value: Fraction, numbers: list[int]) -> None:
    assert evaluate(text) == (value, numbers)


def test_powers_only_where_they_are_asked_for() -> None:
    assert evaluate("2**3 + 2**(-1)", powers=True) == (Fraction(17, 2), [2, 3, 2, 1])
    with pytest.raises(ValueError):
        evaluate("2**3")


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "1e3", "1.5", "0x1F and 1", "True", "5!", "2(3)", "[1]", "1 if 1 else 2", "7//2", "7 % 2", "1 2"),
        *("2**65", "2**(1/2)", "9**64**64", "*".join(["9" * 400] * 20), "-" * 5000 + "1", "1" + "+1" * 4000),
        *("(" * 5000, "9" * 5000, "__import__('os')", "(lambda: 1)()", "1<2"),
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        evaluate(text, powers=True)


def test_dividing_by_zero_is_said() -> None:
    with pytest.raises(ZeroDivisionError):
        evaluate("1/(2 - 2)")
