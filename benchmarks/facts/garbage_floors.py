"""What each verifier pays for nothing: python benchmarks/facts/garbage_floors.py [--quick] [--write] > floors.json

Every task's verifier, run in this process, scores answers that show no work: garbage, constants, and the right answers
of other items. Per task: the highest score under 0.1 that any of them got (its floor, 0 if none), and the best mean
score of one constant answer over all items, which is what a model gets for always saying the same.

--write puts the floors that are not 0 into the package's data/garbage_floors.json, where `partial_credit: floor` reads
them. Scores of 0.1 and more are left alone: there a verifier counts cells, words or digits that happen to be right.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.verification.grade import grade

OUTPUT = Path(__file__).resolve().parents[2] / "reasoning_gym_environment" / "data" / "garbage_floors.json"
LIMIT = 0.1
"""A floor is below this: the nominal reward for trying, not partial credit."""

CONSTANTS = (
    "I cannot tell",
    "the answer is unknown",
    "lorem ipsum dolor sit amet, consectetur adipiscing elit",
    "zzz",
    "?",
    "0",
    "1",
    "-1",
    "42",
    "3.5",
    "1/2",
    "yes",
    "No",
    "True",
    "A",
    "x",
    "[]",
    "[1, 2, 3]",
    "{}",
    "0 0\n0 0",
    "a, b, c",
)


def measure(task: str, num_items: int) -> dict[str, Any]:
    """Floor and best constant of one task at its default config."""
    dataset = library.create_dataset(task, seed=7, size=num_items)
    entries = [dataset[index] for index in range(num_items)]
    oracles = [str(entry["answer"]) for entry in entries if entry["answer"] is not None]
    paid: dict[str, list[float]] = {}
    for entry in entries:
        for answer in (*CONSTANTS, *(oracle for oracle in oracles if oracle != str(entry["answer"]))):
            paid.setdefault(answer, []).append(grade(dataset.score_answer, entry, answer).value)
    low = [score for scores in paid.values() for score in scores if 0.0 < score < LIMIT]
    means = {answer: sum(paid[answer]) / num_items for answer in CONSTANTS}
    best = max(means, key=lambda answer: means[answer])
    return {"floor": max(low, default=0.0), "best_constant": best, "best_constant_mean": round(means[best], 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three items a task instead of ten")
    parser.add_argument("--write", action="store_true", help="update the package's data")
    options = parser.parse_args()
    tasks = sorted(set(library.registry()) - {"composite"})
    with library.stdout_to_stderr():
        report = {task: measure(task, 3 if options.quick else 10) for task in tasks}
    if options.write:
        write({task: found["floor"] for task, found in report.items() if found["floor"] > 0})
    print(json.dumps({"reasoning_gym": library.load().version, "tasks": report}, indent=1))


def write(floors: dict[str, float]) -> None:
    document = {
        "measured": "by benchmarks/facts/garbage_floors.py: the highest score under 0.1 that garbage, constants or "
        "other items' answers got at the default config; tasks that are missing pay nothing",
        "reasoning_gym": library.load().version,
        "floors": floors,
    }
    OUTPUT.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
