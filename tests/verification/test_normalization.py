from __future__ import annotations

import pytest

from reasoning_gym_environment.verification.normalization import normalize


@pytest.mark.parametrize(
    ("answer", "plain"),
    [
        ("12.", "12"),
        (" 12\n", "12"),
        ("\\boxed{12}", "12"),
        ("$\\boxed{\\text{12}}$.", "12"),
        ("**12**", "12"),
        ("**12.**", "12"),
        ("`12`", "12"),
        ('"12"', "12"),
        ("$12$", "12"),
        ("\\(12\\)", "12"),
        ("1,200", "1200"),
        ("-1,234,567.25", "-1234567.25"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
    ],
)
def test_decoration_around_the_answer_is_removed(answer: str, plain: str) -> None:
    assert normalize(answer, "7") == plain


@pytest.mark.parametrize(
    "answer",
    [
        "12",
        "x = 12",
        "1,2,3",
        "12,00",
        "0.5",
        "...",
        '"a", "b"',
        "**a** and **b**",
        "\\boxed{1} and \\boxed{2}",
        "$1 and $2$",
        "{1, 2}",
        "''",
        "\\boxed{}",
    ],
)
def test_what_is_not_decoration_of_the_whole_answer_stays(answer: str) -> None:
    assert normalize(answer, "7") == answer


@pytest.mark.parametrize(
    ("answer", "oracle"),
    [
        ("It rains.", "It rains."),
        ("'a'", "'b'"),
        ('"a"', '"a"'),
        ("1,200", "1,200"),
        ("1,200", "two numbers"),
        ("$5$", "$5$"),
        ("**", "*"),
    ],
)
def test_what_the_oracle_answer_carries_itself_stays(answer: str, oracle: str) -> None:
    assert normalize(answer, oracle) == answer


@pytest.mark.parametrize("oracle", [None, 5, ""])
def test_without_an_oracle_answer_wrappings_go_and_separators_stay(oracle: object) -> None:
    assert normalize("\\boxed{1,200}.", oracle) == "1,200"


@pytest.mark.parametrize("answer", ["\\boxed{" * 50_000, "**" * 100_000, "." * 200_000, "1,000" * 40_000])
def test_absurd_answers_are_handled(answer: str) -> None:
    assert normalize(answer, "7").strip(".*") in answer
