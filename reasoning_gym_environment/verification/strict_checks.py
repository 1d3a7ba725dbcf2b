"""How far each verifier of reasoning-gym can be trusted, and a stricter score for those that cannot.

`WEAKNESSES` names, with an answer that proves it, every task whose verifier is known to pay more than it
should. `strict_score` applies the checks: it lowers full credit for what is no solution to 0, and leaves
everything else as it is.

Stricter checks: does this answer really solve this item, for tasks whose own verifier cannot tell.

A check runs after the task's verifier has given its credit, so it need not read every form an answer may take,
only refuse what is no solution. Each takes (entry, answer), with the answer bare or inside `<answer>` tags, and
says True or False for any text: text is parsed with bounds and never run. An entry that is not of the check's
task raises KeyError, for that is a fault and not a wrong answer.

Propositional formulas, from text to truth tables.

A truth table is one whole number: bit i is the formula's value in row i, and in row i the k-th variable has
the value of bit k of i. Connectives are then the bitwise operations. Weakest first: ↔ → ∨ ∧ ¬; those that
take two formulas group to the left.
"""

from __future__ import annotations

import functools
import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from typing import Any

from . import verifier_probes as probes
from .bounded_arithmetic import BoundedFraction, RejectedAnswer, evaluate
from .formulas import truth_table
from .positive_controls import positive_control

__all__ = ["CHECKS", "WEAKNESSES", "Kind", "Weakness", "positive_control", "strict_score", "table"]

KNOWN_FOR = "0.1.25"
"""The reasoning-gym that was examined."""
FULL_CREDIT = 1.0 - 1e-9
"""Credit that is summed up from parts may miss 1.0 by rounding."""
CHECKED_FROM = {"codeio": 0.02}
"""Tasks whose weakness is about partial credit: from which score on their check applies."""


class Kind(str, Enum):
    """What is wrong with a verifier."""

    UNSOUND = "unsound"
    """It pays full credit, or nearly, for a wrong answer. There is a stricter check."""
    GENEROUS = "generous"
    """It pays a trivial answer much of the credit. Nothing is done about it."""
    NO_ORACLE = "no_oracle"
    """Its items have no answer of their own, so it is not shown on each item that a right answer is paid."""


@dataclass(frozen=True)
class Weakness:
    """`probe` makes the answer that proves it from an item; for NO_ORACLE the text is empty.

    The task's verifier pays the probe at least `pays` on average over items of the config `config` (the default
    config with these fields changed, where it takes special items to show the weakness).
    """

    task: str
    kind: Kind
    reason: str
    probe: Callable[[Mapping[str, Any]], str]
    pays: float
    config: Mapping[str, Any] = field(default_factory=dict, hash=False)


def strict_score(task: str, entry: Mapping[str, Any], answer: str, native: float) -> float:
    """`native`, what the task's own verifier gave, or 0.0 where that is full credit for no solution.

    Tasks without a check keep their score, and so does partial credit. For `composite` the item says whose it is.
    Raises KeyError if `entry` is not an item of the task.
    """
    if task == "composite":
        return strict_score(entry["metadata"]["source_dataset"], entry, answer, native)
    check = CHECKS.get(task)
    if check is None or native < CHECKED_FROM.get(task, FULL_CREDIT):
        return native
    return native if check(entry, answer) else 0.0


def table() -> str:
    """The weaknesses as a Markdown table."""
    rows = ["| task | kind | why | the probe earns |", "|---|---|---|---|"]
    for weakness in WEAKNESSES:
        pays = f"{weakness.pays:g}" if weakness.kind is not Kind.NO_ORACLE else ""
        rows.append(f"| {weakness.task} | {weakness.kind.value} | {weakness.reason} | {pays} |")
    return "\n".join(rows)


def _unsound(task: str, reason: str, probe: probes.Probe, pays: float = 1.0, **config: Any) -> Weakness:
    return Weakness(task, Kind.UNSOUND, reason, probe, pays, config)


def _generous(task: str, reason: str, probe: probes.Probe, pays: float) -> Weakness:
    return Weakness(task, Kind.GENEROUS, reason, probe, pays)


def _no_oracle(task: str, reason: str) -> Weakness:
    return Weakness(task, Kind.NO_ORACLE, reason, probes.always(""), 0.0)


_INTEGRAL = "It differentiates the answer, so the integral written down but not solved is right."
_BOTH = "An answer that contains the right one earns its share of the characters: `TrueFalse` is half right."
_GIVEN = "Each right cell counts, those given in the question too: the puzzle with 1 in every blank."

_UNSOUND = (
    _unsound(
        "boxnet",
        "Orders that cannot be carried out are passed over, and targets may be moved: a plan that has every "
        "square's agent move everything needs no look at the boxes.",
        probes.sweep_all_squares,
    ),
    _unsound(
        "codeio",
        "The credit falls with the edits over the size of the larger JSON, and empty keys add size but no edits.",
        probes.nested_empty_keys,
        0.7,
    ),
    _unsound(
        "coin_flip",
        "Digits are compared up to the end of the shorter number (`0` is all right for 0.3125), and within 1e-4 "
        "every small probability is 0.",
        probes.first_digit,
    ),
    _unsound(
        "complex_arithmetic", "The distance to `nan` is no number, and counts as none at all.", probes.always("nan")
    ),
    _unsound(
        "countdown",
        "Only numbers that stand as whole words are counted as used: `832e0` is the target itself and counts as none. "
        "Functions are let through, and results that are off by 0.001%.",
        probes.numbers_in_disguise,
    ),
    _unsound(
        "figlet_font",
        "Each right letter earns 0.1, so of a word of 11 or more letters ten are enough.",
        probes.ten_letters_right,
        min_word_len=11,
        max_word_len=30,
    ),
    _unsound("game_of_life", "Cells beyond the board are not looked at.", probes.larger_board),
    _unsound("game_of_life_halting", "Any text that is not empty is paid.", probes.opposite),
    _unsound(
        "gsm_symbolic",
        "The first digits in the text are the answer: not the sign before them, nor what follows (`59,000`, `59/2`).",
        probes.other_sign,
        0.9,
    ),
    _unsound("intermediate_integration", _INTEGRAL, probes.unevaluated_integral),
    _unsound("letter_jumble", "Words after the last one asked for are not looked at.", probes.solution_and(" and")),
    _unsound(
        "number_format",
        "Numbers within 0.01 of the right one are paid, and at higher levels other candidates are that close.",
        probes.next_candidate,
        min_num_candidates=300,
        max_num_candidates=300,
        max_delta=0.1,
    ),
    _unsound(
        "number_sorting",
        "A list of `NaN` counts as sorted and as close to every number; any number may be off by 1.",
        probes.all_nan,
    ),
    _unsound(
        "propositional_logic",
        "Unknown words count as variables, so that a premise `∨ anything` is a conclusion; from premises that "
        "contradict each other so does everything, tautologies inside `<answer>` tags included.",
        probes.premise_or_anything,
        0.8,
    ),
    _unsound(
        "puzzle24",
        "Any four numbers in range that make 24 to the digits before the point, however else it is made.",
        probes.number_not_given,
    ),
    _unsound("simple_integration", _INTEGRAL, probes.unevaluated_integral),
    _unsound(
        "spell_backward",
        "Letters after the last one are not looked at (for some lengths: 6, 9 and 10 among others).",
        probes.solution_and("x"),
        min_word_len=9,
        max_word_len=9,
    ),
    _unsound("word_sorting", "Words after the last one are not looked at.", probes.solution_and(", and")),
)

_GENEROUS = (
    _generous("coin_flip", "Agreeing leading characters earn credit: `0.5`.", probes.always("0.5"), 0.5),
    _generous("course_schedule", _BOTH, probes.always("TrueFalse"), 0.44),
    _generous("futoshiki", _GIVEN, probes.ones_in_blanks, 0.35),
    _generous("game_of_life", "Each right cell counts: the board on which all is dead.", probes.dead_board, 0.9),
    _generous("isomorphic_strings", _BOTH, probes.always("TrueFalse"), 0.44),
    _generous(
        "knights_knaves",
        "One right role of several earns 0.3 and more: everybody tells the truth.",
        probes.all_truthful,
        0.4,
    ),
    _generous("mini_sudoku", _GIVEN, probes.ones_in_blanks, 0.4),
    _generous(
        "polynomial_equations", "One of several solutions is half right: 0 often is one.", probes.always("0"), 0.25
    ),
    _generous("prime_factorization", "Any factors earn 0.5: the number itself.", probes.number_itself, 0.5),
    _generous(
        "propositional_logic",
        "A premise repeated is a valid conclusion, and a third of reasoning-gym's own examples say no more.",
        probes.first_premise,
        0.6,
    ),
    _generous("ransom_note", _BOTH, probes.always("TrueFalse"), 0.44),
    _generous("rectangle_count", "A guess that is off by up to 4 earns up to 0.64: 5.", probes.always("5"), 0.3),
    _generous("sudoku", _GIVEN, probes.ones_in_blanks, 0.4),
    _generous(
        "syllogism", "An answer that contains the right one earns its share: `YesNo`.", probes.always("YesNo"), 0.4
    ),
    _generous(
        "time_intervals",
        "The error counts against the largest difference there can be: the middle of the range.",
        probes.middle_of_the_range,
        0.65,
    ),
)

_NO_ORACLE = (
    _no_oracle("boxnet", "No answer; a plan can be made from the item."),
    _no_oracle("graph_color", "No answer; the metadata has an example."),
    _no_oracle("propositional_logic", "No answer; the metadata has an example, or the premises serve as one."),
    _no_oracle("rubiks_cube", "No answer; the metadata has an example for cubes of size 3."),
    _no_oracle("rush_hour", "No answer, and none is at hand: that a right answer is paid is not tested."),
)

WEAKNESSES: tuple[Weakness, ...] = (*_UNSOUND, *_GENEROUS, *_NO_ORACLE)


Check = Callable[[Mapping[str, Any], str], bool]

_TAGGED = re.compile(r"\s*<answer>(.*)</answer>\s*", re.DOTALL | re.IGNORECASE)
_UNREADABLE = (ValueError, TypeError, AttributeError, OverflowError, ZeroDivisionError, RecursionError)
"""What reading hostile text as JSON, numbers or expressions raises."""
_MAX_CHARS = 200_000
_AROUND = " \t\r\n.,;:!?\"'`*_$"
"""What may stand around an answer and is no part of it."""


def bare(answer: str) -> str:
    """The answer without surrounding blanks and `<answer>` tags."""
    tagged = _TAGGED.fullmatch(answer)
    return (tagged[1] if tagged else answer).strip()


def _reads(check: Check) -> Check:
    """Hands the check the bare answer; text that is too long or cannot be read is no solution."""

    @functools.wraps(check)
    def checked(entry: Mapping[str, Any], answer: str) -> bool:
        text = bare(answer)
        if len(text) > _MAX_CHARS:
            return False
        try:
            return check(entry, text)
        except _UNREADABLE:
            return False

    return checked


# --- numbers ---


@_reads
def complex_arithmetic(entry: Mapping[str, Any], answer: str) -> bool:
    # exp(-distance) of a distance that is no number is no number either, and min(1.0, nan) is 1.0.
    return "nan" not in answer.lower()


COIN_FLIP_TOLERANCE = 1e-4
"""The verifier's own. A probability may be smaller than that, so an error must be small against it too."""


@_reads
def coin_flip(entry: Mapping[str, Any], answer: str) -> bool:
    given, right = float(BoundedFraction(answer.replace(",", ""))), float(entry["answer"])
    allowed = COIN_FLIP_TOLERANCE
    if 0.0 < right < 1.0:
        allowed = min(allowed, right / 2, (1.0 - right) / 2)
    return abs(given - right) <= allowed


@_reads
def number_format(entry: Mapping[str, Any], answer: str) -> bool:
    metadata = entry["metadata"]
    given, right = float(answer.replace(",", "")), metadata["solution"]
    others = [other for other in metadata["candidates"] if not math.isclose(other, right, rel_tol=1e-15)]
    return all(abs(given - right) < abs(given - other) for other in others)


_FIRST_NUMBER = re.compile(r"[-−]?\d+(?:,\d{3})*(?:\.\d+)?(?:[eE][-+]?\d{1,3})?(?:\s*/\s*\d+)?")


@_reads
def gsm_symbolic(entry: Mapping[str, Any], answer: str) -> bool:
    found = _FIRST_NUMBER.search(answer)
    return found is not None and _number(found[0]) == Fraction(entry["answer"].replace(",", ""))


def _number(text: str) -> Fraction:
    above, _, below = text.replace(",", "").replace("−", "-").partition("/")
    return Fraction(BoundedFraction(above)) / Fraction(BoundedFraction(below or "1"))


@_reads
def number_sorting(entry: Mapping[str, Any], answer: str) -> bool:
    given = [float(number) for number in json.loads(answer.replace("'", '"'))]
    right = [float(number) for number in entry["metadata"]["sorted_numbers"]]
    return len(given) == len(right) and all(math.isclose(a, b, abs_tol=1e-9) for a, b in zip(given, right, strict=True))


# --- expressions ---


@_reads
def puzzle24(entry: Mapping[str, Any], answer: str) -> bool:
    return _makes(answer, Fraction(24), entry["metadata"]["numbers"], powers=False)


@_reads
def countdown(entry: Mapping[str, Any], answer: str) -> bool:
    metadata = entry["metadata"]
    return _makes(answer, Fraction(int(metadata["target"])), metadata["numbers"], powers=True)


def _makes(expression: str, target: Fraction, numbers: list[int], *, powers: bool) -> bool:
    value, used = evaluate(expression.rstrip(". \n"), powers=powers)
    return value == target and Counter(used) == Counter(map(int, numbers))


@_reads
def integration(entry: Mapping[str, Any], answer: str) -> bool:
    """An integral that is only written down counts where reasoning-gym's own answer has the same one."""
    # Python reads identifiers in this form, so no other letters can spell the name.
    if "integra" not in unicodedata.normalize("NFKC", answer).lower():
        return True
    own = _integrals(entry["answer"], entry["metadata"]["variable"])
    try:
        return _integrals(answer.strip(_AROUND), entry["metadata"]["variable"]) <= own
    except RejectedAnswer:
        return False


def _integrals(text: str, variable: str) -> set[Any]:
    import sympy

    names = {variable: sympy.Symbol(variable), "C": sympy.Symbol("C")}
    return set(sympy.sympify(_parser()(text, names)).atoms(sympy.Integral))


@functools.cache
def _parser() -> Callable[..., Any]:
    # Loads sympy, which scoring workers have loaded already and nobody else needs.
    from .bounded_sympy import ExpressionParser

    return ExpressionParser()


@_reads
def propositional_logic(entry: Mapping[str, Any], answer: str) -> bool:
    """A formula in the item's variables that says something. That it follows, the verifier has found."""
    table, rows = truth_table(answer, entry["metadata"]["variables"])
    return table != (1 << rows) - 1


# --- words ---

_WRAPPING = frozenset({"boxed", "text", "textbf", "mathbf", "mathrm", "the", "final", "answer", "is"})
_MAX_SENTENCE = 1000


@_reads
def game_of_life_halting(entry: Mapping[str, Any], answer: str) -> bool:
    words = set(re.findall(r"[^\W\d_]+", answer[:_MAX_SENTENCE].lower())) - _WRAPPING
    return words == {str(entry["answer"]).lower()} and len(answer) <= _MAX_SENTENCE


def _plain(text: str) -> str:
    return text.strip(_AROUND).lower()


@_reads
def figlet_font(entry: Mapping[str, Any], answer: str) -> bool:
    return _plain(answer.replace(" ", "")) == _plain(entry["answer"])


@_reads
def spell_backward(entry: Mapping[str, Any], answer: str) -> bool:
    return _plain(answer) == _plain(entry["answer"])


@_reads
def letter_jumble(entry: Mapping[str, Any], answer: str) -> bool:
    return _plain(answer).split() == _plain(entry["answer"]).split()


@_reads
def word_sorting(entry: Mapping[str, Any], answer: str) -> bool:
    given = [word.strip() for word in answer.split(",")]
    return [word for word in given if word] == list(entry["metadata"]["sorted_words"])


# --- structures ---


@_reads
def game_of_life(entry: Mapping[str, Any], answer: str) -> bool:
    return bool(json.loads(answer) == json.loads(entry["answer"]))


CODEIO_SLACK_CHARS = 8
CODEIO_SLACK_FACTOR = 1.5


@_reads
def codeio(entry: Mapping[str, Any], answer: str) -> bool:
    """The credit shrinks with the edit distance over the answer's size, so padding must not make it large."""
    try:
        right, given = json.loads(entry["answer"]), json.loads(answer[answer.find("{") : answer.rfind("}") + 1])
    except ValueError:
        return True  # then the verifier has only compared the texts
    limit = CODEIO_SLACK_FACTOR * len(json.dumps(right)) + CODEIO_SLACK_CHARS
    written = json.dumps(given)
    return bool(given == right) or (len(written) <= limit and '"": ' not in written)


_AGENT = re.compile(r"\D*(\d+(?:\.\d+)?)\D+(\d+(?:\.\d+)?)\D*", re.ASCII)
_MAX_ORDER = 200
_MOVE = re.compile(r"\s*move\((box_[^,()]*),\s*(.*?)\)\s*", re.DOTALL)


@_reads
def boxnet(entry: Mapping[str, Any], answer: str) -> bool:
    """Every order moves a box that is there, to a square beside it or onto its target; in the end none is left."""
    squares = {place: list(items) for place, items in entry["metadata"]["initial_state"].items()}
    for step in json.loads(answer):
        moved = set()
        for agent, order in step.items():
            place = _AGENT.fullmatch(agent[:_MAX_ORDER])
            if place is None or place.groups() in moved or not _carry_out(order, place, squares):
                return False
            moved.add(place.groups())
    return not any(item.startswith("box_") for items in squares.values() for item in items)


def _carry_out(order: str, agent: re.Match[str], squares: dict[str, list[str]]) -> bool:
    row, column = float(agent[1]), float(agent[2])
    here = squares.get(f"{row}_{column}")
    move = _MOVE.fullmatch(order[:_MAX_ORDER])
    if here is None or move is None or move[1] not in here:
        return False
    if move[2] == move[1].replace("box_", "target_", 1) and move[2] in here:
        here.remove(move[2])
    else:
        beside = _AGENT.fullmatch(move[2])
        if beside is None or abs(row - float(beside[1])) + abs(column - float(beside[2])) != 1:
            return False
        there = squares.get(f"{float(beside[1])}_{float(beside[2])}")
        if there is None:
            return False
        there.append(move[1])
    here.remove(move[1])
    return True


CHECKS: Mapping[str, Check] = {
    "boxnet": boxnet,
    "codeio": codeio,
    "coin_flip": coin_flip,
    "complex_arithmetic": complex_arithmetic,
    "countdown": countdown,
    "figlet_font": figlet_font,
    "game_of_life": game_of_life,
    "game_of_life_halting": game_of_life_halting,
    "gsm_symbolic": gsm_symbolic,
    "intermediate_integration": integration,
    "letter_jumble": letter_jumble,
    "number_format": number_format,
    "number_sorting": number_sorting,
    "propositional_logic": propositional_logic,
    "puzzle24": puzzle24,
    "simple_integration": integration,
    "spell_backward": spell_backward,
    "word_sorting": word_sorting,
}


_CONNECT: dict[str, Callable[[int, int, int], int]] = {
    "↔": lambda a, b, all_true: ~(a ^ b) & all_true,
    "→": lambda a, b, all_true: (~a & all_true) | b,
    "∨": lambda a, b, _: a | b,
    "∧": lambda a, b, _: a & b,
}
