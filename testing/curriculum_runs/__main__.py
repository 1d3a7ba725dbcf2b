"""The table of docs/trainers.md: the levels of the student after 200 groups, through each integration.

python -m testing.curriculum_runs                                                  Python and the stream of `serve`
python -m testing.curriculum_runs verl=.venv-verl/bin/python trl=.venv-trl/bin/python ...    and these trainers
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from reasoning_gym_environment import ItemStream, Rows, Tasks, grade, new_store, report
from reasoning_gym_environment.sampling.level_store import LevelStore
from testing import level_student

ROOT = Path(__file__).resolve().parents[2]
GROUPS = 200


def of_stream() -> dict[str, int]:
    """The levels of the stream of `serve`."""
    with Tasks(level_student.TASKS, complexity_mode="curriculum") as tasks:
        stream = ItemStream(tasks)
        for problem in islice(stream, GROUPS):
            stream.observe(problem, level_student.rewards(problem.task, problem.level, problem.index))
        state = stream.state_dict()["curriculum"]["tasks"]
    return {task: own["level"] for task, own in state.items()}


def of_rows(path: Path) -> None:
    """A loop over the rows, with their functions."""
    for row in islice(Rows(path), GROUPS):
        rewards = level_student.rewards(row.recipe.task, row.recipe.level, row.number)
        grades = grade(row.recipe, [level_student.completion(str(row.answer), reward) for reward in rewards])
        report(row.recipe, [made.reward for made in grades])


def of_trainer(name: str, python: str, path: Path) -> None:
    """A program of this folder, in the environment of its trainer."""
    module = f"testing.curriculum_runs.{name}"
    subprocess.run([python, "-m", module, str(path), str(GROUPS)], cwd=ROOT, check=True)


def print_row(name: str, levels: Mapping[str, int]) -> None:
    print(f"| {name} | {' | '.join(str(levels[task]) for task in level_student.TASKS)} |", flush=True)


def main() -> None:
    print(f"| | {' | '.join(level_student.TASKS)} |")
    print_row("the student has learned up to level", level_student.LEARNED)
    print_row("the stream of `serve`", of_stream())
    for argument in ("rows", *sys.argv[1:]):
        name, _, python = argument.partition("=")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "levels.sqlite")
            new_store(path, **level_student.STORE)
            if python:
                of_trainer(name, python, path)
            else:
                of_rows(path)
            store = LevelStore(path)
            print_row(name, {task.task: task.level for task in store.summary().tasks})


if __name__ == "__main__":
    main()
