"""The generators of reasoning-core as tasks, with the real library; run by test_reasoning_core.py, which reads JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from reasoning_gym_environment import HeldOut, PromptedProblem, Tasks
from reasoning_gym_environment.errors import GenerationError

MODULE = str(Path(__file__).resolve().parents[2] / "examples" / "reasoning_core_tasks.py")
ITEMS = 6
MOST_SEEDS = 4 * ITEMS


def some_items(tasks: Tasks, task: str) -> list[PromptedProblem]:
    """A few items. On a slow machine some seeds take longer than an item may, and are skipped."""
    found: list[PromptedProblem] = []
    for seed in range(MOST_SEEDS):
        try:
            found.append(tasks.draw(task, seed, level=0))
        except GenerationError as error:
            if "generation_timed_out" not in str(error):
                raise
        if len(found) == ITEMS:
            break
    return found


def rewards_of(tasks: Tasks, problem: PromptedProblem, *wrong: str) -> list[float | None]:
    """The rewards of the right answer, and of wrong answers."""
    answers = [str(problem.entry["answer"]), *wrong]
    return [grade.reward for grade in tasks.grade(problem, [f"<answer>{answer}</answer>" for answer in answers])]


def main() -> None:
    names, marker = sys.argv[1:]
    wrong = ["surely wrong", f"__import__('os').system('touch {marker}')"]
    with Tasks("core_*", task_modules=MODULE) as tasks:
        served = tasks.names
        excluded = dict(tasks.catalog.excluded)
    unguarded = [task for task in excluded if task.startswith("core_")]
    found: dict[str, Any] = {}
    with Tasks("core_*", task_modules=MODULE, allow_unguarded_tasks=unguarded) as tasks:
        right = {}
        for task in tasks.names:
            problems = some_items(tasks, task)
            right[task] = [rewards_of(tasks, problem)[0] for problem in problems]
            if task in names.split(","):
                rewards = [rewards_of(tasks, problem, *wrong) for problem in problems]
                held_out = HeldOut(tasks, eval_tasks=task, num_eval_samples_per_task=3)
                questions = [problem.question for problem in problems]
                found[task] = {"questions": questions, "rewards": rewards, "held_out": [p.question for p in held_out]}
    results = {"tasks": found, "served": served, "excluded": excluded, "right": right}
    sys.stdout.write("\n" + json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
