"""Which levels pay an answer without work: python benchmarks/questions/guessable.py [TASK ...] [--seconds 30] [--write]

An answer without work is a constant, an answer that was right to an item of another seed, or what a cheap rule makes of
the question: a copy of its last lines, its last number, the last term of a sequence plus the last difference. At each
level of a task, and at its default config, the answer without work that is right on the largest share of 200 items is
measured (fewer, if they take longer than `--seconds` to make).

With --write, all shares above 0.3 (0.05 for a task with many right answers, which has a validator) go to guessable.json
beside this file. benchmarks/facts/levels.py decides which levels training does not ask. Other tasks stay in the file
as they are.
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
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.facts.levels import usable_levels
from reasoning_gym_environment.commands.audit import CONSTANTS
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.tasks.catalog import config_of
from reasoning_gym_environment.verification.entries import right_answer
from reasoning_gym_environment.verification.grade import CHECK_ERRORS, CHECKS
from reasoning_gym_environment.verification.logic import short_formulas
from reasoning_gym_environment.verification.questions import is_sound, mended
from reasoning_gym_environment.verification.validators import VALIDATORS

FILE = Path(__file__).with_name("guessable.json")
ITEMS, SAMPLE, MOST_CANDIDATES = 200, 60, 60
MANY_SOLUTIONS, ONE_SOLUTION, HALF = 0.05, 0.3, 0.5
FIXED = [*CONSTANTS, "infeasible", "No", "Yes", "A", "B", "C", "A → B", "B → C", "A+1", "A+2", "A+3", "A+4", "fill A"]
FIXED += [*short_formulas("PQRS"), "up", "down", "x", "0.5", "1/2", "undetermined", "Pass", "fill A, pour A->B"]
FIXED += [json.dumps({str(n): 1 + n % colours for n in range(size)}) for colours in (2, 3, 4) for size in range(4, 12)]
LIMITED = {"rubiks_cube", "simple_integration", "intermediate_integration", "sokoban", "boxnet"}
"""Checks that take long: fewer answers are tried."""


# --- cheap rules: from the text of a question to an answer


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


def holes_with(sign: str) -> Callable[[str], str]:
    """The grid of the question, with the same sign in each hole."""

    def fill(question: str) -> str:
        return last_lines(question).replace("❔", sign)

    return fill


def last_number(question: str) -> str:
    """The last number."""
    return (re.findall(r"-?\d+", question) or [""])[-1]


def largest_number(question: str) -> str:
    """The largest number."""
    return max(re.findall(r"\d+", question) or [""], key=lambda digits: (len(digits), digits))


def straight_on(question: str) -> str:
    """The last term of a sequence, plus the difference to the term before it."""
    terms = [int(digits) for digits in re.findall(r"-?\d+", question)]
    return str(2 * terms[-1] - terms[-2]) if len(terms) > 1 else ""


RULES: Mapping[str, Callable[[str], str]] = {
    "a copy of the last lines of the question": last_lines,
    "a copy of the last grid of the question": last_grid,
    "the last word of the question": last_word,
    "a cross in each hole": holes_with("❌"),
    "a tick in each hole": holes_with("✅"),
    "the last number of the question": last_number,
    "the largest number of the question": largest_number,
    "the last term plus the last difference": straight_on,
}


# --- measuring


def items(task: str, config: Mapping[str, Any], seed: int, most: int, seconds: float) -> Iterator[dict[str, Any]]:
    """Items as strict training makes them."""
    # decimal_arithmetic sets the precision of the whole process.
    decimal.setcontext(decimal.DefaultContext.copy())
    dataset = library.create_dataset(task, **{**config, "seed": seed, "size": most})
    until = time.monotonic() + seconds
    for index in range(most):
        if time.monotonic() > until:
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
        return bool(CHECKS[task](entry, answer))
    except CHECK_ERRORS:
        return False


def measure(task: str, config: Mapping[str, Any], seconds: float) -> tuple[float, str, int]:
    """The best answer without work at one config: its share of the items, what it is, how many items."""
    known = Counter(right_answer(task, entry) or "" for entry in items(task, config, 8001, SAMPLE, seconds / 3))
    tried = [answer for answer, _ in known.most_common(6 if task in LIMITED else MOST_CANDIDATES) if answer]
    asked = list(items(task, config, 9001, ITEMS, seconds))
    shares = {answer: _share(task, asked, [answer] * len(asked)) for answer in dict.fromkeys([*tried, *FIXED])}
    for name, rule in RULES.items():
        shares[name] = _share(task, asked, [rule(str(entry["question"])) for entry in asked])
    best = max(shares, key=shares.__getitem__)
    return shares[best], best, len(asked)


def _share(task: str, asked: Sequence[dict[str, Any]], answers: Sequence[str]) -> float:
    hits = sum(is_right(task, entry, answer) for entry, answer in zip(asked, answers, strict=True) if answer)
    return hits / max(len(asked), 1)


def over_the_limit(task: str, seconds: float) -> list[dict[str, Any]]:
    limit = MANY_SOLUTIONS if task in VALIDATORS else ONE_SOLUTION
    levels = usable_levels(task).configs.items()
    found = []
    for number, config in [(None, config_of(task, {})), *levels]:
        with contextlib.redirect_stdout(io.StringIO()):
            share, answer, count = measure(task, config, seconds)
        name = "default" if number is None else f"level {number}"
        print(f"{task}, {name}: {share:.3f} of {count}  {answer[:60]!r}", file=sys.stderr)
        if share > limit:
            config = json.loads(json.dumps(dict(config), default=str))
            teaches_nothing = share > (limit if task in VALIDATORS else HALF)
            details = {"answer": answer[:120], "share": round(share, 3), "teaches_nothing": teaches_nothing}
            if answer in RULES:
                details["is_rule"] = True
            found.append({"level": number, "config": config, **details})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help="all without")
    parser.add_argument("--seconds", type=float, default=30.0, help="to make the items of one level")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    library.load()
    constants = json.loads(FILE.read_text(encoding="utf-8"))["constants"]
    for task in options.tasks or sorted(CHECKS):
        constants[task] = over_the_limit(task, options.seconds)
        document = {
            "reasoning_gym_version": library.load().version,
            "constants": {name: found for name, found in sorted(constants.items()) if found},
        }
        if options.write:
            FILE.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(json.dumps(constants, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
