"""Share of groups with a learning signal, by way of choosing: python benchmarks/learning_signal.py [--quick] > out.json

Nine simulated students (benchmarks/fit_students.py) answer groups of 8 that the environment's own choosers
draw: `build_choosers`, `Curriculum`, `LearnableTasks`, `LearnableLevels`, `SignalBandit`, wired as in the environment.
A group's scores are observed `IN_FLIGHT` draws after it was chosen, because that many are in progress in a run.

Compared are the original environment's behaviour (tasks drawn evenly, default configs), random levels, random levels
with learnability, the curriculum, and the curriculum with learnability. Shares are of the groups after the warm-up,
with 95 % intervals over seeds; the smallest share of draws is over the whole run. Students do not learn, so that all
is measured against fixed probabilities; `learning` repeats the first and the last with students that do.

The constrained oracle knows every success probability. It draws each task at the level with the likeliest signal, and
of all distributions over tasks with an effective number (exponential of the entropy) of at least 30 and no share under
0.1 % it takes the one with the highest expected signal. That is a convex program (linear objective, concave entropy,
linear bounds); by its Kuhn-Tucker conditions the solution is max(0.001, c exp(signal / λ)) with c fixed by the sum, and
λ is found by bisection, because the entropy grows with λ.
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
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.fit_students import SimulatedStudent, load_students
from benchmarks.simulated_students import Learning
from reasoning_gym_environment.sampling.choosers import build_choosers, effective_number
from reasoning_gym_environment.sampling.curriculum import Curriculum
from reasoning_gym_environment.tasks.difficulty_ladder import Ladder, Level

GROUP_SIZE = 8
IN_FLIGHT = 64
RECENT = 500
REACHED = 0.6
MIN_EFFECTIVE = 30.0
MIN_SHARE = 0.001

WAYS: dict[str, tuple[str, str | None]] = {
    "original": ("uniform", None),
    "random": ("uniform", "random"),
    "random+learnability": ("learnability", "random"),
    "curriculum": ("uniform", "curriculum"),
    "curriculum+learnability": ("learnability", "curriculum"),
}
STUDENT_T = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26, 11: 2.20, 15: 2.13}
"""Two-sided 95 % quantiles, by degrees of freedom."""


def simulate(student: SimulatedStudent, way: str, *, seed: int, groups: int, warm_up: int) -> dict[str, float]:
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
    rng = Random(seed)
    waiting: deque[tuple[str, Level | None, list[float]]] = deque()
    drawn, signals, accuracy = [], [], []
    for index in range(groups):
        task = tasks.choose(index, "0")
        level = levels.choose(task, index) if levels else None
        scores = student.scores(task, level.index if level else student.tasks[task].easy, GROUP_SIZE, rng)
        has_signal = len(set(scores)) > 1
        student.learn(task, has_signal)
        drawn.append(task)
        signals.append(has_signal)
        accuracy.append(statistics.fmean(scores))
        waiting.append((task, level, scores))
        if len(waiting) > IN_FLIGHT:
            observe(tasks, curriculum if mode == "curriculum" else None, *waiting.popleft())
    late = slice(warm_up, None)
    everything = Counter(drawn)
    return {
        "signal_share": statistics.fmean(signals[late]),
        "effective_tasks": effective_number(list(Counter(drawn[late]).values())),
        "smallest_share": min(everything[task] for task in student.tasks) / groups,
        "accuracy": statistics.fmean(accuracy[late]),
        "groups_until_60_percent": groups_until(signals),
        "mean_level": statistics.fmean(curriculum.complexity(task) for task in student.tasks),
    }


def ladder(task: str, size: int) -> Ladder:
    return Ladder(task, tuple(Level(index, index / max(size - 1, 1), {}) for index in range(size)), "simulated")


def observe(tasks: Any, curriculum: Curriculum | None, task: str, level: Level | None, scores: list[float]) -> None:
    """What Components.observe does with a scored group."""
    tasks.observe(task, level.index if level else None, max(scores) - min(scores))
    if curriculum is not None and level is not None:
        curriculum.observe(task, level.index, scores)


def groups_until(signals: Sequence[bool]) -> float:
    """The first draw at which 60 % of the last 500 groups had a signal; infinite if that never comes."""
    total = np.cumsum([0, *signals])
    reached = np.flatnonzero((total[RECENT:] - total[:-RECENT]) / RECENT >= REACHED)
    return float(reached[0] + RECENT) if len(reached) else math.inf


def oracle(student: SimulatedStudent) -> dict[str, float]:
    """Expected signal of the best draws within the limits, and without limits to tasks (levels only)."""
    best = np.array(
        [
            max(student.signal(task, level, GROUP_SIZE) for level in range(fitted.levels))
            for task, fitted in student.tasks.items()
        ]
    )
    cold, hot = math.log(1e-4), math.log(1e2)
    for _ in range(60):
        middle = (cold + hot) / 2
        too_narrow = effective_number(bounded(best, math.exp(middle))) < MIN_EFFECTIVE
        cold, hot = (middle, hot) if too_narrow else (cold, middle)
    shares = bounded(best, math.exp(hot))
    return {
        "signal_share": float(shares @ best),
        "effective_tasks": effective_number(shares),
        "smallest_share": float(shares.min()),
        "best_levels_of_all_tasks": float(best.mean()),
    }


def bounded(signals: np.ndarray, temperature: float) -> np.ndarray:
    """max(MIN_SHARE, c exp(signal / temperature)), c such that the shares sum to one."""
    raised = np.exp((signals - signals.max()) / temperature)
    at_bound = np.zeros(len(signals), bool)
    while True:
        shares = np.where(at_bound, MIN_SHARE, 0.0)
        shares[~at_bound] = raised[~at_bound] / raised[~at_bound].sum() * (1.0 - MIN_SHARE * at_bound.sum())
        if not (shares[~at_bound] < MIN_SHARE).any():
            return shares
        at_bound |= shares < MIN_SHARE


def run_student(job: tuple[str, str, bool], *, ways: Sequence[str], seeds: int, groups: int, warm_up: int) -> Any:
    """All runs of one student; `job` is its name, what it does below the easy config, whether it learns."""
    name, below_easy, learns = job
    options: Any = {"below_easy": below_easy, "learning": Learning() if learns else None}
    rows: dict[str, Any] = {}
    for way in ways:
        found = [
            simulate(load_students(**options)[name], way, seed=seed, groups=groups, warm_up=warm_up)
            for seed in range(seeds)
        ]
        rows[way] = summary(found)
    if not learns:
        limit = oracle(load_students(**options)[name])
        rows["oracle"] = {key: round(value, 4) for key, value in limit.items()}
        best = rows["curriculum+learnability"]["signal_share"]
        rows["times_the_original"] = round(best / rows["original"]["signal_share"], 2)
        rows["share_of_the_oracle"] = round(best / limit["signal_share"], 3)
    return job, rows


def summary(runs: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Means over seeds, the 95 % interval of the signal share, the worst of the two limits."""
    shares = [run["signal_share"] for run in runs]
    freedom = len(shares) - 1
    spread = STUDENT_T.get(freedom, 2.1) * statistics.stdev(shares) / math.sqrt(len(shares)) if freedom else math.nan
    mean = statistics.fmean(shares)
    until = statistics.median(run["groups_until_60_percent"] for run in runs)
    return {
        "signal_share": round(mean, 4),
        "interval": [round(mean - spread, 4), round(mean + spread, 4)],
        "effective_tasks_worst_seed": round(min(run["effective_tasks"] for run in runs), 1),
        "smallest_share_worst_seed": round(min(run["smallest_share"] for run in runs), 5),
        "groups_until_60_percent": None if math.isinf(until) else round(until),
        "accuracy": round(statistics.fmean(run["accuracy"] for run in runs), 3),
        "mean_level": round(statistics.fmean(run["mean_level"] for run in runs), 3),
    }


def verdicts(rows: dict[str, Any]) -> dict[str, Any]:
    """The bars, over the students of one table."""
    best = {name: row["curriculum+learnability"] for name, row in rows.items()}
    return {
        "students_at_twice_the_original": sum(row["times_the_original"] >= 2.0 for row in rows.values()),
        "students_at_60_percent": sum(row["signal_share"] >= REACHED for row in best.values()),
        "students_at_85_percent_of_the_oracle": sum(row["share_of_the_oracle"] >= 0.85 for row in rows.values()),
        "oracles_at_60_percent": sum(row["oracle"]["signal_share"] >= REACHED for row in rows.values()),
        "effective_tasks_worst": min(row["effective_tasks_worst_seed"] for row in best.values()),
        "smallest_share_worst": min(row["smallest_share_worst_seed"] for row in best.values()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two seeds and fewer groups")
    quick = parser.parse_args().quick
    size = {"seeds": 2, "groups": 3000, "warm_up": 2000} if quick else {"seeds": 8, "groups": 6000, "warm_up": 3000}
    names, began = sorted(load_students()), time.monotonic()
    fixed = [(name, below, False) for below in ("line", "flat") for name in names]
    with multiprocessing.Pool(os.cpu_count()) as pool:
        results = dict(pool.imap_unordered(partial(run_student, ways=list(WAYS), **size), fixed))
        ends = ["original", "curriculum+learnability"]
        learning = dict(
            pool.imap_unordered(partial(run_student, ways=ends, **size), [(n, "line", True) for n in names])
        )
    report: dict[str, Any] = {"group_size": GROUP_SIZE, "in_flight": IN_FLIGHT, **size}
    for below in ("line", "flat"):
        rows = {name: results[name, below, False] for name in names}
        report[f"below_easy_{below}"] = {"verdicts": verdicts(rows), "students": rows}
    report["learning"] = {name: learning[name, "line", True] for name in names}
    report["seconds"] = round(time.monotonic() - began)
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
