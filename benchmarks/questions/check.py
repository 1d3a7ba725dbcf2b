"""Does every question have one meaning and a right key? python benchmarks/questions/check.py [TASK ...]

Each task has a solver that reads only the text of the question, and neither metadata nor the generator. It returns the
right answers that it finds, or judges an answer. For each served level, this script makes items in the same way as
strict training. It grades their keys, and the answers of the solver, as training does:

    wrong key        the solver says that the key of the item is wrong
    refused answer   a right answer of the solver earns nothing in training
    not decided      the solver cannot tell, for example because the question has two readings

The script writes the counts to results.json after each task, so an interrupted run keeps its results. `--missing`
measures only tasks that have no result. At the end, it prints the counts, and writes results.md beside this file
from this file; `--table` only writes the table. A run over all tasks takes about 25 minutes of one core.

A solver is a function in solvers/ with the name of its task:

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
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tqdm import tqdm

from benchmarks.questions.guessable import is_right
from benchmarks.questions.solution import Solution, Solver, undecided
from benchmarks.questions.table import RESULTS, write_table
from reasoning_gym_environment.sampling.seeds import held_out_by
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.tasks.difficulty_ladder import build_ladder
from reasoning_gym_environment.verification.grade import CHECKS
from reasoning_gym_environment.verification.questions import NOT_REPRODUCED, RUNS_PROGRAMS, is_sound, mended

MODULES = ("numbers", "texts", "puzzles", "rules", "grids")
FIRST_SEED = 40_000
EXAMPLES = 2
LATE_S = 10.0
"""The script gives up an item or a solution after this many seconds of processor time."""

Item = tuple[int, Mapping[str, Any], Mapping[str, Any] | None]
"""Seed, item of the library, and item as it is served; None if strict training replaces the item."""


@dataclass(frozen=True)
class Amount:
    """Limits for the number of items of a level. Between the limits, the time decides."""

    most: int
    fewest: int
    seconds: float


def solvers() -> dict[str, Solver]:
    """The solver of each task that has one."""
    found: dict[str, Solver] = {}
    for name in MODULES:
        module = importlib.import_module(f"benchmarks.questions.solvers.{name}")
        for task in CHECKS:
            if hasattr(module, task):
                found[task] = getattr(module, task)
    return found


def made_items(task: str, config: Mapping[str, Any], amount: Amount) -> Iterator[Item]:
    """The items of a level."""
    until = time.monotonic() + amount.seconds
    made = 0
    for seed in range(FIRST_SEED, FIRST_SEED + amount.most):
        if time.monotonic() > until and made >= amount.fewest:
            return
        with contextlib.redirect_stdout(io.StringIO()), at_most(LATE_S):
            try:
                entry = drawn(task, config, seed, noise=seed)
                if task == RUNS_PROGRAMS and repr(drawn(task, config, seed, noise=seed + 1)) != repr(entry):
                    entry["metadata"][NOT_REPRODUCED] = True
            # A generator may fail at some seeds, with any exception.
            except Exception as error:  # noqa: BLE001
                logging.debug("%s, seed %d: %s", task, seed, error)
                continue
        made += 1
        yield seed, entry, mended(task, entry) if is_sound(task, entry) else None


def drawn(task: str, config: Mapping[str, Any], seed: int, noise: int) -> dict[str, Any]:
    """The item of a seed. The shared random generators, from which some tasks draw, begin with `noise`."""
    # decimal_arithmetic sets the precision of the whole process.
    decimal.setcontext(decimal.DefaultContext.copy())
    random.seed(noise)
    entry: dict[str, Any] = library.create_dataset(task, **{**config, "seed": seed, "size": 1})[0]
    return entry


class LateError(Exception):
    """An item or a solution takes too long."""


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise LateError if the block takes more processor time. The generator of arc_1d never ends at some seeds."""

    def stop(*_: object) -> None:
        raise LateError(f"over {seconds:g} s")

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def solved(solver: Solver, question: str) -> Solution:
    """The solver's solution, or an undecided one if the solver takes too long."""
    try:
        with at_most(LATE_S):
            return solver(question)
    except LateError as error:
        return undecided(f"the solver took {error}")
    # A solver that cannot read a question may raise anything. Its other questions are checked.
    except Exception as error:  # noqa: BLE001
        logging.warning("The solver cannot read %r: %r", question[-200:], error)
        return undecided(f"the solver raised {type(error).__name__}")


def unread(question: str) -> Solution:
    """Stands for the solver of a task that has none."""
    return undecided("no solver")


def check_level(task: str, solver: Solver, config: Mapping[str, Any], amount: Amount) -> dict[str, Any]:
    """The counts of a level, with a few examples of each disagreement."""
    names = ("items", "replaced", "corrected", "clarified", "undecided", "wrong_keys", "refused_answers")
    counts = dict.fromkeys((*names, "several_answers", "other_answers", "judged"), 0)
    examples: list[dict[str, Any]] = []
    why: Counter[str] = Counter()
    served: list[Mapping[str, Any]] = []

    def note(kind: str, **details: Any) -> None:
        counts[kind] += 1
        if counts[kind] <= EXAMPLES:
            examples.append({"kind": kind, **details})

    for seed, made, entry in made_items(task, config, amount):
        counts["items"] += 1
        if entry is None:
            counts["replaced"] += 1
            continue
        served.append(entry)
        counts["corrected"] += entry["answer"] != made["answer"]
        counts["clarified"] += entry["question"] != made["question"]
        key = entry["answer"]
        solution = solved(solver, str(entry["question"]))
        if solution.is_undecided:
            counts["undecided"] += 1
            why[re.sub(r"\d+", "N", solution.why)[:80]] += 1
            continue
        counts["judged"] += solution.judge is not None
        counts["several_answers"] += len(solution.answers) > 1
        counts["other_answers"] += any(answer != str(key) for answer in solution.answers)
        if key is not None and not solution.accepts(str(key)):
            note("wrong_keys", seed=seed, key=str(key)[:200], solver=str(list(solution.answers)[:3])[:200])
        unpaid = [answer for answer in solution.answers if not is_right(task, entry, answer)]
        if unpaid:
            note("refused_answers", seed=seed, key=str(key)[:200], answer=unpaid[0][:200])
    found: dict[str, Any] = {name: count for name, count in counts.items() if count or name == "items"}
    found["questions"] = len({entry["question"] for entry in served})
    contents = len({content(task, str(entry["question"])) for entry in served})
    if contents < found["questions"]:
        found["contents"] = contents
    if why:
        found["why"] = dict(why.most_common(2))
    if examples:
        found["examples"] = examples
    return found


def content(task: str, question: str) -> str:
    """What a question asks, without words that make no difference."""
    if task == "aiw":
        return re.sub(r"[A-Z][a-z]+", "Name", question)
    return held_out_by(question)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help="all without")
    parser.add_argument("--items", type=int, default=100, help="items of each level (default: 100)")
    parser.add_argument("--seconds", type=float, default=3.0, help="for the items of one level (default: 3)")
    parser.add_argument("--fewest", type=int, default=0, help="items of each level, however long they take")
    parser.add_argument("--missing", action="store_true", help="only tasks without a result")
    parser.add_argument("--table", action="store_true", help="measure nothing, only write the table")
    options = parser.parse_args()
    version = library.load().version
    unknown = sorted(set(options.tasks) - CHECKS.keys())
    if unknown:
        parser.error(f"reasoning-gym has no {', '.join(unknown)}")
    amount = Amount(options.items, options.fewest, options.seconds)
    known = solvers()
    results: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))["tasks"] if RESULTS.exists() else {}
    tasks = [] if options.table else options.tasks or sorted(CHECKS)
    if options.missing:
        tasks = [task for task in tasks if task not in results]
    # Programs of codeio write files.
    os.chdir(tempfile.mkdtemp())
    for task in tqdm(tasks, "tasks", disable=None):
        solver = known.get(task, unread)
        results[task] = [check_level(task, solver, level.config, amount) for level in build_ladder(task).levels]
        save(version, results)
    write_table(results)
    print(json.dumps({task: results[task] for task in tasks}, indent=1, ensure_ascii=False))


def save(version: str, results: Mapping[str, Any]) -> None:
    """Write the results, a line for each level."""
    lines = []
    for task, levels in sorted(results.items()):
        written = ",\n  ".join(json.dumps(level, ensure_ascii=False) for level in levels)
        lines.append(f" {json.dumps(task)}: [\n  {written}\n ]")
    text = f'{{"version": {json.dumps(version)}, "tasks": {{\n' + ",\n".join(lines) + "\n}}\n"
    RESULTS.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
