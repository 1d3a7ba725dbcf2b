"""Which levels a blind answer is paid at: python benchmarks/audit/blind_answers.py [TASK ...] [--seconds 30] [--write]

A blind answer ignores the question: a constant, or an answer that was right to an item of another seed. At each level
of a task, and at its default config, the blind answer that is right on the largest share of 200 items is measured
(fewer, if they take longer than `--seconds` to make).

The limit is 0.05 for a task with many right answers, which have validators. Where one answer is right, a constant is
paid as often as it is the answer, and there is no way to ask a yes-or-no question at which a guess earns less than a
half; there the limit is a half. With --write, levels above the limit go to the package's data/farming.json, and
training does not ask them. Other tasks stay in the file as they are.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from reasoning_gym_environment.commands.audit import CONSTANTS
from reasoning_gym_environment.commands.items import right_answer
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.tasks.catalog import config_of
from reasoning_gym_environment.tasks.difficulty_ladder import build_ladder
from reasoning_gym_environment.verification.grade import CHECK_ERRORS, CHECKS
from reasoning_gym_environment.verification.item_checks import has_right_answer
from reasoning_gym_environment.verification.logic import short_formulas
from reasoning_gym_environment.verification.validators import VALIDATORS

FILE = Path(__file__).resolve().parents[2] / "reasoning_gym_environment" / "data" / "farming.json"
ITEMS, SAMPLE, MOST_CANDIDATES = 200, 60, 60
MANY_SOLUTIONS, ONE_SOLUTION = 0.05, 0.5
FIXED = [*CONSTANTS, "infeasible", "No", "Yes", "A", "B", "C", "A → B", "B → C", "A+1", "A+2", "A+3", "A+4", "fill A"]
FIXED += [*short_formulas("PQRS"), "up", "down", "x", "0.5", "1/2", "undetermined", "Pass", "fill A, pour A->B"]
FIXED += [json.dumps({str(n): 1 + n % colours for n in range(size)}) for colours in (2, 3, 4) for size in range(4, 12)]
LIMITED = {"rubiks_cube", "simple_integration", "intermediate_integration", "sokoban", "boxnet"}
"""Checks that take long: fewer answers are tried."""


def items(task: str, config: Mapping[str, Any], seed: int, most: int, seconds: float) -> Iterator[dict[str, Any]]:
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
        if has_right_answer(task, entry):
            yield entry


def is_right(task: str, entry: dict[str, Any], answer: str) -> bool:
    try:
        return CHECKS[task](entry, answer)
    except CHECK_ERRORS:
        return False


def measure(task: str, config: Mapping[str, Any], seconds: float) -> tuple[float, str, int]:
    """The best blind answer of one config: its share of the items, the answer, how many items."""
    known = Counter(right_answer(task, entry) or "" for entry in items(task, config, 8001, SAMPLE, seconds / 3))
    tried = [answer for answer, _ in known.most_common(6 if task in LIMITED else MOST_CANDIDATES) if answer]
    asked = list(items(task, config, 9001, ITEMS, seconds))
    hits = {one: sum(is_right(task, entry, one) for entry in asked) for one in dict.fromkeys([*tried, *FIXED])}
    best = max(hits, key=hits.__getitem__)
    return hits[best] / max(len(asked), 1), best, len(asked)


def over_the_limit(task: str, seconds: float) -> list[dict[str, Any]]:
    limit = MANY_SOLUTIONS if task in VALIDATORS else ONE_SOLUTION
    levels = [(level.index, level.config) for level in build_ladder(task, keep_constant_answer_levels=True).levels]
    found = []
    for number, config in [(None, config_of(task, {})), *levels]:
        with contextlib.redirect_stdout(io.StringIO()):
            share, answer, count = measure(task, config, seconds)
        print(
            f"{task}, {'default' if number is None else f'level {number}'}: {share:.3f} of {count}  {answer[:60]!r}",
            flush=True,
        )
        if share > limit:
            config = json.loads(json.dumps(dict(config), default=str))
            found.append({"level": number, "config": config, "answer": answer[:120], "share": round(share, 3)})
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


if __name__ == "__main__":
    main()
