"""What small grammars let through has the value `eval` gives it; anything else is refused before it is computed."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

from reasoning_gym_environment.verification.bounded_arithmetic import (
    BoundedFraction,
    RejectedAnswer,
    evaluate,
    evaluate_integers,
    evaluate_literal,
)

LITERALS = [
    *("[[0, 1], [1, 0]]", "  [1, 2]", "['A', 'B']", "'AB'", "('_', 'Q')", "[-1, +2, - 3.5]", "{'a': [1]}"),
    *("[True, None]", "[]", "()", "[1,\n 2]", "'a' 'b'", "[[[[1]]]]"),
]
CODE = [
    *("__import__('os').system('id')", "().__class__", "[x for x in (1,)]", "(lambda: 1)()", "oracle_answer", "self"),
    *("f'{1}'", "1 if 1 else 2", "(y := 1)", "[*(1,)]", "{**{}}", "9**9**9", "'a' * 10**9", "-'a'", "b'a'", "1j"),
    *("{[]: 1}",),
]
MALFORMED = ["", "1 2", "[", "\x00", "[1\n2]", "import os"]
DEEP = ["[" * 50 + "]" * 50, "-" * 100_000 + "1", "[" * 5_000, "not " * 50_000 + "1", "a" + "()" * 50_000, "9" * 10_000]
ARITHMETIC = ["(0x424c + 0x1f2f)", "((0x1 - 0x5) << 0x2) >> 1", "-3 * +4", "1 << 100"]


def refuses(evaluate: Callable[[Any], Any], text: object) -> bool:
    with pytest.raises(RejectedAnswer):
        raise AssertionError(f"{str(text)[:60]} is {evaluate(text)}")
    return True


def test_literals_have_the_value_eval_gives_them_and_nothing_else_has_one() -> None:
    for text in LITERALS:
        assert evaluate_literal(text) == eval(text)
    # Only text is evaluated.
    assert all(refuses(evaluate_literal, text) for text in [*CODE, *MALFORMED, *DEEP, None, 3, ["[]"], b"[]"])


def test_integer_arithmetic_has_the_value_eval_gives_it_and_nothing_else_has_one() -> None:
    for text in ARITHMETIC:
        assert evaluate_integers(text) == eval(text)
    for text in ("1 << 10**9", "1 << (1 << 40)", "1 << -1", "2 ** 3", "1 / 2", "1.5", "True", "x"):
        assert refuses(evaluate_integers, text)


def test_ordinary_fractions_are_read_as_fraction_reads_them() -> None:
    for text in ("0.375", "3/8", " 1e-5 ", "1E400", "-2", "1_000"):
        try:
            expected: object = Fraction(text)
        except ValueError:
            with pytest.raises(ValueError):
                BoundedFraction(text)
        else:
            assert BoundedFraction(text) == expected
    for text in ("1e1000000000", "1E+999999999", "1e-1000000", "1e٩٩٩٩٩٩٩", "1" * 500):
        assert refuses(BoundedFraction, text)


# --- exact, counted ---

COUNTED = {
    "8/(3 - 8/3)": (Fraction(24), [8, 3, 8, 3]),
    " -(1 - 25) ": (Fraction(24), [1, 25]),
    "1/3 + 1/3\n+ 1/3": (Fraction(1), [1, 3, 1, 3, 1, 3]),
    "+7": (Fraction(7), [7]),
}
NO_ARITHMETIC = [
    *("", "x", "1e3", "1.5", "0x1F and 1", "True", "5!", "2(3)", "[1]", "1 if 1 else 2", "7//2", "7 % 2", "1 2"),
    *("2**65", "2**(1/2)", "9**64**64", "*".join(["9" * 400] * 20), "-" * 5000 + "1", "1" + "+1" * 4000),
    *("(" * 5000, "9" * 5000, "__import__('os')", "(lambda: 1)()", "1<2"),
]


def test_arithmetic_has_its_exact_value_and_its_numbers_and_anything_else_is_refused() -> None:
    assert {text: evaluate(text) for text in COUNTED} == COUNTED
    # Powers only where they are asked for.
    assert evaluate("2**3 + 2**(-1)", powers=True) == (Fraction(17, 2), [2, 3, 2, 1])
    for text in NO_ARITHMETIC:
        with pytest.raises(ValueError):
            raise AssertionError(f"{text[:60]} is {evaluate(text, powers=True)}")
    for text, error in (("2**3", ValueError), ("1/(2 - 2)", ZeroDivisionError)):
        with pytest.raises(error):
            evaluate(text)
