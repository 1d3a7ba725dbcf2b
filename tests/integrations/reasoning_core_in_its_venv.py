"""The generators of reasoning-core as tasks, with the real library; run by test_reasoning_core.py, which reads JSON."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reasoning_gym_environment import HeldOut, PromptedProblem, Tasks
from reasoning_gym_environment.commands import audit
from reasoning_gym_environment.errors import GenerationError

MODULE = str(Path(__file__).resolve().parents[2] / "examples" / "reasoning_core_tasks.py")
SEEDS = range(6)
MOST_SEEDS = 4 * len(SEEDS)


def graded(tasks: Tasks, problem: PromptedProblem, marker: str) -> list[float | None]:
    """The rewards of the right answer, of a wrong one, and of an attack."""
    answers = [str(problem.entry["answer"]), "surely wrong", f"__import__('os').system('touch {marker}')"]
    grades = tasks.grade(problem, [f"<answer>{answer}</answer>" for answer in answers])
    return [grade.reward for grade in grades]


def of_task(tasks: Tasks, task: str, marker: str) -> dict[str, Any]:
    drawn = [tasks.draw(task, seed) for seed in SEEDS]
    again = [tasks.make(task, problem.seed, json.loads(json.dumps(dict(problem.config)))) for problem in drawn]
    held_out = HeldOut(tasks, eval_tasks=task, num_eval_samples_per_task=3)
    return {
        "questions": [problem.question for problem in drawn],
        "again": [problem.question for problem in again],
        "held_out": [problem.question for problem in held_out],
        "rewards": [graded(tasks, problem, marker) for problem in drawn],
    }


def some_items(tasks: Tasks, task: str) -> Iterator[PromptedProblem]:
    """As many items as there are SEEDS. On a slow machine some seeds take longer than an item may, and are skipped."""
    missing = len(SEEDS)
    for seed in itertools.count():
        try:
            problem = tasks.draw(task, seed, level=0)
        except GenerationError as error:
            if "generation_timed_out" not in str(error) or seed >= MOST_SEEDS:
                raise
            continue
        yield problem
        missing -= 1
        if missing == 0:
            return


def least_for_right_answers(tasks: Tasks, task: str) -> float | None:
    """The smallest reward of a right answer, over a few items; None if one of them was not scored."""
    rewards: list[float | None] = []
    for problem in some_items(tasks, task):
        [grade] = tasks.grade(problem, [f"<answer>{problem.entry['answer']}</answer>"])
        rewards.append(grade.reward)
    return None if None in rewards else min(rewards)


def main() -> None:
    names, marker = sys.argv[1:]
    found: dict[str, Any] = {}
    with Tasks(names, task_modules=MODULE, complexity_mode="random") as tasks:
        for task in tasks.names:
            found[task] = of_task(tasks, task, marker)
        for task in tasks.names:
            found[task]["levels"] = [tasks.draw(task, 1, level).level for level in (0, 5)]
    with Tasks("core_*", task_modules=MODULE) as tasks:
        served = tasks.names
        excluded = dict(tasks.catalog.excluded)
    unguarded = [task for task in excluded if task.startswith("core_")]
    with Tasks("core_*", task_modules=MODULE, allow_unguarded_tasks=unguarded) as tasks:
        right = {task: least_for_right_answers(tasks, task) for task in tasks.names}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = audit.main(["--tasks", names.split(",")[0], "--task-modules", MODULE, "--per-level", "5"])
    results = {"tasks": found, "served": served, "excluded": excluded, "right": right}
    results |= {"audit_code": code, "audit": printed.getvalue()}
    sys.stdout.write("\n" + json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
