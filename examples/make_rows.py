"""Write the five example rows and the recorded rollouts of each integration, in its folder here.

A rollout has the number of its row, a completion, and the reward that it earns. A test of each integration reads them.
NeMo Gym's rows are its own (nemo_gym/README.md), so this script does not write them.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from reasoning_gym_environment import Recipe, Rows, Tasks
from reasoning_gym_environment.api import Row
from reasoning_gym_environment.integrations.item_formats import hf_row, verl_row

FOLDER = Path(__file__).resolve().parent
TASKS = "chain_sum,countdown,knights_knaves,leg_counting,spell_backward"

REPLIES = {
    "<think>Let me see.</think> <answer>{answer}</answer>": 1.0,
    "<answer>**{answer}**</answer>": 1.0,
    "<answer>I do not know</answer>": 0.0,
    "It is {answer}.": 0.0,
    "<think>The answer is <answer>{answer}</answer>": 0.0,
}
"""Completions, and the reward of each. The last two have no answer outside of the thinking and inside of tags."""


def labelled(row: Row) -> dict[str, Any]:
    """A row for OpenRLHF."""
    return {"prompt": row.prompt, "label": json.dumps(Recipe.of(row.problem).as_row())}


def task_data(row: Row) -> dict[str, Any]:
    """The data of a task of verifiers."""
    *system, question = row.prompt
    return {
        "prompt": question["content"],
        "system_prompt": system[0]["content"] if system else None,
        "recipe": row.recipe.as_row(),
    }


FORMS: dict[str, Callable[[Row], dict[str, Any]]] = {
    "trl": hf_row,
    "verl": verl_row,
    "skyrl": verl_row,
    "verifiers": task_data,
    "openrlhf": labelled,
}


def session(row: Row) -> dict[str, Any]:
    """The arguments of `reset` in OpenEnv, and what the server then asks."""
    problem = row.problem
    arguments = {"task": problem.task, "seed": row.number, "level": problem.level}
    return {"reset": arguments, "messages": row.prompt, "recipe": row.recipe.as_row()}


def write(name: str, rows: Sequence[Row], form: Callable[[Row], dict[str, Any]]) -> None:
    """Write the rows and the rollouts of an integration."""
    rollouts = []
    for number, row in enumerate(rows):
        for reply, reward in REPLIES.items():
            rollouts.append({"row": number, "completion": reply.format(answer=row.answer), "reward": reward})
    for file, lines in (("rows", map(form, rows)), ("rollouts", rollouts)):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (FOLDER / name / f"{file}.jsonl").write_text(text, encoding="utf-8")


def main() -> None:
    rows = Rows.fixed(5, seed=11, include_tasks=TASKS)[:]
    for name, form in FORMS.items():
        write(name, rows, form)
    # A client of OpenEnv chooses its questions by their seed.
    with Tasks(TASKS) as tasks:
        drawn = [tasks.draw(task, seed, level=1) for seed, task in enumerate(tasks.names)]
    write("openenv", [Row(seed, problem, Recipe.of(problem)) for seed, problem in enumerate(drawn)], session)


if __name__ == "__main__":
    main()
