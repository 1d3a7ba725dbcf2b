"""A recipe makes the same item again, also after it was a line of JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from reasoning_gym_environment import HeldOut, Tasks
from reasoning_gym_environment.errors import EnvironmentSetupError, GenerationError
from reasoning_gym_environment.integrations.recipe import Recipe

# Items with tuples, keys that are no texts, and a config with nested objects.
TASKS = "arc_agi,complex_arithmetic,countdown,composite,rearc"


async def test_a_recipe_makes_the_same_item_again() -> None:
    with Tasks(TASKS, complexity_mode=0.5) as tasks:
        held_out = HeldOut(tasks, per_task=1, complexity=0.5)
        for problem in held_out:
            row = json.loads(json.dumps(Recipe.of(problem).as_row()))
            made = await Recipe.from_row(row).make_async(tasks)
            assert made.entry == problem.entry
            assert made.config == problem.config


def test_another_question_is_not_graded() -> None:
    with Tasks("chain_sum") as tasks:
        recipe = Recipe.of(tasks.draw("chain_sum", 1))
        with pytest.raises(GenerationError, match=r"chain_sum, seed 7.*same release"):
            replace(recipe, seed=7).make(tasks)


@pytest.mark.parametrize("change", [{"seed": None}, {"config": "[]"}, {"config": {}}, {"task": ...}])
def test_a_row_without_a_recipe_is_refused(change: dict[str, object]) -> None:
    row = {"task": "chain_sum", "seed": 1, "config": "{}", "level": None, "question_digest": "", **change}
    incomplete = {name: value for name, value in row.items() if value is not ...}
    with pytest.raises(EnvironmentSetupError, match="export --items"):
        Recipe.from_row(incomplete)
