"""Compare the curriculum in each trainer with the stream of `serve`: the level of each task after the same groups.

    python -m benchmarks.curriculum_in_trainers            # all trainers, in their environments (.venv-verl, ...)
    python -m benchmarks.curriculum_in_trainers verl trl   # some; `rows` is a plain loop

A simulated student answers nine in ten questions right up to a certain level of each task, and one in ten above it. The
script uses the parts of the trainers that run without a GPU (testing/curriculum_runs). Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from reasoning_gym_environment import ItemStream, Rows, Tasks, new_store
from reasoning_gym_environment.api import report
from reasoning_gym_environment.sampling.level_store import LevelStore
from testing import level_student

ROOT = Path(__file__).resolve().parent.parent

TRAINERS = ("rows", "verl", "skyrl", "trl", "verifiers")
"""A plain loop over the rows, and trainers, by the names of their environments (testing/curriculum_runs)."""


def stream(groups: int) -> dict[str, Any]:
    """The stream of `serve`, which chooses the level of an item a few items before it is its turn."""
    with Tasks(level_student.TASKS, complexity_mode="curriculum") as tasks:
        items = ItemStream(tasks)
        for _ in range(groups):
            problem = items.next()
            items.observe(problem, level_student.rewards(problem.task, problem.level, problem.index))
        found = items.state_dict()["curriculum"]["tasks"]
    return {task: {"level": state["level"], "moves": state["adjustments"]} for task, state in found.items()}


def rows_one_by_one(path: Path, groups: int) -> None:
    """A loop of one's own, which reads a row when the group before it is graded."""
    rows = Rows(path)
    for number in range(groups):
        row = rows[number]
        report(row.recipe, level_student.rewards(row.recipe.task, row.recipe.level, number))


def in_trainer(trainer: str, path: Path, groups: int) -> None:
    python = ROOT / f".venv-{trainer}" / "bin" / "python"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    command = [python, "-m", f"testing.curriculum_runs.{trainer}", str(path), str(groups)]
    subprocess.run(command, check=True, env=environment, cwd=path.parent, stdout=sys.stderr)


def levels_of(store: LevelStore) -> dict[str, Any]:
    return {task.task: {"level": task.level, "moves": task.moves} for task in store.summary().tasks}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("trainers", nargs="*", choices=[*TRAINERS, []], help="default: all")
    parser.add_argument("--groups", type=int, default=200)
    options = parser.parse_args()
    results: dict[str, Any] = {"serve": {"tasks": stream(options.groups)}}
    with tempfile.TemporaryDirectory() as folder:
        for trainer in options.trainers or TRAINERS:
            path = Path(folder) / f"{trainer}.sqlite"
            store = new_store(path, **level_student.STORE)
            begun = time.monotonic()
            if trainer == "rows":
                rows_one_by_one(path, options.groups)
            else:
                in_trainer(trainer, path, options.groups)
            summary = asdict(store.summary())
            counts = {name: summary[name] for name in ("rows", "complete", "unscored", "repeated")}
            results[trainer] = {**counts, "tasks": levels_of(store), "seconds": round(time.monotonic() - begun)}
            print(f"{trainer}: {results[trainer]}", file=sys.stderr)
    learned = dict(level_student.LEARNED)
    print(json.dumps({"groups": options.groups, "learned": learned, "trainers": results}, indent=1))


if __name__ == "__main__":
    main()
