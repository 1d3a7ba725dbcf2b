"""Does every question have one meaning and a right key? python benchmarks/questions/check.py [TASK ...] > check.json

For each task there is a solver that reads only the text of the question: no metadata, and nothing of the generator. It
gives the right answers that it finds. At each level that is served, items are made as strict training makes them. Their
keys, and the answers of the solver, are graded as training grades them:

    refused key      the solver says that the item's own answer is wrong
    refused answer   training pays nothing for a right answer of the solver
    undecided        the solver cannot tell, for example because the question has two readings

A solver is a function in solvers/, of the name of its task:

    def chain_sum(question: str) -> Solution: ...
"""

from __future__ import annotations

import argparse
import contextlib
import decimal
import importlib
import io
import json
import logging
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tqdm import tqdm

from benchmarks.questions.solution import Solution, Solver
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.tasks.difficulty_ladder import build_ladder
from reasoning_gym_environment.verification.grade import CHECK_ERRORS, CHECKS
from reasoning_gym_environment.verification.questions import is_sound, mended

MODULES = ("numbers", "texts", "puzzles")
FIRST_SEED = 40_000
EXAMPLES = 3


def solvers() -> dict[str, Solver]:
    """The solver of each task that has one."""
    found: dict[str, Solver] = {}
    for name in MODULES:
        module = importlib.import_module(f"benchmarks.questions.solvers.{name}")
        for task in CHECKS:
            if hasattr(module, task):
                found[task] = getattr(module, task)
    return found


def served_items(task: str, config: Mapping[str, Any], most: int, seconds: float) -> Iterator[tuple[int, Any]]:
    """Up to so many (seed, item) of a level. The item is None if strict training replaces it."""
    until = time.monotonic() + seconds
    for seed in range(FIRST_SEED, FIRST_SEED + most):
        if time.monotonic() > until:
            return
        # decimal_arithmetic sets the precision of the whole process.
        decimal.setcontext(decimal.DefaultContext.copy())
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                entry = library.create_dataset(task, **{**config, "seed": seed, "size": 1})[0]
            # A generator may fail at some seeds, with any exception.
            except Exception as error:  # noqa: BLE001
                logging.debug("%s, seed %d: %s", task, seed, error)
                continue
        yield seed, mended(task, entry) if is_sound(task, entry) else None


def is_paid(task: str, entry: Mapping[str, Any], answer: str) -> bool:
    """Whether training pays the answer."""
    try:
        return bool(CHECKS[task](entry, answer))
    except CHECK_ERRORS:
        return False


def check_level(task: str, solver: Solver, config: Mapping[str, Any], most: int, seconds: float) -> dict[str, Any]:
    """The counts of a level, with a few examples of each disagreement."""
    counts = {"items": 0, "replaced": 0, "undecided": 0, "refused_keys": 0, "refused_answers": 0}
    examples: dict[str, list[dict[str, Any]]] = {"refused_keys": [], "refused_answers": [], "undecided": []}

    def note(kind: str, **details: Any) -> None:
        counts[kind] += 1
        if len(examples[kind]) < EXAMPLES:
            examples[kind].append(details)

    for seed, entry in served_items(task, config, most, seconds):
        counts["items"] += 1
        if entry is None:
            counts["replaced"] += 1
            continue
        question = str(entry["question"])
        key = entry["answer"]
        solution: Solution = solver(question)
        if solution.is_undecided:
            note("undecided", seed=seed, key=key, why=solution.why)
            continue
        if key is not None and not solution.accepts(str(key)):
            note("refused_keys", seed=seed, key=key, solver=list(solution.answers)[:3], why=solution.why)
        unpaid = [answer for answer in solution.answers if not is_paid(task, entry, answer)]
        if unpaid:
            note("refused_answers", seed=seed, key=key, answer=unpaid[0])
    return {**counts, "examples": {kind: found for kind, found in examples.items() if found}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help="all that have a solver, without")
    parser.add_argument("--items", type=int, default=50, help="items of each level (default: 50)")
    parser.add_argument("--seconds", type=float, default=20.0, help="for the items of one level (default: 20)")
    options = parser.parse_args()
    library.load()
    known = solvers()
    unknown = sorted(set(options.tasks) - known.keys())
    if unknown:
        parser.error(f"no solver reads {', '.join(unknown)}")
    results: dict[str, Any] = {}
    for task in tqdm(options.tasks or sorted(known), "tasks", disable=None):
        levels = build_ladder(task).levels
        results[task] = [
            check_level(task, known[task], level.config, options.items, options.seconds) for level in levels
        ]
    without = sorted(CHECKS.keys() - known.keys())
    print(json.dumps({"version": library.load().version, "tasks": results, "without_solver": without}, indent=1))


if __name__ == "__main__":
    main()
