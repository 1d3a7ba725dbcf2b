"""Each value in each notation: the right value is right, and another value in the same notation is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from testing.reference_answers import is_right

SUPERSCRIPTS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
FULL_WIDTH = {ord(sign): chr(ord(sign) + 0xFEE0) for sign in "+-.0123456789"}
AROUND = (
    *("{}", "({})", "[{}]", "{{{}}}", "\\left({}\\right)", "$\\displaystyle {}$", "<b>{}</b>", "### {}"),
    *("## Final answer:\n{}", "**{}**", "\\boxed{{{}}}", "\\text{{{}}}", '{{"answer": "{}"}}', "`{}`"),
    *("\\lbrack {}\\rbrack", "\\mathbf{{{}}}", "\\boxed{{\\textbf{{{}}}}}", "{{'answer': {}}}", "{{'answer': '{}'}}"),
    *("\\bigl({}\\bigr)", "$\\boldsymbol{{{}}}\\,.$", "\\; {}\\,", "\\mathtt{{{}}}"),
)
"""Notations that may surround any number, fraction or expression."""

Notation = Callable[[Any], str]


@dataclass(frozen=True)
class Form:
    """The values of a task, the item that has a value as its answer, and the notations of a value."""

    values: st.SearchStrategy[Any]
    item: Callable[[Any], dict[str, Any]]
    notations: Sequence[Notation]
    is_enclosed: bool = True
    """Whether AROUND applies too."""


# --- numbers ---

WHOLE_NUMBERS = (
    str,
    "{:,}".format,
    "{}.0".format,
    "x = {}".format,
    "≈ {}".format,
    "\\approx {}".format,
    lambda value: str(value).translate(FULL_WIDTH),
    lambda value: f"{value:,}".replace(",", "{,}"),
    *(
        lambda value, blank=blank: f"{value:,}".replace(",", blank)
        for blank in ("\\,", "\\;", "\\ ", "\\!\\,", ",\\!", "{\\,}")
    ),
)


def scientific(pattern: str) -> Notation:
    """A notation with `digits` and `power` of `1.86e-06`."""

    def write(value: float) -> str:
        digits, _, power = f"{value:.3e}".partition("e")
        exponent = str(int(power))
        return pattern.format(digits=digits, power=exponent, raised=exponent.translate(SUPERSCRIPTS), e=power)

    return write


SCIENTIFIC = tuple(
    map(
        scientific,
        (
            *("{digits}e{power}", "{digits}E{e}", "{digits}\\text{{e}}{e}", "{digits}\\mathrm{{e}}{power}"),
            *("{digits} × 10{raised}", "{digits} × 10^({power})", "{digits} × 10^{power}", "{digits}*10**{power}"),
            *("{digits} \\times 10^{{{power}}}", "{digits}\\cdot10^{{{power}}}", "{digits} * 10**({power})"),
            *("{digits} x 10^{power}", "{digits}·10{raised}", "{digits} × 10<sup>{power}</sup>"),
            *("≈ {digits} × 10{raised}", "\\approx {digits} \\times 10^{{{power}}}", "{digits} \\ast 10^{{{power}}}"),
            *("{digits} × (10^{power})", "{digits} \\times {{10}}^{{{power}}}", "{digits} * (10**{power})"),
            *("{digits}\\,\\times\\,10^{{{power}}}", "{{{digits}}} \\cdot {{10}}^{{{power}}}", "{digits} ∙ 10^{power}"),
        ),
    )
)

# --- fractions ---


def as_fraction(pattern: str) -> Notation:
    """A notation with the sign, the numerator and the denominator of a fraction."""

    def write(value: Fraction) -> str:
        sign = "-" if value < 0 else ""
        return pattern.format(sign=sign, top=abs(value.numerator), bottom=value.denominator)

    return write


FRACTIONS = tuple(
    map(
        as_fraction,
        (
            *("{sign}{top}/{bottom}", "{sign}{top} / {bottom}", "{sign}{top:,}/{bottom:,}", "{sign}{top}⁄{bottom}"),
            *("{sign}\\frac{{{top}}}{{{bottom}}}", "{sign}\\dfrac{{{top}}}{{{bottom}}}", "{sign}({top}/{bottom})"),
            *("\\cfrac{{{sign}{top}}}{{{bottom}}}", "\\tfrac{{{sign}{top:,}}}{{{bottom:,}}}", "{sign}{top}∕{bottom}"),
            *(
                "{sign}<sup>{top}</sup>/<sub>{bottom}</sub>",
                "{sign}\\frac{{{top}}}{{{bottom}}}.",
                "{sign}{{{top}}}/{{{bottom}}}",
            ),
            *(
                "{sign}\\nicefrac{{{top}}}{{{bottom}}}",
                "{sign}\\sfrac{{{top}}}{{{bottom}}}",
                "P(A) = {sign}{top}/{bottom}",
            ),
        ),
    )
)

# --- sums of terms ---

Terms = list[tuple[Any, str]]
"""Coefficients, and what follows each of them: `*x**2`, `i` or an empty text."""


def plain_sum(terms: Terms) -> str:
    text = "".join(f"{' - ' if coefficient < 0 else ' + '}{abs(coefficient)}{rest}" for coefficient, rest in terms)
    return text[3:] if text.startswith(" + ") else f"-{text[3:]}"


def bracketed_sum(terms: Terms) -> str:
    return " + ".join(
        f"({coefficient}{rest})" if coefficient < 0 else f"{coefficient}{rest}" for coefficient, rest in terms
    )


SUMS: tuple[Callable[[Terms], str], ...] = (
    plain_sum,
    bracketed_sum,
    lambda terms: plain_sum(terms[::-1]),
    lambda terms: bracketed_sum(terms[::-1]),
    lambda terms: plain_sum(terms).replace(" + ", "+").replace(" - ", "-"),
    lambda terms: " + ".join(f"{coefficient}{rest}" for coefficient, rest in terms),
    lambda terms: " + ".join(f"({coefficient}){rest}" for coefficient, rest in terms),
    lambda terms: " - ".join(f"({-coefficient}{rest})" for coefficient, rest in [*terms]).replace("(", "-(", 1),
    lambda terms: plain_sum(terms).replace("-", "−"),
)
POWERS: tuple[Callable[[str], str], ...] = (
    str,
    lambda text: text.replace("**", "^"),
    lambda text: text.replace("*x**", " x^"),
    lambda text: text.replace("*x", "x"),
    lambda text: text.replace("*x", "\\cdot x").replace("**", "^"),
    lambda text: text.replace("*x", "\\ast x").replace("**", "^"),
    lambda text: re.sub(r"\*x\*\*(\d+)", r"x^{\1}", text),
    lambda text: f"P(x) = {text}",
)
IMAGINARY_UNITS = ("i", "*i", " i", "j", "\\mathrm{i}", "\\text{i}", "\\,i", " \\cdot i")

coefficients = st.integers(-(10**6), 10**6).filter(bool)
polynomials = st.dictionaries(st.integers(1, 12), coefficients, min_size=2, max_size=5).map(
    lambda powers: sorted(powers.items(), reverse=True)
)


def polynomial_terms(polynomial: Any) -> Terms:
    return [(coefficient, f"*x**{exponent}") for exponent, coefficient in polynomial]


def polynomial_notation(write: Callable[[Terms], str], respell: Callable[[str], str]) -> Notation:
    return lambda polynomial: respell(write(polynomial_terms(polynomial)))


def complex_notation(write: Callable[[Terms], str], unit: str) -> Notation:
    return lambda parts: write([(parts[0], ""), (parts[1], unit)])


# --- bases and lists ---

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def in_base(pattern: str) -> Notation:
    def write(value: tuple[int, int]) -> str:
        number, base = value
        digits = ""
        while number:
            number, digit = divmod(number, base)
            digits = DIGITS[digit] + digits
        lowered = str(base).translate(SUBSCRIPTS)
        return pattern.format(digits=digits, base=base, lowered=lowered)

    return write


BASES = tuple(
    map(
        in_base,
        (
            *("{digits}", "{digits}_{base}", "{digits}{lowered}", "({digits})_{base}", "({digits}){lowered}"),
            *("({digits})_{{{base}}}", "$({digits})_{{{base}}}$", "\\text{{{digits}}}_{{{base}}}", "`{digits}`"),
            *("{digits} (base {base})", "{digits} in base {base}", "{digits} base {base}", "{digits} (in base-{base})"),
            *(
                "**{digits}** (base {base})",
                "base {base}: {digits}",
                "\\mathtt{{{digits}}}_{{{base}}}",
                "{digits}_base{base}",
            ),
            *("{digits}<sub>{base}</sub>", "{digits}_{{\\text{{base }}{base}}}", "[{digits}]_{base}"),
        ),
    )
)


def on_lines(pattern: str) -> Notation:
    return lambda values: "\n".join(pattern.format(place, value) for place, value in enumerate(values, 1))


def lettered(values: Sequence[int]) -> str:
    return "\n".join(f"({letter}) {value}" for letter, value in zip("abcdefghi", values, strict=False))


ON_LINES = (
    *(on_lines("({}) {}"), lettered, on_lines("• {1}"), on_lines("\\item {1}"), on_lines("<li>{1}</li>")),
    *(
        lambda values, gap=gap: gap.join(map(str, values))
        for gap in (",\\,", ",\\;", "\\quad ", " \\to ", "<br>", "、")
    ),
)

FORMS = {
    "chain_sum": Form(
        st.integers(-(10**9), 10**9),
        lambda value: {"answer": str(value)},
        WHOLE_NUMBERS,
    ),
    "power_function": Form(
        st.floats(1e-30, 1e30).map(lambda value: float(f"{value:.3e}")),
        lambda value: {"answer": str(value)},
        SCIENTIFIC,
    ),
    "dice": Form(
        st.builds(Fraction, st.integers(-(10**8), 10**8), st.integers(2, 10**6)).filter(
            lambda value: value.denominator > 1
        ),
        lambda value: {"answer": str(value)},
        FRACTIONS,
    ),
    "complex_arithmetic": Form(
        st.tuples(coefficients.map(float), coefficients.map(float)),
        lambda parts: {"answer": plain_sum([(parts[0], ""), (parts[1], "i")])},
        [complex_notation(write, unit) for write in SUMS for unit in IMAGINARY_UNITS],
    ),
    "polynomial_multiplication": Form(
        polynomials,
        lambda polynomial: {"answer": plain_sum(polynomial_terms(polynomial))},
        [polynomial_notation(write, respell) for write in SUMS for respell in POWERS],
    ),
    "base_conversion": Form(
        st.tuples(st.integers(1, 10**6), st.integers(2, 36)),
        lambda value: {"answer": in_base("{digits}")(value), "metadata": {"target_base": value[1]}},
        BASES,
        is_enclosed=False,
    ),
    "number_sorting": Form(
        st.lists(st.integers(-99, 99), min_size=2, max_size=9),
        lambda values: {"answer": str(list(map(str, values)))},
        [
            on_lines("{}. {}"),
            on_lines("{}) {}"),
            on_lines("**{}.** {}"),
            on_lines(" {}.  `{}`"),
            on_lines("- {1}"),
            *ON_LINES,
        ],
        is_enclosed=False,
    ),
}


@pytest.mark.parametrize("task", sorted(FORMS))
@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_the_right_value_is_right_and_another_value_wrong_in_each_notation(task: str, data: st.DataObject) -> None:
    form = FORMS[task]
    value = data.draw(form.values)
    other = data.draw(form.values)
    notation = data.draw(st.sampled_from(form.notations))
    around = data.draw(st.sampled_from(AROUND)) if form.is_enclosed else "{}"
    assume(form.item(other)["answer"] != form.item(value)["answer"])
    item = {"question": "?", "metadata": {}, **form.item(value)}
    assert is_right(task, item, enclosed(around, notation(value)))
    assert not is_right(task, item, enclosed(around, notation(other)))
    assert not is_right(task, item, f"{notation(value)} {notation(other)}")
    assert not is_right(task, item, f"{notation(value)} or {notation(other)}")


def enclosed(around: str, text: str) -> str:
    if around.startswith('{{"'):
        text = text.replace("\\", "\\\\")
    return around.format(text)
