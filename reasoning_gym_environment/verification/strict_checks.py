"""Stricter scores: does this answer really solve this item, for tasks whose own verifier cannot tell?

`refusal` names what is wrong with an answer that its task's verifier pays. What is wrong with the verifiers, and
answers that prove it, is in audit/known_answers.py.

A check runs after the task's verifier has given its credit, so it need not read every form an answer may take,
only refuse what is no solution. Most look at full credit alone; some also at partial credit that no thought earns.
Each takes (entry, answer), with the answer bare or inside `<answer>` tags, and says True or False for any text: text
is parsed with bounds and never run. An entry that is not of the check's task raises KeyError, for that is a fault and
not a wrong answer.
"""

from __future__ import annotations

import functools
import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from .bounded_arithmetic import BoundedFraction, evaluate
from .formulas import connectives, over_all

Entry = Mapping[str, Any]

ALMOST_FULL_CREDIT = 1.0 - 1e-9
"""Credit that is summed up from parts may miss 1.0 by rounding."""
SOME_CREDIT = 1e-9
BELOW_FULL_CREDIT = 1.0 - 2e-9

_TAGGED = re.compile(r"\s*<answer>(.*)</answer>\s*", re.DOTALL | re.IGNORECASE)
_UNREADABLE = (ValueError, TypeError, AttributeError, OverflowError, ZeroDivisionError, RecursionError)
"""What reading hostile text as JSON, numbers or expressions raises."""
_MAX_CHARS = 200_000
_AROUND = " \t\r\n.,;:!?\"'`*_$"
"""What may stand around an answer and is no part of it."""


@dataclass(frozen=True)
class Check:
    """`holds(entry, answer)`: whether an answer deserves credit from `credit_from` to `credit_to`; if not, `reason`."""

    holds: Callable[[Entry, str], bool]
    reason: str
    credit_from: float = ALMOST_FULL_CREDIT
    credit_to: float = 1.0

    @property
    def __name__(self) -> str:
        return self.holds.__name__

    def __call__(self, entry: Entry, answer: str) -> bool:
        """Reads the answer without tags and blanks around; what is too long or unreadable is no solution."""
        tagged = _TAGGED.fullmatch(answer)
        text = (tagged[1] if tagged else answer).strip()
        if len(text) > _MAX_CHARS:
            return False
        try:
            return self.holds(entry, text)
        except _UNREADABLE:
            return False


def refusal(task: str, entry: Entry, answer: str, native: float) -> str:
    """Why an answer that the task's own verifier pays `native` is worth nothing; "" if there is nothing against it.

    Raises KeyError if `entry` is not an item of the task. For `composite` the item says whose it is.
    """
    if task == "composite":
        return refusal(entry["metadata"]["source_dataset"], entry, answer, native)
    check = CHECKS.get(task)
    if check is None or not check.credit_from <= native <= check.credit_to or check(entry, answer):
        return ""
    return check.reason


def _refuses(reason: str, **credit: float) -> Callable[[Callable[[Entry, str], bool]], Check]:
    return lambda holds: Check(holds, reason, **credit)


# --- numbers ---


@_refuses("it is not a number")
def complex_arithmetic(entry: Entry, answer: str) -> bool:
    # exp(-distance) of a distance that is no number is none either, and min(1.0, nan) is 1.0. Blanks are passed over.
    return "nan" not in "".join(answer.lower().split())


COIN_FLIP_TOLERANCE = 1e-4
"""The verifier's own. A probability may be smaller than that, so an error must be small against it too."""


@_refuses("it is not within the tolerance")
def coin_flip(entry: Entry, answer: str) -> bool:
    given, right = float(BoundedFraction(answer.replace(",", ""))), float(entry["answer"])
    # An honest one is rounded to two digits, and what is certain is 0 or 1; a constant is within a tenth of some.
    return abs(given - right) <= max(min(COIN_FLIP_TOLERANCE, right / 50, (1.0 - right) / 50), 1e-9)


@_refuses("it is another number")
def number_format(entry: Entry, answer: str) -> bool:
    # Candidates have three decimals.
    return abs(float(answer.replace(",", "")) - entry["metadata"]["solution"]) < 1e-5


_FIRST_NUMBER = re.compile(r"[-−]?\d+(?:,\d{3})*(?:\.\d+)?(?:[eE][-+]?\d{1,3})?(?:\s*/\s*\d+)?")


@_refuses("the number it names first is another")
def gsm_symbolic(entry: Entry, answer: str) -> bool:
    found = _FIRST_NUMBER.search(answer)
    return found is not None and _number(found[0]) == Fraction(entry["answer"].replace(",", ""))


def _number(text: str) -> Fraction:
    above, _, below = text.replace(",", "").replace("−", "-").partition("/")
    return Fraction(BoundedFraction(above)) / Fraction(BoundedFraction(below or "1"))


@_refuses("its numbers are not those of the question")
def number_sorting(entry: Entry, answer: str) -> bool:
    given = [float(number) for number in json.loads(answer.replace("'", '"'))]
    right = [float(number) for number in entry["metadata"]["sorted_numbers"]]
    return len(given) == len(right) and all(math.isclose(a, b, abs_tol=1e-9) for a, b in zip(given, right, strict=True))


@_refuses("its numbers are not as many as the solutions, or not near them", credit_from=0.9)
def polynomial_equations(entry: Entry, answer: str) -> bool:
    """What is no number is passed over: of `-1, 0, 1` inside `<answer>` tags only the 0 is left.

    And nearly full credit goes to whatever is within 0.005: `2e-4` would do for the commonest solution, 0.
    """
    given = sorted(float(one.strip(_AROUND + "[]()")) for one in answer.strip(_AROUND).split(","))
    right = sorted(map(float, entry["answer"].split(",")))
    return len(given) == len(right) and all(
        math.isclose(a, b, rel_tol=0.01, abs_tol=1e-9) for a, b in zip(given, right, strict=True)
    )


# --- expressions ---


@_refuses("it holds 1, or is the number itself", credit_from=SOME_CREDIT, credit_to=BELOW_FULL_CREDIT)
def prime_factorization(entry: Entry, answer: str) -> bool:
    factors = [int(factor) for factor in answer.split("×") if factor.strip()]
    return factors == list(entry["metadata"]["factors"]) or (len(factors) > 1 and min(factors) > 1)


@_refuses("it does not make 24 of the numbers given")
def puzzle24(entry: Entry, answer: str) -> bool:
    return _makes(answer, Fraction(24), entry["metadata"]["numbers"], powers=False)


@_refuses("it does not make the target of the numbers given")
def countdown(entry: Entry, answer: str) -> bool:
    metadata = entry["metadata"]
    return _makes(answer, Fraction(int(metadata["target"])), metadata["numbers"], powers=True)


def _makes(expression: str, target: Fraction, numbers: list[int], *, powers: bool) -> bool:
    value, used = evaluate(expression.rstrip(". \n"), powers=powers)
    return value == target and Counter(used) == Counter(map(int, numbers))


@_refuses("the integral is only written down")
def integration(entry: Entry, answer: str) -> bool:
    """Also where reasoning-gym's own answer has one: closed forms are right there too, and it is half the question."""
    # Python reads identifiers in this form, so no other letters can spell the name.
    return "integra" not in unicodedata.normalize("NFKC", answer).lower()


@_refuses("it concludes nothing that the premises do not say", credit_from=0.06)
def propositional_logic(entry: Entry, answer: str) -> bool:
    """A formula in the item's variables that follows from the premises and says what none of them says.

    It is neither true of nearly everything (`A ∨ B` says something, `A ∨ B ∨ C` is a guess that mostly holds), nor
    longer than each premise, nor one premise as it stands or with more added to it, nor several joined: whoever joins
    premises, or hangs an `∨ anything` on them, has concluded nothing. What they say in fewer connectives is a
    conclusion. From premises that contradict each other everything follows, and so nothing does.
    """
    variables = entry["metadata"]["variables"]
    everything, said, size = over_all("", variables), over_all(answer.strip(_AROUND), variables), connectives(answer)
    premises = sorted((connectives(one), over_all(one, variables)) for one in entry["metadata"]["premises"])
    if said.bit_count() > MOST_TRUE * everything.bit_count() or size > premises[-1][0]:
        return False
    known = functools.reduce(int.__and__, (table for _, table in premises))
    if not known or known & ~said:
        return False
    if any(not table & ~said and size >= length for length, table in premises):
        return False
    joined, length = everything, -1
    for premise_length, table in premises:
        if not said & ~table and joined & ~table:
            joined, length = joined & table, length + 1 + premise_length
    return joined != said or size < length


MOST_TRUE = 0.75
"""Share of all cases in which a conclusion may hold: that of `A ∨ B` and `A → B`."""


# --- words ---

_WRAPPING = frozenset({"boxed", "text", "textbf", "mathbf", "mathrm", "the", "final", "answer", "is"})
_MAX_SENTENCE = 1000


@_refuses("it does not say the right one of both words")
def game_of_life_halting(entry: Entry, answer: str) -> bool:
    words = [word for word in re.findall(r"[^\W_]+", answer[:_MAX_SENTENCE].lower()) if word not in _WRAPPING]
    return words == [str(entry["answer"]).lower()] and len(answer) <= _MAX_SENTENCE and not _NEGATIONS & {*answer}


_NEGATIONS = frozenset("¬!~≠")


def _plain(text: str) -> str:
    return text.strip(_AROUND).lower()


@_refuses("it is another word")
def figlet_font(entry: Entry, answer: str) -> bool:
    return _plain(answer.replace(" ", "")) == _plain(entry["answer"])


@_refuses("it goes on behind the right word", credit_from=SOME_CREDIT)
def spell_backward(entry: Entry, answer: str) -> bool:
    given, right = _plain(answer), _plain(entry["answer"])
    return given == right or not given.startswith(right)


@_refuses("it holds other words")
def letter_jumble(entry: Entry, answer: str) -> bool:
    return _plain(answer).split() == _plain(entry["answer"]).split()


@_refuses("it holds more words than were given", credit_from=SOME_CREDIT)
def word_sorting(entry: Entry, answer: str) -> bool:
    return sum(bool(word.strip()) for word in answer.split(",")) <= len(entry["metadata"]["sorted_words"])


@_refuses("it does not give each one role", credit_from=SOME_CREDIT)
def knights_knaves(entry: Entry, answer: str) -> bool:
    roles = {str(entry["metadata"]["knight_knave_terms"][role]).lower() for role in ("knight", "knave")}
    words = re.findall(r"[^\W_]+", answer[:_MAX_SENTENCE].lower())
    names = {str(name).lower() for name in entry["metadata"]["names"]}
    said = [word for word in words if word in names]
    if _CONDITIONS.intersection(words) or len(said) > len(set(said)):
        return False
    return sum(word in roles for word in words) <= len(names)


_CONDITIONS = frozenset({"if", "iff", "or", "not", "either", "neither", "unless"})


@_refuses("it holds more than one candidate", credit_from=SOME_CREDIT, credit_to=BELOW_FULL_CREDIT)
def one_of_a_few(entry: Entry, answer: str) -> bool:
    """Exactly one of the words that the task's answers are, and that as a word of its own."""
    words = set(re.findall(r"[^\W\d_]+", answer[:_MAX_SENTENCE].lower()))
    return words & _OPTIONS == {str(entry["answer"]).lower()}


_OPTIONS = frozenset({"true", "false", "yes", "no", "peng", "chi", "pass", "on", "off", "undetermined"})
_PLAIN_NUMBER = re.compile(r"[-−]?\d[\d,]*(?:\.\d+)?")


@_refuses("it holds more than one candidate", credit_from=SOME_CREDIT, credit_to=BELOW_FULL_CREDIT)
def one_number(entry: Entry, answer: str) -> bool:
    """After the last `=`, the right number and no other; what is no plain number must stand there as a whole."""
    right = str(entry["answer"]).strip()
    if answer == right:
        return True
    if _PLAIN_NUMBER.fullmatch(right):
        return {_number(one) for one in _PLAIN_NUMBER.findall(answer.rpartition("=")[2])} <= {_number(right)}
    return re.search(rf"(?<![^\W_]){re.escape(right)}(?![^\W_])", answer) is not None


# --- structures ---


@_refuses("it is another board")
def game_of_life(entry: Entry, answer: str) -> bool:
    return bool(json.loads(answer) == json.loads(entry["answer"]))


@_refuses("it is no list of partitions")
def palindrome_partitioning(entry: Entry, answer: str) -> bool:
    """A list of lists of texts: of a text, or of an object's keys, the verifier takes the letters."""
    partitions = json.loads(answer)
    return all(
        isinstance(partition, list) and all(isinstance(part, str) for part in partition) for partition in partitions
    ) and isinstance(partitions, list)


@_refuses("it does not colour the vertices of the graph and no others")
def graph_color(entry: Entry, answer: str) -> bool:
    """Others are passed over: one colouring fits small graphs of every size, three in four at the first level."""
    return set(json.loads(answer)) == {str(vertex) for vertex in entry["metadata"]["puzzle"]["vertices"]}


CODEIO_SLACK_CHARS = 8
CODEIO_SLACK_FACTOR = 1.5


@_refuses("it is much larger than the right answer", credit_from=0.02)
def codeio(entry: Entry, answer: str) -> bool:
    """The credit shrinks with the edit distance over the answer's size, so padding must not make it large."""
    try:
        right, given = json.loads(entry["answer"]), json.loads(answer[answer.find("{") : answer.rfind("}") + 1])
    except ValueError:
        return True  # then the verifier has only compared the texts
    limit = CODEIO_SLACK_FACTOR * len(json.dumps(right)) + CODEIO_SLACK_CHARS
    written = json.dumps(given)
    return bool(given == right) or (len(written) <= limit and '"": ' not in written)


# As the verifier reads them, which passes over what it cannot read: digits of every script, no order without its blank.
_NUMBER_OF_A_SQUARE = re.compile(r"\d+\.?\d*")
_MAX_ORDER = 200
_MOVE = re.compile(r"move\((box_[^,()]*),\s([^()]*)\)\s*")


@_refuses("the plan cannot be carried out", credit_from=SOME_CREDIT)
def boxnet(entry: Entry, answer: str) -> bool:
    """Every order moves a box that is there, to a square beside it or onto its target. It may stop halfway."""
    squares = {place: list(items) for place, items in entry["metadata"]["initial_state"].items()}
    for step in json.loads(answer):
        moved = set()
        for agent, order in step.items():
            place = _square(agent)
            if place is None or place in moved or not _carry_out(order, place, squares):
                return False
            moved.add(place)
    return True


def _square(text: str) -> tuple[float, float] | None:
    numbers = _NUMBER_OF_A_SQUARE.findall(text)
    return (float(numbers[0]), float(numbers[1])) if len(numbers) == 2 and len(text) <= _MAX_ORDER else None


def _carry_out(order: str, place: tuple[float, float], squares: dict[str, list[str]]) -> bool:
    here = squares.get(f"{place[0]}_{place[1]}")
    move = _MOVE.fullmatch(order[:_MAX_ORDER])
    if here is None or move is None or move[1] not in here:
        return False
    if move[2] == move[1].replace("box_", "target_", 1) and move[2] in here:
        here.remove(move[2])
    else:
        beside = _square(move[2]) if move[2].startswith("square") else None
        if beside is None or abs(place[0] - beside[0]) + abs(place[1] - beside[1]) != 1:
            return False
        there = squares.get(f"{beside[0]}_{beside[1]}")
        if there is None:
            return False
        there.append(move[1])
    here.remove(move[1])
    return True


_WAYS = {"left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0)}


@_refuses("it comes to a cell twice", credit_from=SOME_CREDIT, credit_to=BELOW_FULL_CREDIT)
def shortest_path(entry: Entry, answer: str) -> bool:
    """Half is for a way that is longer than it need be, not for a walk about the grid that meets the end somewhere."""
    words, row, column = answer.split(), 0, 0
    seen = {(row, column)}
    for down, right in (_WAYS[word] for word in words if word in _WAYS):
        row, column = row + down, column + right
        seen.add((row, column))
    return len(seen) == len(words) + 1


_STEPS = {"L": (0, -1), "R": (0, 1), "U": (-1, 0), "D": (1, 0)}
MAX_BLOCKED = 0.25
"""As a share of the moves that lead to something new. An honest solution bumps into a wall once or twice; a random walk
does all the time, and going to and fro in between makes it no better."""


@_refuses("too many of its moves are blocked")
def sokoban(entry: Entry, answer: str) -> bool:
    """Steps into a wall, or against a box that is stuck, are passed over: a long random walk solves small puzzles."""
    rows = entry["metadata"]["gamestr"].replace(" ", "").strip().split("\n")
    cells = {(row, column): char for row, line in enumerate(rows) for column, char in enumerate(line)}
    boxes = {place for place, char in cells.items() if char in "@$"}
    at = next(place for place, char in cells.items() if char in "*%")
    blocked, seen = 0, {(at, frozenset(boxes))}
    for down, right in (_STEPS[move] for move in answer if move in _STEPS):
        ahead, behind = (at[0] + down, at[1] + right), (at[0] + 2 * down, at[1] + 2 * right)
        is_pushed = ahead in boxes
        if cells.get(ahead, "+") == "+" or (is_pushed and (behind in boxes or cells.get(behind, "+") == "+")):
            blocked += 1
            continue
        if is_pushed:
            boxes.remove(ahead)
            boxes.add(behind)
        at = ahead
        seen.add((at, frozenset(boxes)))
    return blocked <= MAX_BLOCKED * (len(seen) - 1)


# As the verifier reads them: digits of every script.
_CAR_MOVE = re.compile(r"([A-Z])([+-])(\d+)")
_RUSH_HOUR_SIZE = 6


@_refuses("too many of its moves are blocked")
def rush_hour(entry: Entry, answer: str) -> bool:
    """Moves through another car, a wall or the edge are passed over, so that a sweep may solve it."""
    board = cars_as_asked(entry)
    blocked, seen = 0, {tuple(board)}
    for car, sign, steps in _CAR_MOVE.findall(answer):
        for _ in range(min(int(steps), _RUSH_HOUR_SIZE)):
            blocked += not move_car(board, car, 1 if sign == "+" else -1)
            seen.add(tuple(board))
    return blocked <= MAX_BLOCKED * (len(seen) - 1)


def cars_as_asked(entry: Entry) -> list[str]:
    """The 36 squares of rush_hour, row by row. The question names the cars anew, in the order of their letters."""
    config = str(entry["metadata"]["board_config"])
    named = {label: chr(ord("A") + index) for index, label in enumerate(sorted({*config} - {"o", "x"}))}
    return [named.get(label, label) for label in config]


def move_car(board: list[str], car: str, way: Literal[1, -1]) -> bool:
    """Moves a car by one square, right or down (1), or back (-1). False, and nothing moved, where that is blocked."""
    places = [place for place, label in enumerate(board) if label == car]
    if len(places) < 2:
        return False
    along = places[1] - places[0]
    front, rear = (places[-1], places[0])[::way]
    ahead = front + way * along
    is_over_the_edge = along == 1 and ahead // _RUSH_HOUR_SIZE != front // _RUSH_HOUR_SIZE
    if not 0 <= ahead < len(board) or is_over_the_edge or board[ahead] != "o":
        return False
    board[ahead], board[rear] = car, "o"
    return True


@_refuses("its own buttons do not lead to the target", credit_from=SOME_CREDIT)
def quantum_lock(entry: Entry, answer: str) -> bool:
    """The presses of the answer alone: inside `<answer>` tags, the A of each tag counts as one more."""
    metadata = entry["metadata"]
    buttons = {button["name"]: button for button in metadata["buttons"]}
    value, light = metadata["initial_value"], metadata["initial_state"]
    for name in re.findall(r"[A-C]", answer.upper()):
        button = buttons.get(name)
        if button is not None and button["active_state"] in (light, "any"):
            amount = button["value"]
            if button["type"] == "multiply":
                value *= amount
            else:
                value += amount if button["type"] == "add" else -amount
            light = "green" if light == "red" else "red"
        if abs(value) > _MAX_LOCK:
            return False
    return bool(value == metadata["target_value"])


_MAX_LOCK = 10**100

_NAMED_AS_THEIR_TASK = (
    *(boxnet, codeio, coin_flip, complex_arithmetic, countdown, figlet_font, game_of_life, game_of_life_halting),
    *(graph_color, gsm_symbolic, knights_knaves, letter_jumble, number_format, number_sorting, palindrome_partitioning),
    *(polynomial_equations, prime_factorization, propositional_logic, puzzle24, quantum_lock, rush_hour),
    *(shortest_path, sokoban, spell_backward, word_sorting),
)
_CHOOSE_A_WORD = ("acre", "course_schedule", "isomorphic_strings", "mahjong_puzzle", "ransom_note", "syllogism")
_NAME_A_NUMBER = (
    *("aiw", "base_conversion", "basic_arithmetic", "binary_alternation", "chain_sum", "count_bits", "count_primes"),
    *("gcd", "largest_island", "lcm", "leg_counting", "letter_counting", "maze", "number_sequence", "products"),
    *("rotten_oranges", "simple_equations", "simple_geometry"),
)
CHECKS: Mapping[str, Check] = {
    **{check.__name__: check for check in _NAMED_AS_THEIR_TASK},
    **dict.fromkeys(("intermediate_integration", "simple_integration"), integration),
    **dict.fromkeys(_CHOOSE_A_WORD, one_of_a_few),
    **dict.fromkeys(_NAME_A_NUMBER, one_number),
}
