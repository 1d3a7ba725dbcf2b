"""Answers that verifiers pay although they are wrong or trivial: one function per trick, from item to text.

They are what the table of weaknesses (verifiers.py) rests on: each can be tried, so that an entry is a fact
about the installed reasoning-gym and not an opinion. None needs the item's problem to be solved, except where
it shows that something beyond the solution is not noticed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

Entry = Mapping[str, Any]
Probe = Callable[[Entry], str]


def always(text: str) -> Probe:
    """The same text for every item."""
    return lambda entry: text


def solution_and(more: str) -> Probe:
    """The right answer with something after it that makes it another answer."""
    return lambda entry: f"{entry['answer']}{more}"


# --- wrong answers paid in full ---


def sweep_all_squares(entry: Entry) -> str:
    """A plan for boxnet that depends on the field's size alone: orders to carry everything everywhere."""
    rows, columns = entry["metadata"]["row_num"], entry["metadata"]["column_num"]
    path: list[tuple[float, float]] = []
    for row in range(rows):
        there = range(columns) if row % 2 == 0 else range(columns - 1, -1, -1)
        path += [(row + 0.5, column + 0.5) for column in there]
    colours = sorted(set(re.findall(r"box_(\w+)", entry["question"])) - {"color"})
    steps = []
    for colour in colours:
        for way in (path, path[::-1]):
            for (down, right), following in zip(way, [*way[1:], None], strict=True):
                agent = f"Agent[{down}, {right}]"
                steps.append({agent: f"move(box_{colour}, target_{colour})"})
                if following is not None:
                    steps.append({agent: f"move(box_{colour}, square[{following[0]}, {following[1]}])"})
    return json.dumps(steps)


def first_digit(entry: Entry) -> str:
    """For coin_flip: `0` for 0.3125. All its digits agree with the right answer's, and no others are compared."""
    return "10" if entry["answer"] == "1" else str(entry["answer"][0])


def other_sign(entry: Entry) -> str:
    return f"-{entry['answer']}"


def nested_empty_keys(entry: Entry) -> str:
    """For codeio: size that costs no edits. The credit falls with the edits over the size of the larger text."""
    depth = 300
    return '{"": ' * depth + "{}" + "}" * depth


def numbers_in_disguise(entry: Entry) -> str:
    """The target itself in countdown: written `500e0`, a number is not counted among those used."""
    total = " + ".join(map(str, entry["metadata"]["numbers"]))
    return f"{entry['metadata']['target']}e0 + 0e0*({total})"


def number_not_given(entry: Entry) -> str:
    """24 in puzzle24 from one number in range, four times, and a 24 that is not counted."""
    low = entry["metadata"]["difficulty"]["value"][0]
    return f"24e0 + {low} - {low} + {low} - {low}"


def ten_letters_right(entry: Entry) -> str:
    return str(entry["answer"][:10])


def next_candidate(entry: Entry) -> str:
    """The candidate of number_format that comes after the right one."""
    metadata = entry["metadata"]
    others = [number for number in metadata["candidates"] if abs(number - metadata["solution"]) > 1e-6]
    return repr(min(others, key=lambda number: abs(number - metadata["solution"])))


def all_nan(entry: Entry) -> str:
    return "[" + ", ".join(["NaN"] * len(entry["metadata"]["sorted_numbers"])) + "]"


def unevaluated_integral(entry: Entry) -> str:
    """The question back. The sum keeps it from being the item's own answer where that is an integral too."""
    metadata = entry["metadata"]
    variable = metadata["variable"]
    return f"Integral(({metadata['integrand']})/2 + {variable}, {variable}) * 2 - {variable}**2"


def premise_or_anything(entry: Entry) -> str:
    return f"({entry['metadata']['premises'][0]}) ∨ anything"


def opposite(entry: Entry) -> str:
    return "False" if str(entry["answer"]) == "True" else "True"


def larger_board(entry: Entry) -> str:
    return json.dumps([[*row, 1] for row in json.loads(entry["answer"])])


# --- trivial answers with large partial credit ---


def dead_board(entry: Entry) -> str:
    return json.dumps([[0] * len(row) for row in json.loads(entry["answer"])])


def ones_in_blanks(entry: Entry) -> str:
    """The puzzle as given, with 1 in every empty cell."""
    return "\n".join(" ".join(str(cell or 1) for cell in row) for row in entry["metadata"]["puzzle"])


def all_truthful(entry: Entry) -> str:
    metadata = entry["metadata"]
    return ", ".join(f"{name} is a {metadata['knight_knave_terms']['knight']}" for name in metadata["names"])


def number_itself(entry: Entry) -> str:
    return str(entry["metadata"]["number"])


def first_premise(entry: Entry) -> str:
    return str(entry["metadata"]["premises"][0])


def middle_of_the_range(entry: Entry) -> str:
    kind = entry["metadata"]["task_type"]
    if kind == "date":
        return "33 days"
    return "08:00:00" if kind.startswith("time") else "33 days, 12:00:00"


def as_given(entry: Entry) -> str:
    """The words of word_sorting in the order in which they stand in the question."""
    return ", ".join(entry["metadata"]["transformed_words"])


def scrambled_words(entry: Entry) -> str:
    return " ".join(entry["metadata"]["scrambled_words"])


def letter_by_letter(entry: Entry) -> str:
    """From the first word of word_ladder to the last, changing letters from the left, words or not."""
    word, goal = entry["metadata"]["start_word"], entry["metadata"]["end_word"]
    steps = [goal[:length] + word[length:] for length in range(len(goal) + 1)]
    return ",".join(dict.fromkeys(steps))
