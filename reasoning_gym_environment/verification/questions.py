"""What makes a question sound: items that are replaced, keys that are corrected, and sentences that leave one meaning.

    an item of reasoning-gym ── mended ──> the item with its right answer and one meaning, or None: make another item

reasoning-gym makes items whose own answer is wrong, and questions that an honest reader can take in two ways, of which
one is paid. For each task the table QUESTIONS says what is done, and chooses what keeps most of the task:

    refuses     the item has no right answer, or nothing says which of two is meant: another item takes its place
    corrects    the right answer follows from the question: it replaces the item's own
    clarifies   both readings are honest: a sentence after the question says which one is meant

Clarified questions belong to strict verification. With `native`, and in the published presets, items are the library's,
word for word. docs/questions.md has the faults, with their shares.
"""

from __future__ import annotations

import ast
import functools
import itertools
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import ROUND_HALF_UP, Context, Decimal
from fractions import Fraction
from typing import Any

from .entries import Entry, module_of, task_of
from .item_checks import has_right_answer

Variables = Mapping[str, Any]


@dataclass(frozen=True)
class Mending:
    """What is done about the faulty items of a task."""

    refuses: Callable[[Entry], bool] | None = None
    """Whether an item has no right answer, or two meanings that no sentence can settle."""

    corrects: Callable[[Entry], str] | None = None
    """The right answer of an item."""

    clarifies: Callable[[Entry], str] | None = None
    """The sentence that leaves the question one meaning, or "" if it has one."""


def mended(task: str, entry: dict[str, Any]) -> dict[str, Any] | None:
    """The item with its right answer and a question of one meaning, or None if it has none."""
    if not has_right_answer(task, entry):
        return None
    mending = QUESTIONS.get(task_of(task, entry))
    if mending is None:
        return entry
    if mending.refuses is not None and mending.refuses(entry):
        return None
    if mending.corrects is not None:
        entry = {**entry, "answer": mending.corrects(entry)}
    if mending.clarifies is not None:
        sentence = mending.clarifies(entry)
        if sentence:
            entry = {**entry, "question": f"{entry['question'].rstrip()}\n\n{sentence}"}
    return entry


# --- aiw


def aiw_refused(entry: Entry) -> bool:
    """A man without a brother is asked about his brother."""
    man = _man_without_a_family(entry)
    return man is not None and man[1] == 1


def aiw_clarified(entry: Entry) -> str:
    """Nothing says that the man of the question is a brother of the woman."""
    man = _man_without_a_family(entry)
    if man is None:
        return ""
    woman = entry["question"].split()[0]
    return f"{man[0]} is one of {woman}'s brothers."


def _man_without_a_family(entry: Entry) -> tuple[str, int] | None:
    """The man whose brother has sisters, and the number of brothers of the woman."""
    found = re.search(
        r"and she also has (\d+) brothers\. How many sisters does (\w+)'s brother have", entry["question"]
    )
    return None if found is None else (found.group(2), int(found.group(1)))


# --- bf, color_cube_rotation, leg_counting, manipulate_matrix, pool_matrix, quantum_lock, string_*, syllogism


def bf_clarified(entry: Entry) -> str:
    """Programs that count below zero show something else if a cell is larger than a byte."""
    return "Each cell of the memory is a byte: one less than 0 is 255, and one more than 255 is 0."


def color_cube_rotation_clarified(entry: Entry) -> str:
    """There are two ways to turn the bottom to the top."""
    if "bottom" not in entry["metadata"]["rotations"]:
        return ""
    return "Whenever the bottom side is brought to the top, the left and the right side stay where they are."


def leg_counting_clarified(entry: Entry) -> str:
    """The arms of a starfish count as legs here."""
    return "Count a starfish as having 5 legs." if "starfish" in entry["question"] else ""


_MIRRORS = {
    "Horizontally mirror": "Mirroring horizontally reverses the order of the rows.",
    "Vertically mirror": "Mirroring vertically reverses the order of the elements in each row.",
}


def manipulate_matrix_clarified(entry: Entry) -> str:
    """A horizontal mirror can swap top and bottom, or left and right. A rotation has no direction."""
    sentences = [sentence for operation, sentence in _MIRRORS.items() if operation in entry["question"]]
    if re.search("Rotate the matrix (90|270) degrees", entry["question"]):
        sentences.append("Rotations are clockwise.")
    return " ".join(sentences)


def pool_matrix_clarified(entry: Entry) -> str:
    """Nothing says what becomes of a window that the edge cuts off."""
    metadata = entry["metadata"]
    if metadata["rows"] % metadata["pool_size"] == 0 and metadata["cols"] % metadata["pool_size"] == 0:
        return ""
    return "A window that extends beyond the right or the lower edge is pooled over the elements that it has."


def quantum_lock_clarified(entry: Entry) -> str:
    """The text lets a press of any button toggle the light, and the key lets some buttons do nothing."""
    return "A button that is marked with a colour of the light can only be pressed while the light has that colour."


def string_manipulation_clarified(entry: Entry) -> str:
    """A text of an even length has two characters in its middle."""
    if "remove the middle character" not in entry["question"]:
        return ""
    return "If the length is even, the middle character is the first character of the second half."


def string_synthesis_clarified(entry: Entry) -> str:
    """A cycle can go on with the next rule, or begin again with the first."""
    return "Each time, apply the first rule of the list that can be applied, and then begin again with rule 1."


def syllogism_clarified(entry: Entry) -> str:
    """In modern logic, `All A are B` holds if there is no A."""
    return "Take for granted that at least one of each kind that is named exists."


# --- calendar_arithmetic


def calendar_arithmetic_clarified(entry: Entry) -> str:
    """A date of figures can begin with the day, and a year without a number can be a leap year."""
    metadata = entry["metadata"]
    if re.search(r"\d\d/\d\d/\d{4}", entry["question"]):
        return "The date is written as month/day/year."
    if "first_day" in metadata and date.fromisoformat(metadata["target_date"]).month > 2:
        return "The year is not a leap year."
    return ""


# --- decimal_arithmetic


def decimal_arithmetic_corrected(entry: Entry) -> str:
    """The library rounds after each step. Here the exact value is rounded once, to the digits of the question."""
    digits, expression = re.findall(r"maximum of (\d+) significant digits.*\n(.*) = \?", entry["question"])[0]
    exact = _exact(ast.parse(expression, mode="eval").body)
    return str(rounded(exact, int(digits)))


_OPERATIONS: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def _exact(node: ast.expr) -> Fraction:
    """The value of an expression of decimal numbers."""
    if isinstance(node, ast.BinOp):
        return _OPERATIONS[type(node.op)](_exact(node.left), _exact(node.right))
    assert isinstance(node, ast.Constant), "the task has binary operations only"
    return Fraction(str(node.value))


def rounded(value: Fraction, digits: int) -> Decimal:
    """The value with at most so many significant digits. A half is rounded away from zero."""
    # Division rounds once, to the nearest number, whatever the length of the exact value.
    context = Context(prec=digits, rounding=ROUND_HALF_UP)
    return context.divide(Decimal(value.numerator), Decimal(value.denominator))


# --- family_relationships


NEUTRAL_NAMES = {
    "he": frozenset({"Atlas", "Finn", "Jayden", "Kai", "Logan", "Phoenix", "Ryder", "Zion"}),
    "she": frozenset({"Nova", "Rain", "River", "Sage", "Sky", "Winter"}),
}
"""Names of the task that men and women have, by what the task takes them for."""


def family_relationships_clarified(entry: Entry) -> str:
    """The answer depends on whether the person is a man or a woman, and some names do not say so."""
    person = entry["metadata"]["person1"]
    if person in NEUTRAL_NAMES["he"]:
        return f"{person} is male."
    if person in NEUTRAL_NAMES["she"]:
        return f"{person} is female."
    return ""


# --- gsm_symbolic


def gsm_symbolic_refused(entry: Entry) -> bool:
    """Some questions have a share of a student, of a card or of a pan as their answer, or no finite decimal number."""
    variables = entry["metadata"]["variables"]
    if "percent_group23" in variables:
        first = Fraction(variables["total_students"] * variables["percent_group1"], 100)
        others = (variables["total_students"] - first) * Fraction(variables["percent_group23"], 100)
        return not (first.denominator == others.denominator == 1)
    if "per_pan" in variables:
        return bool(variables["total_items"] % variables["per_pan"])
    value = _exact_value(variables)
    if value is None:
        return False
    if "num_item2" in variables:
        return value.denominator != 1
    return 100 % value.denominator != 0


def gsm_symbolic_corrected(entry: Entry) -> str:
    """Some templates cut the result off to a whole number, or compute it with floats."""
    value = _exact_value(entry["metadata"]["variables"])
    if value is None:
        return str(entry["answer"])
    if value.denominator == 1:
        return str(value.numerator)
    return f"{float(value):.2f}".rstrip("0")


def _exact_value(variables: Variables) -> Fraction | None:
    """The result of a template that computes it inexactly; None for another template."""
    if "minutes_per_page" in variables:
        return Fraction(variables["total_minutes"], 60)
    if "more_cards" in variables:
        second = Fraction(variables["n1"] * (100 + variables["p"]), 100)
        return 2 * (variables["n1"] + second)
    if "num_item2" in variables:
        spent = Fraction(str(variables["total_spent"])) * (100 - variables["percent_change"])
        return (spent - variables["num_item1"] * variables["price1"]) / variables["price2"]
    if "sidewalk_distance" in variables:
        speed = Fraction(variables["beach_distance"], variables["beach_time"]) * variables["speed_multiplier"]
        return variables["beach_time"] + variables["sidewalk_distance"] / speed
    if "frac1" in variables and "mult1" in variables and "n2_result" in variables:
        return variables["n1"] * Fraction(str(variables["frac1"])) + variables["n2"] * Fraction(str(variables["mult1"]))
    if "rounded_prices" in variables:
        prices = [_half_up(Fraction(str(price))) for price in variables["original_prices"]]
        return Fraction(sum(price * number for price, number in zip(prices, variables["quantities"], strict=True)))
    if "unit_price" in variables and "remaining" in variables:
        paid = Fraction(str(variables["unit_price"])) * variables["quantity"]
        return Fraction(f"{variables['initial_amount']:.2f}") - paid
    return None


def _half_up(value: Fraction) -> int:
    return math.floor(value + Fraction(1, 2))


# --- intermediate_integration


def intermediate_integration_corrected(entry: Entry) -> str:
    """Where the library's own answer is an integral that it has not solved."""
    answer = str(entry["answer"])
    if "Integral" not in answer:
        return answer
    # reasoning-gym, which made the item, has imported it.
    import sympy

    metadata = entry["metadata"]
    integrand = sympy.sympify(metadata["integrand"])
    return f"{sympy.integrate(integrand, sympy.Symbol(metadata['variable']))} + C"


def intermediate_integration_clarified(entry: Entry) -> str:
    """`asin(x)` can be read as a product."""
    names = [name for name in ("asin", "atan") if name in entry["question"]]
    if not names:
        return ""
    meanings = {"asin": "asin is the inverse sine", "atan": "atan is the inverse tangent"}
    return f"Here {' and '.join(meanings[name] for name in names)}."


# --- number_sequence


def number_sequence_refused(entry: Entry) -> bool:
    """Some sequences follow a simpler rule than the rule that made them, and this rule continues them differently."""
    *shown, hidden = entry["metadata"]["sequence"]
    return any(value != hidden for value in continuations(shown))


def continuations(terms: Sequence[int]) -> Iterator[int]:
    """The next term by each simple rule that the terms follow, if there are enough terms to see it."""
    differences = _differences(terms)
    for degree in range(1, 3):
        # A line through two points, or a parabola through three, says nothing.
        if len(terms) >= degree + 3 and len(set(differences[degree])) == 1:
            yield sum(row[-1] for row in differences[: degree + 1])
            return
    if len(terms) >= 4 and all(terms[:-1]):
        ratios = {Fraction(after, before) for before, after in itertools.pairwise(terms)}
        if len(ratios) == 1:
            following = terms[-1] * ratios.pop()
            if following.denominator == 1:
                yield following.numerator
                return
    if len(terms) >= 5 and all(a + b == c for a, b, c in zip(terms, terms[1:], terms[2:], strict=False)):
        yield terms[-1] + terms[-2]


def _differences(terms: Sequence[int]) -> list[list[int]]:
    rows = [list(terms)]
    while len(rows[-1]) > 1:
        row = rows[-1]
        rows.append([after - before for before, after in itertools.pairwise(row)])
    return rows


# --- power_function


def power_function_clarified(entry: Entry) -> str:
    """By the usual precedence, `-2^2` is -4. Here it is 4."""
    metadata = entry["metadata"]
    base = metadata["base"]
    exponent = metadata["exponent"]
    if base >= 0 or exponent % 2:
        return ""
    return f"Here {base}^{exponent} means ({base})^{exponent}."


# --- sentence_reordering


def sentence_reordering_corrected(entry: Entry) -> str:
    """If a word is repeated, the library puts equal words side by side."""
    words = entry["answer"].split()
    if len(set(words)) == len(words):
        return str(entry["answer"])
    return _sentences()[tuple(sorted(words))]


def sentence_reordering_clarified(entry: Entry) -> str:
    """Other orders of the words are often good sentences too."""
    return "Give the sentence as it stands in Project Gutenberg's edition of `In the Year 2889`."


@functools.cache
def _sentences() -> dict[tuple[str, ...], str]:
    """The sentences of the story, by their sorted words."""
    text = module_of("sentence_reordering").read_data_file("in_the_year_2889.txt")
    found = {}
    for sentence in re.findall(r"[^.!?]+[.!?]", text):
        words = sentence.split()
        found[tuple(sorted(words))] = " ".join(words)
    return found


# --- simple_geometry


def simple_geometry_refused(entry: Entry) -> bool:
    """Most polygons of the library are not convex: the remaining angle would have 180 degrees or more."""
    return float(entry["answer"]) >= 180


# --- codeio


def codeio_refused(entry: Entry) -> bool:
    """Half of the questions ask for an input of a program. Many inputs give the shown output, and one is paid."""
    return "predict a feasible input" in entry["question"]


QUESTIONS: Mapping[str, Mending] = {
    "aiw": Mending(refuses=aiw_refused, clarifies=aiw_clarified),
    "bf": Mending(clarifies=bf_clarified),
    "calendar_arithmetic": Mending(clarifies=calendar_arithmetic_clarified),
    "codeio": Mending(refuses=codeio_refused),
    "color_cube_rotation": Mending(clarifies=color_cube_rotation_clarified),
    "decimal_arithmetic": Mending(corrects=decimal_arithmetic_corrected),
    "family_relationships": Mending(clarifies=family_relationships_clarified),
    "gsm_symbolic": Mending(refuses=gsm_symbolic_refused, corrects=gsm_symbolic_corrected),
    "intermediate_integration": Mending(
        corrects=intermediate_integration_corrected, clarifies=intermediate_integration_clarified
    ),
    "leg_counting": Mending(clarifies=leg_counting_clarified),
    "manipulate_matrix": Mending(clarifies=manipulate_matrix_clarified),
    "number_sequence": Mending(refuses=number_sequence_refused),
    "pool_matrix": Mending(clarifies=pool_matrix_clarified),
    "power_function": Mending(clarifies=power_function_clarified),
    "quantum_lock": Mending(clarifies=quantum_lock_clarified),
    "sentence_reordering": Mending(corrects=sentence_reordering_corrected, clarifies=sentence_reordering_clarified),
    "simple_geometry": Mending(refuses=simple_geometry_refused),
    "string_manipulation": Mending(clarifies=string_manipulation_clarified),
    "string_synthesis": Mending(clarifies=string_synthesis_clarified),
    "syllogism": Mending(clarifies=syllogism_clarified),
}
"""What is done about the questions of each task that has faults."""
