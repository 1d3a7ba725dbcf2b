"""What simulated students learn, by way of choosing: python benchmarks/learning_signal.py [--quick] > out.json

A second judge beside real_learning.py, with all tasks and long runs. Nine simulated students (fit_students.py) answer
groups of 8 that the environment's own choosers draw: `build_choosers` and `Curriculum`, wired as in the environment. A
group is observed IN_FLIGHT draws after it was chosen, because that many are in progress in a run.

A group whose rewards differ raises its task's accuracy; but a third of the tasks never learn, the others up to three
times faster or slower, and all forget what is not trained (`LEARNING`). Compared are the gains in accuracy, mean over
all tasks and all levels of their ladders, and the share of groups with a signal. The differences of the task choice to
uniform tasks are paired by student and seed, with 95 % intervals of Student's t over the students.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import statistics
import sys
import time
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.fit_students import Learning, SimulatedStudent, load_students
from reasoning_gym_environment.evaluation.statistics import t_quantile
from reasoning_gym_environment.sampling.choosers import build_choosers, effective_number
from reasoning_gym_environment.sampling.curriculum import Curriculum
from reasoning_gym_environment.tasks.difficulty_ladder import Ladder, Level

GROUP_SIZE = 8
IN_FLIGHT = 64
LEARNING = Learning(gain=0.03, stubborn=1 / 3, speeds=3.0, forgets=2e-5)

WAYS: dict[str, tuple[str, str | None]] = {
    "uniform, default configs": ("uniform", None),
    "uniform, random levels": ("uniform", "random"),
    "sampler, random levels": ("learnability", "random"),
    "uniform, curriculum": ("uniform", "curriculum"),
    "sampler, curriculum": ("learnability", "curriculum"),
}
PAIRS = (
    ("sampler, curriculum", "uniform, curriculum"),
    ("sampler, random levels", "uniform, random levels"),
    ("uniform, curriculum", "uniform, default configs"),
)


def simulate(student: SimulatedStudent, way: str, *, seed: int, groups: int) -> dict[str, float]:
    """One run of the choosers against one student."""
    sampling, mode = WAYS[way]
    ladders = {task: ladder(task, fitted.levels) for task, fitted in student.tasks.items()}
    curriculum = Curriculum(ladder_sizes={task: len(steps) for task, steps in ladders.items()})
    tasks, levels = build_choosers(
        task_sampling=sampling,
        complexity_mode=mode,
        weights=dict.fromkeys(student.tasks, 1.0),
        ladders=ladders,
        curriculum=curriculum,
        seed=seed,
        task_floor=0.12,
    )
    rng, before = Random(seed), ability(student)
    waiting: deque[tuple[str, int | None, list[float]]] = deque()
    drawn: Counter[str] = Counter()
    signals = 0
    for index in range(groups):
        task = tasks.choose(index, "0")
        level = levels.choose(task, index) if levels else None
        scores = student.scores(task, level.index if level else student.tasks[task].easy, GROUP_SIZE, rng)
        student.learn(task, len(set(scores)) > 1)
        signals += len(set(scores)) > 1
        drawn[task] += 1
        waiting.append((task, level.index if level else None, scores))
        if len(waiting) > IN_FLIGHT:
            done, at, seen = waiting.popleft()
            tasks.observe(done, at, statistics.fmean(seen), len(set(seen)) > 1)
            if mode == "curriculum" and at is not None:
                curriculum.observe(done, at, seen)
    return {
        "gain": ability(student) - before,
        "signal_share": signals / groups,
        "share_of_stubborn_tasks": sum(drawn[task] for task in student.tasks if not LEARNING.speed(task)) / groups,
        "effective_tasks": effective_number(list(drawn.values())),
    }


def ability(student: SimulatedStudent) -> float:
    """Mean accuracy over all tasks and levels."""
    return statistics.fmean(
        statistics.fmean(student.accuracy(task, level) for level in range(fitted.levels))
        for task, fitted in student.tasks.items()
    )


def ladder(task: str, size: int) -> Ladder:
    return Ladder(task, tuple(Level(index, index / max(size - 1, 1), {}) for index in range(size)), "simulated")


def run(job: tuple[str, str, int, int]) -> dict[str, Any]:
    name, way, seed, groups = job
    found = simulate(load_students(learning=LEARNING)[name], way, seed=seed, groups=groups)
    return {"student": name, "way": way, "seed": seed, **found}


def difference(runs: Sequence[dict[str, Any]], way: str, base: str) -> dict[str, Any]:
    """Of the gains, by student (mean over seeds), and over the students with its interval."""
    gains = {(run["student"], run["way"], run["seed"]): run["gain"] for run in runs}
    students = sorted({run["student"] for run in runs})
    seeds = sorted({run["seed"] for run in runs})
    by_student = {
        name: statistics.fmean(gains[name, way, seed] - gains[name, base, seed] for seed in seeds) for name in students
    }
    values = list(by_student.values())
    half = t_quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    mean = statistics.fmean(values)
    return {
        "mean": round(mean, 4),
        "interval": [round(mean - half, 4), round(mean + half, 4)],
        "students": {name: round(value, 4) for name, value in by_student.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two seeds and fewer groups")
    quick = parser.parse_args().quick
    seeds, groups = (2, 3000) if quick else (4, 10_000)
    began = time.monotonic()
    jobs = [(name, way, seed, groups) for name in sorted(load_students()) for way in WAYS for seed in range(seeds)]
    with multiprocessing.Pool(os.cpu_count()) as pool:
        runs = list(pool.imap_unordered(run, jobs))
    measures = ("gain", "signal_share", "share_of_stubborn_tasks", "effective_tasks")
    report = {
        "group_size": GROUP_SIZE,
        "in_flight": IN_FLIGHT,
        "groups": groups,
        "seeds": seeds,
        "ways": {
            way: {
                measure: round(statistics.fmean(run[measure] for run in runs if run["way"] == way), 4)
                for measure in measures
            }
            for way in WAYS
        },
        "differences of the gain": {f"{way} - {base}": difference(runs, way, base) for way, base in PAIRS},
        "seconds": round(time.monotonic() - began),
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
