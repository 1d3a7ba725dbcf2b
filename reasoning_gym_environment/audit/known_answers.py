"""Answers whose worth is known beforehand: right ones by construction, and wrong ones that verifiers pay.

`reference_answer` gives a right answer to an item of every task that allows one, also where reasoning-gym has none.

`WEAKNESSES` says how far each verifier of reasoning-gym can be trusted: every task whose verifier is known to pay
more than it should, with an answer that proves it. Each can be tried on the installed reasoning-gym, so that an entry
is a fact about it and not an opinion. No exploit needs the item's problem to be solved, except where it shows that
something beyond the solution is not noticed. `verification/strict_checks.py` is what is done about them.
"""

from __future__ import annotations

import functools
import json
import random
import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ..verification.formulas import over_all
from ..verification.move_checks import cars_as_asked, move_car
from ..verification.strict_checks import SOME_WRONG_ITEMS, follows, refusal

Item = Mapping[str, Any]
Exploit = Callable[[Item], str]
_Square = tuple[float, float]

# --- right answers ---


def reference_answer(task: str, entry: Item) -> str | None:
    """A right answer to `entry`: its own, or one made from its metadata, or None.

    An integral that is only written down is none, also as the item's own, nor is an answer of the item that is wrong.
    There is none for cubes of other sizes than
    3, and where the premises of propositional_logic contradict each other, or nothing short follows from them that one
    of them does not say.
    """
    if task == "intermediate_integration" and "Integral" in entry["answer"]:
        return _antiderivative(entry)
    if entry["answer"] is not None:
        answer = str(entry["answer"])
        return None if task in SOME_WRONG_ITEMS and refusal(task, entry, answer, 1.0) else answer
    construct = _CONSTRUCTED.get(task)
    return None if construct is None else construct(entry)


def _antiderivative(entry: Item) -> str:
    """The item is made with functions that reasoning-gym has no rule for, and graded with those of sympy."""
    import sympy

    variable = sympy.Symbol(entry["metadata"]["variable"])
    integrand = sympy.parse_expr(entry["metadata"]["integrand"], local_dict={variable.name: variable})
    return str(sympy.integrate(integrand, variable))


def _conclusion(entry: Item) -> str | None:
    """The item's example, or a formula of two letters, if it follows and says what no premise says."""
    metadata = entry["metadata"]
    variables = metadata["variables"]
    premises = functools.reduce(int.__and__, (over_all(premise, variables) for premise in metadata["premises"]))
    literals = [f"{sign}{variable}" for variable in variables for sign in ("", "¬")]
    pairs = (f"{one} {connective} {other}" for one in literals for other in literals for connective in "∨→↔∧")
    for formula in (str(metadata["example_answer"]), *literals[1::2], *pairs):
        if not premises & ~over_all(formula, variables) and not refusal("propositional_logic", entry, formula, 1.0):
            return formula
    return None


def _box_plan(entry: Item) -> str:
    """One box after the other: along its column, along its row, onto its target."""
    squares = {_square(place): items for place, items in entry["metadata"]["initial_state"].items()}
    targets = [(square, item) for square, items in squares.items() for item in items if item.startswith("target_")]
    steps: list[dict[str, str]] = []
    for start, items in squares.items():
        for box in (item for item in items if item.startswith("box_")):
            goal, target = next(pair for pair in targets if pair[1] == box.replace("box_", "target_", 1))
            targets.remove((goal, target))
            here = start
            while here != goal:
                following = _one_step(here, goal)
                steps.append(_order(here, box, following))
                here = following
            steps.append(_order(here, box, target))
    return json.dumps(steps)


def _order(here: _Square, box: str, to: _Square | str) -> dict[str, str]:
    """To the agent of a square, to move a box to a square beside it or onto a target."""
    aim = to if isinstance(to, str) else f"square[{to[0]}, {to[1]}]"
    return {f"Agent[{here[0]}, {here[1]}]": f"move({box}, {aim})"}


def _square(place: str) -> _Square:
    row, column = place.split("_")
    return float(row), float(column)


def _one_step(square: _Square, goal: _Square) -> _Square:
    row, column = square
    if row != goal[0]:
        return row + (1.0 if goal[0] > row else -1.0), column
    return row, column + (1.0 if goal[1] > column else -1.0)


def _way_out(entry: Item) -> str | None:
    """The cars moved one square at a time, tried breadth first; None where that takes too long."""
    start = "".join(cars_as_asked(entry))
    before: dict[str, tuple[str, str]] = {start: ("", "")}
    waiting = deque([start])
    while waiting and len(before) < _MOST_BOARDS:
        board = waiting.popleft()
        if board[17] == "A":
            moves: list[str] = []
            while board != start:
                board, move = before[board]
                moves.append(move)
            return " ".join(reversed(moves))
        for car in sorted({*board} - {"o", "x"}):
            for move in (f"{car}+1", f"{car}-1"):
                after = list(board)
                if move_car(after, car, 1 if move[1] == "+" else -1) and (new := "".join(after)) not in before:
                    before[new] = (board, move)
                    waiting.append(new)
    return None


_MOST_BOARDS = 200_000

_CONSTRUCTED: Mapping[str, Callable[[Item], str | None]] = {
    "boxnet": _box_plan,
    "graph_color": lambda entry: json.dumps(entry["metadata"]["possible_answer"]),
    "propositional_logic": _conclusion,
    "rubiks_cube": lambda entry: entry["metadata"]["example_correct_answer"] or None,
    "rush_hour": _way_out,
}


# --- weaknesses of verifiers ---


class WeaknessKind(str, Enum):
    """What is wrong with a verifier."""

    UNSOUND = "unsound"
    """It pays full credit, or nearly, for a wrong answer. There is a stricter check."""
    GENEROUS = "generous"
    """It pays a trivial answer part of the credit. `partial_credit: baseline` pays nothing for it."""
    NO_ORACLE = "no_oracle"
    """Its items have no answer of their own, so it is not shown on each item that a right answer is paid."""


@dataclass(frozen=True)
class Weakness:
    """`exploit` makes the answer that proves it from an item; for NO_ORACLE there is none.

    The task's verifier pays that answer at least `pays` on average over items of the config `config` (the default
    config with these fields changed, where it takes special items to show the weakness).
    """

    task: str
    kind: WeaknessKind
    reason: str
    exploit: Exploit | None = None
    pays: float = 0.0
    config: Mapping[str, Any] = field(default_factory=dict, hash=False)


def _everybody_is_both(entry: Item) -> str:
    """As many pairs of name and role as there are names, all of the first: one of both roles is right."""
    metadata = entry["metadata"]
    name, terms = metadata["names"][0], metadata["knight_knave_terms"]
    return f"{name} is a {terms['knight']}, {name} is a {terms['knave']}"


def _without_both_ends(entry: Item) -> str:
    """The right presses without an A at each end, where both are one; the tags bring them back."""
    presses = "".join(entry["metadata"]["solution_path"])
    return presses[1:-1] if presses[0] == presses[-1] == "A" else "-"


_WAYS = {"left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0)}
_BACK = {"left": "right", "right": "left", "up": "down", "down": "up"}


def _walk_about(entry: Item) -> str:
    """From cell to open cell at random until the end is met, then once more to and fro."""
    grid, walk, words = entry["metadata"]["matrix"], random.Random(1), []
    cells = {(row, column): cell for row, line in enumerate(grid) for column, cell in enumerate(line) if cell != "X"}
    at = next(place for place, cell in cells.items() if cell == "*")
    for word in walk.choices(sorted(_WAYS), k=4000):
        ahead = (at[0] + _WAYS[word][0], at[1] + _WAYS[word][1])
        if ahead in cells:
            at = ahead
            words.append(word)
            if cells[at] == "#":
                return " ".join([*words, _BACK[word], word])
    return "nowhere"


def _random_walk(entry: Item) -> str:
    return "".join(random.Random(1).choices("UDLR", k=1000))


_SMALL_SOKOBAN = {"min_w": 6, "max_w": 7, "min_h": 6, "max_h": 7, "min_boxes": 1, "max_boxes": 2}


def _letter_by_letter(entry: Item) -> str:
    """A ladder of words that need not exist."""
    start, end = entry["metadata"]["start_word"], entry["metadata"]["end_word"]
    words = [end[:at] + start[at:] for at in range(len(start) + 1)]
    return ",".join(dict.fromkeys(words))


def _always(text: str) -> Exploit:
    return lambda entry: text


def _solution_and(more: str) -> Exploit:
    """The right answer with something after it that makes it another answer."""
    return lambda entry: f"{entry['answer']}{more}"


def _other_letters(entry: Item) -> str:
    """The right answer in letters whose capitals are those of its words: `ſıck`; nothing if there are none."""
    changed = str(entry["answer"]).translate(str.maketrans("SI", "ſı"))
    return "" if changed.isascii() else changed


def _sweep_all_squares(entry: Item) -> str:
    """A plan for boxnet that depends on the field's size alone: orders to carry everything everywhere."""
    rows, columns = entry["metadata"]["row_num"], entry["metadata"]["column_num"]
    path: list[_Square] = []
    for row in range(rows):
        there = range(columns) if row % 2 == 0 else range(columns - 1, -1, -1)
        path += [(row + 0.5, column + 0.5) for column in there]
    colours = sorted(set(re.findall(r"box_(\w+)", entry["question"])) - {"color"})
    steps = []
    for colour in colours:
        for way in (path, path[::-1]):
            for here, following in zip(way, [*way[1:], None], strict=True):
                steps.append(_order(here, f"box_{colour}", f"target_{colour}"))
                if following is not None:
                    steps.append(_order(here, f"box_{colour}", following))
    return json.dumps(steps)


def _nested_empty_keys(entry: Item) -> str:
    """For codeio: size that costs no edits. The credit falls with the edits over the size of the larger text."""
    depth = 300
    return '{"": ' * depth + "{}" + "}" * depth


def _numbers_in_disguise(entry: Item) -> str:
    """The target itself in countdown: written `500e0`, a number is not counted among those used."""
    total = " + ".join(map(str, entry["metadata"]["numbers"]))
    return f"{entry['metadata']['target']}e0 + 0e0*({total})"


def _number_not_given(entry: Item) -> str:
    """24 in puzzle24 from one number in range, four times, and a 24 that is not counted."""
    low = entry["metadata"]["difficulty"]["value"][0]
    return f"24e0 + {low} - {low} + {low} - {low}"


def _next_candidate(entry: Item) -> str:
    """The candidate of number_format that comes after the right one."""
    metadata = entry["metadata"]
    others = [number for number in metadata["candidates"] if abs(number - metadata["solution"]) > 1e-6]
    return repr(min(others, key=lambda number: abs(number - metadata["solution"])))


def _unevaluated_integral(entry: Item) -> str:
    """The question back. The sum keeps it from being the item's own answer where that is an integral too."""
    metadata = entry["metadata"]
    variable = metadata["variable"]
    return f"Integral(({metadata['integrand']})/2 + {variable}, {variable}) * 2 - {variable}**2"


def _one_more_extra(entry: Item) -> str:
    """What time_intervals does not look at: units, and what comes behind the seconds."""
    kind, answer = entry["metadata"]["task_type"], str(entry["answer"])
    if kind == "date":
        return f"{answer.split()[0]} weeks"
    return f"{answer}{':00' * (answer.count(':') == 1)}{':99' if kind.startswith('time') else ', or more'}"


def _what_does_not_follow(entry: Item) -> str:
    metadata = entry["metadata"]
    said = [metadata[name] for name in ("premise1", "premise2", "conclusion") if metadata.get(name)]
    return "-" if follows(said[:-1], said[-1]) else "Yes"


def _one_percent_more(entry: Item) -> str:
    return "\n".join(
        " ".join(f"{float(cell) * 1.005:.6f}" for cell in line.split()) for line in entry["answer"].split("\n")
    )


def _ones_in_blanks(entry: Item) -> str:
    """The puzzle as given, with 1 in every empty cell."""
    return "\n".join(" ".join(str(cell or 1) for cell in row) for row in entry["metadata"]["puzzle"])


def _all_truthful(entry: Item) -> str:
    metadata = entry["metadata"]
    return ", ".join(f"{name} is a {metadata['knight_knave_terms']['knight']}" for name in metadata["names"])


def _middle_of_the_range(entry: Item) -> str:
    kind = entry["metadata"]["task_type"]
    if kind == "date":
        return "33 days"
    return "08:00:00" if kind.startswith("time") else "33 days, 12:00:00"


# --- the table ---


def _unsound(task: str, reason: str, exploit: Exploit, pays: float = 1.0, **config: Any) -> Weakness:
    return Weakness(task, WeaknessKind.UNSOUND, reason, exploit, pays, config)


def _generous(task: str, reason: str, exploit: Exploit, pays: float) -> Weakness:
    return Weakness(task, WeaknessKind.GENEROUS, reason, exploit, pays)


_INTEGRAL = "It differentiates the answer, so the integral written down but not solved is right."
_BOTH = "An answer that contains the right one earns its share of the characters: `TrueFalse` is half right."
_BLOCKED = "Blocked moves are passed over, so that a long random walk solves a small puzzle."
_SHAPE = "Lines that begin with `Shape: ` are passed over, whatever they go on with."
_GIVEN = "Each right cell counts, those given in the question too: the puzzle with 1 in every blank."

_UNSOUND = (
    _unsound(
        "advanced_geometry",
        "What comes after the second of two coordinates is not looked at.",
        _solution_and(", 5"),
        0.2,
    ),
    _unsound("arc_agi", _SHAPE, lambda item: f"Shape: not this\n{item['answer']}"),
    _unsound(
        "bitwise_arithmetic",
        "Decimal numbers are paid where a hexadecimal one is asked for: `12` is 0xc.",
        lambda item: str(int(item["answer"], 16)),
    ),
    _unsound(
        "boxnet",
        "Orders that cannot be carried out are passed over, and targets may be moved: a plan that has every "
        "square's agent move everything needs no look at the boxes. Whatever holds two numbers is a square.",
        _sweep_all_squares,
    ),
    _unsound(
        "codeio",
        "The credit falls with the edits over the size of the larger JSON, and empty keys add size but no edits. "
        '`"35"` is 35, `"None"` null, `[]` `{}`.',
        _nested_empty_keys,
        0.7,
    ),
    _unsound(
        "coin_flip",
        "Digits are compared up to the end of the shorter number (`0` is all right for 0.3125), and within 1e-4 "
        "every small probability is 0.",
        lambda item: "10" if item["answer"] == "1" else str(item["answer"][0]),
    ),
    _unsound("complex_arithmetic", "The distance to `nan` is no number, and counts as none at all.", _always("nan")),
    _unsound(
        "countdown",
        "Only numbers that stand as whole words are counted as used: `832e0` is the target itself and counts as none. "
        "Functions are let through, and results that are off by 0.001%.",
        _numbers_in_disguise,
    ),
    _unsound(
        "cryptarithm",
        "A letter may be given many digits; the last one counts.",
        lambda item: f"{item['answer'][0]}=0,{item['answer']}",
    ),
    _unsound(
        "decimal_arithmetic",
        "Twelve digits are asked for, three decimals looked at.",
        lambda item: f"{float(item['answer']) + 0.0009:.9f}",
    ),
    _unsound(
        "family_relationships",
        "What somebody is to the parents of whom they married is answered with what those are to them: `What is Lily "
        "to William?`, his son's wife, is `father-in-law`.",
        lambda item: str(item["answer"]) if str(item["answer"]).endswith("-in-law") else "-",
        0.04,
    ),
    _unsound(
        "figlet_font",
        "Each right letter earns 0.1, so of a word of 11 or more letters ten are enough.",
        lambda item: str(item["answer"][:10]),
        min_word_len=11,
        max_word_len=30,
    ),
    _unsound("fraction_simplification", "What follows a LaTeX fraction is not looked at.", _solution_and(" or 1"), 0.4),
    _unsound(
        "game_of_life",
        "Cells beyond the board are not looked at.",
        lambda item: json.dumps([[*row, 1] for row in json.loads(item["answer"])]),
    ),
    _unsound(
        "game_of_life_halting",
        "Any text that is not empty is paid.",
        lambda item: "False" if str(item["answer"]) == "True" else "True",
    ),
    _unsound(
        "graph_color",
        "Vertices that the graph does not have are passed over, so that one colouring fits graphs of all sizes.",
        lambda item: json.dumps({**item["metadata"]["possible_answer"], "99": 1}),
    ),
    _unsound(
        "group_anagrams",
        "An object's keys are taken for a list of words.",
        lambda item: json.dumps([dict.fromkeys(group, 0) for group in json.loads(item["answer"])]),
    ),
    _unsound(
        "gsm_symbolic",
        "The first digits in the text are the answer: not the sign before them, nor what follows (`59,000`, `59/2`).",
        lambda item: f"-{item['answer']}",
        0.9,
    ),
    _unsound("intermediate_integration", _INTEGRAL, _unevaluated_integral),
    _unsound(
        "jugs",
        "What follows the first two words of an order is not looked at: `fill A or B`.",
        lambda item: json.dumps([f"{order} or not" for order in json.loads(item["answer"])]),
    ),
    _unsound(
        "kakurasu",
        "All but 0 and 1 is passed over, signs and other digits too.",
        lambda item: item["answer"].replace("1", "-1").replace("0", "2 0"),
    ),
    _unsound(
        "knights_knaves",
        "One right role of several earns 0.3 and more, a name may be given both (`A is a knight, A is a knave`), and "
        "what is said around it is not looked at: `It is a lie that A is a knight`.",
        _everybody_is_both,
        0.3,
    ),
    _unsound("letter_jumble", "Words after the last one asked for are not looked at.", _solution_and(" and")),
    _unsound(
        "number_format",
        "Numbers within 0.01 of the right one are paid, and at higher levels other candidates are that close.",
        _next_candidate,
        min_num_candidates=300,
        max_num_candidates=300,
        max_delta=0.1,
    ),
    _unsound(
        "number_sorting",
        "A list of `NaN` counts as sorted and as close to every number; any number may be off by 1.",
        lambda item: f"[{', '.join(['NaN'] * len(item['metadata']['sorted_numbers']))}]",
    ),
    _unsound(
        "palindrome_partitioning",
        "An object's keys are taken for partitions, and a text for the list of its letters.",
        lambda item: json.dumps({"".join(partition): 0 for partition in item["metadata"]["solution"]}),
        0.9,
        min_string_len=2,
        max_string_len=2,
        max_substring_palindrome_len=1,
    ),
    _unsound(
        "polynomial_equations",
        "What is no number is passed over, so that inside tags the first and the last of a list are: `-1, 0, 1` is 0, "
        "which often is right. One of several solutions is half right.",
        _always("-1, 0, 1"),
        0.2,
    ),
    _unsound("polynomial_multiplication", "Comments are passed over.", _solution_and(" # or 5")),
    _unsound(
        "pool_matrix",
        "Numbers that are 1% off are paid, comments are passed over, and a row is a column.",
        _one_percent_more,
    ),
    _unsound(
        "prime_factorization",
        "Any factors whose product is right earn 0.5: `1 × n`.",
        lambda item: f"1 × {item['metadata']['number']}",
        0.5,
    ),
    _unsound(
        "propositional_logic",
        "Premises repeated, or joined, are a valid conclusion, as most of reasoning-gym's own examples are. Unknown "
        "words count as variables, so that a premise `∨ anything` is one too; from premises that contradict each other "
        "everything follows.",
        lambda item: " ∧ ".join(f"({premise})" for premise in item["metadata"]["premises"]),
        0.6,
    ),
    _unsound(
        "puzzle24",
        "Any four numbers in range that make 24 to the digits before the point, however else it is made.",
        _number_not_given,
    ),
    _unsound(
        "quantum_lock",
        "Every A, B or C in the text is a press, those in words and tags around it too: `final B` is A → B.",
        _without_both_ends,
        0.08,
        difficulty=6,
    ),
    _unsound("rearc", _SHAPE, lambda item: f"Shape: not this\n{item['answer']}"),
    _unsound(
        "rubiks_cube",
        "What begins with a number is passed over.",
        lambda item: f"{item['metadata']['example_correct_answer']} 2U2",
        cube_size=3,
    ),
    _unsound("rush_hour", _BLOCKED, lambda item: f"{_way_out(item)} " + "A+5 " * 30),
    _unsound(
        "shortest_path",
        "Any way to the end earns half, that of a random walk too, which comes by it at last.",
        _walk_about,
        0.2,
    ),
    _unsound("simple_integration", _INTEGRAL, _unevaluated_integral),
    _unsound("sokoban", _BLOCKED, _random_walk, 0.04, **_SMALL_SOKOBAN),
    _unsound(
        "spell_backward",
        "Letters after the last one are not looked at (for some lengths: 6, 9 and 10 among others).",
        _solution_and("x"),
        min_word_len=9,
        max_word_len=9,
    ),
    _unsound(
        "survo",
        "What is no number is passed over: inside tags the first and the last number.",
        lambda item: f"7 {item['answer']} 7",
    ),
    _unsound(
        "syllogism",
        "One in eight items says that what does not follow does: `All A are B, some B are not C`, so `some A are not "
        "C`.",
        _what_does_not_follow,
        0.04,
    ),
    _unsound(
        "time_intervals",
        "Units and what comes behind the seconds are not looked at (`5 weeks`), and some items' own answers are wrong: "
        "a weekday in brackets hides the time behind it, and two in five times with milliseconds are one too short.",
        _one_more_extra,
        0.9,
    ),
    _unsound(
        "tower_of_hanoi",
        "Nine words with a move in them are one.",
        lambda item: "\n".join(f"Don't{move}" for move in item["answer"].split("\n")),
    ),
    _unsound("word_ladder", "Letters count whose capitals are the right ones: `ſıck`.", _other_letters, 0.7),
    _unsound("word_sorting", "Words after the last one are not looked at.", _solution_and(", and")),
)

_GENEROUS = (
    _generous("acre", _BOTH, _always("onoff"), 0.2),
    _generous("coin_flip", "Agreeing leading characters earn credit: `0.5`.", _always("0.5"), 0.5),
    _generous("course_schedule", _BOTH, _always("TrueFalse"), 0.44),
    _generous("futoshiki", _GIVEN, _ones_in_blanks, 0.35),
    _generous(
        "game_of_life",
        "Each right cell counts: the board on which all is dead.",
        lambda item: json.dumps([[0] * len(row) for row in json.loads(item["answer"])]),
        0.9,
    ),
    _generous("gcd", "An answer that contains the right one earns its share: `12`.", _always("12"), 0.2),
    _generous("isomorphic_strings", _BOTH, _always("TrueFalse"), 0.44),
    _generous(
        "knights_knaves",
        "One right role of several earns 0.3 and more: everybody tells the truth.",
        _all_truthful,
        0.4,
    ),
    _generous("letter_counting", "An answer that contains the right one earns its share: `12`.", _always("12"), 0.2),
    _generous("mahjong_puzzle", "An answer that contains the right one earns its share.", _always("PengChi"), 0.2),
    _generous("mini_sudoku", _GIVEN, _ones_in_blanks, 0.4),
    _generous("ransom_note", _BOTH, _always("TrueFalse"), 0.44),
    _generous("rectangle_count", "A guess that is off by up to 4 earns up to 0.64: 5.", _always("5"), 0.3),
    _generous("spell_backward", "Each letter in its place counts: `e` all along.", lambda item: "e" * 12, 0.05),
    _generous("sudoku", _GIVEN, _ones_in_blanks, 0.4),
    _generous("syllogism", "An answer that contains the right one earns its share: `YesNo`.", _always("YesNo"), 0.4),
    _generous(
        "time_intervals",
        "The error counts against the largest difference there can be: the middle of the range.",
        _middle_of_the_range,
        0.65,
    ),
    _generous("word_ladder", "A word that does not exist halves the credit, no more.", _letter_by_letter, 0.2),
)

_NO_ORACLE = (
    ("boxnet", "No answer; a plan can be made from the item."),
    ("graph_color", "No answer; the metadata has an example."),
    ("propositional_logic", "No answer; the metadata has an example, which often only repeats a premise."),
    ("rubiks_cube", "No answer; the metadata has an example for cubes of size 3."),
    ("rush_hour", "No answer; one is found by trying all moves."),
)

WEAKNESSES: tuple[Weakness, ...] = (
    *_UNSOUND,
    *_GENEROUS,
    *(Weakness(task, WeaknessKind.NO_ORACLE, reason) for task, reason in _NO_ORACLE),
)
