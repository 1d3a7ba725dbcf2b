"""How often chance moves the curriculum, and how fast it moves a task whose level is wrong.

    python benchmarks/research/curriculum_noise.py            # about a minute on one core
    python benchmarks/research/curriculum_noise.py --runs 20  # a rough answer in ten seconds

The script simulates groups of completions and hands them to the package's own `Curriculum`. The accuracy is the same at
every level of a ladder that never ends. Completions of one item agree with each other in two ways:

    beta        each item has a separate chance, drawn from a beta distribution
    two-point   some items are always or never solved, and all remaining items have the mean accuracy

In both the intra-class correlation is the given number. The script prints JSON:

    false_moves      moves in a hundred groups when the accuracy is exactly at the target, over runs of GROUPS groups
    groups_per_move  median and mean number of groups before a move in the right direction, target 0.7, groups of 8;
                     `new` tasks have never moved down, `settled` tasks have ended their climb
    measured         quartiles of the intra-class correlation in the results of a language model
                     (benchmarks/research/llm): a value for each task, set of questions and evaluation with an
                     accuracy from 0.2 to 0.9
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from reasoning_gym_environment.sampling.curriculum import Curriculum, GroupResult

GROUPS = 300
"""Groups of one simulated run."""

TARGETS = (0.5, 0.6, 0.7, 0.8, 0.9)
CORRELATIONS = (0.0, 0.2, 0.4, 0.6, 0.8)
GROUP_SIZES = (2, 4, 8, 16)
KINDS = ("beta", "two-point")
WRONG_LEVELS = (1.0, 0.95, 0.9, 0.3, 0.1, 0.0)
"""Accuracies at a level that is too easy or too hard for a target of 0.7."""

RESULTS = Path(__file__).resolve().parent / "llm" / "results"

LEAST_ITEMS = 10
"""Items of a task that a measured correlation needs at least."""

START, TOP = 1_000_000, 2_000_000
"""Level at which a simulated task starts, and the end of its ladder. No simulated task reaches an end."""


def chances(kind: str, accuracy: float, correlation: float, rng: np.random.Generator) -> np.ndarray:
    """The chance of a right completion for each of GROUPS items."""
    if correlation == 0.0 or accuracy in (0.0, 1.0):
        return np.full(GROUPS, accuracy)
    if kind == "beta":
        total = 1.0 / correlation - 1.0
        return rng.beta(accuracy * total, (1.0 - accuracy) * total, size=GROUPS)
    is_certain = rng.random(GROUPS) < correlation
    is_solved = rng.random(GROUPS) < accuracy
    return np.where(is_certain, is_solved.astype(float), accuracy)


def groups(
    kind: str, accuracy: float, correlation: float, size: int, rng: np.random.Generator
) -> Iterator[tuple[float, ...]]:
    """The rewards of the completions of GROUPS items."""
    for right in rng.binomial(size, chances(kind, accuracy, correlation, rng)).tolist():
        yield (1.0,) * right + (0.0,) * (size - right)


def moves(curriculum: Curriculum, rewards: Iterator[tuple[float, ...]]) -> list[tuple[int, int]]:
    """Direction of each move, and the number of groups since the move before."""
    found = []
    waited = 0
    for group in rewards:
        before = curriculum.level("task")
        curriculum.observe(GroupResult("task", before, group))
        waited += 1
        step = curriculum.level("task") - before
        if step != 0:
            found.append((step, waited))
            waited = 0
    return found


def new_curriculum(target: float, is_climbing: bool = True) -> Curriculum:
    curriculum = Curriculum(["task"], lambda task: TOP, target)
    curriculum.load_state_dict({"tasks": {"task": {"level": START, "is_climbing": is_climbing}}})
    return curriculum


def false_moves(runs: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    cells = [(target, kind) for target in TARGETS for kind in KINDS]
    rows: list[dict[str, Any]] = []
    for target, kind in tqdm(cells, desc="at the target", disable=None):
        for correlation in CORRELATIONS:
            rates = {}
            for size in GROUP_SIZES:
                counts = [
                    len(moves(new_curriculum(target), groups(kind, target, correlation, size, rng)))
                    for _ in range(runs)
                ]
                rates[str(size)] = round(100.0 * statistics.fmean(counts) / GROUPS, 2)
            rows.append({"target": target, "items": kind, "correlation": correlation, "by_group_size": rates})
    return rows


def groups_per_move(runs: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    target = 0.7
    rows: list[dict[str, Any]] = []
    for accuracy in tqdm(WRONG_LEVELS, desc="wrong level", disable=None):
        direction = 1 if accuracy > target else -1
        for correlation in CORRELATIONS:
            row: dict[str, Any] = {"accuracy": accuracy, "correlation": correlation}
            for name in ("new", "settled"):
                waits = []
                for _ in range(runs):
                    made = moves(
                        new_curriculum(target, is_climbing=name == "new"),
                        groups("beta", accuracy, correlation, 8, rng),
                    )
                    right_way = [waited for step, waited in made if step == direction]
                    waits += right_way if name == "new" else right_way[:1]
                row[name] = {"median": statistics.median(waits), "mean": round(statistics.fmean(waits), 1)}
            rows.append(row)
    return rows


def intra_class_correlation(items: Sequence[Sequence[float]]) -> float:
    """The one-way analysis-of-variance estimate, for items with equally many completions that are not all alike."""
    rewards = np.array(items, dtype=float)
    count, size = rewards.shape
    means = rewards.mean(axis=1, keepdims=True)
    between = size * np.square(means - rewards.mean()).sum() / (count - 1)
    within = np.square(rewards - means).sum() / (count * (size - 1))
    return float((between - within) / (between + (size - 1) * within))


def measured(folder: Path) -> dict[str, Any]:
    """Correlations in the evaluations of the runs in `folder`, and their quartiles."""
    correlations = []
    for path in sorted(folder.glob("*.json")):
        run = json.loads(path.read_text(encoding="utf-8"))
        for sets in run["evaluations"].values():
            for questions in sets.values():
                correlations += correlations_by_task(questions)
    quartiles = [round(quartile, 2) for quartile in statistics.quantiles(correlations, n=4)]
    return {"cells": len(correlations), "quartiles": quartiles}


def correlations_by_task(questions: Sequence[Sequence[Any]]) -> list[float]:
    """`questions` are rows of the question, which starts with its task, and whether each completion was right."""
    by_task = defaultdict(list)
    for text, *rights in questions:
        by_task[str(text).split()[0]].append([float(bool(right)) for right in rights])
    return [
        intra_class_correlation(items)
        for items in by_task.values()
        if len(items) >= LEAST_ITEMS and 0.2 <= np.mean(items) <= 0.9
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=100, help="simulated runs of each cell (default: 100)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    at_target = false_moves(options.runs, rng)
    rates = [rate for row in at_target for rate in row["by_group_size"].values()]
    report = {
        "highest_false_moves": max(rates),
        "false_moves": at_target,
        "groups_per_move": groups_per_move(options.runs, rng),
        "measured": measured(RESULTS),
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
