from __future__ import annotations

from fractions import Fraction

import pytest

from reasoning_gym_environment.verification.bounded_arithmetic import (
    BoundedFraction,
    RejectedAnswer,
    evaluate_integers,
    evaluate_literal,
)

LITERALS = [
    "[[0, 1], [1, 0]]",
    "  [1, 2]",
    "['A', 'B']",
    "'AB'",
    "('_', 'Q')",
    "[-1, +2, - 3.5]",
    "{'a': [1]}",
    "[True, None]",
    "[]",
    "()",
    "[1,\n 2]",
    "'a' 'b'",
]
CODE = [
    "__import__('os').system('id')",
    "().__class__",
    "[x for x in (1,)]",
    "(lambda: 1)()",
    "oracle_answer",
    "self",
    "f'{1}'",
    "1 if 1 else 2",
    "(y := 1)",
    "[*(1,)]",
    "{**{}}",
    "9**9**9",
    "'a' * 10**9",
    "-'a'",
    "b'a'",
    "1j",
    "{[]: 1}",
]
MALFORMED = ["", "1 2", "[", "\x00", "[1\n2]", "import os"]
DEEP = ["-" * 100_000 + "1", "[" * 5_000, "not " * 50_000 + "1", "a" + "()" * 50_000, "9" * 10_000]
ARITHMETIC = ["(0x424c + 0x1f2f)", "((0x1 - 0x5) << 0x2) >> 1", "-3 * +4", "1 << 100"]


@pytest.mark.parametrize("text", LITERALS)
def test_literals_have_the_value_eval_gives_them(text: str) -> None:
    assert evaluate_literal(text) == eval(text)


@pytest.mark.parametrize("text", CODE + MALFORMED + DEEP)
def test_what_is_not_a_literal_is_rejected(text: str) -> None:
    with pytest.raises(RejectedAnswer):
        evaluate_literal(text)


@pytest.mark.parametrize("value", [None, 3, ["[]"], b"[]"])
def test_only_text_is_evaluated(value: object) -> None:
    with pytest.raises(RejectedAnswer):
        evaluate_literal(value)


def test_deep_nesting_is_rejected() -> None:
    assert evaluate_literal("[[[[1]]]]") == [[[[1]]]]
    with pytest.raises(RejectedAnswer):
        evaluate_literal("[" * 50 + "]" * 50)


@pytest.mark.parametrize("text", ARITHMETIC)
def test_integer_arithmetic_has_the_value_eval_gives_it(text: str) -> None:
    assert evaluate_integers(text) == eval(text)


@pytest.mark.parametrize("text", ["1 << 10**9", "1 << (1 << 40)", "1 << -1", "2 ** 3", "1 / 2", "1.5", "True", "x"])
def test_other_arithmetic_is_rejected(text: str) -> None:
    with pytest.raises(RejectedAnswer):
        evaluate_integers(text)


@pytest.mark.parametrize("text", ["0.375", "3/8", " 1e-5 ", "1E400", "-2", "1_000"])
def test_ordinary_fractions_are_read_as_fraction_reads_them(text: str) -> None:
    try:
        expected: object = Fraction(text)
    except ValueError:
        with pytest.raises(ValueError):
            BoundedFraction(text)
        return
    assert BoundedFraction(text) == expected


@pytest.mark.parametrize("text", ["1e1000000000", "1E+999999999", "1e-1000000", "1e٩٩٩٩٩٩٩", "1" * 500])
def test_absurd_fractions_are_rejected(text: str) -> None:
    with pytest.raises(RejectedAnswer):
        BoundedFraction(text)
