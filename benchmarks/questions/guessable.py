"""Which levels pay an answer without work: python benchmarks/questions/guessable.py [TASK ...] [--items 200]

An answer without work is a constant, an answer that was right to an item of another seed, or what a cheap rule makes of
the question: a copy of its last lines, the last term of a sequence plus the last difference, or one number of the
question, to which a small number is added, from which it is subtracted, or with which it is multiplied.

At each level of a task, the script measures the answer without work that is right on the largest share of the items.
It makes `--items` items, or fewer if they take more than `--seconds` of processor time. The shares go to guessable.json
beside this file, after each task, so an interrupted run keeps its results. Other tasks stay in the file as they are.
benchmarks/facts/levels.py decides which levels training does not ask, and table.py shows the shares.
"""

from __future__ import annotations

import argparse
import contextlib
import decimal
import io
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tqdm import tqdm

from benchmarks.facts.levels import GUESSABLE, changed_fields, usable_levels
from reasoning_gym_environment.commands.audit import CONSTANTS
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.verification.entries import right_answer
from reasoning_gym_environment.verification.grade import CHECK_ERRORS, CHECKS
from reasoning_gym_environment.verification.logic import short_formulas
from reasoning_gym_environment.verification.questions import is_sound, mended

SOURCES, MOST_ANSWERS = 60, 60
"""Answers without work are taken from this many items of another seed, and this many of them are tried."""
LOOK = 40
"""After this many items, constants that were right on none of them are tried no longer."""

FIXED = (*CONSTANTS, "infeasible", "A", "B", "C", "up", "down", "x", "0.5", "1/2", "undetermined", "Pass")
"""Constants that are tried in every task."""
COLOURINGS = [{str(n): 1 + n % colours for n in range(size)} for colours in (2, 3, 4) for size in range(4, 12)]
OF_TASK: Mapping[str, Sequence[str]] = {
    "graph_color": [json.dumps(colouring) for colouring in COLOURINGS],
    "jugs": ["fill A", "fill A, pour A->B"],
    "propositional_logic": list(short_formulas("PQRS")),
    "quantum_lock": ["A → B", "B → C"],
    "rotten_oranges": ["-1"],
    "survo": ["A+1", "A+2", "A+3", "A+4"],
}
"""Constants that can be right in a single task only."""
LIMITED = {"rubiks_cube", "simple_integration", "intermediate_integration", "sokoban", "boxnet"}
"""Checks that take long: fewer answers are tried."""

Rule = Callable[[str], str]
"""From the text of a question to an answer; "" if the rule makes none of it."""


# --- cheap rules


def last_lines(question: str) -> str:
    """A copy of the last block of lines, without what stands before a colon."""
    return question.rstrip().split("\n\n")[-1].split(":")[-1].strip()


def last_grid(question: str) -> str:
    """A copy of the last lines of numbers."""
    grids = re.findall(r"(?:^[\d ]+$\n?)+", question, re.MULTILINE)
    return grids[-1].strip() if grids else ""


def last_word(question: str) -> str:
    """The last word, such as a text that shall be changed."""
    return question.split()[-1]


def holes_with(sign: str) -> Rule:
    """The grid of the question, with the same sign in each hole."""

    def fill(question: str) -> str:
        return last_lines(question).replace("❔", sign)

    return fill


RULES: Mapping[str, Rule] = {
    "a copy of the last lines of the question": last_lines,
    "a copy of the last grid of the question": last_grid,
    "the last word of the question": last_word,
    "a cross in each hole": holes_with("❌"),
    "a tick in each hole": holes_with("✅"),
}


# --- cheap rules for numbers


PLACES: Mapping[str, Callable[[list[int]], int]] = {
    "the first number": lambda numbers: numbers[0],
    "the second number": lambda numbers: numbers[1],
    "the third number": lambda numbers: numbers[2],
    "the last number": lambda numbers: numbers[-1],
    "the last number but one": lambda numbers: numbers[-2],
    "the largest number": max,
    "the smallest number": min,
}
SMALL = range(1, 11)
"""The small numbers with which a number of the question is changed."""


def made_of_numbers(question: str) -> Iterator[tuple[str, int]]:
    """What the cheap rules make of the numbers of a question: pairs of a rule and its result."""
    numbers = [int(digits) for digits in re.findall(r"-?\d{1,30}", question)]
    if len(numbers) > 1:
        yield "the last term plus the last difference", 2 * numbers[-1] - numbers[-2]
    for name, place in PLACES.items():
        try:
            number = place(numbers)
        # The question has fewer numbers.
        except (IndexError, ValueError):
            continue
        yield name, number
        for small in SMALL:
            yield f"{name} plus {small}", number + small
            yield f"{name} minus {small}", number - small
            yield f"{name} times {small}", number * small


# --- measuring


@dataclass(frozen=True)
class Amount:
    """Limits for the items of a level: their number, and the seconds of processor time to make them."""

    items: int
    seconds: float


def items(task: str, config: Mapping[str, Any], seed: int, amount: Amount) -> Iterator[dict[str, Any]]:
    """Items as strict training makes them."""
    # decimal_arithmetic sets the precision of the whole process.
    decimal.setcontext(decimal.DefaultContext.copy())
    dataset = library.create_dataset(task, **{**config, "seed": seed, "size": amount.items})
    until = time.process_time() + amount.seconds
    for index in range(amount.items):
        if time.process_time() > until:
            return
        try:
            entry = dataset[index]
        # A generator may fail at some seeds, with any exception.
        except Exception as error:  # noqa: BLE001
            print(f"{task}: no item {index} of seed {seed}: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        if is_sound(task, entry):
            yield mended(task, entry)


def is_right(task: str, entry: Mapping[str, Any], answer: str) -> bool:
    """Whether training pays the answer."""
    try:
        return bool(answer) and bool(CHECKS[task](entry, answer))
    except CHECK_ERRORS:
        return False


def measure(task: str, config: Mapping[str, Any], amount: Amount) -> dict[str, Any]:
    """The best answer without work at one config: what it is, its share of the items, and how many items there were."""
    sources = items(task, config, 8001, Amount(SOURCES, amount.seconds / 3))
    known = Counter(right_answer(task, entry) or "" for entry in sources)
    frequent = known.most_common(6 if task in LIMITED else MOST_ANSWERS)
    asked = list(items(task, config, 9001, amount))
    constants = [*(answer for answer, _ in frequent), *FIXED, *OF_TASK.get(task, ())]
    hits = constant_hits(task, asked, list(dict.fromkeys(constants)))
    rules = rule_hits(task, asked)
    best, hit = max([*hits.items(), *rules.items()], key=lambda found: found[1])
    share = round(hit / max(len(asked), 1), 3)
    found: dict[str, Any] = {"items": len(asked), "share": share, "answer": best[:120]}
    if hit and best in rules:
        found["is_rule"] = True
    return found


def constant_hits(task: str, asked: Sequence[dict[str, Any]], answers: Sequence[str]) -> Counter[str]:
    """How many of the items each constant answers."""
    hits = Counter(dict.fromkeys(answers, 0))
    tried = answers
    for number, entry in enumerate(asked):
        if number == LOOK:
            tried = [answer for answer in tried if hits[answer]]
        hits.update(answer for answer in tried if is_right(task, entry, answer))
    return hits


def rule_hits(task: str, asked: Sequence[dict[str, Any]]) -> Counter[str]:
    """How many of the items each cheap rule answers. A rule for numbers is right if the key is its result."""
    hits: Counter[str] = Counter()
    for entry in asked:
        question = str(entry["question"])
        hits.update(name for name, rule in RULES.items() if is_right(task, entry, rule(question)))
        key = number_of(str(entry["answer"]))
        hits.update(name for name, result in made_of_numbers(question) if result == key)
    return hits


def number_of(key: str) -> float | None:
    """The number that a key says, if it is one."""
    try:
        return float(key)
    except ValueError:
        return None


def measure_task(task: str, amount: Amount) -> Iterator[dict[str, Any]]:
    """The measurement of each usable level, with the fields in which it differs from the default config."""
    for config in usable_levels(task).configs.values():
        with contextlib.redirect_stdout(io.StringIO()):
            found = measure(task, config, amount)
        yield {**found, "config": changed_fields(task, config)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help="all without")
    parser.add_argument("--items", type=int, default=200, help="items of each level (default: 200)")
    parser.add_argument("--seconds", type=float, default=30.0, help="for the items of one level (default: 30)")
    options = parser.parse_args()
    version = library.load().version
    amount = Amount(options.items, options.seconds)
    for task in tqdm(options.tasks or sorted(CHECKS), "tasks", disable=None):
        save(version, task, list(measure_task(task, amount)))


def save(version: str, task: str, levels: Sequence[Mapping[str, Any]]) -> None:
    """Write the measurements of a task into the file, a line for each level."""
    measured = json.loads(GUESSABLE.read_text(encoding="utf-8"))["tasks"] if GUESSABLE.exists() else {}
    measured[task] = levels
    tasks = []
    for name, lines in sorted(measured.items()):
        written = ",\n  ".join(json.dumps(line, ensure_ascii=False) for line in lines)
        tasks.append(f" {json.dumps(name)}: [\n  {written}\n ]")
    text = f'{{"version": {json.dumps(version)}, "tasks": {{\n' + ",\n".join(tasks) + "\n}}\n"
    GUESSABLE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
