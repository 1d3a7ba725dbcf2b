"""How far each verifier of reasoning-gym can be trusted, and a stricter score for those that cannot.

`WEAKNESSES` names, with an answer that proves it, every task whose verifier is known to pay more than it
should. `strict_score` applies the checks: it lowers full credit for what is no solution to 0, and leaves
everything else as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from . import verifier_probes as probes
from .positive_controls import positive_control
from .verifier_checks import CHECKS

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
