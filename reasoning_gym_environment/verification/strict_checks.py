"""Stricter scores: does this answer really solve this item, for tasks whose own verifier cannot tell?

`strict_score` lowers full credit for what is no solution to 0, and leaves everything else as it is. What is wrong
with the verifiers, and answers that prove it, is in audit/known_answers.py.

A check runs after the task's verifier has given its credit, so it need not read every form an answer may take,
only refuse what is no solution. Each takes (entry, answer), with the answer bare or inside `<answer>` tags, and
says True or False for any text: text is parsed with bounds and never run. An entry that is not of the check's
task raises KeyError, for that is a fault and not a wrong answer.
"""

from __future__ import annotations

import functools
import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any

from .bounded_arithmetic import BoundedFraction, RejectedAnswer, evaluate

ALMOST_FULL_CREDIT = 1.0 - 1e-9
"""Credit that is summed up from parts may miss 1.0 by rounding."""
CHECKED_FROM = {"codeio": 0.02}
"""Tasks whose weakness is about partial credit: from which score on their check applies."""


def strict_score(task: str, entry: Mapping[str, Any], answer: str, native: float) -> float:
    """`native`, what the task's own verifier gave, or 0.0 where that is full credit for no solution.

    Tasks without a check keep their score, and so does partial credit. For `composite` the item says whose it is.
    Raises KeyError if `entry` is not an item of the task.
    """
    if task == "composite":
        return strict_score(entry["metadata"]["source_dataset"], entry, answer, native)
    check = CHECKS.get(task)
    if check is None or native < CHECKED_FROM.get(task, ALMOST_FULL_CREDIT):
        return native
    return native if check(entry, answer) else 0.0


Check = Callable[[Mapping[str, Any], str], bool]

_TAGGED = re.compile(r"\s*<answer>(.*)</answer>\s*", re.DOTALL | re.IGNORECASE)
_UNREADABLE = (ValueError, TypeError, AttributeError, OverflowError, ZeroDivisionError, RecursionError)
"""What reading hostile text as JSON, numbers or expressions raises."""
_MAX_CHARS = 200_000
_AROUND = " \t\r\n.,;:!?\"'`*_$"
"""What may stand around an answer and is no part of it."""


def _reads(check: Check) -> Check:
    """Hands the check the answer without tags and blanks around; what is too long or unreadable is no solution."""

    @functools.wraps(check)
    def checked(entry: Mapping[str, Any], answer: str) -> bool:
        tagged = _TAGGED.fullmatch(answer)
        text = (tagged[1] if tagged else answer).strip()
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


_NAMED_AS_THEIR_TASK = (
    *(boxnet, codeio, coin_flip, complex_arithmetic, countdown, figlet_font, game_of_life, game_of_life_halting),
    *(gsm_symbolic, letter_jumble, number_format, number_sorting, propositional_logic, puzzle24, spell_backward),
    word_sorting,
)
CHECKS: Mapping[str, Check] = {
    **{check.__name__: check for check in _NAMED_AS_THEIR_TASK},
    "intermediate_integration": integration,
    "simple_integration": integration,
}

# --- propositional formulas, from text to truth tables ---

MAX_VARIABLES = 16
_STRENGTH = {"↔": 1, "→": 2, "∨": 3, "∧": 4, "¬": 5}
"""The weakest first: what is stronger is applied earlier."""
_CONNECT: dict[str, Callable[[int, int, int], int]] = {
    "↔": lambda a, b, all_true: ~(a ^ b) & all_true,
    "→": lambda a, b, all_true: (~a & all_true) | b,
    "∨": lambda a, b, _: a | b,
    "∧": lambda a, b, _: a & b,
}


def truth_table(text: str, variables: Iterable[str]) -> tuple[int, int]:
    """The formula's table over those of `variables` (single letters) that occur, and its number of rows.

    A table is one whole number: bit i is the formula's value in row i, and in row i the k-th variable has the value
    of bit k of i. Connectives are then the bitwise operations. Those that take two formulas group to the left.
    Raises ValueError if the text is no formula in these variables, or has more than MAX_VARIABLES.
    """
    names = sorted(set(text) & set(variables))
    if len(names) > MAX_VARIABLES:
        raise ValueError(f"more than {MAX_VARIABLES} variables")
    rows = 1 << len(names)
    columns = {name: _column(index, rows) for index, name in enumerate(names)}
    return _Reader(columns, (1 << rows) - 1).read(text), rows


def _column(index: int, rows: int) -> int:
    period = 1 << index
    block = ((1 << period) - 1) << period
    return sum(block << start for start in range(0, rows, 2 * period))


class _Reader:
    """Two stacks, no recursion: tables of what is read, and connectives that wait for their right side."""

    def __init__(self, columns: dict[str, int], all_true: int) -> None:
        self._columns = columns
        self._all_true = all_true
        self._tables: list[int] = []
        self._waiting: list[str] = []

    def read(self, text: str) -> int:
        is_operand_due = True
        for char in text:
            if char.isspace():
                continue
            # A formula begins where one is due, and is followed by a connective or a closing bracket.
            if (char in self._columns or char in "¬(") is not is_operand_due:
                raise ValueError(f"no formula: {char!r} is out of place")
            is_operand_due = self._take(char)
        if is_operand_due:
            raise ValueError("the formula is not finished")
        self._apply_down_to(0)
        if self._waiting:
            raise ValueError("a bracket is not closed")
        return self._tables[0]

    def _take(self, char: str) -> bool:
        """Returns whether an operand is due next."""
        if char in self._columns:
            self._tables.append(self._columns[char])
            return False
        if char in "¬(":
            self._waiting.append(char)
            return True
        if char == ")":
            self._apply_down_to(0)
            if not self._waiting:
                raise ValueError("a bracket was never opened")
            self._waiting.pop()
            return False
        if char not in _CONNECT:
            raise ValueError(f"{char!r} is no connective")
        self._apply_down_to(_STRENGTH[char])
        self._waiting.append(char)
        return True

    def _apply_down_to(self, strength: int) -> None:
        while self._waiting and self._waiting[-1] != "(" and _STRENGTH[self._waiting[-1]] >= strength:
            connective = self._waiting.pop()
            right = self._tables.pop()
            if connective == "¬":
                self._tables.append(~right & self._all_true)
            else:
                self._tables.append(_CONNECT[connective](self._tables.pop(), right, self._all_true))
